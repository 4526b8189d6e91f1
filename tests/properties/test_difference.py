"""Two implementations in lockstep with each other: what an upgrade, a refactoring or a port changed."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from impl.drivers.client import DriverTarget
from impl.drivers.cpp import tree_target
from impl.inprocess import PythonTarget, python_target
from impl.port import PortManager
from impl.target import Shows
from impl.targets import resolve
from model.contract import refuse_illegal
from model.manager import ManagedRequest
from model.operations import Allocate, CanAllocate, Discipline, Drain
from properties.counterexample import Counterexample, replay
from properties.difference import Pair
from properties.exploration import Exploration, LocalProcesses, explore
from properties.minimize import minimize
from properties.scopes import parse_scope

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN
Release = Callable[[str], PythonTarget]

PORT = python_target("port", PortManager)
SMALL = "2r2i2h/sizes=1/capacity=1"
UNIT = "2r2i3h/sizes=1/capacity=2"


def compare(pair: Pair, text: str, discipline: Discipline) -> Exploration:
    found = explore(pair, parse_scope(text), discipline)
    assert found.complete
    for one in found.counterexamples:
        refuse_illegal(one.trace)
        assert one.target == pair.name
        again = replay(one.trace, pair)
        assert again == one.violation
    return found


def lengths(found: Exploration) -> dict[str, int]:
    return {one.violation.property: len(one.trace) for one in found.counterexamples}


# --- Equivalent -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("first", ["vllm:0.32.0", "port"])
def test_equivalent_to_the_latest(first: str, discipline: Discipline) -> None:
    found = compare(Pair(resolve(first), resolve("vllm:0.33.0")), SMALL, discipline)
    assert found.counterexamples == ()
    assert found.transitions > 1_000


@pytest.mark.nightly
@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("first", ["vllm:0.32.0", "port"])
def test_equivalent_to_the_latest_at_the_default_scope(first: str, discipline: Discipline) -> None:
    found = compare(Pair(resolve(first), resolve("vllm:0.33.0")), "2r2i3h", discipline)
    assert found.counterexamples == ()


@pytest.mark.parametrize("name", ["port", "port:early-evictable", "port:unfiltered-freed", "vllm:0.26.0"])
def test_a_target_with_a_fault_is_equivalent_to_itself(name: str) -> None:
    found = compare(Pair(resolve(name), resolve(name)), "2r2i2h/sizes=1/capacity=1", OPEN)
    assert found.counterexamples == ()


# --- Different --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", Discipline)
def test_0_29_keeps_what_a_later_occurrence_needs(release: Release, discipline: Discipline) -> None:
    found = compare(Pair(release("0.28.0"), release("0.29.0")), SMALL, discipline)
    assert lengths(found) == {"evictable-unreferenced": 3 if discipline is CALLER else 2}
    violation = minimize(found.counterexamples[0], Pair(release("0.28.0"), release("0.29.0"))).violation
    assert (violation.expected, violation.observed) == ("A has evictable [a]", "B has evictable []")


@pytest.mark.parametrize("discipline", Discipline)
def test_0_26_has_both_faults(release: Release, discipline: Discipline) -> None:
    found = compare(Pair(release("0.26.0"), release("0.33.0")), UNIT, discipline)
    assert lengths(found) == {
        "evictable-unreferenced": 3 if discipline is CALLER else 2,
        "freed-disjoint-cached": 5,
    }


def test_the_other_way_round_is_told_the_other_way_round(release: Release) -> None:
    one = compare(Pair(release("0.28.0"), release("0.29.0")), "1r2i1h/sizes=1/capacity=1", OPEN)
    other = compare(Pair(release("0.29.0"), release("0.28.0")), "1r2i1h/sizes=1/capacity=1", OPEN)
    ((first,), (second,)) = (one.counterexamples, other.counterexamples)
    assert first.trace == second.trace
    assert (first.violation.expected[2:], first.violation.observed[2:]) == (
        second.violation.observed[2:],
        second.violation.expected[2:],
    )


@pytest.mark.parametrize("discipline", Discipline)
def test_an_era_is_a_difference_like_any_other(release: Release, discipline: Discipline) -> None:
    """Up to 0.22.1 the listed inputs are those whose hash is cached for anyone."""
    pair = Pair(release("0.22.0"), release("0.23.0"))
    found = compare(pair, SMALL, discipline)
    assert lengths(found) == {"cached-ids-exact": 1}
    (one, *_) = found.counterexamples
    violation = minimize(one, pair).violation
    assert violation.expected == "A lists inputs [0, 1] of r1"
    assert violation.observed == "B lists inputs [0] of r1"


@pytest.mark.parametrize("discipline", Discipline)
def test_up_to_the_era_the_rest_is_compared(release: Release, discipline: Discipline) -> None:
    masked = frozenset({"cached-ids-exact"})
    found = compare(Pair(release("0.22.0"), release("0.23.0"), masked), SMALL, discipline)
    assert found.counterexamples == ()
    cut_short = compare(Pair(release("0.22.0"), release("0.23.0")), SMALL, discipline)
    assert found.transitions > 10 * cut_short.transitions


# --- Up to ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("masked", "left"),
    [
        ({"evictable-unreferenced"}, {"freed-disjoint-cached"}),
        ({"freed-disjoint-cached"}, {"evictable-unreferenced"}),
        ({"evictable-unreferenced", "freed-disjoint-cached"}, set()),
        ({"no-crash"}, {"evictable-unreferenced", "freed-disjoint-cached"}),
    ],
)
@pytest.mark.parametrize("ends", [("0.26.0", "0.33.0"), ("0.33.0", "0.26.0")])
def test_a_known_difference_is_left_out_and_the_others_are_not(
    release: Release, masked: set[str], left: set[str], ends: tuple[str, str]
) -> None:
    pair = Pair(release(ends[0]), release(ends[1]), frozenset(masked))
    assert set(lengths(compare(pair, "2r2i2h/sizes=1/capacity=2", OPEN))) == left


# --- Crashes ----------------------------------------------------------------------------------------------


class Raising(PortManager):
    def get_freed_mm_hashes(self) -> list[str]:
        raise RuntimeError("no report")


def test_one_that_raises_where_the_other_answers() -> None:
    raising = python_target("raising", Raising)
    for pair, expected, observed in (
        (Pair(PORT, raising), "A answers", "B raised RuntimeError (no report)"),
        (Pair(raising, PORT), "A raised RuntimeError (no report)", "B answers"),
    ):
        (one,) = compare(pair, "1r1i1h/sizes=1/capacity=1", OPEN).counterexamples
        assert list(one.trace.calls) == [Drain()]
        assert one.violation.property == "no-crash"
        assert (one.violation.expected, one.violation.observed) == (expected, observed)


def test_two_that_raise_at_the_same_call_do_not_differ() -> None:
    raising = python_target("raising", Raising)
    assert compare(Pair(raising, raising), SMALL, OPEN).counterexamples == ()
    masked = compare(Pair(PORT, raising, frozenset({"no-crash"})), SMALL, OPEN)
    assert masked.counterexamples == ()


# --- Targets that show less -------------------------------------------------------------------------------


@pytest.mark.parametrize("shows", [Shows.RESULTS, Shows.COUNTERS])
@pytest.mark.parametrize("discipline", Discipline)
def test_what_hides_its_internals_is_compared_by_what_it_shows(
    release: Release, shows: Shows, discipline: Discipline
) -> None:
    hiding = replace(PORT, shows=shows)
    for pair in (Pair(hiding, release("0.33.0")), Pair(release("0.33.0"), hiding)):
        assert pair.shows is shows
        found = compare(pair, "2r1i2h/sizes=1/capacity=1", discipline)
        assert found.counterexamples == ()


@pytest.mark.parametrize(
    ("shows", "broken", "length"),
    [(Shows.COUNTERS, "evictable-unreferenced", 3), (Shows.RESULTS, "results-agree", 4)],
)
def test_a_difference_comes_out_where_it_first_shows(shows: Shows, broken: str, length: int) -> None:
    """An entry evictable too early: the counters tell at once, the answers once another asks for room."""
    early = resolve("port:early-evictable")
    assert isinstance(early, PythonTarget)
    found = compare(
        Pair(replace(early, shows=shows), replace(PORT, shows=shows)), "2r2i2h/sizes=1/capacity=1", CALLER
    )
    assert lengths(found) == {broken: length}


def test_neither_shows_more_than_answers() -> None:
    blind = replace(PORT, shows=Shows.RESULTS)

    class Unfiltered(PortManager):
        def _is_reported(self, mm_hash: str) -> bool:
            return True

    unfiltered = replace(python_target("unfiltered", Unfiltered), shows=Shows.RESULTS)
    found = compare(Pair(unfiltered, blind), "2r1i2h/sizes=1/capacity=1", OPEN)
    assert lengths(found) == {"freed-disjoint-cached": 5}


# --- Ports in C++ -----------------------------------------------------------------------------------------

TREES = Path(__file__).parents[1] / "impl" / "cpp_trees"
# Without internals, states are told apart by the call that led there as well: the open discipline has many.
PORTED = {CALLER: SMALL, OPEN: "1r2i2h/sizes=1/capacity=1"}


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, DriverTarget]]:
    """Compiled anew, never taken from the user's cache; releases are still read from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVICTCHECK_CACHE", str(tmp_path_factory.mktemp("programs")))
        targets = {name: tree_target(TREES / name) for name in ("mended", "broken")}
    yield targets
    for target in targets.values():
        target.close()


