"""What a person can name as a target, and the `Target` behind each name."""

import importlib
import sys
from pathlib import Path

from msgspec import Struct

from impl import upstream
from impl.defects import DEFECTS
from impl.errors import TargetError
from impl.inprocess import python_target
from impl.port import PortManager
from impl.target import Target
from model.errors import in_words


class Form(Struct, frozen=True):
    """One way of naming targets."""

    example: str
    sentence: str


FORMS: tuple[Form, ...] = (
    Form("port", "this project's own manager"),
    Form("port:<defect>", "the same with a seeded defect, or several joined by +"),
    Form("vllm:0.33.0", "the module out of that release (0.10.2 on; fetched once, then cached)"),
    Form("vllm:installed", "the vLLM of this Python environment"),
    Form("vllm:path/to/file.py", "a working copy of the module"),
    Form("py:package.module:Class", "any Python class with upstream's methods"),
)
"""Every form, as `evictcheck targets` lists them."""


def resolve(name: str) -> Target:
    """The target of a name.

    Raises:
        TargetError: No such target, or it cannot be had; the message says what to do.
    """
    kind, _, argument = name.partition(":")
    if name == "port":
        return python_target(name, PortManager)
    if kind == "port":
        return _defective_port(name, argument)
    if kind == "vllm" and argument:
        found = upstream.resolve(argument)
        return python_target(found.name, found.manager_class, found.era)
    if kind == "py" and argument:
        return _python_class(name, argument)
    forms = ", ".join(form.example for form in FORMS)
    raise TargetError(f"{name!r} names no target; a target is one of: {forms}")


def _defective_port(name: str, argument: str) -> Target:
    catalogue = {defect.name: defect.manager_class for defect in DEFECTS}
    wanted = argument.split("+")
    for defect in wanted:
        if defect not in catalogue:
            raise TargetError(f"{name}: there is no defect {defect!r}; the defects are {', '.join(catalogue)}")
    classes = dict.fromkeys(catalogue[defect] for defect in wanted)
    if len(classes) == 1:
        return python_target(name, next(iter(classes)))
    return python_target(name, type("Defective", tuple(classes), {}))


def _python_class(name: str, argument: str) -> Target:
    module_name, _, class_name = argument.partition(":")
    if not module_name or not class_name:
        raise TargetError(f"{name!r} does not name a class; write py:package.module:Class")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise TargetError(f"{name}: importing {module_name} raised {in_words(error)}") from error
    manager_class = getattr(module, class_name, None)
    if not isinstance(manager_class, type):
        raise TargetError(f"{name}: module {module_name} has no class {class_name}")
    return python_target(name, manager_class)
