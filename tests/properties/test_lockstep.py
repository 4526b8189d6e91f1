import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from impl.defects import DEFECTS
from impl.inprocess import PythonTarget, python_target
from impl.port import PortManager
from impl.target import Shows
from model.manager import ManagedRequest
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
)
from model.reference import apply, initial
from model.workload import Item, Request, Workload
from properties.lockstep import Lockstep, Violation

Release = Callable[[str], PythonTarget]


def workload(*contents: str, capacity: int) -> Workload:
    """Requests r1, r2, ... with an input of one embed for each letter; a letter is a hash."""
    requests = tuple(
        Request(f"r{number}", tuple(Item(letter, 1) for letter in letters))
        for number, letters in enumerate(contents, start=1)
    )
    return Workload(capacity, requests, capacity)


class ResultsOnly:
    """A manager that keeps all its bookkeeping to itself."""

    inner_class: type[Any] = PortManager

    def __init__(self, capacity: int) -> None:
        self._inner = self.inner_class(capacity)

    def check_and_update_cache(self, request: ManagedRequest, input_id: int) -> bool:
        return bool(self._inner.check_and_update_cache(request, input_id))

    def can_allocate(self, request: ManagedRequest, input_id: int, budget: int, promised: int) -> bool:
        return bool(self._inner.can_allocate(request, input_id, budget, promised))

    def allocate(self, request: ManagedRequest, input_id: int) -> None:
        self._inner.allocate(request, input_id)

    def get_cached_input_ids(self, request: ManagedRequest) -> set[int]:
        return set(self._inner.get_cached_input_ids(request))

    def free_encoder_input(self, request: ManagedRequest, input_id: int) -> None:
        self._inner.free_encoder_input(request, input_id)

    def free(self, request: ManagedRequest) -> None:
        self._inner.free(request)

    def get_freed_mm_hashes(self) -> list[str]:
        return list(self._inner.get_freed_mm_hashes())

    def reset(self) -> None:
        self._inner.reset()


class CountersOnly(ResultsOnly):
    @property
    def num_free_slots(self) -> int:
        return int(self._inner.num_free_slots)

    @property
    def num_freeable_slots(self) -> int:
        return int(self._inner.num_freeable_slots)


def showing(shows: Shows, manager_class: type[Any]) -> PythonTarget:
    """A target that shows so much of that manager."""
    if shows is Shows.INTERNALS:
        target = python_target("port", manager_class)
    else:
        base = CountersOnly if shows is Shows.COUNTERS else ResultsOnly
        target = python_target("port", type("Wrapped", (base,), {"inner_class": manager_class}))
    assert target.shows is shows
    return target


def seeded(name: str) -> type[PortManager]:
    (manager_class,) = [defect.manager_class for defect in DEFECTS if defect.name == name]
    return manager_class


def agrees(judge: Lockstep) -> bool:
    """A function, so that no type checker takes the answer for settled."""
    return judge.in_accord


def answered(judge: Lockstep) -> bool:
    return judge.last is not None


def judged(target: PythonTarget, world: Workload, calls: Iterable[Call]) -> Violation | None:
    judge = Lockstep(target, world)
    for call in calls:
        violation = judge.apply(call)
        if violation is not None:
            return violation
    return None


class DescendingFree(PortManager):
    def free(self, request: ManagedRequest) -> None:
        for input_id in sorted(self.get_cached_input_ids(request), reverse=True):
            self.free_encoder_input(request, input_id)


# --- How a broken call is named ---------------------------------------------------------------------------

TWICE = workload("aa", "b", capacity=1)
EARLY_FREE = (Allocate("r1", 0), Check("r1", 1), FreeInput("r1", 0), CanAllocate("r2", 0, 1, 0), Drain())

PAIR = workload("ab", "c", capacity=2)
QUEUED = (Allocate("r1", 0), Allocate("r1", 1), FreeInput("r1", 0), FreeInput("r1", 1))
EVICTED = (*QUEUED, CanAllocate("r2", 0, 1, 0))

