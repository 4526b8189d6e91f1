"""What a person can name as a target, and the `Target` behind each name."""

import shlex
import sys
from pathlib import Path

from msgspec import Struct

from impl import upstream
from impl.defects import DEFECTS
from impl.drivers.client import TIMEOUT, DriverTarget
from impl.drivers.cpp import port_target, tree_target
from impl.drivers.python import class_target, installed_target
from impl.errors import TargetError
from impl.inprocess import python_target
from impl.port import PortManager
from impl.target import Target


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
    Form("py:package.module:Class", "any Python class with upstream's methods, in an interpreter of its own"),
    Form("cpp:path/to/tree", "a C++ port, compiled with the project's driver (or --driver FILE)"),
    Form("cpp:port", "this project's own C++ port; with a defect as cpp:port:unfiltered-freed"),
    Form("cmd:./my-driver --flag", "anything that speaks the driver protocol (impl/drivers/PROTOCOL.md)"),
)
"""Every form, as `evictcheck targets` lists them."""


class Options(Struct, frozen=True):
    """How targets outside of this process are reached; each kind uses what concerns it.

    Attributes:
        python: Interpreter for `py:` and `vllm:installed`; "" is this one's.
        timeout: Seconds that a driver may take for one answer.
        sanitize: Sanitizers that a `cpp:` tree is compiled with.
        driver: A `cpp:` tree's own driver; None for the project's.
        include: Where a `cpp:` tree's headers are looked for, before its own places.
        source: A `cpp:` tree's sources, in place of the usual one.
    """

    python: str = ""
    timeout: float = TIMEOUT
    sanitize: tuple[str, ...] = ()
    driver: Path | None = None
    include: tuple[Path, ...] = ()
    source: tuple[Path, ...] = ()


def resolve(name: str, options: Options | None = None) -> Target:
    """The target of a name.

    Raises:
        TargetError: No such target, or it cannot be had; the message says what to do.
    """
    options = options or Options()
    kind, _, argument = name.partition(":")
    if name == "port":
        return python_target(name, PortManager)
    if kind == "port":
        return _defective_port(name, argument)
    if name == "vllm:installed" and options.python:
        return installed_target(options.python, timeout=options.timeout)
    if kind == "vllm" and argument:
        found = upstream.resolve(argument)
        return python_target(found.name, found.manager_class, found.era)
    if kind == "py" and argument:
        return class_target(argument, python=options.python or sys.executable, timeout=options.timeout)
    if kind == "cpp" and argument:
        return _cpp(argument, options)
    if kind == "cmd" and argument.strip():
        return DriverTarget(name, _words(name, argument), timeout=options.timeout)
    forms = ", ".join(form.example for form in FORMS)
    raise TargetError(f"{name!r} names no target; a target is one of: {forms}")


def _words(name: str, command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise TargetError(f"{name!r} is no command line that a shell reads: {error}.") from error


def _cpp(argument: str, options: Options) -> Target:
    place, _, defects = argument.partition(":")
    if place == "port":
        return port_target(defects.split("+") if defects else (), timeout=options.timeout)
    return tree_target(
        Path(argument),
        include=options.include,
        source=options.source,
        driver=options.driver,
        sanitize=options.sanitize,
        timeout=options.timeout,
    )


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
