"""Targets in C++: a driver is compiled around a manager's header and source, and kept by their content."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from impl.drivers.client import TIMEOUT, DriverTarget
from impl.errors import TargetError
from impl.folders import cache_root

COMPILERS = ("c++", "g++", "clang++")
"""Tried in this order where `CXX` names none."""

DEFECTS: Mapping[str, str] = MappingProxyType(
    {
        "early-evictable": "EVICTCHECK_EARLY_EVICTABLE",
        "unfiltered-freed": "EVICTCHECK_UNFILTERED_FREED",
    }
)
"""The defects that this project's own port can be built with, and their compile-time switches."""

CALLERS_SIDE = (
    "This driver calls the manager itself and goes round the port's callers. If they are what keeps an entry "
    "while its request needs a later occurrence, write a driver that frees as they do (--driver; "
    "impl/drivers/cpp/driver.cpp is the one to start from)."
)
"""What else to say when `evictable-unreferenced` breaks in a C++ tree."""

_CPP = Path(__file__).with_name("cpp")
_HEADER = Path("vllm/v1/core/encoder_cache_manager.h")
_SOURCE = _HEADER.with_suffix(".cpp")
_STANDARD = ("-std=c++17", "-O2")
_COMPILE_SECONDS = 600.0
_ERRORS_SHOWN = 4


class Tree(Struct, frozen=True):
    """What a driver is built around.

    Attributes:
        sources: The manager's sources.
        header: Its header, as the driver includes it; None if a driver of one's own includes what it needs.
        include: Where headers are looked for.
    """

    sources: tuple[Path, ...]
    header: Path | None
    include: tuple[Path, ...]


def port_target(defects: Sequence[str] = (), *, timeout: float = TIMEOUT) -> DriverTarget:
    """This project's own port, compiled.

    Args:
        defects: Names out of `DEFECTS`.
        timeout: Seconds that one answer may take.

    Raises:
        TargetError: There is no such defect, or no compiler.
    """
    for defect in defects:
        if defect not in DEFECTS:
            raise TargetError(f"The C++ port has no defect {defect!r}; it has {', '.join(DEFECTS)}.")
    name = ":".join(["cpp:port", *(["+".join(defects)] if defects else [])])
    flags = [f"-D{DEFECTS[defect]}" for defect in defects]
    program = build(name, find_tree(name, _CPP / "port"), flags=flags)
    return DriverTarget(name, (str(program),), timeout=timeout)


def tree_target(
    path: Path,
    *,
    include: Sequence[Path] = (),
    source: Sequence[Path] = (),
    driver: Path | None = None,
    sanitize: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> DriverTarget:
    """A C++ port in a tree of one's own, compiled with the project's driver or one of one's own.

    Args:
        path: A folder with `include/vllm/v1/core/encoder_cache_manager.h` and
            `src/vllm/v1/core/encoder_cache_manager.cpp`; or one with the two files in it; or the source itself
            with its header beside it.
        include: Where headers are looked for, before the places of `path`.
        source: The sources to compile, in place of the one of `path`.
        driver: A driver's source for a manager of another shape (see `impl/drivers/cpp/evictcheck/driver.h`).
        sanitize: Sanitizers, such as `address` and `undefined`.
        timeout: Seconds that one answer may take.

    Raises:
        TargetError: Files are missing, there is no compiler, or it does not compile.
    """
    name = f"cpp:{path}"
    tree = find_tree(name, path, include=include, source=source, own_driver=driver is not None)
    flags = [f"-fsanitize={','.join(sanitize)}", *_SANITIZE_FLAGS] if sanitize else []
    program = build(name, tree, driver=driver or _CPP / "driver.cpp", flags=flags)
    hints = {} if driver is not None else {"evictable-unreferenced": CALLERS_SIDE}
    return DriverTarget(
        name, (str(program),), timeout=timeout, environment=_SANITIZED if sanitize else {}, hints=hints
    )


_SANITIZE_FLAGS = ("-fno-sanitize-recover=all", "-O1", "-g")
# A driver is ended, it does not run out: what it still holds then is no leak. One line says what was found.
_SANITIZED = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=0",
}


def find_tree(
    name: str,
    path: Path,
    *,
    include: Sequence[Path] = (),
    source: Sequence[Path] = (),
    own_driver: bool = False,
) -> Tree:
    """Finds a manager's header and source; see `tree_target`.

    Raises:
        TargetError: They are not there; the message says where they were looked for.
    """
    # os.path, unlike Path, takes a name that is too long or a place that is closed to us as "not there".
    if os.path.isfile(path):
        layout = Tree((path,), path.with_suffix(".h"), (path.parent,))
    elif os.path.isfile(path / _SOURCE.name):
        layout = Tree((path / _SOURCE.name,), path / _HEADER.name, (path,))
    else:
        layout = Tree((path / "src" / _SOURCE,), path / "include" / _HEADER, (path / "include", path / "src"))
    assert layout.header is not None
    folders = (*include, *layout.include)
    headers = [layout.header, *[folder / _HEADER for folder in include]]
    header = next((header for header in headers if os.path.isfile(header)), None)
    sources = tuple(source) or layout.sources
    for missing in [file for file in sources if not os.path.isfile(file)]:
        raise TargetError(
            f"{name}: there is no {missing}: give a folder with include/{_HEADER} and src/{_SOURCE}, a folder "
            f"with both files in it, or name them with --include and --source."
        )
    if header is None and not own_driver:
        raise TargetError(f"{name}: there is no {layout.header}: name the folder that holds it with --include.")
    return Tree(sources, header, folders)