ALL, SOME, NONE = Shows.INTERNALS, Shows.COUNTERS, Shows.RESULTS


@pytest.mark.parametrize(
    ("defect", "world", "calls", "named"),
    [
        (
            "early-evictable",
            TWICE,
            EARLY_FREE,
            {ALL: ("evictable-unreferenced", 2), SOME: ("evictable-unreferenced", 2), NONE: ("results-agree", 3)},
        ),
        (
            "unfiltered-freed",
            PAIR,
            (*EVICTED, Allocate("r1", 0), Drain()),
            {
                ALL: ("freed-disjoint-cached", 6),
                SOME: ("freed-disjoint-cached", 6),
                NONE: ("freed-disjoint-cached", 6),
            },
        ),
        (
            "newest-first-eviction",
            PAIR,
            (*EVICTED, Drain()),
            {ALL: ("eviction-order", 4), SOME: ("eviction-order", 5), NONE: ("eviction-order", 5)},
        ),
        (
            # Without internals one embed too many is free; from results alone, a report that names too much.
            "one-eviction-too-many",
            PAIR,
            (*EVICTED, Drain()),
            {ALL: ("eviction-order", 4), SOME: ("slots-conserved", 4), NONE: ("report-complete", 5)},
        ),
        (
            "overcommits",
            PAIR,
            (*EVICTED, Drain()),
            {ALL: ("capacity-respected", 4), SOME: ("slots-conserved", 4), NONE: ("report-complete", 5)},
        ),
        (
            "slots-counted-twice",
            PAIR,
            (*QUEUED, Check("r1", 0), CanAllocate("r2", 0, 1, 0)),
            {ALL: ("slots-conserved", 4), SOME: ("slots-conserved", 4), NONE: ("results-agree", 5)},
        ),
        (
            "hit-not-listed",
            PAIR,
            (*QUEUED, Check("r1", 0)),
            {ALL: ("cached-ids-exact", 4), SOME: ("cached-ids-exact", 4), NONE: ("cached-ids-exact", 4)},
        ),
        (
            "drain-does-not-clear",
            PAIR,
            (*EVICTED, Drain(), Drain()),
            {ALL: ("report-cleared", 6), SOME: ("report-cleared", 6), NONE: ("report-cleared", 6)},
        ),
        (
            # With a call in between it is no second drain right after the first.
            "drain-does-not-clear",
            PAIR,
            (*EVICTED, Drain(), Check("r2", 0), Drain()),
            {ALL: ("report-complete", 7), SOME: ("report-complete", 7), NONE: ("report-complete", 7)},
        ),
        (
            "reset-keeps-pending",
            PAIR,
            (*EVICTED, Reset(), Drain()),
            {ALL: ("reset-initial", 5), SOME: ("reset-initial", 6), NONE: ("reset-initial", 6)},
        ),
        (
            "reset-keeps-references",
            PAIR,
            (Allocate("r1", 0), Reset()),
            {ALL: ("reset-initial", 1), SOME: ("reset-initial", 1), NONE: ("reset-initial", 1)},
        ),
        (
            "freed-request-stays-listed",
            PAIR,
            (*QUEUED, Check("r1", 0), FreeRequest("r1"), Drain()),
            {ALL: ("nothing-stale", 3), SOME: None, NONE: None},
        ),
        (
            "refuses-exactly-full",
            PAIR,
            (Allocate("r1", 0), CanAllocate("r1", 1, 1, 0)),
            {ALL: ("results-agree", 1), SOME: ("results-agree", 1), NONE: ("results-agree", 1)},
        ),
        (
            "empty-queue-raises",
            TWICE,
            (Allocate("r1", 0), CanAllocate("r2", 0, 1, 0)),
            {ALL: ("no-crash", 1), SOME: ("no-crash", 1), NONE: ("no-crash", 1)},
        ),
    ],
)
@pytest.mark.parametrize("shows", Shows)
def test_a_broken_call_is_named_by_what_the_target_shows(
    shows: Shows,
    defect: str,
    world: Workload,
    calls: tuple[Call, ...],
    named: dict[Shows, tuple[str, int] | None],
) -> None:
    manager_class = seeded(defect)
    violation = judged(showing(shows, manager_class), world, calls)
    assert (violation and (violation.property, violation.call_index)) == named[shows]
    assert judged(showing(shows, PortManager), world, calls) is None
    if violation is not None:
        assert violation.call == calls[violation.call_index]
        assert violation.expected
        assert violation.observed


