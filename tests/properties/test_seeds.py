"""The two problems that this project starts from, each with its own tests: neither test covers the other.

The tests of `EARLY` ask upstream's own question (change #54284): one request, two inputs, one shared hash. Those
of `UNFILTERED` ask what change #52482 mended: a hash evicted and admitted again before the report.
"""

from collections.abc import Callable
from typing import Any

import pytest

from impl.defects import DEFECTS, EarlyEvictable, UnfilteredFreed
from impl.inprocess import PythonTarget, RequestView, python_target
from impl.port import PortManager
from model.contract import trace_of
from model.operations import (
    Admit,
    Allocate,
    CanAllocate,
    Check,
    Discipline,
    Drain,
    EndPass,
    FreeInput,
    FreeRequest,
    Move,
    Outcome,
    Preempt,
    Processed,
    Trace,
)
from model.workload import Item, Request, Workload
from properties.counterexample import replay
from properties.exploration import explore
from properties.scopes import parse_scope

Release = Callable[[str], PythonTarget]

EARLY, UNFILTERED = "evictable-unreferenced", "freed-disjoint-cached"


class BothMissing(EarlyEvictable, UnfilteredFreed):
    pass


PORTS: dict[str, type[PortManager]] = {
    "port": PortManager,
    "port:early-evictable": EarlyEvictable,
    "port:unfiltered-freed": UnfilteredFreed,
    "port:early-evictable+unfiltered-freed": BothMissing,
}
# Which of the two each target has.
HAS_EARLY = {
    "port": False,
    "port:early-evictable": True,
    "port:unfiltered-freed": False,
    "port:early-evictable+unfiltered-freed": True,
    "0.26.0": True,
    "0.27.1": True,
    "0.28.0": True,
    "0.29.0": False,
    "0.33.0": False,
}
HAS_UNFILTERED = {
    "port": False,
    "port:early-evictable": False,
    "port:unfiltered-freed": True,
    "port:early-evictable+unfiltered-freed": True,
    "0.26.0": True,
    "0.27.1": True,
    "0.28.0": False,
    "0.29.0": False,
    "0.33.0": False,
}


@pytest.fixture
def target(name: str, release: Release) -> PythonTarget:
    return python_target(name, PORTS[name]) if name in PORTS else release(name)


def views(workload: Workload) -> list[RequestView]:
    return [RequestView(request) for request in workload.requests]


# --- Early evictable: on the manager itself ---------------------------------------------------------------

ONE_HASH_TWICE = Workload(8, (Request("r1", (Item("shared", 4), Item("shared", 4))),), 8)


def freed_one_occurrence(manager_class: type[Any]) -> tuple[Any, RequestView]:
    (request,) = views(ONE_HASH_TWICE)
    manager = manager_class(8)
    assert not manager.check_and_update_cache(request, 0)
    assert manager.can_allocate(request, 0, 8, 0)
    manager.allocate(request, 0)
    assert manager.check_and_update_cache(request, 1)
    manager.free_encoder_input(request, 0)
    return manager, request


@pytest.mark.parametrize("name", HAS_EARLY)
def test_a_shared_hash_is_evictable_after_the_first_free_only_where_the_fix_is_missing(
    name: str, target: PythonTarget
) -> None:
    manager, _ = freed_one_occurrence(target.manager_class)
    assert ("shared" in manager.freeable) is HAS_EARLY[name]
    assert manager.num_freeable_slots == (8 if HAS_EARLY[name] else 4)
    assert manager.num_free_slots == 4


@pytest.mark.parametrize("name", HAS_EARLY)
def test_a_shared_hash_is_evictable_after_the_second_free_everywhere(name: str, target: PythonTarget) -> None:
    manager, request = freed_one_occurrence(target.manager_class)
    manager.free_encoder_input(request, 1)
    assert list(manager.freeable) == ["shared"]
    assert (manager.num_free_slots, manager.num_freeable_slots) == (4, 8)


@pytest.mark.parametrize("name", HAS_EARLY)
def test_a_free_of_the_request_frees_what_the_first_free_left(name: str, target: PythonTarget) -> None:
    manager, request = freed_one_occurrence(target.manager_class)
    manager.free(request)
    assert list(manager.freeable) == ["shared"]
    assert (manager.num_free_slots, manager.num_freeable_slots) == (4, 8)


# --- Unfiltered report: on the manager itself -------------------------------------------------------------

TWO_FOR_ONE_PLACE = Workload(1, (Request("r1", (Item("a", 1),)), Request("r2", (Item("b", 1),))), 1)


def readmitted(manager_class: type[Any]) -> Any:
    """a is evicted for b and b for a, before a report."""
    first, second = views(TWO_FOR_ONE_PLACE)
    manager = manager_class(1)
    for request in (first, second, first):
        assert not manager.check_and_update_cache(request, 0)
        assert manager.can_allocate(request, 0, 1, 0)
        manager.allocate(request, 0)
        manager.free(request)
    return manager


@pytest.mark.parametrize("name", HAS_UNFILTERED)
def test_a_readmitted_hash_is_reported_only_where_the_fix_is_missing(name: str, target: PythonTarget) -> None:
    manager = readmitted(target.manager_class)
    assert list(manager.cached) == ["a"]
    report = manager.get_freed_mm_hashes()
    assert "b" in report
    assert ("a" in report) is HAS_UNFILTERED[name]


