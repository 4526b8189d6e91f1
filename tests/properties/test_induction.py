"""Every obligation is proved; without a mend exactly one operation fails, and a real trace does the same."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import z3

from model.contract import Position, moves
from model.operations import Call, Discipline
from model.reference import State, apply, initial
from model.relation import Switches
from properties import induction
from properties.bounded_search import bounds_of
from properties.formulas import Formula
from properties.induction import INITIAL, Level, Obligation, Outcome, Proof, obligations, prove, smtlib
from properties.scopes import DEFAULT_SCOPE, parse_scope, workload_classes

EARLY = Switches(hold_until_last_occurrence=False)
UNFILTERED = Switches(report_only_absent=False)


def proofs(level: Level, switches: Switches, scope: str = "2r2i3h", depth: int = 6) -> tuple[Proof, ...]:
    return prove(level, parse_scope(scope), switches, depth=depth)


@pytest.mark.parametrize(
    ("level", "scope"),
    [(Level.UNBOUNDED, "2r2i3h"), (Level.SCOPE, "2r2i3h"), (Level.SCOPE, "2r2i2h/mixed/capacity=2/budget=1..2")],
)
def test_every_obligation_is_proved(level: Level, scope: str) -> None:
    found = proofs(level, Switches(), scope)
    assert {one.obligation for one in found} == set(obligations(level))
    assert {one.outcome for one in found} == {Outcome.PROVED}


@pytest.mark.nightly
@pytest.mark.parametrize("scope", ["3r2i3h", "2r3i3h", "2r2i3h/mixed"])
def test_every_obligation_is_proved_in_wider_scopes(scope: str) -> None:
    assert {one.outcome for one in proofs(Level.SCOPE, Switches(), scope)} == {Outcome.PROVED}


FAILING = [
    (Level.UNBOUNDED, EARLY, {"free_encoder_input"}, {"evictable-unreferenced", "held-refers"}, {3}),
    (Level.UNBOUNDED, UNFILTERED, {"drain"}, {"freed-disjoint-cached"}, {5}),
    (Level.SCOPE, EARLY, {"free_encoder_input", "processed"}, {"evictable-unreferenced", "held-refers"}, {3}),
    (Level.SCOPE, UNFILTERED, {"drain", "end-pass"}, {"freed-disjoint-cached"}, {5}),
]


@pytest.mark.parametrize(("level", "switches", "operations", "claims", "lengths"), FAILING)
def test_without_a_mend_exactly_its_operation_fails(
    level: Level, switches: Switches, operations: set[str], claims: set[str], lengths: set[int]
) -> None:
    found = [one for one in proofs(level, switches) if one.outcome is not Outcome.PROVED]
    assert {one.outcome for one in found} == {Outcome.FAILED}
    assert {one.obligation.operation for one in found} == operations
    assert {one.obligation.claim for one in found} == claims
    assert {one.trace and len(one.trace) for one in found} == lengths
    for one in found:
        assert one.failure is not None
        assert re.search(r"still holds|is cached: its tensor would be dropped", one.failure.words)


def test_a_trace_that_would_be_too_long_is_not_reached() -> None:
    found = [one for one in proofs(Level.UNBOUNDED, UNFILTERED, depth=4) if one.outcome is Outcome.FAILED]
    assert [(one.trace, one.not_reached_within) for one in found] == [(None, 4)]


def test_out_of_time_is_unknown_and_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(induction, "_ANY_SIZE", induction._ANY_SIZE[:1])
    found = prove(Level.UNBOUNDED, DEFAULT_SCOPE, Switches(), depth=1, seconds=0.0)
    assert {one.outcome for one in found} == {Outcome.UNKNOWN}
    assert {one.reason for one in found} == {"no answer within 0 s"}


def test_an_interrupt_leaves_the_rest_unknown() -> None:
    def stop(proof: Proof) -> None:
        raise KeyboardInterrupt

    found = prove(Level.UNBOUNDED, DEFAULT_SCOPE, Switches(), depth=1, progress=stop)
    assert [one.outcome for one in found[:2]] == [Outcome.PROVED, Outcome.UNKNOWN]
    assert len(found) == len(obligations(Level.UNBOUNDED))
    assert {one.reason for one in found[1:]} == {induction.INTERRUPTED}


@pytest.fixture
def fresh_caches() -> Iterator[None]:
    caches = (induction._in_scope, induction._any_size, induction._premises_met)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


@pytest.mark.usefixtures("fresh_caches")
def test_contradictory_premises_are_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    never = Formula(of_state=lambda relation, state: z3.BoolVal(False))
    monkeypatch.setitem(induction._FORMULAS, "never", never)
    obligation = Obligation(Level.SCOPE, Discipline.OPEN, "slots-conserved", "check")
    decision = induction._decide(obligation, bounds_of(DEFAULT_SCOPE), Switches())
    assert decision == (Outcome.VACUOUS, None)


@pytest.mark.usefixtures("fresh_caches")
def test_contradictory_premises_are_vacuous_without_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(induction._AnySize, "legal", lambda self, operation: z3.BoolVal(False))
    obligation = Obligation(Level.UNBOUNDED, Discipline.OPEN, "held-refers", "check")
    decision = induction._decide(obligation, bounds_of(DEFAULT_SCOPE), Switches())
    assert decision == (Outcome.VACUOUS, None)


@pytest.mark.usefixtures("fresh_caches")
def test_each_supporting_fact_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the supporting facts the two headline properties alone are not inductive."""
    monkeypatch.setattr(induction, "_ANY_SIZE", induction._ANY_SIZE[:2])
    failing = {
        one.operation
        for one in obligations(Level.UNBOUNDED)
        if one.claim == "evictable-unreferenced"
        and induction._decide(one, bounds_of(DEFAULT_SCOPE), Switches()) != (Outcome.PROVED, None)
    }
    assert failing