# --- A crash ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "observed"),
    [
        (KeyError("a"), "it raised KeyError ('a')"),
        (AssertionError(), "it raised AssertionError"),
        (RecursionError("too deep"), "it raised RecursionError (too deep)"),
        (SystemExit(3), "it raised SystemExit (3)"),
    ],
)
def test_whatever_a_legal_call_raises_is_a_crash(error: BaseException, observed: str) -> None:
    class Raising(PortManager):
        def allocate(self, request: ManagedRequest, input_id: int) -> None:
            raise error

    judge = Lockstep(PythonTarget("raising", Raising, Shows.INTERNALS, True), PAIR)
    assert judge.apply(Check("r1", 0)) is None
    assert judge.apply(Allocate("r1", 0)) == Violation("no-crash", 1, Allocate("r1", 0), "an answer", observed)


def test_an_interrupt_is_no_crash_of_the_implementation() -> None:
    class Interrupted(PortManager):
        def allocate(self, request: ManagedRequest, input_id: int) -> None:
            raise KeyboardInterrupt

    judge = Lockstep(PythonTarget("interrupted", Interrupted, Shows.INTERNALS, True), PAIR)
    with pytest.raises(KeyboardInterrupt):
        judge.apply(Allocate("r1", 0))


# --- Several states remain possible -----------------------------------------------------------------------

FREED_TOGETHER = (Allocate("r1", 0), Allocate("r1", 1), FreeRequest("r1"))


@pytest.mark.parametrize("manager_class", [PortManager, DescendingFree])
def test_with_internals_the_order_of_a_free_is_seen_at_once(manager_class: type[PortManager]) -> None:
    judge = Lockstep(showing(Shows.INTERNALS, manager_class), PAIR)
    for call in FREED_TOGETHER:
        assert judge.apply(call) is None
    assert agrees(judge)
    assert judge.state.evictable == (("b", "a") if manager_class is DescendingFree else ("a", "b"))


@pytest.mark.parametrize("shows", [Shows.COUNTERS, Shows.RESULTS])
@pytest.mark.parametrize(
    ("telling", "manager_class", "kept"),
    [
        (Check("r1", 0), PortManager, "b"),
        (Check("r1", 0), DescendingFree, "a"),
        (Drain(), PortManager, "b"),
        (Drain(), DescendingFree, "a"),
    ],
)
def test_without_internals_the_order_of_a_free_is_learnt_from_what_is_evicted(
    shows: Shows, manager_class: type[PortManager], telling: Call, kept: str
) -> None:
    judge = Lockstep(showing(shows, manager_class), PAIR)
    for call in (*FREED_TOGETHER, CanAllocate("r2", 0, 1, 0)):
        assert judge.apply(call) is None
    assert not agrees(judge)
    assert judge.apply(telling) is None
    assert agrees(judge)
    assert judge.state.cached == ((kept, 1),)


def test_after_the_order_was_learnt_the_other_one_is_a_violation() -> None:
    class Fickle(DescendingFree):
        """Evicts b, and reports a."""

        def get_freed_mm_hashes(self) -> list[str]:
            return ["a" for _ in super().get_freed_mm_hashes()]

    calls = (*FREED_TOGETHER, CanAllocate("r2", 0, 1, 0), Drain())
    target = showing(Shows.RESULTS, Fickle)
    assert judged(target, PAIR, calls) is None
    violation = judged(target, PAIR, (*calls[:-1], Check("r1", 0), Drain()))
    assert violation is not None
    assert violation.property == "eviction-order"


