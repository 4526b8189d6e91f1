from collections.abc import Iterator
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.contract import Position, carry_out, moves, start
from model.operations import (
    Allocate,
    CachedIds,
    Call,
    CanAllocate,
    Check,
    Discipline,
    Drain,
    FreeInput,
    FreeRequest,
    Reset,
    Result,
)
from model.reference import Occurrence, State, apply, held_inputs, initial, outcomes
from model.workload import Item, Request, Workload, WorkloadError

# r1 needs a twice; a and b have one embed, c has two, d has three.
WORKLOAD = Workload(
    4,
    (
        Request("r1", (Item("a", 1), Item("b", 1), Item("a", 1))),
        Request("r2", (Item("a", 1), Item("c", 2), Item("d", 3))),
    ),
    4,
)


def run(*calls: Call, state: State | None = None) -> State:
    state = state or initial(WORKLOAD)
    for call in calls:
        state, _ = apply(state, call)
    return state


def answer(state: State, call: Call) -> Result:
    return apply(state, call)[1]


def held(*occurrences: Occurrence) -> frozenset[Occurrence]:
    return frozenset(occurrences)


def hashes(names: str) -> frozenset[str]:
    return frozenset(names)


def inputs(*input_ids: int) -> frozenset[int]:
    return frozenset(input_ids)


def test_a_new_cache_is_empty_and_all_free() -> None:
    state = initial(WORKLOAD)
    assert (state.cached, state.held, state.evictable, state.evicted) == ((), frozenset(), (), frozenset())
    assert (state.free_slots, state.freeable_slots) == (4, 4)


# --- check ------------------------------------------------------------------------------------------------


def test_a_miss_changes_nothing() -> None:
    state = run(Allocate("r1", 1))
    assert apply(state, Check("r1", 0)) == (state, False)


def test_a_hit_holds_this_occurrence_and_no_other() -> None:
    state, hit = apply(run(Allocate("r1", 0)), Check("r2", 0))
    assert hit is True
    assert state.held == held(("r1", 0), ("r2", 0))
    assert (state.free_slots, state.freeable_slots) == (3, 3)


def test_a_hit_takes_an_evictable_entry_out_of_the_queue() -> None:
    state = run(Allocate("r1", 0), Allocate("r1", 1), FreeInput("r1", 0), FreeInput("r1", 1))
    assert (state.evictable, state.freeable_slots) == (("a", "b"), 4)
    state = run(Check("r2", 0), state=state)
    assert (state.evictable, state.free_slots, state.freeable_slots) == (("b",), 2, 3)


def test_a_second_hit_of_one_occurrence_changes_nothing() -> None:
    state = run(Allocate("r1", 0))
    assert apply(state, Check("r1", 0)) == (state, True)


# --- can_allocate -----------------------------------------------------------------------------------------


def test_room_in_the_free_slots_evicts_nothing_and_reserves_nothing() -> None:
    state = run(Allocate("r1", 0), FreeInput("r1", 0))
    assert apply(state, CanAllocate("r2", 2, 3, 0)) == (state, True)


def test_a_refusal_by_budget_comes_first_and_evicts_nothing() -> None:
    state = run(Allocate("r1", 0), Allocate("r1", 1), FreeRequest("r1"))
    assert apply(state, CanAllocate("r2", 2, 2, 0)) == (state, False)


def test_the_budget_is_compared_with_the_item_alone() -> None:
    state = initial(WORKLOAD)
    assert answer(state, CanAllocate("r2", 2, 3, 1)) is True
    assert answer(state, CanAllocate("r2", 2, 2, 0)) is False


def test_a_refusal_by_capacity_evicts_nothing() -> None:
    state = run(Allocate("r1", 0), Allocate("r1", 1), FreeInput("r1", 1))
    # Three slots are freeable: d alone fits exactly, with one embed promised it does not.
    assert apply(state, CanAllocate("r2", 2, 9, 1)) == (state, False)
    assert answer(state, CanAllocate("r2", 2, 9, 0)) is True