# --- The relation without a scope, against the reference ---------------------------------------------------


class Concrete(induction._AnySize):
    """The relation without a scope, of one workload and one state of the reference."""

    def __init__(self, state: State, call: Call, evicted: frozenset[str]) -> None:
        super().__init__(Switches())
        occurrences = [
            (request.request_id, input_id)
            for request in state.workload.requests
            for input_id in range(len(request.items))
        ]
        values: list[list[Any]] = [
            [request.request_id for request in state.workload.requests],
            occurrences,
            sorted({state.workload.item(*place).mm_hash for place in occurrences}),
        ]
        self.elements: list[dict[Any, z3.ExprRef]] = [
            {value: z3.IntVal(100 * sort + number) for number, value in enumerate(one)}
            for sort, one in enumerate(values)
        ]
        self._universes = [list(one.values()) for one in self.elements]
        back = {str(element): value for one in self.elements for value, element in one.items()}
        requests, places, hashes = self.elements
        hash_of = {str(places[place]): hashes[state.workload.item(*place).mm_hash] for place in occurrences}
        self.request_of = lambda x: requests[back[str(x)][0]]
        self.hash_of = lambda x: hash_of[str(x)]
        self.victim = lambda h: z3.BoolVal(back[str(h)] in evicted)
        self.before = induction._Sets(
            lambda h: z3.BoolVal(bool(state.embeds_of(back[str(h)]))),
            lambda x: z3.BoolVal(back[str(x)] in state.held),
            lambda r, h: z3.BoolVal(
                any(
                    holder == back[str(r)] and state.workload.item(holder, i).mm_hash == back[str(h)]
                    for holder, i in state.held
                )
            ),
            lambda h: z3.BoolVal(back[str(h)] in state.evictable),
            lambda h: z3.BoolVal(back[str(h)] in state.evicted),
        )
        request_id = getattr(call, "request_id", values[0][0])
        self.r = requests[request_id]
        self.o = places[request_id, getattr(call, "input_id", 0)]

    def shape(self, state: induction._Sets) -> tuple[frozenset[Any], ...]:
        requests, places, hashes = self.elements

        def true(part: z3.ExprRef) -> bool:
            return bool(z3.is_true(z3.simplify(part)))

        return (
            frozenset(h for h, one in hashes.items() if true(state.cached(one))),
            frozenset(x for x, one in places.items() if true(state.held(one))),
            frozenset((r, h) for r, a in requests.items() for h, b in hashes.items() if true(state.refers(a, b))),
            frozenset(h for h, one in hashes.items() if true(state.evictable(one))),
            frozenset(h for h, one in hashes.items() if true(state.evicted(one))),
        )