@pytest.mark.parametrize("shows", Shows)
def test_three_hashes_freed_at_once_may_be_evicted_in_any_order_but_only_one(shows: Shows) -> None:
    world = workload("abc", "d", "e", capacity=3)
    calls: tuple[Call, ...] = (
        *(Allocate("r1", 0), Allocate("r1", 1), Allocate("r1", 2), FreeRequest("r1")),
        *(CanAllocate("r2", 0, 1, 0), Allocate("r2", 0), Drain()),
        *(CanAllocate("r3", 0, 1, 0), Allocate("r3", 0), Drain(), Check("r1", 0), Check("r1", 1), Check("r1", 2)),
    )
    for manager_class in (PortManager, DescendingFree):
        judge = Lockstep(showing(shows, manager_class), world)
        assert [judge.apply(call) for call in calls] == [None] * len(calls)
        assert agrees(judge)
        assert judge.state.embeds_of("b") == 0 or manager_class is DescendingFree


# --- Copies -----------------------------------------------------------------------------------------------


class Locked(PortManager):
    """Cannot be copied, and counts how often it is made."""

    made = 0

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        type(self).made += 1
        self.lock = threading.Lock()


@pytest.mark.parametrize("shows", Shows)
def test_forks_go_their_own_ways(shows: Shows) -> None:
    trunk = Lockstep(showing(shows, PortManager), PAIR)
    for call in QUEUED:
        assert trunk.apply(call) is None
    before, key = trunk.state, trunk.key

    evicting, hitting = trunk.fork(), trunk.fork()
    assert evicting.key == hitting.key == key
    assert evicting.apply(CanAllocate("r2", 0, 1, 1)) is None
    assert hitting.apply(Check("r1", 0)) is None
    assert hitting.apply(CanAllocate("r2", 0, 1, 0)) is None
    assert evicting.state.cached == ()
    assert hitting.state.cached == (("a", 1),)

    assert (trunk.state, trunk.key) == (before, key)
    assert trunk.apply(CanAllocate("r2", 0, 1, 0)) is None
    assert trunk.state.cached == (("b", 1),)
    assert [judge.apply(Drain()) for judge in (trunk, evicting, hitting)] == [None, None, None]


def test_a_manager_that_cannot_be_copied_is_brought_there_by_its_calls() -> None:
    target = python_target("locked", Locked)
    trunk = Lockstep(target, PAIR)
    for call in EVICTED:
        assert trunk.apply(call) is None
    made = Locked.made
    twin = trunk.fork()
    assert Locked.made == made + 1
    assert twin.state == trunk.state
    assert twin.apply(Drain()) is None
    assert twin.last is not None
    assert twin.last.observed == frozenset("a")
    # A fork of the fork makes all calls, in order.
    again = twin.fork()
    assert again.apply(Check("r1", 1)) is None
    assert trunk.apply(Drain()) is None


def test_a_violation_counts_calls_from_the_start_of_the_trunk() -> None:
    trunk = Lockstep(showing(Shows.INTERNALS, seeded("overcommits")), PAIR)
    for call in QUEUED:
        assert trunk.apply(call) is None
    violation = trunk.fork().apply(CanAllocate("r2", 0, 1, 0))
    assert violation is not None
    assert violation.call_index == 4


# --- What the judge remembers -----------------------------------------------------------------------------


def test_the_last_answer_has_both_sides() -> None:
    judge = Lockstep(showing(Shows.INTERNALS, PortManager), PAIR)
    assert not answered(judge)
    assert judge.apply(Check("r1", 0)) is None
    assert judge.last is not None
    assert (judge.last.expected, judge.last.observed) == (False, False)
    assert judge.last.shown.free_slots == 2


def test_the_state_is_the_reference_after_the_same_calls() -> None:
    judge = Lockstep(showing(Shows.INTERNALS, PortManager), PAIR)
    state = initial(PAIR)
    for call in (*EVICTED, Allocate("r2", 0), FreeRequest("r2"), Drain(), Reset()):
        assert judge.apply(call) is None
        state, _ = apply(state, call)
        assert judge.state == state
        assert agrees(judge)


