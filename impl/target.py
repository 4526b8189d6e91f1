"""What an implementation under test looks like to the judge.

A `Target` is something that can be judged: it starts a `Session` (a fresh manager for one workload), which
carries out calls and shows what it can of its state. How much that is, is the target's `Shows`. Two kinds of
sessions exist because there are two kinds of targets: objects in this process (`impl.inprocess`), and programs
behind a pipe (`impl.drivers`).
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

from msgspec import Struct

from model.operations import Call, Result
from model.workload import Workload


class Shows(IntEnum):
    """How much of its state a target shows; each level includes the ones before."""

    RESULTS = 0
    """The answers of its calls only."""
    COUNTERS = 1
    """Also `num_free_slots` and `num_freeable_slots`."""
    INTERNALS = 2
    """Also its entries, who refers to them, its evictable queue and its pending evictions."""


class Internals(Struct, frozen=True):
    """A manager's own bookkeeping.

    Attributes:
        references: For each cached hash the ids of the requests that refer to it.
        evictable: The evictable hashes in the order of the queue.
        pending: Hashes evicted and not yet reported.
        listed: Ids of the requests of which it keeps held inputs; None if it keeps no such map
            (releases up to 0.22.1).
        repeated: Whether its list names a pending hash more than once. (Which and how often, upstream's list
            counts without bound; that it does at all can make a difference at the drain.)
    """

    references: Mapping[str, frozenset[str]]
    evictable: tuple[str, ...]
    pending: frozenset[str]
    listed: frozenset[str] | None
    repeated: bool = False


class Observation(Struct, frozen=True):
    """What a target shows between two calls.

    Attributes:
        inputs: For each request of the workload, in its order, the input ids that it lists as cached; None if
            not shown.
        free_slots: Embeds free; None if not shown.
        freeable_slots: Embeds free or evictable; None if not shown.
        internals: Its bookkeeping; None if not shown.
    """

    inputs: tuple[frozenset[int], ...] | None
    free_slots: int | None = None
    freeable_slots: int | None = None
    internals: Internals | None = None


class CannotForkError(Exception):
    """This session cannot be copied; bring a new one to the same state by its calls."""


class Session(Protocol):
    """One fresh manager and one workload."""

    def call(self, call: Call) -> Result:
        """Carries out a call and answers; whatever the implementation raises comes through."""

    def observe(self) -> Observation:
        """What the target shows now; changes nothing."""

    def fork(self) -> "Session":
        """An independent session in the same state.

        Raises:
            CannotForkError: The session cannot be copied safely.
        """

    def close(self) -> None:
        """Gives back what the session occupies."""


class Described(Protocol):
    """What an engine has to know of whatever it explores."""

    @property
    def name(self) -> str:
        """As a person names it: `vllm:0.33.0`."""

    @property
    def shows(self) -> Shows:
        """How much of its state it shows."""

    @property
    def has_reset(self) -> bool:
        """Whether it offers `reset`."""


class Target(Described, Protocol):
    """Something that can be judged."""

    @property
    def era(self) -> frozenset[str]:
        """Properties in which it differs by a documented rule of its time (`impl.upstream`)."""

    def start(self, workload: Workload) -> Session:
        """A fresh manager of the workload's capacity."""