def test_the_relation_without_a_scope_does_what_the_reference_does() -> None:
    """Every step of the reference at a small scope is a step of it, with the entries evicted as the victims."""
    steps = 0
    classes = [
        workload_class
        for scope in ("1r2i2h/sizes=1/capacity=1..2", "2r1i2h/sizes=1/capacity=1")
        for workload_class in workload_classes(parse_scope(scope), Discipline.OPEN)
    ]
    for workload_class in classes:
        met = {initial(workload_class.workload)}
        todo = list(met)
        while todo:
            state = todo.pop()
            for call in moves(Position(state, None)):
                after, answer = apply(state, call)  # type: ignore[arg-type]  # single calls only
                tag = call.__struct_config__.tag
                name = {"get_freed_mm_hashes": "drain"}.get(str(tag), str(tag))
                gone = frozenset(h for h, _ in state.cached if not after.embeds_of(h))
                world = Concrete(state, call, gone if name == "can_allocate" else frozenset())  # type: ignore[arg-type]
                assert z3.is_true(z3.simplify(world.legal(name)))
                there = Concrete(after, call, frozenset())  # type: ignore[arg-type]
                assert world.shape(world.after(name)) == there.shape(there.before), (state, call)
                if name == "drain":
                    named: object = {
                        h for h, one in world.elements[2].items() if z3.is_true(z3.simplify(world.reported(one)))
                    }
                    assert named == answer
                steps += 1
                if after not in met:
                    met.add(after)
                    todo.append(after)
    assert steps > 300


# --- Another solver ----------------------------------------------------------------------------------------

CVC5 = """
import sys, cvc5
solver = cvc5.Solver()
solver.setOption("finite-model-find", sys.argv[1])
parser = cvc5.InputParser(solver)
parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, sys.stdin.read(), "obligation")
symbols = parser.getSymbolManager()
while not (command := parser.nextCommand()).isNull():
    print(command.invoke(solver, symbols), end="")
"""


def cvc5(text: str, find_models: bool = False) -> str:
    """What cvc5 says; in a process of its own, since it ends the process on an error."""
    command = [sys.executable, "-c", CVC5, "true" if find_models else "false"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout.strip()


INDEPENDENT = [
    *[one for one in obligations(Level.UNBOUNDED) if one.operation in (INITIAL, "free_encoder_input", "drain")],
    Obligation(Level.SCOPE, Discipline.OPEN, "slots-conserved", "can_allocate"),
    Obligation(Level.SCOPE, Discipline.OPEN, "eviction-order", "can_allocate"),
    Obligation(Level.SCOPE, Discipline.CALLER, "evictable-unreferenced", "processed"),
]


@pytest.mark.parametrize("obligation", INDEPENDENT, ids=lambda one: one.name)
def test_cvc5_proves_it_too(obligation: Obligation) -> None:
    assert cvc5(smtlib(obligation, DEFAULT_SCOPE, Switches())) == "unsat"


def test_cvc5_finds_the_failures_too() -> None:
    early = Obligation(Level.UNBOUNDED, Discipline.OPEN, "held-refers", "free_encoder_input")
    drain = Obligation(Level.SCOPE, Discipline.OPEN, "freed-disjoint-cached", "drain")
    assert cvc5(smtlib(early, DEFAULT_SCOPE, EARLY), find_models=True) == "sat"
    assert cvc5(smtlib(drain, DEFAULT_SCOPE, UNFILTERED)) == "sat"


def test_a_file_says_in_words_what_it_is(tmp_path: Path) -> None:
    drain = Obligation(Level.UNBOUNDED, Discipline.OPEN, "freed-disjoint-cached", "drain")
    text = smtlib(drain, DEFAULT_SCOPE, UNFILTERED)
    assert "; Without the mend report-only-absent." in text
    assert "a freed report never names a hash that is cached at that moment" in text