@pytest.mark.parametrize("name", HAS_UNFILTERED)
def test_a_report_is_cleared_by_reading_it_everywhere(name: str, target: PythonTarget) -> None:
    manager = readmitted(target.manager_class)
    assert manager.get_freed_mm_hashes()
    assert list(manager.get_freed_mm_hashes()) == []


@pytest.mark.parametrize("name", HAS_UNFILTERED)
def test_a_hash_left_out_of_a_report_is_reported_once_it_is_evicted_again(name: str, target: PythonTarget) -> None:
    manager = readmitted(target.manager_class)
    manager.get_freed_mm_hashes()
    _, second = views(TWO_FOR_ONE_PLACE)
    assert manager.can_allocate(second, 0, 1, 0)
    assert list(manager.get_freed_mm_hashes()) == ["a"]


# --- Through the judge: one trace for each problem, under both disciplines --------------------------------


def traces(workload: Workload, calls: tuple[Move, ...], steps: tuple[Move, ...]) -> tuple[Trace, Trace]:
    return trace_of(workload, Discipline.OPEN, calls), trace_of(workload, Discipline.CALLER, steps)


EARLY_TRACES = traces(
    ONE_HASH_TWICE,
    (CanAllocate("r1", 0, 4, 0), Allocate("r1", 0), Check("r1", 1), FreeInput("r1", 0)),
    (Admit("r1", 1, Outcome.COMMIT), EndPass(), Processed("r1", 0)),
)
UNFILTERED_TRACES = traces(
    Workload(
        1, (Request("r1", (Item("a", 1),)), Request("r2", (Item("b", 1),)), Request("r3", (Item("a", 1),))), 9
    ),
    (Allocate("r1", 0), FreeRequest("r1"), CanAllocate("r2", 0, 1, 0), Allocate("r3", 0), Drain()),
    (
        *(Admit("r1", 0, Outcome.COMMIT), Admit("r2", 0, Outcome.SKIP), EndPass(), Processed("r1", 0)),
        # b evicts a, and r2 gets no tokens; a comes back in the same pass.
        *(Admit("r2", 0, Outcome.SKIP), Admit("r3", 0, Outcome.COMMIT), EndPass()),
    ),
)
PREEMPTED_TRACE = trace_of(
    Workload(1, (Request("r1", (Item("a", 1),)), Request("r2", (Item("b", 1), Item("a", 1)))), 9),
    Discipline.CALLER,
    (
        *(Admit("r2", 0, Outcome.COMMIT), EndPass(), Processed("r2", 0), Admit("r1", 0, Outcome.COMMIT)),
        *(Preempt("r1"), Admit("r2", 1, Outcome.COMMIT), EndPass()),
    ),
)


@pytest.mark.parametrize("trace", EARLY_TRACES, ids=["open", "caller"])
@pytest.mark.parametrize("name", HAS_EARLY)
def test_the_judge_convicts_the_first_free_only_where_the_fix_is_missing(
    name: str, target: PythonTarget, trace: Trace
) -> None:
    violation = replay(trace, target)
    if not HAS_EARLY[name]:
        assert violation is None
        return
    assert violation is not None
    assert violation.property == EARLY
    assert violation.call == FreeInput("r1", 0)
    assert violation.call_index == len(list(trace.calls)) - 1
    assert violation.expected == "shared not evictable: input 1 of r1 still needs it"
    assert violation.observed == "shared is in the evictable queue"


@pytest.mark.parametrize("trace", UNFILTERED_TRACES, ids=["open", "caller"])
@pytest.mark.parametrize("name", HAS_UNFILTERED)
def test_the_judge_convicts_the_report_only_where_the_fix_is_missing(
    name: str, target: PythonTarget, trace: Trace
) -> None:
    violation = replay(trace, target)
    if not HAS_UNFILTERED[name]:
        assert violation is None
        return
    assert violation is not None
    assert violation.property == UNFILTERED
    assert violation.call == Drain()
    assert violation.call_index == len(list(trace.calls)) - 1
    assert violation.expected == "a report without a, which is cached again"
    assert violation.observed == "the report names a"


@pytest.mark.parametrize("name", HAS_UNFILTERED)
def test_a_hash_kept_through_a_preemption_is_in_no_report(name: str, target: PythonTarget) -> None:
    """Reading a after its preemption is a hit: nothing was evicted but b, on any target."""
    assert replay(PREEMPTED_TRACE, target) is None


# --- Through exploration: each property breaks exactly where its fix is missing ---------------------------

SCOPE = parse_scope("2r2i3h/sizes=1/capacity=1")


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("name", HAS_EARLY)
def test_each_property_breaks_exactly_where_its_fix_is_missing(
    name: str, target: PythonTarget, discipline: Discipline
) -> None:
    found = explore(target, SCOPE, discipline)
    expected = {EARLY} if HAS_EARLY[name] else set()
    if HAS_UNFILTERED[name]:
        expected.add(UNFILTERED)
    assert {one.violation.property for one in found.counterexamples} == expected
    assert found.complete


def test_the_catalogue_names_the_two_seeds() -> None:
    named = {defect.name: defect.property for defect in DEFECTS}
    assert named["early-evictable"] == EARLY
    assert named["unfiltered-freed"] == UNFILTERED
