"""Walks, shrinking, the corpus of engine traces, and verdicts."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from msgspec.structs import replace

from impl.inprocess import PythonTarget
from impl.port import PortManager
from impl.target import Shows
from impl.targets import resolve
from model.eras import NEWEST, rules_of
from model.scheduling import (
    Arrive,
    EngineTrace,
    Pass,
    Placement,
    Policy,
    Prompt,
    Scene,
    SceneError,
    Setup,
    WorkerOrder,
)
from properties.engine_corpus import NamedEngineFault, adapted, known_engine_faults
from properties.engine_exploration import EngineCounterexample, first_breach
from properties.engine_faults import ENGINE_FAULTS
from properties.engine_invariants import ENGINE_PROPERTIES
from properties.engine_minimize import minimize_engine
from properties.engine_scopes import EngineScope
from properties.engine_situations import ENGINE_SITUATIONS
from properties.engine_verdicts import EngineQuestion, default_setup, judge_engine, release_of
from properties.engine_walks import hunt_engine
from properties.verdicts import Outcome

P = Placement
TINY = EngineScope(tokens=2, sizes=(1,))
ENCODE_FIRST = Setup(capacity=2, worker_order=WorkerOrder.ENCODE_FIRST)
NAMES = frozenset(one.name for one in ENGINE_PROPERTIES)
CORPUS = known_engine_faults()


# --- Shrinking ---


def test_a_trace_shrinks_to_what_it_needs() -> None:
    requests = (
        Prompt("r1", (P("a", 1, 1), P("b", 2, 1)), 4),
        Prompt("r2", (P("b", 0, 1), P("c", 1, 1), P("d", 2, 1)), 3),
        Prompt("r3", (P("d", 0, 1),), 2, outputs=2),
    )
    moves = (Arrive("r3"), Pass(1), Arrive("r2"), Pass(8), Pass(8), Arrive("r1"), Pass(8), Pass(8))
    trace = EngineTrace(Scene(requests, replace(ENCODE_FIRST, capacity=3)), moves)
    target = resolve("port:unfiltered-freed")
    broken = first_breach(trace, target, "gather-hits")
    assert broken is not None
    minimal = minimize_engine(EngineCounterexample(trace, broken[1], target.name, "by hand"), target)
    assert len(minimal.trace) == 4
    assert sum(len(request.items) for request in minimal.trace.scene.requests) == 4
    assert sum(request.tokens for request in minimal.trace.scene.requests) == 4
    assert first_breach(minimal.trace, target, "gather-hits") == (4, minimal.breach)


# --- Walks ---

WALKS = settings(max_examples=60, stateful_step_count=30, derandomize=True)


@pytest.mark.parametrize("name", ["keeps-on-preemption", "never-drops", "encodes-one-pick", "refuses-whole"])
def test_walks_find_seeded_faults(name: str) -> None:
    fault = next(one for one in ENGINE_FAULTS if one.name == name)
    hunt = hunt_engine(
        resolve("port"), Setup(capacity=2), frozenset({fault.property}), WALKS, engine_class=fault.engine_class
    )
    assert [one.breach.property for one in hunt.counterexamples] == [fault.property]


def test_walks_find_nothing_in_a_correct_manager_and_go_where_it_is_hard() -> None:
    hunt = hunt_engine(resolve("port"), Setup(capacity=2), NAMES, WALKS)
    assert hunt.counterexamples == ()
    assert hunt.situations.keys() == {one.name for one in ENGINE_SITUATIONS}
    assert hunt.situations["refused"]
    assert hunt.situations["item-split"]


# --- The corpus ---


@pytest.mark.parametrize("known", CORPUS, ids=lambda known: known.name)
def test_a_known_fault_holds_in_exactly_its_targets(
    known: NamedEngineFault, release: Callable[[str], PythonTarget]
) -> None:
    fault = known.fault
    holds = []
    for version in ("0.22.0", "0.26.0", "0.28.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"):
        setup = replace(fault.trace.scene.setup, rules=rules_of(version))
        broken = first_breach(adapted(fault.trace, setup), release(version), fault.property)
        holds += [f"vllm:{version}"] if broken else []
    assert holds == [target for target in fault.targets if target != "port"]
    broken = first_breach(
        adapted(fault.trace, replace(fault.trace.scene.setup, rules=rules_of(NEWEST))),
        resolve("port"),
        fault.property,
    )
    assert (broken is not None) == ("port" in fault.targets)


def test_a_known_trace_in_an_engine_that_does_not_admit_it_is_refused() -> None:
    trace = EngineTrace(Scene((Prompt("r1", (P("a", 0, 2),), 2),), Setup(capacity=2, token_budget=1)), ())
    with pytest.raises(SceneError, match="may not be split"):
        adapted(trace, Setup(capacity=2, split_items=False))


# --- Verdicts ---


def test_everything_holds_of_the_port() -> None:
    report = judge_engine(resolve("port"), EngineQuestion(Setup(capacity=2), TINY))
    assert [(one.property, one.outcome) for one in report.verdicts] == [
        (one.name, Outcome.HOLDS) for one in ENGINE_PROPERTIES
    ]
    assert (report.exit_code, report.complete, report.corpus) == (0, True, tuple(one.name for one in CORPUS))
    assert f"all of {TINY}, 100 random walks" in report.verdicts[0].evidence


def test_a_violation_is_named_with_its_length() -> None:
    report = judge_engine(resolve("port:unfiltered-freed"), EngineQuestion(ENCODE_FIRST, TINY))
    verdict = report.verdicts[0]
    assert (verdict.property, verdict.outcome, verdict.length) == ("gather-hits", Outcome.VIOLATED, 4)
    assert report.exit_code == 1


def test_known_traces_find_what_the_scope_does_not_hold() -> None:
    setup = Setup(capacity=2, policy=Policy.PRIORITY)
    report = judge_engine(resolve("port"), EngineQuestion(setup, EngineScope(1, 1, 1, tokens=1)))
    assert report.verdicts[0].engine.startswith("corpus ")


def test_out_of_time_is_no_pass() -> None:
    report = judge_engine(resolve("port"), EngineQuestion(Setup(capacity=2), TINY, seconds=0.0))
    assert {one.outcome for one in report.verdicts} == {Outcome.UNKNOWN}
    assert report.exit_code == 3


def test_what_a_target_does_not_show_is_not_observable() -> None:
    target = PythonTarget("closed", PortManager, Shows.RESULTS, has_reset=True)
    report = judge_engine(target, EngineQuestion(Setup(capacity=2), EngineScope(1, 1, 1, tokens=1)))
    hidden = {one.property for one in report.verdicts if one.outcome is Outcome.NOT_OBSERVABLE}
    assert hidden == {"worker-coherent", "no-idle-reference"}
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("target", "release_"),
    [("vllm:0.28.0", "0.28.0"), ("vllm:installed", NEWEST), ("vllm:a/b.py", NEWEST), ("port", NEWEST)],
)
def test_a_target_is_judged_in_its_own_era(target: str, release_: str) -> None:
    assert release_of(target) == release_
    assert default_setup(target).rules == rules_of(release_)
