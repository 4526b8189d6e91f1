"""Exhaustive exploration of engines: pinned counts, faults caught, shortest traces, situations, stalls."""

from collections.abc import Iterator
from functools import cache

import pytest
from msgspec.structs import replace

from impl.inprocess import PythonTarget, python_target
from impl.port import PortManager
from impl.target import Shows
from impl.targets import resolve
from model.eras import rules_of
from model.manager import ManagedRequest
from model.scheduling import (
    Arrive,
    EngineTrace,
    Move,
    Pass,
    Phase,
    Placement,
    Policy,
    Prompt,
    Scene,
    Setup,
    WorkerOrder,
)
from properties.engine_exploration import EngineExploration, EngineRun, explore_scenes, first_breach
from properties.engine_faults import ENGINE_FAULTS, EngineFault
from properties.engine_invariants import ENGINE_PROPERTIES
from properties.engine_reach import PROBLEMS, consequence_of, reach
from properties.engine_scopes import EngineScope, parse_engine_scope, scenes
from properties.engine_situations import ENGINE_SITUATIONS
from properties.scopes import ScopeError

TINY = EngineScope(tokens=2, sizes=(1,))
NO_TEXT = EngineScope(text=0)
URGENT = EngineScope(hashes=2, tokens=3, sizes=(1,), capacity=1)
ORDINARY = Setup(capacity=2)
PRIORITY = Setup(capacity=1, policy=Policy.PRIORITY)
P = Placement


@cache
def explored(target: str, scope: EngineScope, setup: Setup) -> EngineExploration:
    return explore_scenes(resolve(target), scenes(scope, setup), name=str(scope))


def found(exploration: EngineExploration) -> dict[str, int]:
    return {one.breach.property: len(one.trace) for one in exploration.counterexamples}


def test_counts_are_pinned() -> None:
    one = explored("port", TINY, ORDINARY)
    assert (one.scenes, one.states, one.moves, one.passes, one.calls) == COUNTS
    assert one.complete
    assert one.progress_decided


COUNTS = (323, 6786, 31312, 13203, 6796)


def test_a_correct_manager_holds_in_an_ordinary_engine() -> None:
    assert found(explored("port", NO_TEXT, ORDINARY)) == {}


def test_every_situation_is_reached() -> None:
    counts = {one.name: 0 for one in ENGINE_SITUATIONS}
    for exploration in (explored("port", NO_TEXT, ORDINARY), explored("port", URGENT, PRIORITY)):
        for name, count in exploration.situations.items():
            counts[name] += count
    assert not [name for name, count in counts.items() if not count]