def test_the_oldest_evictable_entries_go_first_and_no_more_than_needed() -> None:
    filled = run(
        *(Allocate("r1", 0), Allocate("r1", 1), Allocate("r2", 1)),
        *(FreeInput("r1", 1), FreeInput("r2", 1), FreeInput("r1", 0)),
    )
    assert (filled.evictable, filled.free_slots) == (("b", "c", "a"), 0)

    one, room = apply(filled, CanAllocate("r1", 1, 1, 0))
    assert room is True
    assert (one.evictable, one.evicted, one.free_slots) == (("c", "a"), hashes("b"), 1)

    # d needs three: b and c are enough, a stays.
    three, room = apply(filled, CanAllocate("r2", 2, 3, 0))
    assert room is True
    assert (three.cached, three.evictable, three.evicted) == ((("a", 1),), ("a",), hashes("bc"))
    assert (three.free_slots, three.freeable_slots) == (3, 4)


def test_what_was_promised_counts_as_needed() -> None:
    filled = run(Allocate("r1", 0), Allocate("r1", 1), Allocate("r2", 1), FreeRequest("r1"))
    assert run(CanAllocate("r1", 0, 1, 0), state=filled).evicted == hashes("a")
    assert run(CanAllocate("r1", 0, 1, 1), state=filled).evicted == hashes("ab")
    assert answer(filled, CanAllocate("r1", 0, 1, 2)) is False


def test_a_large_entry_may_free_more_than_needed() -> None:
    filled = run(Allocate("r2", 2), Allocate("r1", 1), FreeRequest("r2"))
    after, room = apply(filled, CanAllocate("r1", 0, 1, 0))
    assert room is True
    assert (after.evicted, after.free_slots) == (hashes("d"), 3)


# --- allocate ---------------------------------------------------------------------------------------------


def test_an_allocated_entry_is_held_and_takes_its_space() -> None:
    state, result = apply(initial(WORKLOAD), Allocate("r2", 1))
    assert result is None
    assert (state.cached, state.held, state.evictable) == ((("c", 2),), held(("r2", 1)), ())
    assert (state.free_slots, state.freeable_slots) == (2, 2)


def test_an_entry_keeps_the_size_that_it_was_allocated_with() -> None:
    mixed = Workload(4, (Request("r1", (Item("a", 1),)), Request("r2", (Item("a", 3),))), 4)
    state = run(Allocate("r1", 0), Check("r2", 0), FreeRequest("r1"), FreeRequest("r2"), state=initial(mixed))
    assert (state.cached, state.free_slots, state.freeable_slots) == ((("a", 1),), 3, 4)


# --- free -------------------------------------------------------------------------------------------------


def test_an_entry_is_not_evictable_until_the_last_occurrence_of_one_request_is_freed() -> None:
    state = run(Allocate("r1", 0), Check("r1", 2), FreeInput("r1", 0))
    assert (state.held, state.evictable, state.freeable_slots) == (held(("r1", 2)), (), 3)
    state = run(FreeInput("r1", 2), state=state)
    assert (state.held, state.evictable, state.freeable_slots) == (frozenset(), ("a",), 4)


def test_an_entry_is_not_evictable_until_the_last_request_frees_it() -> None:
    state = run(Allocate("r1", 0), Check("r2", 0), FreeInput("r1", 0))
    assert state.evictable == ()
    assert run(FreeInput("r2", 0), state=state).evictable == ("a",)


def test_freeing_what_is_not_held_changes_nothing() -> None:
    absent = initial(WORKLOAD)
    assert run(FreeInput("r1", 0), state=absent) == absent
    by_another_occurrence = run(Allocate("r1", 0))
    assert run(FreeInput("r1", 2), state=by_another_occurrence) == by_another_occurrence
    by_another_request = run(FreeInput("r2", 0), state=by_another_occurrence)
    assert by_another_request == by_another_occurrence
    evictable = run(FreeInput("r1", 0), state=by_another_occurrence)
    assert run(FreeInput("r1", 0), state=evictable) == evictable


