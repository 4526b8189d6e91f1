"""Writing results: whole files or none."""

import errno
import os
import re
from pathlib import Path

import msgspec

from evictcheck.itf import itf_document
from evictcheck.pytest_export import is_python, pytest_source
from impl.folders import write_whole as replace_whole
from impl.target import Target
from model.errors import EvictcheckError
from model.operations import encode_trace
from properties.counterexample import Counterexample


class OutputError(EvictcheckError):
    """A file or folder that cannot be written."""


def refuse_unwritable(path: Path) -> None:
    """Checks before a long run that a file can be written after it.

    Raises:
        OutputError: Its folder is missing or closed to us, or the path is a folder.
    """
    # os.path, unlike Path, takes a name that is too long or a place that is closed to us as "not there".
    if os.path.isdir(path):
        raise OutputError(f"{path} is a folder; name a file to write")
    folder = path.parent
    if not os.path.isdir(folder):
        raise OutputError(f"{path} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: the folder {folder} does not let us")
    _refuse_unreachable(path)


def refuse_unusable_folder(folder: Path) -> None:
    """Checks before a long run that a folder can take files after it; it need not exist yet.

    Raises:
        OutputError: The path, or what it lies in, is a file or closed to us.
    """
    _refuse_unreachable(folder)
    existing = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))
    if not os.path.isdir(existing):
        raise OutputError(f"results cannot go into {folder}: {existing} is a file")
    if not os.access(existing, os.W_OK):
        raise OutputError(f"results cannot go into {folder}: the folder {existing} does not let us write")


def _refuse_unreachable(path: Path) -> None:
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES):
            raise OutputError(f"{path} cannot be written: {error.strerror}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that it is there whole or not at all.

    What a link points to is replaced, not the link. A device or a pipe cannot be replaced: it is written to.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            replace_whole(path.resolve(), data)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from error


def write_counterexample(folder: Path, counterexample: Counterexample, number: int, target: Target) -> list[Path]:
    """Writes a counterexample as a trace, as ITF and, for Python targets, as a pytest file.

    Args:
        folder: Where to; made if it is missing.
        counterexample: What to write.
        number: Tells counterexamples of one property apart; from 1.
        target: The target that it breaks.

    Raises:
        OutputError: A file cannot be written.
    """
    broken = counterexample.violation.property
    suffix = "" if number == 1 else f"-{number}"
    stem = f"{_slug(counterexample.target)}-{counterexample.trace.discipline}-{broken}{suffix}"
    note = f"{broken} broken in {counterexample.target}, found by {counterexample.engine}"
    contents = {}
    if is_python(target):
        module = f"test_{stem}".replace("-", "_")
        contents[f"{module}.py"] = pytest_source(counterexample, target).encode()
    contents[f"{stem}.trace.json"] = encode_trace(counterexample.trace, note)
    itf = msgspec.json.encode(itf_document(counterexample.trace, note))
    contents[f"{stem}.itf.json"] = msgspec.json.format(itf) + b"\n"
    for name, data in contents.items():
        write_whole(folder / name, data)
    return [folder / name for name in contents]


def write_trace(folder: Path, counterexample: Counterexample, number: int) -> Path:
    """Writes a counterexample as a trace alone, where no one target fails it: a difference between two.

    Raises:
        OutputError: The file cannot be written.
    """
    kind = counterexample.violation.property
    stem = f"{_slug(counterexample.target)}-{counterexample.trace.discipline}-{kind}-{number}"
    note = f"{kind}: {counterexample.violation.expected}, {counterexample.violation.observed}"
    path = folder / f"{stem}.trace.json"
    write_whole(path, encode_trace(counterexample.trace, note))
    return path


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
