"""The order of attack, and what may be said after it."""

from collections.abc import Callable
from time import sleep

import pytest
from hypothesis import settings
from msgspec.structs import replace

import properties.verdicts
from impl.inprocess import PythonTarget, python_target
from impl.port import PortManager
from impl.target import Shows
from impl.targets import resolve
from model.contract import refuse_illegal
from model.errors import EvictcheckError
from model.manager import ManagedRequest
from model.operations import Discipline
from properties.corpus import known_faults
from properties.counterexample import replay
from properties.invariants import MANAGER_PROPERTIES
from properties.scopes import parse_scope
from properties.verdicts import RANDOM_RUNS, Outcome, Question, Report, judge, property_named

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN
NAMES = tuple(one.name for one in MANAGER_PROPERTIES)
TINY, SMALL = "1r2i2h/sizes=1/capacity=1..2", "2r2i3h/sizes=1/capacity=2"

Release = Callable[[str], PythonTarget]


@pytest.fixture(autouse=True)
def few_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties.verdicts, "RANDOM_RUNS", settings(RANDOM_RUNS, max_examples=10))


@pytest.fixture
def no_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties.verdicts, "known_faults", lambda discipline: ())


def python_target_named(name: str) -> PythonTarget:
    target = resolve(name)
    assert isinstance(target, PythonTarget)
    return target


def silent(doing: str, done: int, total: int) -> None:
    """Nobody listens."""


def ask(
    target: PythonTarget,
    scope: str = TINY,
    discipline: Discipline = CALLER,
    *,
    asked: tuple[str, ...] = NAMES,
    seconds: float | None = None,
) -> Report:
    return judge(target, Question(parse_scope(scope), discipline, asked, seconds), silent)


def outcomes(report: Report) -> dict[str, Outcome]:
    return {one.property: one.outcome for one in report.verdicts}


def violated(report: Report) -> dict[str, int | None]:
    return {one.property: one.length for one in report.verdicts if one.outcome is Outcome.VIOLATED}


# --- What holds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", Discipline)
def test_everything_holds_for_the_port(discipline: Discipline) -> None:
    report = ask(python_target_named("port"), discipline=discipline)
    assert report.complete
    assert outcomes(report) == dict.fromkeys(NAMES, Outcome.HOLDS)
    assert report.counterexamples == ()
    last = report.explorations[-1]
    expected = f"{last.transitions:,} transitions, all of {last.scope}, 10 random walks"
    assert {one.evidence for one in report.verdicts} == {expected}
    known = known_faults(discipline)
    assert report.corpus == tuple(one.name for one in known if not one.mixed)


def test_scopes_grow_up_to_the_one_asked_for() -> None:
    report = ask(python_target_named("port"), "2r1i2h/sizes=1/capacity=1")
    assert [one.scope for one in report.explorations] == ["1r1i1h/sizes=1/capacity=1", "2r1i2h/sizes=1/capacity=1"]


def test_a_question_about_one_property_is_answered_about_that_alone(release: Release) -> None:
    report = ask(release("0.26.0"), asked=("no-crash",))
    assert outcomes(report) == {"no-crash": Outcome.HOLDS}
    assert report.counterexamples == ()


# --- What is violated ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "discipline", "lengths"),
    [
        ("0.26.0", CALLER, {"freed-disjoint-cached": 5, "evictable-unreferenced": 3}),
        ("0.26.0", OPEN, {"freed-disjoint-cached": 5, "evictable-unreferenced": 2}),
        ("0.27.1", CALLER, {"freed-disjoint-cached": 5, "evictable-unreferenced": 3}),
        ("0.28.0", CALLER, {"evictable-unreferenced": 3}),
        ("0.28.0", OPEN, {"evictable-unreferenced": 2}),
        ("0.29.0", OPEN, {}),
        ("0.33.0", OPEN, {}),
    ],
)
def test_a_release_breaks_what_it_breaks_in_so_many_steps(
    release: Release, version: str, discipline: Discipline, lengths: dict[str, int]
) -> None:
    target = release(version)
    report = ask(target, TINY, discipline)
    assert report.complete
    assert violated(report) == lengths
    unit = "steps" if discipline is CALLER else "calls"
    for counterexample in report.counterexamples:
        refuse_illegal(counterexample.trace)
        assert replay(counterexample.trace, target) == counterexample.violation
    for name, length in lengths.items():
        assert report.verdict(name).evidence == f"broken in {length} {unit}"
        assert report.verdict(name).engine.split()[0] in ("exhaustive", "corpus")


