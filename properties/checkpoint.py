"""A file that lets an exploration go on where another run of it stopped.

The file is written whole or not at all, so a run that is killed leaves the last good one.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import FunctionType

import msgspec
from msgspec import Struct

import model
import properties
from impl.drivers.client import DriverTarget
from impl.folders import write_whole
from impl.inprocess import PythonTarget
from impl.target import Target
from model.errors import EvictcheckError
from model.operations import Discipline
from properties.exploration import Covered
from properties.scopes import Scope, workload_classes

CHECKPOINT_FORMAT = "evictcheck-checkpoint/1"

_PAUSE = 2.0
"""Seconds between two writings: often enough to lose little, seldom enough to cost nothing."""


class CheckpointError(EvictcheckError):
    """A checkpoint that cannot be read, or is of another run."""


class _Document(Struct):
    format: str
    target: str
    code: str
    scope: str
    discipline: Discipline
    covered: dict[int, Covered]


class Checkpoint:
    """The record of one exploration, in a file.

    Attributes:
        resumed: How many workloads an earlier run had covered.
    """

    def __init__(self, path: Path, target: Target, scope: Scope, discipline: Discipline) -> None:
        """Reads the file if there is one.

        Raises:
            CheckpointError: It is damaged, not a checkpoint, of another version, or of another run.
        """
        self._path = path
        self._document = _Document(CHECKPOINT_FORMAT, target.name, _code_of(target), str(scope), discipline, {})
        if path.exists():
            self._document.covered = _read(path, self._document)
            total = len(workload_classes(scope, discipline))
            for number in self._document.covered:
                if not 0 <= number < total:
                    raise CheckpointError(f"{path} was changed: it has a workload {number}, of {total}")
        self.resumed = len(self._document.covered)
        self._written = monotonic()

    @property
    def covered(self) -> Mapping[int, Covered]:
        """Workloads that were covered wholly."""
        return self._document.covered

    def keep(self, number: int, covered: Covered) -> None:
        """Adds one; the file follows within seconds."""
        self._document.covered[number] = covered
        if monotonic() - self._written > _PAUSE:
            self.write()

    def write(self) -> None:
        """Writes the file.

        Raises:
            CheckpointError: It cannot be written.
        """
        try:
            write_whole(self._path, msgspec.json.encode(self._document))
        except OSError as error:
            raise CheckpointError(f"{self._path} cannot be written: {error.strerror}") from error
        self._written = monotonic()


def _read(path: Path, wanted: _Document) -> dict[int, Covered]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    try:
        found = msgspec.json.decode(data, type=_Document)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version ({CHECKPOINT_FORMAT}): {error}"
        ) from error
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{path} is truncated or not a checkpoint: {error}") from error
    for what in ("format", "target", "scope", "discipline"):
        if getattr(found, what) != getattr(wanted, what):
            raise CheckpointError(
                f"{path} is of another run: its {what} is {getattr(found, what)}, this run's is "
                f"{getattr(wanted, what)}; name another file"
            )
    if found.code != wanted.code:
        raise CheckpointError(
            f"{path} was made of other code: {wanted.target} or evictcheck has changed; remove it to begin again"
        )
    return found.covered


def _code_of(target: Target) -> str:
    """Digest of what the numbers come from: this project's own code, and the target's as far as it is in files.

    Of a class that another interpreter imports, only the name is known here.
    """
    digest = hashlib.sha256()
    own = [Path(folder) for package in (model, properties) for folder in package.__path__]
    files = [file for folder in own for file in sorted(folder.glob("*.py"))]
    if isinstance(target, PythonTarget):
        files += _files_of(target.manager_class)
    if isinstance(target, DriverTarget):
        digest.update(repr(target.command).encode())
        files += [Path(argument) for argument in target.command if Path(argument).is_file()]
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _files_of(manager_class: type) -> list[Path]:
    """The files that a class and its bases have their functions from."""
    functions = [value for base in manager_class.__mro__ for value in vars(base).values()]
    names = {function.__code__.co_filename for function in functions if isinstance(function, FunctionType)}
    return [Path(name) for name in sorted(names) if Path(name).is_file()]
