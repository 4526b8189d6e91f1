"""Imports run one way only: evictcheck -> properties -> impl -> model; and model/ is pure.

The source is parsed, not run: an import inside a function or a TYPE_CHECKING block crosses a wall as well.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("model", "impl", "properties", "evictcheck")

# By what they reach: the machine, files, other processes, the network, a person; last, this project's
# dependencies that do the same.
IO_MODULES = frozenset(
    {
        *("builtins", "ctypes", "importlib", "os", "pkgutil", "platform", "posix", "runpy", "signal", "sys"),
        *("bz2", "codecs", "dbm", "fileinput", "glob", "gzip", "io", "linecache", "lzma", "mmap", "pathlib"),
        *("shelve", "shutil", "sqlite3", "tarfile", "tempfile", "zipfile"),
        *("asyncio", "concurrent", "multiprocessing", "subprocess", "threading"),
        *("ftplib", "http", "imaplib", "poplib", "select", "selectors", "smtplib", "socket", "socketserver"),
        *("ssl", "urllib", "webbrowser", "xmlrpc"),
        *("getpass", "logging", "readline"),
        *("jinja2", "platformdirs", "pypi_simple", "remotezip", "requests", "rich", "typer", "urllib3"),
    }
)
IO_CALLS = frozenset({"open", "print", "input", "breakpoint"})
Z3_HOME = Path("model/relation.py")


def imports_of(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield the line and absolute dotted name of all that a module of `package` imports."""

    def absolute(name: str) -> str:
        bare = name.lstrip(".")
        level = len(name) - len(bare)
        parents = package[: max(0, len(package) - level + 1)] if level else ()
        return ".".join((*parents, *filter(None, [bare])))

    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = absolute("." * level + (module or ""))
                # `from .. import impl` names the module only in the list of names.
                yield from ((node.lineno, f"{base}.{name.name}".lstrip(".")) for name in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                yield node.lineno, absolute(target)


def file_faults(source: str, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and a sentence for each wall that the file at `path` (relative to the root) breaks."""
    tree = ast.parse(source, filename=str(path))
    layer = path.parts[0]
    above = {*LAYERS[LAYERS.index(layer) + 1 :], "tests"}
    for line, module in imports_of(tree, path.parent.parts):
        top = module.split(".")[0]
        if top in above:
            yield line, f"{layer}/ must not import {module}"
        elif layer == "model" and top in IO_MODULES:
            yield line, f"model/ is pure and must not import {module}"
        elif layer == "model" and (top == "hypothesis" or (top == "z3" and path != Z3_HOME)):
            yield line, f"{path.as_posix()} must not import {module}"
    if layer == "model":
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in IO_CALLS:
                    yield node.lineno, f"model/ is pure and must not call {name}()"


def faults(root: Path) -> list[str]:
    """Return one `file:line: sentence` for each broken wall under `root`."""
    return [
        f"{path.as_posix()}:{line}: {sentence}"
        for layer in LAYERS
        for path in sorted(file.relative_to(root) for file in (root / layer).rglob("*.py"))
        for line, sentence in sorted(file_faults((root / path).read_text("utf-8"), path))
    ]


def test_no_import_crosses_a_wall() -> None:
    assert not faults(ROOT)


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_has_something_to_check(layer: str) -> None:
    assert list((ROOT / layer).rglob("*.py"))


VIOLATIONS = [
    ("model/a.py", "import impl", "1: model/ must not import impl"),
    ("model/a.py", "import math\nimport impl.port as port", "2: model/ must not import impl.port"),
    ("model/a.py", "from impl.port import Port", "1: model/ must not import impl.port.Port"),
    ("model/a.py", "from ..impl import port", "1: model/ must not import impl.port"),
    ("model/a.py", "from .. import impl", "1: model/ must not import impl"),
    ("model/deep/a.py", "from ...impl import port", "1: model/ must not import impl.port"),
    ("model/a.py", "def f():\n    import impl", "2: model/ must not import impl"),
    ("model/a.py", "if TYPE_CHECKING:\n    from impl import x", "2: model/ must not import impl.x"),
    ("impl/a.py", "from properties import lockstep", "1: impl/ must not import properties.lockstep"),
    ("impl/a.py", "\nimportlib.import_module('properties.x')", "2: impl/ must not import properties.x"),
    ("impl/a.py", "import_module('..properties', 'impl')", "1: impl/ must not import properties"),
    ("impl/a.py", "__import__('evictcheck')", "1: impl/ must not import evictcheck"),
    ("properties/a.py", "import evictcheck.cli", "1: properties/ must not import evictcheck.cli"),
    ("evictcheck/a.py", "import tests", "1: evictcheck/ must not import tests"),
    ("model/a.py", "import os", "1: model/ is pure and must not import os"),
    ("model/a.py", "from http.client import X", "1: model/ is pure and must not import http.client.X"),
    ("model/a.py", "def f():\n    print(1)", "2: model/ is pure and must not call print()"),
    ("model/a.py", "with open('f') as f:\n    pass", "1: model/ is pure and must not call open()"),
    ("model/a.py", "from hypothesis import given", "1: model/a.py must not import hypothesis.given"),
    ("model/relation.py", "import hypothesis", "1: model/relation.py must not import hypothesis"),
    ("model/a.py", "import z3", "1: model/a.py must not import z3"),
    ("model/deep/relation.py", "import z3", "1: model/deep/relation.py must not import z3"),
]


def seed(root: Path, file: str, source: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, "utf-8")


@pytest.mark.parametrize(("file", "source", "fault"), VIOLATIONS)
def test_a_seeded_violation_is_caught(tmp_path: Path, file: str, source: str, fault: str) -> None:
    seed(tmp_path, file, source)
    assert faults(tmp_path) == [f"{file}:{fault}"]


ALLOWED = [
    ("model/a.py", "from . import workload\nfrom .workload import Item\nimport model.workload, math"),
    ("model/deep/a.py", "from .. import workload\nfrom . import os\nfrom .io import x"),
    ("model/relation.py", "import z3"),
    ("impl/a.py", "import os\nimport model.workload\nfrom impl import port\nprint(open)"),
    ("properties/a.py", "import z3\nimport hypothesis\nimport impl\nimport model"),
    ("evictcheck/a.py", "import properties, impl, model\nfrom . import cli"),
]


@pytest.mark.parametrize(("file", "source"), ALLOWED)
def test_an_import_down_the_stairs_is_allowed(tmp_path: Path, file: str, source: str) -> None:
    seed(tmp_path, file, source)
    assert not faults(tmp_path)