@pytest.mark.parametrize(
    ("discipline", "lengths"),
    [
        (CALLER, {"freed-disjoint-cached": 5, "evictable-unreferenced": 3}),
        (OPEN, {"freed-disjoint-cached": 5, "evictable-unreferenced": 2}),
    ],
)
@pytest.mark.usefixtures("no_corpus")
def test_without_known_traces_exploration_finds_the_same(
    release: Release, discipline: Discipline, lengths: dict[str, int]
) -> None:
    report = ask(release("0.26.0"), SMALL, discipline)
    assert violated(report) == lengths
    assert {one.engine for one in report.counterexamples} == {"exhaustive"}
    assert report.corpus == ()


@pytest.mark.usefixtures("no_corpus")
def test_beyond_the_scope_random_walks_find_it(release: Release) -> None:
    report = ask(release("0.26.0"), "1r1i1h/sizes=1/capacity=1", OPEN, asked=("evictable-unreferenced",))
    assert violated(report) == {"evictable-unreferenced": 2}
    assert report.verdict("evictable-unreferenced").engine == "hypothesis"
    assert report.hunt is not None


def test_two_faults_are_independent() -> None:
    both = {"early-evictable": "evictable-unreferenced", "unfiltered-freed": "freed-disjoint-cached"}
    for defects in ("early-evictable", "unfiltered-freed", "early-evictable+unfiltered-freed"):
        report = ask(python_target_named(f"port:{defects}"), TINY, OPEN)
        assert violated(report).keys() == {both[one] for one in defects.split("+")}


def test_counterexamples_come_shortest_first_and_one_of_each_shape(release: Release) -> None:
    report = ask(release("0.30.0"), "2r1i1h/mixed", OPEN)
    assert violated(report) == {"slots-conserved": 4}
    shapes = [one.shape for one in report.counterexamples]
    assert len(shapes) == len(set(shapes)) > 1
    assert [one.size for one in report.counterexamples] == sorted(one.size for one in report.counterexamples)


def test_a_fault_of_two_sizes_is_asked_about_with_a_mixed_scope_only(release: Release) -> None:
    plain = ask(release("0.30.0"), "2r1i1h")
    assert violated(plain) == {}
    assert "two-sizes-caller" not in plain.corpus
    mixed = ask(release("0.30.0"), "2r1i1h/mixed")
    assert violated(mixed) == {"slots-conserved": 4}
    assert "two-sizes-caller" in mixed.corpus
    for version in ("0.31.0", "0.33.0"):
        assert violated(ask(release(version), "2r1i1h/mixed")) == {}


def test_a_hash_evicted_twice_is_a_known_trace_that_takes_many_steps() -> None:
    target = python_target_named("port:drain-loses-twice-evicted")
    for discipline, length in ((CALLER, 8), (OPEN, 7)):
        report = ask(target, TINY, discipline)
        assert violated(report) == {"report-complete": length}


# --- What is not known --------------------------------------------------------------------------------------


def test_out_of_time_is_unknown_and_keeps_what_was_found(release: Release) -> None:
    report = ask(release("0.26.0"), seconds=0)
    assert not report.complete
    assert report.hunt is None
    assert violated(report) == {"freed-disjoint-cached": 5, "evictable-unreferenced": 3}
    rest = set(NAMES) - violated(report).keys()
    assert {outcomes(report)[name] for name in rest} == {Outcome.UNKNOWN}
    assert report.verdict("no-crash").evidence.startswith("stopped early; nothing broke it in ")


