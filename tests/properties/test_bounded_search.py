"""z3's shortest traces are those of exhaustive exploration, and replay on real code."""

from collections.abc import Callable, Iterator

import pytest
import z3

from impl.inprocess import PythonTarget
from impl.targets import resolve
from model.contract import carry_out, moves_of, start
from model.operations import Discipline, Move
from model.relation import Relation, Switches
from properties.bounded_search import (
    Depth,
    ModelMismatchError,
    Search,
    SearchError,
    _Run,
    _Search,
    bounds_of,
    default_target,
    reach,
    search,
    trace_to,
)
from properties.exploration import explore_classes
from properties.formulas import FACTS, PROPERTY_FORMULAS, SITUATION_FORMULAS
from properties.invariants import MANAGER_PROPERTIES
from properties.scopes import DEFAULT_SCOPE, parse_scope, workload_classes
from properties.situations import SITUATIONS, situations_of
from properties.solving import SolverProcess, Unknown

EARLY = Switches(hold_until_last_occurrence=False)
UNFILTERED = Switches(report_only_absent=False)
FAULTS = [(EARLY, "evictable-unreferenced"), (UNFILTERED, "freed-disjoint-cached")]


@pytest.fixture(scope="module")
def process() -> Iterator[SolverProcess]:
    with SolverProcess() as started:
        started.start()
        yield started


def found(
    switches: Switches, discipline: Discipline, broken: str, target: PythonTarget | None = None, depth: int = 8
) -> Search:
    replay_on = target or resolve(default_target(switches))
    return search(DEFAULT_SCOPE, discipline, switches, [broken], depth, replay_on)


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize(("switches", "broken"), FAULTS)
def test_shortest_is_as_long_as_explorations(switches: Switches, broken: str, discipline: Discipline) -> None:
    verdict = found(switches, discipline, broken).verdicts[0]
    assert verdict.depth is not None
    explored = explore_classes(
        resolve(default_target(switches)),
        workload_classes(DEFAULT_SCOPE, discipline),
        discipline,
        name="",
        deepest=verdict.depth,
    )
    lengths = {len(one.trace) for one in explored.counterexamples if one.violation.property == broken}
    assert lengths == {verdict.depth}


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize(("switches", "broken"), FAULTS)
def test_replays_on_a_release_with_the_fault(
    release: Callable[[str], PythonTarget], switches: Switches, broken: str, discipline: Discipline
) -> None:
    verdict = found(switches, discipline, broken, release("0.26.0")).verdicts[0]
    assert verdict.counterexample is not None
    assert verdict.counterexample.target == "vllm:0.26.0"
    assert verdict.counterexample.violation.property == broken
    assert len(verdict.counterexample.trace) == verdict.depth


@pytest.mark.parametrize(("discipline", "lengths"), [(Discipline.OPEN, (3, 5)), (Discipline.CALLER, (3, 5))])
def test_with_both_mends_left_out_each_fault_is_found_by_itself(
    discipline: Discipline, lengths: tuple[int, int]
) -> None:
    neither = Switches(hold_until_last_occurrence=False, report_only_absent=False)
    names = [broken for _, broken in FAULTS]
    result = search(DEFAULT_SCOPE, discipline, neither, names, 6, resolve(default_target(neither)))
    assert tuple(one.depth for one in result.verdicts) == lengths


def test_one_mend_does_not_hide_the_others_fault() -> None:
    result = found(EARLY, Discipline.OPEN, "freed-disjoint-cached", depth=6)
    assert result.verdicts[0].counterexample is None
    assert result.verdicts[0].ruled_out == 6


@pytest.mark.parametrize("discipline", Discipline)
def test_nothing_with_both_mends(discipline: Discipline) -> None:
    nothing_to(6, discipline)


@pytest.mark.nightly
@pytest.mark.parametrize("discipline", Discipline)
def test_nothing_with_both_mends_to_depth_12(discipline: Discipline) -> None:
    nothing_to(12, discipline)


