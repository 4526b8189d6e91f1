"""The specification: what a correct encoder cache does, call by call.

Pure functions over immutable states, meant to be read beside upstream's `EncoderCacheManager`. A state holds
only what cannot be derived. Upstream's counters, reference sets and per-hash sizes are consequences of it:

- an entry is referenced by exactly the requests that hold an occurrence of its hash,
- it is *evictable* while no occurrence of it is held,
- `num_free_slots` is the capacity less the embeds cached,
- `num_freeable_slots` is the free slots plus the embeds evictable.

An implementation that keeps them as separate counters (all known ones do) is right when they agree with these.

Sources are given as releases of vLLM and, where a rule came with one change, its number. Rules without a
source are as old as the manager that is keyed by hash (0.10.2).
"""

from collections.abc import Iterator
from itertools import permutations
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from model.operations import (
    Allocate,
    CachedIds,
    Call,
    CanAllocate,
    Check,
    Drain,
    FreeInput,
    FreeRequest,
    Reset,
    Result,
)
from model.workload import Workload

Occurrence: TypeAlias = tuple[str, int]
"""One place where an item is needed: (request id, input id)."""


class State(Struct, frozen=True, cache_hash=True):
    """What the cache knows.

    Attributes:
        workload: The requests and sizes; never changes.
        cached: Entries as (mm_hash, embeds), ascending by hash. An entry keeps the size that it was allocated
            with (0.31.0: `num_embeds_by_hash`; before, the size was asked of whichever request freed it).
        held: Occurrences that still need their entry: acquired by a hit or an allocate, given up by a free.
            Every held occurrence's hash is cached.
        evictable: Cached hashes of which no occurrence is held, oldest first.
        evicted: Hashes evicted since the last drain, whether or not they were cached again since.
    """

    workload: Workload
    cached: tuple[tuple[str, int], ...] = ()
    held: frozenset[Occurrence] = frozenset()
    evictable: tuple[str, ...] = ()
    evicted: frozenset[str] = frozenset()

    def embeds_of(self, mm_hash: str) -> int:
        """Size of a cached entry, in embeds; 0 if it is not cached."""
        for cached_hash, embeds in self.cached:
            if cached_hash == mm_hash:
                return embeds
        return 0

    @property
    def free_slots(self) -> int:
        """Embeds of capacity that no entry uses; upstream's `num_free_slots`."""
        return self.workload.capacity - sum(embeds for _, embeds in self.cached)

    @property
    def freeable_slots(self) -> int:
        """Embeds free now or after evicting all that may be evicted; upstream's `num_freeable_slots`."""
        evictable = self.evictable
        return self.free_slots + sum(embeds for mm_hash, embeds in self.cached if mm_hash in evictable)


def initial(workload: Workload) -> State:
    """A new manager: nothing is cached, held, evictable or pending."""
    return State(workload)


def apply(state: State, call: Call) -> tuple[State, Result]:
    """What one call does: the state after it, and its answer.

    Where the specification leaves a choice (`outcomes`) this takes the one of ascending input ids.

    Raises:
        WorkloadError: It checks or allocates what the workload does not have. (What does not exist is not held:
            freeing it changes nothing.)
    """
    match call:
        case Check(request_id, input_id):
            return check(state, request_id, input_id)
        case CanAllocate(request_id, input_id, compute_budget, embeds_to_schedule):
            return can_allocate(state, request_id, input_id, compute_budget, embeds_to_schedule)
        case Allocate(request_id, input_id):
            return allocate(state, request_id, input_id), None
        case FreeInput(request_id, input_id):
            return free_input(state, request_id, input_id), None
        case FreeRequest(request_id):
            return free_request(state, request_id), None
        case CachedIds(request_id):
            return state, held_inputs(state, request_id)
        case Drain():
            return drain(state)
        case Reset():
            return initial(state.workload), None


def outcomes(state: State, call: Call) -> Iterator[tuple[State, Result]]:
    """All that the specification allows a call to do; the first is that of `apply`.

    Only `free` leaves a choice: when it makes several hashes evictable, their order among each other. Real
    releases follow the iteration order of their own set of input ids.
    """
    after, result = apply(state, call)
    yield after, result
    if isinstance(call, FreeRequest):
        kept = len(state.evictable)
        for order in permutations(after.evictable[kept:]):
            if order != after.evictable[kept:]:
                yield replace(after, evictable=state.evictable + order), result