def test_an_interrupt_is_unknown_and_keeps_what_was_found(release: Release) -> None:
    def interrupt(doing: str, done: int, total: int) -> None:
        if doing.startswith("exploring 1r2i2h"):
            raise KeyboardInterrupt

    question = Question(parse_scope(TINY), CALLER, NAMES)
    report = judge(release("0.26.0"), question, interrupt)
    assert not report.complete
    assert violated(report) == {"freed-disjoint-cached": 5, "evictable-unreferenced": 3}
    assert report.verdict("no-crash").outcome is Outcome.UNKNOWN


def test_an_interrupt_before_anything_was_run_says_so() -> None:
    def interrupt(doing: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    report = judge(python_target_named("port"), Question(parse_scope(TINY), CALLER, NAMES), interrupt)
    assert not report.complete
    assert {one.evidence for one in report.verdicts} == {"stopped early, before anything was explored"}


@pytest.mark.parametrize(
    ("shows", "hidden"),
    [
        (
            Shows.RESULTS,
            {"evictable-unreferenced", "slots-conserved", "capacity-respected", "nothing-stale"},
        ),
        (Shows.COUNTERS, {"nothing-stale"}),
        (Shows.INTERNALS, set()),
    ],
)
def test_what_a_target_does_not_show_is_not_said_to_hold(shows: Shows, hidden: set[str]) -> None:
    target = replace(python_target_named("port"), shows=shows)
    report = ask(target, "1r1i1h/sizes=1/capacity=1", OPEN)
    assert report.complete
    assert {name for name, outcome in outcomes(report).items() if outcome is Outcome.NOT_OBSERVABLE} == hidden
    assert {outcomes(report)[name] for name in set(NAMES) - hidden} == {Outcome.HOLDS}


def test_a_target_without_reset_is_not_said_to_reset_well(release: Release) -> None:
    report = ask(release("0.15.1"), asked=("reset-initial", "no-crash"))
    assert outcomes(report) == {"reset-initial": Outcome.NOT_OBSERVABLE, "no-crash": Outcome.HOLDS}
    assert report.verdict("reset-initial").evidence == "the target has no reset"


@pytest.mark.parametrize(("version", "outcome"), [("0.22.1", Outcome.ERA), ("0.23.0", Outcome.HOLDS)])
def test_a_rule_of_its_time_is_neither_a_violation_nor_said_to_hold(
    release: Release, version: str, outcome: Outcome
) -> None:
    report = ask(release(version))
    assert report.verdict("cached-ids-exact").outcome is outcome
    assert violated(report).keys() == {"freed-disjoint-cached", "evictable-unreferenced"}


def test_an_unknown_property_is_refused_with_the_names_there_are() -> None:
    assert property_named("no-crash").name == "no-crash"
    with pytest.raises(EvictcheckError, match=r"^there is no property 'no-crush'; the properties are freed-"):
        property_named("no-crush")


def test_the_order_of_attack_is_told() -> None:
    told: list[str] = []
    question = Question(parse_scope("1r1i1h/sizes=1/capacity=1"), OPEN, NAMES)
    judge(python_target_named("port"), question, lambda doing, done, total: told.append(doing))
    assert list(dict.fromkeys(one.split()[0] for one in told)) == ["known", "exploring", "random"]


class Sleeper(PortManager):
    slept = 0

    def allocate(self, request: ManagedRequest, input_id: int) -> None:
        type(self).slept += 1
        sleep(0.6)
        raise TimeoutError


def test_a_target_that_hangs_is_explored_no_further() -> None:
    Sleeper.slept = 0
    report = ask(python_target("sleeper", Sleeper), "1r2i2h/sizes=1/capacity=1", CALLER)
    assert report.verdict("no-crash").outcome is Outcome.VIOLATED
    assert report.verdict("no-crash").length == 1
    assert report.verdict("eviction-order").outcome is Outcome.UNKNOWN
    assert not report.complete
    # Every call would take as long: a few show it, and minimising takes some more.
    assert Sleeper.slept < 20