def nothing_to(depth: int, discipline: Discipline) -> None:
    scope = parse_scope("3r2i3h")
    result = search(scope, discipline, Switches(), [*PROPERTY_FORMULAS], depth, resolve("port"))
    assert {(one.depth, one.ruled_out, one.unknown) for one in result.verdicts} == {(None, depth, None)}
    assert [one.steps for one in result.depths] == list(range(1, depth + 1))


@pytest.mark.parametrize(("switches", "broken"), FAULTS)
def test_lemmas_change_no_answer(switches: Switches, broken: str) -> None:
    target = resolve(default_target(switches))
    plain, helped = (
        search(DEFAULT_SCOPE, Discipline.OPEN, switches, [*PROPERTY_FORMULAS][:2], 5, target, unaided=unaided)
        for unaided in (True, False)
    )
    assert [(one.property, one.depth) for one in plain.verdicts] == [
        (one.property, one.depth) for one in helped.verdicts
    ]
    assert {one.depth for one in helped.verdicts} > {None}


@pytest.mark.nightly
@pytest.mark.parametrize(("discipline", "depth"), [(Discipline.OPEN, 6), (Discipline.CALLER, 5)])
def test_nothing_with_both_mends_without_lemmas(discipline: Discipline, depth: int) -> None:
    scope, headlines = parse_scope("3r2i3h"), [*PROPERTY_FORMULAS][:2]
    result = search(scope, discipline, Switches(), headlines, depth, resolve("port"), unaided=True)
    assert {one.ruled_out for one in result.verdicts} == {depth}


def test_a_lemma_that_breaks_is_dropped_at_its_depth() -> None:
    result = found(EARLY, Discipline.OPEN, "evictable-unreferenced")
    assert ["held-refers" in one.lemmas for one in result.depths] == [True, True, False]
    assert "evictable-unreferenced" in result.depths[-1].unrolled


def test_a_target_without_the_fault_is_named() -> None:
    with pytest.raises(SearchError, match="lacks the fault that --without leaves in"):
        found(EARLY, Discipline.OPEN, "evictable-unreferenced", resolve("port"))  # type: ignore[arg-type]


def test_a_trace_that_does_not_replay_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("properties.bounded_search.default_target", lambda switches: "port")
    with pytest.raises(ModelMismatchError, match="fault of evictcheck: please report it"):
        found(EARLY, Discipline.OPEN, "evictable-unreferenced", resolve("port"))  # type: ignore[arg-type]


def test_a_trace_that_the_contract_refuses_is_a_fault_of_ours() -> None:
    run = _Run(DEFAULT_SCOPE, Discipline.CALLER, Switches(), resolve("port"))
    workload = workload_classes(DEFAULT_SCOPE, Discipline.CALLER)[0].workload
    with pytest.raises(ModelMismatchError, match="caller discipline does not allow"):
        run._replayed("nothing-stale", workload, moves_of_an_open_trace())


def moves_of_an_open_trace() -> tuple[Move, ...]:
    result = found(EARLY, Discipline.OPEN, "evictable-unreferenced").verdicts[0].counterexample
    assert result is not None
    return moves_of(result.trace)


def test_out_of_time_is_unknown_and_says_how_far_it_came() -> None:
    result = search(DEFAULT_SCOPE, Discipline.OPEN, Switches(), ["nothing-stale"], 3, resolve("port"), seconds=0.0)
    assert result.verdicts[0].unknown == "no answer within 0 s"
    assert result.verdicts[0].ruled_out == 0


def test_an_interrupt_leaves_the_rest_unknown() -> None:
    def stop(depth: Depth) -> None:
        raise KeyboardInterrupt

    names = ["nothing-stale"]
    result = search(DEFAULT_SCOPE, Discipline.OPEN, Switches(), names, 3, resolve("port"), progress=stop)
    assert [(one.ruled_out, one.unknown) for one in result.verdicts] == [(1, "interrupted")]


