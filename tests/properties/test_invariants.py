from collections import deque
from collections.abc import Iterator

import pytest

from impl.target import Internals, Observation, Shows
from model.contract import Position, carry_out, moves, start
from model.operations import CachedIds, Call, Discipline, Drain, FreeInput
from model.reference import State, apply, held_inputs, outcomes
from model.workload import Item, Request, Workload
from properties.invariants import MANAGER_PROPERTIES, NO_CRASH, Moment, first_broken, listed
from properties.scopes import parse_scope, workload_classes

NAMES = (
    "freed-disjoint-cached",
    "evictable-unreferenced",
    "slots-conserved",
    "capacity-respected",
    "eviction-order",
    "report-complete",
    "report-cleared",
    "results-agree",
    "cached-ids-exact",
    "reset-initial",
    "nothing-stale",
    "no-crash",
)


def test_the_properties_and_their_order_are_part_of_the_interface() -> None:
    assert tuple(one.name for one in MANAGER_PROPERTIES) == NAMES
    assert MANAGER_PROPERTIES[-1] is NO_CRASH
    for one in MANAGER_PROPERTIES:
        assert one.sentence[0].islower()
        assert not one.sentence.endswith(".")


def test_what_each_property_needs_to_be_seen() -> None:
    needs = {one.name: one.needs for one in MANAGER_PROPERTIES}
    assert {name for name, least in needs.items() if least is Shows.INTERNALS} == {"nothing-stale"}
    assert {name for name, least in needs.items() if least is Shows.COUNTERS} == {
        "evictable-unreferenced",
        "slots-conserved",
        "capacity-respected",
    }


def test_sets_are_put_in_words() -> None:
    assert listed([]) == "nothing"
    assert listed({"b", "a"}) == "a, b"
    assert listed({1, 0}) == "0, 1"


# --- The reference breaks nothing: what the judge's quick way relies on -----------------------------------


def portrait(state: State, shows: Shows) -> Observation:
    """What the reference itself would show."""
    ids = [request.request_id for request in state.workload.requests]
    inputs = tuple(held_inputs(state, request_id) for request_id in ids)
    if shows is Shows.RESULTS:
        return Observation(inputs)
    if shows is Shows.COUNTERS:
        return Observation(inputs, state.free_slots, state.freeable_slots)
    references = {
        mm_hash: frozenset(who for who, place in state.held if state.workload.item(who, place).mm_hash == mm_hash)
        for mm_hash, _ in state.cached
    }
    internals = Internals(references, state.evictable, state.evicted, frozenset(who for who, _ in state.held))
    return Observation(inputs, state.free_slots, state.freeable_slots, internals)


def moments(before: State, call: Call) -> Iterator[Moment]:
    """One for everything that the call may do, all that may be shown, and all that the judge may remember."""
    everything = frozenset(item.mm_hash for request in before.workload.requests for item in request.items)
    for after, answer in outcomes(before, call):
        for shows in Shows:
            shown = portrait(after, shows)
            assert shown.inputs is not None
            for after_drain in {False, not before.evicted}:
                for forgotten in (frozenset[str](), everything):
                    yield Moment(before, after, call, answer, answer, shown, shown.inputs, after_drain, forgotten)


def reachable(workload: Workload, discipline: Discipline) -> Iterator[Position]:
    first = start(workload, discipline)
    seen, queue = {first}, deque([first])
    while queue:
        position = queue.popleft()
        yield position
        for move in moves(position):
            _, following = carry_out(position, move)
            if following not in seen:
                seen.add(following)
                queue.append(following)


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize(
    "scope", ["2r1i2h/sizes=1..2/capacity=2", "2r2i2h/sizes=1/capacity=1", "1r2i2h/capacity=3", "2r1i1h/mixed"]
)
def test_every_property_holds_of_the_reference_itself(scope: str, discipline: Discipline) -> None:
    judged: set[tuple[State, Call]] = set()
    for workload_class in workload_classes(parse_scope(scope), discipline):
        for position in reachable(workload_class.workload, discipline):
            for move in moves(position):
                state = position.state
                for call in carry_out(position, move)[0]:
                    if (state, call) not in judged:
                        judged.add((state, call))
                        for moment in moments(state, call):
                            assert first_broken(moment) is None, moment
                    state, _ = apply(state, call)
    assert len(judged) > 100


# --- The order in which a broken call is named ------------------------------------------------------------

WORLD = Workload(2, (Request("r1", (Item("a", 1), Item("b", 1))),), 2)


def test_the_first_broken_property_names_a_call_that_breaks_several() -> None:
    """A report that names a cached hash, from a manager whose counters are off as well."""
    state = State(WORLD, (("a", 1),), frozenset({("r1", 0)}), (), frozenset({"a"}))
    after, answer = apply(state, Drain())
    right = portrait(after, Shows.COUNTERS)
    shown = Observation(right.inputs, 2, 2)
    assert right.inputs is not None

    def named(observed: frozenset[str], seen: Observation) -> str | None:
        assert right.inputs is not None
        moment = Moment(state, after, Drain(), answer, observed, seen, right.inputs, False, frozenset())
        broken = first_broken(moment)
        return broken and broken[0].name

    assert named(frozenset("a"), shown) == "freed-disjoint-cached"
    assert named(frozenset(), shown) == "evictable-unreferenced"
    assert named(frozenset(), Observation(right.inputs, 2, 1)) == "slots-conserved"
    assert named(frozenset("b"), right) == "report-complete"
    assert named(frozenset(), right) is None


def test_a_listed_input_too_many_is_told_with_its_request() -> None:
    state = State(WORLD, (("a", 1),), frozenset({("r1", 0)}))
    after, _ = apply(state, FreeInput("r1", 0))
    shown = Observation((frozenset([0]),))
    moment = Moment(state, after, FreeInput("r1", 0), None, None, shown, (frozenset(),), False, frozenset())
    broken = first_broken(moment)
    assert broken is not None
    assert broken[0].name == "cached-ids-exact"
    assert (broken[1].expected, broken[1].observed) == ("r1 lists inputs nothing", "it lists inputs 0")


def test_a_query_is_judged_by_its_answer() -> None:
    state = State(WORLD, (("a", 1),), frozenset({("r1", 0)}))
    shown = portrait(state, Shows.RESULTS)
    assert shown.inputs is not None
    moment = Moment(
        state, state, CachedIds("r1"), frozenset([0]), frozenset([0, 1]), shown, shown.inputs, False, frozenset()
    )
    broken = first_broken(moment)
    assert broken is not None
    assert broken[0].name == "cached-ids-exact"
    assert (broken[1].expected, broken[1].observed) == ("inputs 0", "inputs 0, 1")