def find_compiler() -> tuple[str, ...]:
    """The C++ compiler with its fixed arguments: what `CXX` says, else the first that is there.

    Raises:
        TargetError: There is none.
    """
    try:
        wanted = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise TargetError(f"CXX is no command line that a shell reads: {error}.") from error
    for candidate in [wanted] if wanted else [[name] for name in COMPILERS]:
        found = shutil.which(candidate[0])
        if found is not None:
            return (found, *candidate[1:])
    if wanted:
        raise TargetError(f"The C++ compiler {wanted[0]!r} that CXX names is not there: correct or unset CXX.")
    raise TargetError(f"There is no C++ compiler ({', '.join(COMPILERS)}): install one, or name it in CXX.")


def build(name: str, tree: Tree, *, driver: Path = _CPP / "driver.cpp", flags: Sequence[str] = ()) -> Path:
    """Compiles a driver around a tree, unless the same was compiled before.

    A program is kept under what went into it: the compiler and its version, the arguments, and the content of
    each file that the compiler read, other than the system's.

    Args:
        name: The target's name, for messages.
        tree: The manager.
        driver: The driver's source.
        flags: Arguments on top of the usual ones.

    Returns:
        The program.

    Raises:
        TargetError: There is no compiler, it fails, or the result cannot be kept.
    """
    compiler = find_compiler()
    arguments = [*_STANDARD, *flags, f"-I{_CPP}", *[f"-I{folder.absolute()}" for folder in tree.include]]
    if tree.header is not None:
        arguments.append(f'-DEVICTCHECK_HEADER="{tree.header.absolute()}"')
    arguments += [str(file.absolute()) for file in (driver, *tree.sources)]
    if not driver.is_file():
        raise TargetError(f"{name}: there is no driver {driver}.")
    folder = cache_root() / "cpp" / _digest("\n".join([*compiler, _version(compiler), *arguments]).encode())
    program, inputs = folder / "driver", folder / "inputs"
    if not _is_current(program, inputs):
        _compile(name, (*compiler, *arguments), folder, program, inputs)
    return program


def _compile(name: str, command: Sequence[str], folder: Path, program: Path, inputs: Path) -> None:
    made = folder / f"{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made.mkdir()
    except OSError as error:
        raise TargetError(
            f"The cache folder {folder} cannot be written ({error.strerror}): set EVICTCHECK_CACHE to one that "
            f"can."
        ) from error
    try:
        files = _compiled(name, command, made)
        lines = [f"{_digest(file.read_bytes())}  {file}\n" for file in files]
        (made / "inputs").write_text("".join(lines), "utf-8")
        # The program first: without the list beside it, it is not used.
        inputs.unlink(missing_ok=True)
        os.replace(made / "driver", program)
        os.replace(made / "inputs", inputs)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _compiled(name: str, command: Sequence[str], folder: Path) -> list[Path]:
    """Runs the compiler, once for each source; gives the files that it read."""
    options = [word for word in command if not word.endswith(".cpp")]
    sources = [word for word in command if word.endswith(".cpp")]
    objects, read = [], set()
    for number, source in enumerate(sources):
        target = folder / f"{number}.o"
        objects.append(str(target))
        _run(name, [*options, "-MMD", "-c", source, "-o", str(target)], folder)
        read |= _dependencies(target.with_suffix(".d").read_text("utf-8"))
    _run(name, [*options, *objects, "-o", str(folder / "driver")], folder)
    return sorted(read)


def _dependencies(rule: str) -> set[Path]:
    """The files in a make rule as compilers write it: continued lines, spaces escaped."""
    words = re.findall(r"(?:\\.|[^\s\\])+", rule.replace("\\\n", " ").partition(":")[2])
    return {Path(re.sub(r"\\(.)", r"\1", word)) for word in words}


def _run(name: str, command: Sequence[str], folder: Path) -> None:
    try:
        run = subprocess.run(  # noqa: S603 - the user's compiler
            command, capture_output=True, check=False, cwd=folder, timeout=_COMPILE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(f"{name} cannot be compiled: {error}.") from error
    if run.returncode:
        said = run.stderr.decode(errors="replace").splitlines()
        errors = [line for line in said if re.search(r"\berror: |undefined reference", line)] or said
        first = "\n".join(f"  {line.strip()}" for line in errors[:_ERRORS_SHOWN])
        raise TargetError(f"{name} does not compile with {command[0]}:\n{first}")


def _version(compiler: Sequence[str]) -> str:
    try:
        run = subprocess.run(  # noqa: S603 - the user's compiler
            [*compiler, "--version"], capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(f"The C++ compiler {compiler[0]} cannot be run: {error}.") from error
    return run.stdout.decode(errors="replace")


def _is_current(program: Path, inputs: Path) -> bool:
    try:
        lines = inputs.read_text("utf-8").splitlines()
        return program.is_file() and all(
            _digest(Path(path).read_bytes()) == digest
            for digest, _, path in [line.partition("  ") for line in lines]
        )
    except OSError:
        return False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