@pytest.mark.parametrize("discipline", Discipline)
def test_a_mended_port_is_equivalent_to_the_latest_on_all_that_both_show(
    release: Release, trees: Mapping[str, DriverTarget], discipline: Discipline
) -> None:
    pair = Pair(release("0.33.0"), trees["mended"])
    assert pair.shows is Shows.COUNTERS
    assert pair.has_reset
    found = compare(pair, PORTED[discipline], discipline)
    assert found.counterexamples == ()
    assert found.transitions > 1_000


@pytest.mark.parametrize("discipline", Discipline)
def test_a_broken_port_has_two_differences(
    release: Release, trees: Mapping[str, DriverTarget], discipline: Discipline
) -> None:
    pair = Pair(release("0.33.0"), trees["broken"])
    shortest: dict[str, Counterexample] = {}
    for one in compare(pair, PORTED[discipline], discipline).counterexamples:
        smaller = minimize(one, pair)
        known = shortest.setdefault(smaller.violation.property, smaller)
        assert len(known.trace) == len(smaller.trace)
    said = {name: (one.violation.expected, one.violation.observed) for name, one in shortest.items()}
    assert said == {
        "freed-disjoint-cached": ("A reports []", "B reports [a]"),
        "evictable-unreferenced": ("A has 0 free slots and 0 freeable", "B has 0 free slots and 1 freeable"),
    }
    # At capacity 1 only a pick that is dropped evicts without an allocate: a step more than at capacity 2.
    assert {name: len(one.trace) for name, one in shortest.items()} == (
        {"freed-disjoint-cached": 6, "evictable-unreferenced": 3}
        if discipline is CALLER
        else {"freed-disjoint-cached": 5, "evictable-unreferenced": 2}
    )


