"""A file that lets an exploration go on where another run of it stopped.

The file is written whole or not at all, so a run that is killed leaves the last good one.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

import msgspec
from msgspec import Struct

from impl.inprocess import PythonTarget
from impl.target import Target
from model.errors import EvictcheckError
from model.operations import Discipline
from properties.exploration import Covered

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

    def __init__(self, path: Path, target: Target, scope: str, discipline: Discipline) -> None:
        """Reads the file if there is one.

        Raises:
            CheckpointError: It is damaged, not a checkpoint, of another version, or of another run.
        """
        self._path = path
        self._document = _Document(CHECKPOINT_FORMAT, target.name, _code_of(target), scope, discipline, {})
        if path.exists():
            self._document.covered = _read(path, self._document)
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
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            partial.write_bytes(msgspec.json.encode(self._document))
            partial.replace(self._path)
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
            f"{path} was made of other code: {wanted.target} has changed; remove it to begin again"
        )
    return found.covered


def _code_of(target: Target) -> str:
    """Digest of the file that a target's code comes from; "" where that is not known."""
    if not isinstance(target, PythonTarget):
        return ""
    for attribute in vars(target.manager_class).values():
        code = getattr(attribute, "__code__", None)
        if code is not None and Path(code.co_filename).is_file():
            return hashlib.sha256(Path(code.co_filename).read_bytes()).hexdigest()
    return ""
