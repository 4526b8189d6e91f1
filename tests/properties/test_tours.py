"""Tours: the explorer's outcome at another speed, and no call that is not compared."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from impl.drivers.client import DriverTarget
from impl.drivers.cpp import port_target, tree_target
from impl.drivers.python import class_target
from model.operations import Discipline
from model.workload import Workload
from properties.exploration import explore
from properties.scopes import parse_scope, workload_classes
from properties.tours import agrees, explore_by_tours, recorded

BROKEN = Path(__file__).parents[1] / "impl" / "cpp_trees" / "broken"
SCOPES = {
    Discipline.CALLER: parse_scope("2r2i2h/sizes=1/capacity=1"),
    Discipline.OPEN: parse_scope("1r2i2h/sizes=1/capacity=1"),
}


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("cache")
    patch.setenv("EVICTCHECK_CACHE", str(folder))
    yield folder / "tours"
    patch.undo()


@pytest.fixture(scope="module")
def port(kept: Path) -> DriverTarget:
    return port_target()


@pytest.mark.parametrize("discipline", Discipline)
def test_a_right_driver_is_covered_by_tours_alone(port: DriverTarget, discipline: Discipline) -> None:
    """The figures are the explorer's own; and the driver is asked for each call at least once."""
    toured = explore_by_tours(port, SCOPES[discipline], discipline)
    right = explore(port, SCOPES[discipline], discipline)
    assert msgspec.structs.replace(toured.exploration, seconds=0) == msgspec.structs.replace(right, seconds=0)
    assert toured.operations >= right.calls
    assert not right.counterexamples


@pytest.mark.parametrize("discipline", Discipline)
def test_a_wrong_driver_has_the_explorers_counterexamples(discipline: Discipline) -> None:
    broken = tree_target(BROKEN)
    toured = explore_by_tours(broken, SCOPES[discipline], discipline).exploration
    assert {one.violation.property for one in toured.counterexamples} == {
        "evictable-unreferenced",
        "freed-disjoint-cached",
    }
    assert toured.counterexamples == explore(broken, SCOPES[discipline], discipline).counterexamples


@pytest.mark.parametrize("discipline", Discipline)
def test_each_call_of_a_tour_is_compared_with_what_it_shows(port: DriverTarget, discipline: Discipline) -> None:
    workload = workload_classes(parse_scope("1r2i2h/sizes=1/capacity=1"), discipline)[0].workload
    tour = recorded(workload, discipline, port)
    assert agrees(port, workload, tour)
    alone, with_look = b"0\n", b"0\nnothing like it\n"
    for number in range(len(array("I", tour.sources))):
        answer_of = array("I", tour.answer_of)
        alone = tour.answers[answer_of[number]][0]
        answer_of[number] = len(tour.answers)
        wrong = msgspec.structs.replace(
            tour, answers=[*tour.answers, (alone, alone + with_look)], answer_of=answer_of.tobytes()
        )
        assert agrees(port, workload, wrong) is None, f"call {number} is never compared"


def test_tours_are_recorded_once_and_again_when_the_file_is_damaged(
    port: DriverTarget, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload(1, (), 1)
    before = set(kept.iterdir()) if kept.exists() else set()
    tour = recorded(workload, Discipline.OPEN, port)
    (file,) = set(kept.iterdir()) - before
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert recorded(workload, Discipline.OPEN, port) == tour
    assert file.read_bytes() == whole
    monkeypatch.setattr("properties.tours.cover", lambda *_: pytest.fail("recorded again"))
    assert recorded(workload, Discipline.OPEN, port) == tour


def test_a_driver_that_shows_more_than_tours_hold_is_explored_call_by_call() -> None:
    target = class_target("impl.port:PortManager")
    toured = explore_by_tours(target, parse_scope("1r1i1h/sizes=1/capacity=1"), Discipline.OPEN)
    assert toured.operations == 0
    assert toured.exploration.complete
    assert not toured.exploration.counterexamples
