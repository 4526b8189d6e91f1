"""Situations that must be reached: a green run that never evicted anything proves nothing.

Each is a predicate over one call, or over one whole step of the caller. Every run reports how often each was
reached, and the tests fail if exploration leaves one unreached.
"""

from collections.abc import Callable

from msgspec import Struct

from model.contract import Position
from model.operations import (
    Admit,
    Allocate,
    Call,
    CanAllocate,
    Check,
    Discipline,
    FreeInput,
    FreeRequest,
    Move,
    Preempt,
    Reset,
)
from model.reference import State

BOTH = (Discipline.CALLER, Discipline.OPEN)


class Situation(Struct, frozen=True):
    """Something that must happen at least once in a run that claims anything.

    Attributes:
        name: Its name in reports.
        sentence: What happens.
        disciplines: Where it can happen at all.
        kinds: The calls that can be it; empty if a whole step decides.
        of_call: Whether such a call is it: (state before, call, state after).
        of_step: Whether a step of the caller is it: (position before, step, its calls).
    """

    name: str
    sentence: str
    disciplines: tuple[Discipline, ...]
    kinds: tuple[type, ...] = ()
    of_call: Callable[[State, Call, State], bool] | None = None
    of_step: Callable[[Position, Move, tuple[Call, ...]], bool] | None = None


def _readmitted(before: State, call: Call, after: State) -> bool:
    return isinstance(call, Allocate) and before.workload.item(call.request_id, call.input_id).mm_hash in (
        before.evicted
    )


def _first_freed(before: State, call: Call, after: State) -> bool:
    if not isinstance(call, FreeInput) or before.held == after.held:
        return False
    mm_hash = before.workload.item(call.request_id, call.input_id).mm_hash
    return any(
        request_id == call.request_id and before.workload.item(request_id, input_id).mm_hash == mm_hash
        for request_id, input_id in after.held
    )


def _hit_on_evictable(before: State, call: Call, after: State) -> bool:
    return isinstance(call, Check) and len(after.evictable) < len(before.evictable)


def _two_for_one(before: State, call: Call, after: State) -> bool:
    return isinstance(call, CanAllocate) and len(before.evictable) - len(after.evictable) >= 2


def _evicted_twice(before: State, call: Call, after: State) -> bool:
    return isinstance(call, CanAllocate) and any(
        mm_hash in before.evicted for mm_hash in before.evictable[: len(before.evictable) - len(after.evictable)]
    )


def _refused_by_budget(before: State, call: Call, after: State) -> bool:
    if not isinstance(call, CanAllocate):
        return False
    return before.workload.item(call.request_id, call.input_id).embeds > call.compute_budget


def _refused_by_capacity(before: State, call: Call, after: State) -> bool:
    if not isinstance(call, CanAllocate):
        return False
    embeds = before.workload.item(call.request_id, call.input_id).embeds
    return embeds <= call.compute_budget and embeds + call.embeds_to_schedule > before.freeable_slots


def _several_freed_at_once(before: State, call: Call, after: State) -> bool:
    return isinstance(call, FreeRequest) and len(after.evictable) - len(before.evictable) >= 2


def _reset_with_pending(before: State, call: Call, after: State) -> bool:
    return isinstance(call, Reset) and any(not before.embeds_of(mm_hash) for mm_hash in before.evicted)


def _duplicate_in_pass(position: Position, move: Move, calls: tuple[Call, ...]) -> bool:
    # Duplicates are checked after the picks are allocated, and nothing else is.
    return type(move) is Admit and type(calls[-1]) is Check and Allocate in map(type, calls)


def _scheduled_victim(position: Position, move: Move, calls: tuple[Call, ...]) -> bool:
    if type(move) is not Preempt or position.caller is None:
        return False
    return bool(position.caller.seat(position.state.workload, move.request_id).scheduled)


SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "readmitted-before-drain",
        "an entry is evicted and admitted again before the drain",
        BOTH,
        kinds=(Allocate,),
        of_call=_readmitted,
    ),
    Situation(
        "first-occurrence-freed",
        "an occurrence is freed while the same request still holds another one of its hash",
        BOTH,
        kinds=(FreeInput,),
        of_call=_first_freed,
    ),
    Situation(
        "hit-on-evictable",
        "a hit takes an entry out of the evictable queue",
        BOTH,
        kinds=(Check,),
        of_call=_hit_on_evictable,
    ),
    Situation(
        "two-evicted-for-one",
        "two entries are evicted to make room for one item",
        BOTH,
        kinds=(CanAllocate,),
        of_call=_two_for_one,
    ),
    Situation(
        "evicted-twice",
        "a hash is evicted a second time before the drain",
        BOTH,
        kinds=(CanAllocate,),
        of_call=_evicted_twice,
    ),
    Situation(
        "refused-by-budget",
        "an item is refused for lack of compute budget",
        BOTH,
        kinds=(CanAllocate,),
        of_call=_refused_by_budget,
    ),
    Situation(
        "refused-by-capacity",
        "an item is refused because held entries leave no room for it",
        BOTH,
        kinds=(CanAllocate,),
        of_call=_refused_by_capacity,
    ),
    Situation(
        "several-freed-at-once",
        "one free of a request makes several entries evictable",
        BOTH,
        kinds=(FreeRequest,),
        of_call=_several_freed_at_once,
    ),
    Situation(
        "reset-with-pending",
        "a reset withdraws evictions that no drain has reported (a scheduler drains before)",
        (Discipline.OPEN,),
        kinds=(Reset,),
        of_call=_reset_with_pending,
    ),
    Situation(
        "duplicate-in-pass",
        "an admission picks an item and registers another occurrence of it",
        (Discipline.CALLER,),
        of_step=_duplicate_in_pass,
    ),
    Situation(
        "scheduled-victim",
        "a request is preempted in the pass that picked an item for it",
        (Discipline.CALLER,),
        of_step=_scheduled_victim,
    ),
)
"""All of them, with the disciplines in which each can happen."""


def situations_of(discipline: Discipline) -> tuple[Situation, ...]:
    """Those that a discipline can reach."""
    return tuple(situation for situation in SITUATIONS if discipline in situation.disciplines)