@pytest.mark.nightly
@pytest.mark.parametrize("discipline", Discipline)
def test_a_mended_port_is_equivalent_to_the_latest_at_the_default_scope(
    release: Release, trees: Mapping[str, DriverTarget], discipline: Discipline
) -> None:
    found = compare(Pair(release("0.33.0"), trees["mended"]), "2r2i3h", discipline)
    assert found.counterexamples == ()


# --- Details ----------------------------------------------------------------------------------------------


class Descending(PortManager):
    def free(self, request: ManagedRequest) -> None:
        for input_id in sorted(self.get_cached_input_ids(request), reverse=True):
            self.free_encoder_input(request, input_id)


def test_a_free_that_queues_in_another_order_shows_when_something_is_evicted() -> None:
    pair = Pair(PORT, python_target("descending", Descending))
    found = compare(pair, "2r2i3h/sizes=1/capacity=2", OPEN)
    assert set(lengths(found)) == {"eviction-order"}
    (one, *_) = found.counterexamples
    assert isinstance(list(one.trace.calls)[-1], CanAllocate)
    assert sum(isinstance(call, Allocate) for call in one.trace.calls) == 2


def test_the_reset_that_one_lacks_is_not_made(release: Release) -> None:
    pair = Pair(release("0.15.1"), release("0.16.0"))
    assert not pair.has_reset
    assert compare(pair, "2r1i2h/sizes=1/capacity=1", OPEN).counterexamples == ()


def test_a_difference_after_a_reset_is_the_resets() -> None:
    for defect in ("reset-keeps-pending", "reset-keeps-references"):
        found = compare(Pair(resolve(f"port:{defect}"), PORT), "2r1i2h/sizes=1/capacity=1", OPEN)
        assert set(lengths(found)) == {"reset-initial"}, defect


def test_two_processes_give_the_same(release: Release) -> None:
    pair = Pair(release("0.26.0"), release("0.33.0"), frozenset({"evictable-unreferenced"}))
    alone = explore(pair, parse_scope(SMALL), OPEN)
    with LocalProcesses(2) as executor:
        found = explore(pair, parse_scope(SMALL), OPEN, executor=executor)
    assert replace(found, seconds=0.0) == replace(alone, seconds=0.0)