@pytest.mark.parametrize(
    ("properties", "depth", "sentence"),
    [
        (["no-such"], 3, "'no-such' is not a property that z3 decides"),
        (["results-agree"], 3, "those are freed-disjoint-cached"),
        (["nothing-stale"], 0, "a depth of 0 steps searches nothing"),
    ],
)
def test_what_cannot_be_searched_is_refused(properties: list[str], depth: int, sentence: str) -> None:
    with pytest.raises(SearchError, match=sentence):
        search(DEFAULT_SCOPE, Discipline.OPEN, Switches(), properties, depth, resolve("port"))


def test_formulas_are_named_after_properties_and_situations() -> None:
    names = [one.name for one in MANAGER_PROPERTIES]
    assert list(PROPERTY_FORMULAS) == [name for name in names if name in PROPERTY_FORMULAS]
    assert not {fact.name for fact in FACTS} & set(names)
    assert list(SITUATION_FORMULAS) == [one.name for one in SITUATIONS]


@pytest.mark.parametrize("name", [fact.name for fact in FACTS] + list(PROPERTY_FORMULAS))
@pytest.mark.parametrize("discipline", Discipline)
def test_every_formula_can_fail(name: str, discipline: Discipline) -> None:
    """One that is true by its form would be ruled out at every depth and mean nothing."""
    mixed = parse_scope("2r2i3h/mixed")
    seated = name != "seats-sound" or discipline is Discipline.CALLER
    relation = Relation(bounds_of(mixed), Switches(), discipline)
    before, after = relation.state("before"), relation.state("after")
    step = relation.step(before, after, "step")
    formula = {**PROPERTY_FORMULAS, **{fact.name: fact.formula for fact in FACTS}}[name]
    solver = z3.Solver()
    solver.add(relation.world, z3.Not(formula.holds_after(relation, step)))
    assert (solver.check() == z3.sat) is seated


def test_a_trace_to_a_fact_that_fails_is_legal(process: SolverProcess) -> None:
    trace = trace_to(
        DEFAULT_SCOPE, Discipline.CALLER, EARLY, "held-refers", "processed", 4, seconds=None, process=process
    )
    assert trace is not None
    assert not isinstance(trace, Unknown)
    assert len(trace) == 3


REACHED = {
    Discipline.OPEN: (4, 3, 3, 4, 6, 1, 1, 3, 4),
    # evicted-twice: exploration never sees it at this scope either, and finds it with a third request.
    Discipline.CALLER: (4, 3, 4, 4, None, 1, 3, 2, 1, 2),
}


@pytest.mark.parametrize("discipline", Discipline)
def test_every_situation_is_reached_or_shown_to_be_impossible(discipline: Discipline) -> None:
    answers = reach(DEFAULT_SCOPE, discipline, 10)
    assert [one.situation for one in answers] == [one.name for one in situations_of(discipline)]
    assert tuple(one.trace and len(one.trace) for one in answers) == REACHED[discipline]
    assert all(one.trace is not None or one.impossible is not None for one in answers)


def test_what_needs_two_inputs_is_impossible_with_one() -> None:
    answers = {one.situation: one for one in reach(parse_scope("2r1i2h"), Discipline.CALLER, 6)}
    never = {name for name, one in answers.items() if one.impossible is not None}
    assert never == {
        "first-occurrence-freed",
        "two-evicted-for-one",
        "evicted-twice",
        "several-freed-at-once",
        "duplicate-in-pass",
    }


@pytest.mark.nightly
def test_a_hash_is_evicted_twice_with_three_requests() -> None:
    answers = {one.situation: one for one in reach(parse_scope("3r2i3h"), Discipline.CALLER, 8)}
    trace = answers["evicted-twice"].trace
    assert trace is not None
    position = start(trace.workload, trace.discipline)
    for move in moves_of(trace):
        _, position = carry_out(position, move)
    assert len(trace) == 7


def test_the_solver_starts_where_the_model_starts() -> None:
    """`_Search` refuses a formula that a new manager does not meet."""
    one = _Search((bounds_of(DEFAULT_SCOPE), Switches(), Discipline.OPEN), unaided=False)
    assert isinstance(one.deepen(), tuple)
