"""The comparison of relation and reference catches a fault in either, at the smallest state that shows it."""

from collections.abc import Callable
from typing import Any

import pytest
import z3
from msgspec.structs import replace

from model import reference
from model import relation as relation_module
from model.operations import Discipline
from model.reference import State
from model.relation import Bool, Key, Number, Switches
from model.relation import State as Symbolic
from model.relation import _StepMaker as StepMaker
from properties.comparison import Disagreement, compare
from properties.scopes import parse_scope


def disagreement(scope: str) -> Disagreement:
    found = compare(parse_scope(scope), Discipline.OPEN, Switches()).disagreement
    assert found is not None, "the fault went unnoticed"
    return found


# --- Three faults in a copy of the relation ----------------------------------------------------------------


class WrongFrame(StepMaker):
    """Whether the first hash is pending is left open by every operation."""

    def _frames(self, drafts: dict[str, Symbolic], after: Symbolic) -> list[Bool]:
        open_part: dict[Key, Any] = {**after, ("evicted", 0): z3.Bool("anything")}
        return super()._frames(drafts, open_part)


class EvictionOneShort(StepMaker):
    def _must_go(self, state: Symbolic, h: int, needed: Number) -> Bool:
        return super()._must_go(state, h, needed - 1)


class MissingFilter(StepMaker):
    def _is_reported(self, state: Symbolic, h: int) -> Bool:
        return state["evicted", h]


@pytest.mark.parametrize(
    ("faulty", "scope", "operation"),
    [
        (WrongFrame, "1r1i1h/sizes=1/capacity=1", "Check"),
        (EvictionOneShort, "1r2i2h/sizes=1/capacity=1", "CanAllocate"),
        (MissingFilter, "1r2i2h/sizes=1/capacity=1", "Drain"),
    ],
)
def test_a_fault_in_the_relation_is_caught(
    monkeypatch: pytest.MonkeyPatch, faulty: type[StepMaker], scope: str, operation: str
) -> None:
    monkeypatch.setattr(relation_module, "_StepMaker", faulty)
    found = disagreement(scope)
    assert found.only_relation
    assert {type(step.move).__name__ for step in found.only_relation} >= {operation}


# --- Five changed rules of the reference -------------------------------------------------------------------


def hit_stays_in_the_queue(state: State, request_id: str, input_id: int) -> tuple[State, bool]:
    after, hit = _check(state, request_id, input_id)
    return replace(after, evictable=state.evictable), hit


def exact_fit_is_refused(
    state: State, request_id: str, input_id: int, compute_budget: int, embeds_to_schedule: int
) -> tuple[State, bool]:
    needed = state.workload.item(request_id, input_id).embeds + embeds_to_schedule
    if needed == state.freeable_slots:
        return state, False
    return _can_allocate(state, request_id, input_id, compute_budget, embeds_to_schedule)


def newest_goes_first(state: State) -> State:
    flipped = _evict_oldest(replace(state, evictable=state.evictable[::-1]))
    return replace(flipped, evictable=flipped.evictable[::-1])


def freed_entry_joins_at_the_front(state: State, request_id: str, input_id: int) -> State:
    after = _free_input(state, request_id, input_id)
    joined = after.evictable[len(state.evictable) :]
    return replace(after, evictable=joined + state.evictable)


def drain_keeps_what_it_reported(state: State) -> tuple[State, frozenset[str]]:
    _, report = _drain(state)
    return state, report


_check, _can_allocate, _evict_oldest = reference.check, reference.can_allocate, reference._evict_oldest
_free_input, _drain = reference.free_input, reference.drain

RULES: list[tuple[str, Callable[..., Any], str, str, int]] = [
    ("check", hit_stays_in_the_queue, "1r1i1h", "Check(", 1),
    ("can_allocate", exact_fit_is_refused, "1r1i1h", "CanAllocate(", 0),
    ("_evict_oldest", newest_goes_first, "1r3i3h/sizes=1/capacity=2", "CanAllocate(", 2),
    ("free_input", freed_entry_joins_at_the_front, "1r2i2h/sizes=1/capacity=2", "FreeRequest(", 2),
    ("drain", drain_keeps_what_it_reported, "1r2i2h/sizes=1/capacity=1", "Drain(", 0),
]


@pytest.mark.parametrize(("rule", "changed", "scope", "operation", "cached"), RULES, ids=[row[0] for row in RULES])
def test_a_changed_rule_of_the_reference_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    changed: Callable[..., Any],
    scope: str,
    operation: str,
    cached: int,
) -> None:
    monkeypatch.setattr(reference, rule, changed)
    found = disagreement(scope)
    assert len(found.state.cached) == cached
    text = str(found)
    assert f"only the reference: {operation}" in text
    assert f"only the relation: {operation}" in text
    assert f"state: {found.state}" in text