def check(state: State, request_id: str, input_id: int) -> tuple[State, bool]:
    """Is the item cached? If so, this occurrence holds it from now on.

    A hit on an evictable entry takes it out of the queue: it must not be evicted while it is held.
    """
    mm_hash = state.workload.item(request_id, input_id).mm_hash
    if not state.embeds_of(mm_hash):
        return state, False
    return (
        replace(
            state,
            held=state.held | {(request_id, input_id)},
            evictable=tuple(queued for queued in state.evictable if queued != mm_hash),
        ),
        True,
    )


def can_allocate(
    state: State, request_id: str, input_id: int, compute_budget: int, embeds_to_schedule: int
) -> tuple[State, bool]:
    """Is there room for the item, on top of what this pass already promised to its request?

    The compute budget is asked first, and a refusal changes nothing. If the free slots do not suffice but the
    freeable ones do, entries are evicted oldest first, and no more of them than needed. Nothing is reserved:
    the caller adds the item to `embeds_to_schedule` of its next question.

    Args:
        state: The state before.
        request_id: Whose item.
        input_id: Which of its items.
        compute_budget: Embeds that the encoder may still compute in this pass.
        embeds_to_schedule: Embeds promised so far to this request in this pass.
    """
    embeds = state.workload.item(request_id, input_id).embeds
    needed = embeds + embeds_to_schedule
    if embeds > compute_budget or needed > state.freeable_slots:
        return state, False
    while needed > state.free_slots:
        state = _evict_oldest(state)
    return state, True


def _evict_oldest(state: State) -> State:
    """The entry longest without a holder leaves the cache, and will be reported by the next drain."""
    oldest, *younger = state.evictable
    return replace(
        state,
        cached=tuple(entry for entry in state.cached if entry[0] != oldest),
        evictable=tuple(younger),
        evicted=state.evicted | {oldest},
    )


def allocate(state: State, request_id: str, input_id: int) -> State:
    """The item's entry comes into being with the item's size, and this occurrence holds it.

    The caller makes sure that the hash is absent and that there is room (`model.contract`); upstream asserts
    the room, and from 0.31.0 on that a second allocation of a hash, which is the caller's error, has its size.
    """
    item = state.workload.item(request_id, input_id)
    entry = (item.mm_hash, item.embeds)
    return replace(
        state,
        cached=tuple(sorted((*state.cached, entry))),
        held=state.held | {(request_id, input_id)},
    )


def free_input(state: State, request_id: str, input_id: int) -> State:
    """This occurrence no longer needs its entry; freeing one that is not held changes nothing.

    The entry becomes evictable, as the youngest, when no occurrence of its hash is held any more, by this
    request or another. That a later occurrence of the *same* request still holds it is change #54284
    (0.29.0): before, a request's first free gave up all its occurrences of the hash.
    """
    occurrence = (request_id, input_id)
    if occurrence not in state.held:
        return state
    mm_hash = state.workload.item(request_id, input_id).mm_hash
    held = state.held - {occurrence}
    if any(state.workload.item(*other).mm_hash == mm_hash for other in held):
        return replace(state, held=held)
    return replace(state, held=held, evictable=(*state.evictable, mm_hash))


def free_request(state: State, request_id: str) -> State:
    """Every held occurrence of the request is freed (finish, abort, preemption, no KV blocks).

    In ascending order of input ids here; `outcomes` has the other orders, which are as correct.
    """
    for input_id in sorted(held_inputs(state, request_id)):
        state = free_input(state, request_id, input_id)
    return state


def held_inputs(state: State, request_id: str) -> frozenset[int]:
    """The input ids of the occurrences that a request holds.

    From 0.23.0 on; before, upstream answered every input of the request whose hash was cached for anyone.
    """
    return frozenset(input_id for holder, input_id in state.held if holder == request_id)


def drain(state: State) -> tuple[State, frozenset[str]]:
    """The hashes evicted since the last drain that are absent now: their tensors may be dropped.

    A hash that was evicted and is cached again is left out: its tensor is live. Change #52482 (0.28.0);
    before, the worker was told to drop it. Upstream answers a list, which may name a hash twice.
    """
    absent = frozenset(mm_hash for mm_hash in state.evicted if not state.embeds_of(mm_hash))
    return replace(state, evicted=frozenset()), absent