def test_a_harmless_difference_is_no_violation_but_another_state() -> None:
    class Tidy(PortManager):
        """Forgets a pending report as soon as the hash is cached again."""

        def allocate(self, request: ManagedRequest, input_id: int) -> None:
            super().allocate(request, input_id)
            self.freed = [mm_hash for mm_hash in self.freed if mm_hash not in self.cached]

    judge = Lockstep(showing(Shows.INTERNALS, Tidy), PAIR)
    for call in (*EVICTED, Allocate("r1", 0)):
        assert judge.apply(call) is None
    assert not agrees(judge)
    assert judge.apply(Drain()) is None
    assert agrees(judge)


def test_a_hash_evicted_twice_and_one_evicted_once_are_not_the_same_state() -> None:
    """What a list holds twice a drain may treat otherwise (`drain-loses-twice-evicted`)."""
    once, twice = (Lockstep(showing(Shows.INTERNALS, PortManager), workload("a", "b", capacity=1)) for _ in "12")
    evict_a: tuple[Call, ...] = (Allocate("r1", 0), FreeRequest("r1"), CanAllocate("r2", 0, 1, 0))
    for judge, calls in ((once, evict_a), (twice, evict_a * 2)):
        assert [judge.apply(call) for call in calls] == [None] * len(calls)
    assert once.state == twice.state
    assert once.key != twice.key
    assert (once.repeated, twice.repeated) == (False, True)
    assert agrees(once)
    assert agrees(twice)
    assert twice.fork().repeated
    assert twice.apply(Drain()) is None
    assert not twice.repeated


@pytest.mark.parametrize("shows", [Shows.COUNTERS, Shows.RESULTS])
def test_without_internals_a_reset_that_withdrew_a_report_is_not_one_that_withdrew_nothing(shows: Shows) -> None:
    """Only the next drain shows whether the report was withdrawn (`reset-keeps-pending`)."""
    withdrawn, nothing = (Lockstep(showing(shows, PortManager), PAIR) for _ in "12")
    for judge, calls in ((withdrawn, (*EVICTED, Reset())), (nothing, (*QUEUED, Reset()))):
        assert [judge.apply(call) for call in calls] == [None] * len(calls)
    assert withdrawn.key != nothing.key


def test_where_something_differs_a_state_right_after_a_drain_is_not_one_later() -> None:
    """The same broken report is `report-cleared` right after a drain and `report-complete` later."""
    keeping = seeded("drain-does-not-clear")
    right_after, later = (Lockstep(showing(Shows.INTERNALS, keeping), PAIR) for _ in "12")
    for judge, calls in ((right_after, (*EVICTED, Drain())), (later, (*EVICTED, Drain(), Check("r2", 0)))):
        assert [judge.apply(call) for call in calls] == [None] * len(calls)
    assert right_after.state == later.state
    assert right_after.key != later.key


# --- Eras -------------------------------------------------------------------------------------------------


def test_an_era_that_answers_by_membership_is_judged_by_membership(release: Release) -> None:
    target = release("0.22.0")
    assert target.era == {"cached-ids-exact"}
    shared = workload("a", "ba", capacity=2)
    calls = (Allocate("r1", 0), CachedIds("r2"), Check("r2", 1), FreeRequest("r1"), CachedIds("r1"))
    assert judged(target, shared, calls) is None

    elsewhere = replace(target, era=frozenset())
    violation = judged(elsewhere, shared, calls)
    assert violation is not None
    assert violation.property == "cached-ids-exact"
    assert violation.call_index == 0
    assert violation.expected == "r2 lists inputs nothing"
    assert violation.observed == "it lists inputs 1"


def test_membership_is_a_rule_too_and_can_be_broken(release: Release) -> None:
    by_held = replace(release("0.23.0"), era=frozenset({"cached-ids-exact"}))
    violation = judged(by_held, workload("a", "a", capacity=1), (Allocate("r1", 0),))
    assert violation is not None
    assert violation.property == "cached-ids-exact"
    assert violation.expected == "r2 lists inputs 0"