@pytest.mark.parametrize("fault", ENGINE_FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_caught_by_its_property(fault: EngineFault) -> None:
    scope = NO_TEXT if fault.name == "frees-at-first-token" else TINY
    exploration = explore_scenes(
        resolve(fault.target), scenes(scope, ORDINARY), name="", engine_class=fault.engine_class
    )
    assert fault.property in found(exploration)
    assert found(explored(fault.target, scope, ORDINARY)) == {}, "and not without the fault"


def test_every_property_has_a_fault() -> None:
    assert {fault.property for fault in ENGINE_FAULTS} == {one.name for one in ENGINE_PROPERTIES}


def test_dropping_after_gathering_is_harmless_with_a_right_report() -> None:
    fault = next(one for one in ENGINE_FAULTS if one.name == "drops-after-gathering")
    right = explore_scenes(resolve("port"), scenes(TINY, ORDINARY), name="", engine_class=fault.engine_class)
    assert found(right) == {}


# --- Shortest, against a plain search without copies, graphs or canonical states ---


def plain(scene: Scene, target: str, depth: int) -> dict[str, int]:
    """Length of the shortest trace to each broken property, by trying everything."""
    shortest: dict[str, int] = {}

    def moves(state_phases: list[Phase]) -> Iterator[Move]:
        for request, phase in zip(scene.requests, state_phases, strict=True):
            if phase is Phase.ABSENT:
                yield Arrive(request.request_id)
        if any(phase is not Phase.ABSENT for phase in state_phases):
            for tokens in range(1, scene.setup.token_budget + 1):
                for kv in ((), (False,), (True, False), (False, False)):
                    yield Pass(tokens, kv)

    def go(taken: tuple[Move, ...]) -> None:
        run = EngineRun(scene, resolve(target))
        broken: set[str] = set()
        for move in taken:
            broken = {one.property for one in run.take(move)[1]}
        for name in broken:
            shortest[name] = min(shortest.get(name, len(taken)), len(taken))
        phases, over = [standing.phase for standing in run.state.standings], run.over
        run.close()
        if len(taken) < depth and not over:
            for move in moves(phases):
                go((*taken, move))

    go(())
    return shortest


def test_the_shortest_trace_is_that_of_a_plain_search() -> None:
    requests = Prompt("r1", (P("a", 0, 1), P("b", 1, 1)), 2), Prompt("r2", (P("b", 0, 1), P("c", 1, 1)), 2)
    scene = Scene(requests, Setup(capacity=2, token_budget=2, worker_order=WorkerOrder.ENCODE_FIRST))
    exploration = explore_scenes(resolve("port:unfiltered-freed"), [scene], name="")
    lengths = {name: length for name, length in found(exploration).items() if length <= 4}
    assert lengths == plain(scene, "port:unfiltered-freed", 4) == {"gather-hits": 4}


def test_a_counterexample_does_it_again_on_a_fresh_manager() -> None:
    target = resolve("port:unfiltered-freed")
    setup = Setup(capacity=2, worker_order=WorkerOrder.ENCODE_FIRST)
    exploration = explore_scenes(target, scenes(TINY, setup), name="")
    for one in exploration.counterexamples:
        again = first_breach(one.trace, target, one.breach.property)
        assert again == (len(one.trace), one.breach)


# --- Progress ---


@pytest.mark.parametrize("release", ["0.32", "0.33"])
def test_a_refused_look_ahead_hangs_up_to_0_32(release: str) -> None:
    request = Prompt("r1", (P("a", 0, 1), P("b", 1, 1)), 2)
    setup = Setup(capacity=1, look_ahead=1, kv_capacity=2, rules=rules_of(release))
    exploration = explore_scenes(resolve("port"), [Scene((request,), setup)], name="")
    assert found(exploration).get("progress") == (2 if release == "0.32" else None)


def test_progress_is_asked_only_where_a_kv_capacity_decides() -> None:
    request = Prompt("r1", (), 2)
    trace = EngineTrace(Scene((request,), ORDINARY), (Arrive("r1"), Pass(1, (False,)), Pass(1, (False,))))
    assert first_breach(trace, resolve("port"), "progress") is None


# --- Priority preemption withdraws an encoding, and the entry stays ---


def test_under_priority_a_withdrawn_encoding_crashes_whatever_the_manager() -> None:
    exploration = explored("port", URGENT, PRIORITY)
    assert found(exploration) == {"gather-hits": 5, "worker-coherent": 5}


# --- Targets that show less, or raise ---


class Asserting(PortManager):
    """A port that asserts what upstream asserts."""

    def allocate(self, request: ManagedRequest, input_id: int) -> None:
        assert request.mm_features[input_id].identifier not in self.cached, "allocated twice"
        super().allocate(request, input_id)


def test_a_manager_that_raises_breaks_no_crash() -> None:
    fault = next(one for one in ENGINE_FAULTS if one.name == "allocates-duplicates")
    target = python_target("asserting", Asserting)
    exploration = explore_scenes(target, scenes(TINY, ORDINARY), name="", engine_class=fault.engine_class)
    assert found(exploration)["no-crash"] == 2


# --- Reach ---


@pytest.mark.parametrize(
    ("order", "cost"),
    [(WorkerOrder.DROP_FIRST, "harmless"), (WorkerOrder.ENCODE_FIRST, "gather-hits")],
)
def test_an_ordinary_engine_reaches_the_unfiltered_report(order: WorkerOrder, cost: str) -> None:
    line = reach(PROBLEMS[0], Setup(capacity=2, worker_order=order), EngineScope(tokens=2, text=0, sizes=(1,)))
    assert line.reached is not None
    assert len(line.reached.trace) == 4
    assert consequence_of(line) == cost


def test_an_ordinary_engine_reaches_the_early_evictable_entry_and_recomputes() -> None:
    line = reach(PROBLEMS[1], ORDINARY, NO_TEXT)
    assert line.reached is not None
    assert len(line.reached.trace) == 2
    assert {one.breach.property: len(one.trace) for one in line.consequences} == {"no-redundant-encode": 5}


# --- Scopes ---


@pytest.mark.parametrize("text", ["2r2i3h/tokens=4", "1r1i1h/tokens=2/text=0/sizes=1..1/capacity=3"])
def test_a_scope_is_read_as_it_is_written(text: str) -> None:
    assert str(parse_engine_scope(text)) == text


@pytest.mark.parametrize("text", ["", "2r2i", "0r1i1h", "2r2i3h/tokens=0", "2r2i3h/sizes=2..1", "2r2i3h/x=1"])
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ScopeError, match=r"written|start like"):
        parse_engine_scope(text)


def test_renaming_makes_no_second_scene() -> None:
    """Every scene once: none is another one with requests and hashes renamed."""
    seen = set()
    for scene in scenes(EngineScope(tokens=3, sizes=(1,)), replace(ORDINARY, kv_capacity=8)):
        shapes = []
        for order in (scene.requests, scene.requests[::-1]):
            names: dict[str, int] = {}
            shapes.append(
                tuple(
                    (
                        tuple(
                            (names.setdefault(i.mm_hash, len(names)), i.offset, i.length) for i in request.items
                        ),
                        request.tokens,
                    )
                    for request in order
                )
            )
        key = (min(shapes), scene.setup)
        assert key not in seen
        seen.add(key)


def test_what_a_target_hides_is_not_asked() -> None:
    target = PythonTarget("closed", PortManager, Shows.RESULTS, has_reset=True)
    exploration = explore_scenes(target, scenes(TINY, ORDINARY), name="")
    assert found(exploration) == {}