def test_a_freed_entry_is_the_youngest_of_the_queue() -> None:
    state = run(Allocate("r1", 1), Allocate("r1", 0), FreeInput("r1", 1), FreeInput("r1", 0))
    assert state.evictable == ("b", "a")
    # A hit and a free later, the order has changed.
    assert run(Check("r1", 1), FreeInput("r1", 1), state=state).evictable == ("a", "b")


def test_a_request_frees_all_that_it_holds_and_nothing_of_others() -> None:
    state = run(Allocate("r1", 0), Check("r1", 2), Allocate("r1", 1), Check("r2", 0), FreeRequest("r1"))
    assert (state.held, state.evictable) == (held(("r2", 0)), ("b",))


def test_a_request_that_holds_nothing_frees_nothing() -> None:
    state = run(Allocate("r1", 0))
    assert run(FreeRequest("r2"), state=state) == state


# --- outcomes ---------------------------------------------------------------------------------------------

TRIPLE = Workload(
    4,
    (Request("r1", (Item("a", 1), Item("b", 1), Item("a", 1), Item("c", 1))), Request("r2", (Item("d", 1),))),
    4,
)


def test_a_free_of_several_hashes_may_queue_them_in_any_order_behind_the_older_ones() -> None:
    full = run(
        *(Allocate("r2", 0), Allocate("r1", 0), Allocate("r1", 1), Check("r1", 2), Allocate("r1", 3)),
        FreeInput("r2", 0),
        state=initial(TRIPLE),
    )
    possible = list(outcomes(full, FreeRequest("r1")))
    assert possible[0] == apply(full, FreeRequest("r1"))
    # Ascending input ids: a is still held by input 2 when input 0 is freed, so b comes first.
    assert possible[0][0].evictable == ("d", "b", "a", "c")
    assert {state.evictable for state, _ in possible} == {("d", *order) for order in permutations("abc")}
    assert len(possible) == 6
    assert {(state.cached, state.held, state.evicted, result) for state, result in possible} == {
        (full.cached, frozenset(), frozenset(), None)
    }


def test_only_a_free_of_several_hashes_leaves_a_choice() -> None:
    full = run(Allocate("r1", 0), Check("r1", 2), Allocate("r2", 0), state=initial(TRIPLE))
    others: tuple[Call, ...] = (
        FreeRequest("r1"),  # two occurrences, one hash
        FreeRequest("r2"),
        FreeInput("r1", 0),
        Check("r1", 1),
        CanAllocate("r1", 1, 1, 0),
        Allocate("r1", 1),
        CachedIds("r1"),
        Drain(),
        Reset(),
    )
    for call in others:
        assert list(outcomes(full, call)) == [apply(full, call)]


def test_a_hash_that_somebody_else_holds_is_no_part_of_the_choice() -> None:
    shared = Workload(3, (Request("r1", (Item("a", 1), Item("b", 1))), Request("r2", (Item("a", 1),))), 3)
    full = run(Allocate("r1", 0), Allocate("r1", 1), Check("r2", 0), state=initial(shared))
    assert [state.evictable for state, _ in outcomes(full, FreeRequest("r1"))] == [("b",)]


# --- get_cached_input_ids, drain, reset -------------------------------------------------------------------


def test_listed_inputs_are_the_held_ones_not_the_cached_ones() -> None:
    state = run(Allocate("r1", 0), Allocate("r1", 1))
    assert answer(state, CachedIds("r1")) == inputs(0, 1)
    assert answer(state, CachedIds("r2")) == frozenset()
    assert held_inputs(run(Check("r2", 0), state=state), "r2") == inputs(0)
    assert apply(state, CachedIds("r1"))[0] == state


def evicted_a() -> State:
    """a was evicted to make room for d, beside b."""
    return run(
        *(Allocate("r1", 0), Allocate("r1", 1), FreeInput("r1", 0), CanAllocate("r2", 2, 3, 0)),
    )


def test_a_drain_reports_what_was_evicted_and_clears_it() -> None:
    state, report = apply(evicted_a(), Drain())
    assert report == hashes("a")
    assert state.evicted == frozenset()
    assert apply(state, Drain()) == (state, frozenset())


def test_a_drain_leaves_out_what_is_cached_again_and_forgets_it() -> None:
    state = run(Allocate("r1", 0), state=evicted_a())
    after, report = apply(state, Drain())
    assert report == frozenset()
    assert after.evicted == frozenset()
    assert after.cached == state.cached


def test_a_hash_evicted_twice_is_reported_once_it_is_absent() -> None:
    again = run(
        *(Allocate("r1", 0), FreeRequest("r1"), CanAllocate("r2", 2, 3, 1)),
        state=evicted_a(),
    )
    assert again.cached == ()
    assert answer(again, Drain()) == hashes("ab")


def test_a_refused_item_reports_nothing() -> None:
    state = run(Allocate("r1", 0), CanAllocate("r2", 2, 3, 1))
    assert answer(state, Drain()) == frozenset()


def test_a_reset_forgets_entries_holders_queue_and_pending_reports() -> None:
    state = run(Check("r1", 1), FreeRequest("r1"), Allocate("r1", 0), state=evicted_a())
    assert all((state.cached, state.held, state.evictable, state.evicted))
    assert apply(state, Reset()) == (initial(WORKLOAD), None)


@pytest.mark.parametrize(
    "call",
    [Check("r9", 0), CanAllocate("r9", 0, 1, 0), Allocate("r9", 0)],
    ids=lambda call: type(call).__name__,
)
def test_what_the_workload_lacks_cannot_be_asked_for(call: Call) -> None:
    with pytest.raises(WorkloadError, match="there is no request 'r9'"):
        apply(initial(WORKLOAD), call)


def test_what_the_workload_lacks_is_not_held() -> None:
    state = run(Allocate("r1", 0))
    for call in (FreeInput("r1", 9), FreeRequest("r9")):
        assert apply(state, call) == (state, None)
    assert apply(state, CachedIds("r9")) == (state, frozenset())


# --- Invariants of every state ----------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    sizes = draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))
    mixed = draw(st.booleans())
    item = st.sampled_from("abc").flatmap(
        lambda mm_hash: st.builds(
            Item, st.just(mm_hash), st.integers(1, 3) if mixed else st.just(sizes["abc".index(mm_hash)])
        )
    )
    requests = tuple(
        Request(f"r{number}", tuple(draw(st.lists(item, min_size=1, max_size=3))))
        for number in range(draw(st.integers(1, 3)))
    )
    return Workload(draw(st.integers(1, 6)), requests, draw(st.integers(1, 6)))


def faults(state: State) -> Iterator[str]:
    hashes = [mm_hash for mm_hash, _ in state.cached]
    held = {state.workload.item(*occurrence).mm_hash for occurrence in state.held}
    if len(set(hashes)) != len(hashes) or hashes != sorted(hashes):
        yield "an entry is there twice, or entries are out of order"
    if not held <= set(hashes):
        yield "a held hash is not cached"
    if len(set(state.evictable)) != len(state.evictable):
        yield "an entry is queued twice"
    if set(state.evictable) != set(hashes) - held:
        yield "evictable is not what is cached and not held"
    if not 0 <= state.free_slots <= state.freeable_slots <= state.workload.capacity:
        yield "the counters are out of range"


@settings(max_examples=200)
@given(st.data(), workloads(), st.sampled_from(Discipline))
def test_every_reachable_state_keeps_the_invariants(
    data: st.DataObject, workload: Workload, discipline: Discipline
) -> None:
    position = start(workload, discipline)
    for _ in range(data.draw(st.integers(1, 25))):
        move = data.draw(st.sampled_from(moves(position)))
        calls, following = carry_out(position, move)
        state = position.state
        for call in calls:
            before = state
            state, result = apply(before, call)
            assert list(faults(state)) == []
            if isinstance(call, Drain):
                assert isinstance(result, frozenset)
                assert not result & {mm_hash for mm_hash, _ in state.cached}
                assert result <= before.evicted
            for other, other_result in outcomes(before, call):
                assert list(faults(other)) == []
                assert other_result == result
        position = Position(state, following.caller)
        assert position == following
