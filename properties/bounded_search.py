"""Bounded search: the shortest trace within a scope that breaks a property of the relation, found by z3.

Depth by depth: all traces of one step, then of two, and so on, over every workload of the scope at once, in one
incremental solver. So the first trace found is a shortest. As in exploration a branch ends at the first broken
property, and a step that changes nothing is never in a shortest trace, except as its last.

Most of what there is to rule out at a depth needs no search: it follows, in one step, from what was ruled out
at the depth before. So each question is first asked of a single step from any state in which those lemmas (the
properties, since a branch ends where one breaks, and the supporting facts not broken so far) hold; only where
that step exists is it asked of whole traces. Nothing is taken over from a proof, and each depth says which of
its questions needed whole traces. (Whole traces alone cost, at three requests under the caller discipline,
about twice as much with every step: tests/benchmarks/formal.py.)

A trace found is carried out before it is shown: by the rules of its discipline on the reference model, and on
a real implementation that must break the same property at the same step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from time import monotonic
from typing import TypeAlias

import z3
from msgspec import Struct
from msgspec.structs import asdict

from impl.target import Target
from impl.targets import resolve
from model.contract import Position, carry_out, start, trace_of
from model.errors import EvictcheckError
from model.operations import Discipline, Move, Trace
from model.reference import apply
from model.relation import Bounds, Relation, Step, Switches, reading
from model.workload import Workload
from properties.counterexample import Counterexample, replay
from properties.formulas import FACTS, PROPERTY_FORMULAS, SITUATION_FORMULAS, Formula
from properties.lockstep import Violation
from properties.scopes import Scope, hash_name
from properties.situations import Situation, situations_of
from properties.solving import SolverProcess, Unknown, decided

ENGINE = "z3"
DEFAULT_DEPTH = 8


class SearchError(EvictcheckError):
    """A search that cannot be made."""


class ModelMismatchError(EvictcheckError):
    """A trace of the relation that does not replay: a fault of this project, and none of the target's."""


class Depth(Struct, frozen=True):
    """One depth of a search.

    Attributes:
        steps: Length of the traces.
        seconds: Time taken, lemmas and all questions included.
        lemmas: Supporting facts that no trace of this length breaks.
        unrolled: Properties and facts that were decided on whole traces; all others follow from the depth before.
    """

    steps: int
    seconds: float
    lemmas: tuple[str, ...]
    unrolled: tuple[str, ...]


class Verdict(Struct, frozen=True):
    """What was found for one property.

    Attributes:
        property: Its name.
        depth: The length of its shortest trace; None if none was found.
        ruled_out: Steps up to which there is none.
        counterexample: The trace, replayed; None if none was found.
        unknown: Why the search stopped early; None if it did not.
    """

    property: str
    depth: int | None
    ruled_out: int
    counterexample: Counterexample | None = None
    unknown: str | None = None


class Reached(Struct, frozen=True):
    """What was found for one situation.

    Attributes:
        situation: Its name.
        trace: A shortest trace that ends in it; None if there is none to the depth.
        impossible: Steps of induction by which no trace of the scope reaches it, whatever its length; None if
            that was not shown.
        unknown: Why it is undecided; None if it is not.
    """

    situation: str
    trace: Trace | None
    impossible: int | None = None
    unknown: str | None = None


class Search(Struct, frozen=True):
    """A bounded search and its answers.

    Attributes:
        scope: The bounds.
        discipline: Who makes the calls.
        switches: Which mends are in.
        target: On what traces are replayed.
        depths: Each depth that was searched wholly.
        verdicts: One for each property asked for.
    """

    scope: Scope
    discipline: Discipline
    switches: Switches
    target: str
    depths: tuple[Depth, ...]
    verdicts: tuple[Verdict, ...]


Progress: TypeAlias = Callable[[Depth], None]
"""Told after each depth."""


# --- In the solver's process -------------------------------------------------------------------------------


_FORMULAS: dict[str, Formula] = {**{fact.name: fact.formula for fact in FACTS}, **PROPERTY_FORMULAS}

_World: TypeAlias = tuple[Bounds, Switches, Discipline]
_Ending: TypeAlias = tuple[Workload, tuple[Move, ...]]


class _Unrolling:
    """The relation, step after step, in one incremental solver."""

    def __init__(self, world: _World, anywhere: bool) -> None:
        """Traces from the initial state, or paths from any state."""
        self.relation = Relation(*world)
        self.steps: list[Step] = []
        self.solver = z3.SolverFor("QF_FD")
        self.first = self._state = self.relation.state("s0")
        self._names = [hash_name(number) for number in range(world[0].hashes)]
        self._model: z3.ModelRef | None = None
        self.solver.add(self.relation.world, self.relation.canonical_world)
        if not anywhere:
            self.solver.add(self.relation.initial(self._state))

    def extend(self) -> None:
        """One more step; the one before it must have changed something."""
        number = len(self.steps) + 1
        if self.steps:
            last = self.steps[-1]
            self.solver.add(z3.Or([part != last.after[key] for key, part in last.before.items()]))
        after = self.relation.state(f"s{number}")
        step = self.relation.step(self._state, after, f"step{number}")
        self.solver.add(step.constraint, step.ascending)
        self.steps.append(step)
        self._state = after

    def holds_after(self, name: str) -> z3.BoolRef:
        """That a property or fact holds of the last step, and after it."""
        return _FORMULAS[name].holds_after(self.relation, self.steps[-1])

    def can_end_in(self, goal: z3.BoolRef, *premises: z3.BoolRef) -> bool | Unknown:
        """Whether some trace of this length ends so; the goal leaves nothing behind."""
        literal = z3.FreshBool("goal")
        self.solver.add(z3.Implies(literal, goal))
        answer = decided(self.solver.check(literal, *premises), self.solver)
        self._model = self.solver.model() if answer is True else None
        self.solver.add(z3.Not(literal))
        return answer

    def ending(self, goal: z3.BoolRef) -> _Ending | Unknown | None:
        """A trace of this length that ends so: its workload and moves; None if there is none."""
        answer = self.can_end_in(goal)
        if isinstance(answer, Unknown) or not answer:
            return answer or None
        assert self._model is not None
        read = reading(self._model)
        workload = self.relation.workload(read, self._names)
        return workload, tuple(self.relation.move(read, step, workload) for step in self.steps)


class _Search:
    """What the solver's process keeps of a search: traces, a single step, and what is known at this depth."""

    def __init__(self, world: _World, unaided: bool) -> None:
        self.traces = _Unrolling(world, anywhere=False)
        self.unrolled: list[str] = []
        self._unaided = unaided
        self._step = _Unrolling(world, anywhere=True)
        self._step.extend()
        self._literals = {name: z3.Bool(f"lemma {name}") for name in _FORMULAS}
        for name, literal in self._literals.items():
            premise = _FORMULAS[name].holds_in(self._step.relation, self._step.first)
            self._step.solver.add(z3.Implies(literal, premise))
        self._lemmas = [*_FORMULAS]
        self._answers: dict[tuple[str, ...], bool | Unknown] = {}

    def deepen(self) -> tuple[str, ...] | Unknown:
        """Makes the traces one step longer; the supporting facts that none of them breaks."""
        traces = self.traces
        if traces.steps:
            # A branch ends where a property breaks.
            traces.solver.add([traces.holds_after(name) for name in PROPERTY_FORMULAS])
        else:
            for name in _FORMULAS:
                holds = _FORMULAS[name].holds_in(traces.relation, traces.first)
                assert traces.can_end_in(z3.Not(holds)) is False, f"{name} does not hold of a new manager"
        traces.extend()
        self.unrolled = []
        if self._unaided:
            return ()
        lemmas = []
        for fact in FACTS:
            broken = self.can_break(fact.name)
            if isinstance(broken, Unknown):
                return broken
            if not broken:
                lemmas.append(fact.name)
                traces.solver.add(traces.holds_after(fact.name))
        self._next_lemmas = [*lemmas, *PROPERTY_FORMULAS]
        return tuple(lemmas)

    def advance(self) -> None:
        """This depth is done with: what holds at it is what the next one starts from."""
        self._lemmas = self._next_lemmas

    def can_break(self, name: str) -> bool | Unknown:
        """Whether a trace of this length breaks a property or fact with its last step."""
        if self._unaided or self._in_one_step(name) is not False:
            self.unrolled.append(name)
            return self.traces.can_end_in(z3.Not(self.traces.holds_after(name)))
        return False

    def _in_one_step(self, name: str) -> bool | Unknown:
        """Whether one step from any state with the lemmas can break it."""
        key = (name, *self._lemmas)
        if key not in self._answers:
            premises = [self._literals[lemma] for lemma in self._lemmas]
            self._answers[key] = self._step.can_end_in(z3.Not(self._step.holds_after(name)), *premises)
        return self._answers[key]

    def breaking(self, name: str) -> _Ending | Unknown | None:
        """A trace of this length whose last step breaks that property, and none that is named before it."""
        broken = self.can_break(name)
        if isinstance(broken, Unknown) or not broken:
            return broken or None
        earlier = list(PROPERTY_FORMULAS)[: list(PROPERTY_FORMULAS).index(name)]
        goal = [self.traces.holds_after(other) for other in earlier]
        return self.traces.ending(z3.And(*goal, z3.Not(self.traces.holds_after(name))))

    def breaking_by(self, name: str, operation: str) -> _Ending | Unknown | None:
        """A trace of this length whose last step is that operation and breaks that property or fact."""
        literal = self.traces.steps[-1].operations[operation]
        return self.traces.ending(z3.And(literal, z3.Not(self.traces.holds_after(name))))


@cache
def _search(world: _World, unaided: bool) -> _Search:
    return _Search(world, unaided)


@cache
def _paths(world: _World, anywhere: bool) -> _Unrolling:
    """Traces, or paths from any sound state, for the situations."""
    unrolling = _Unrolling(world, anywhere)
    unrolling.solver.add([one.holds_in(unrolling.relation, unrolling.first) for one in _FORMULAS.values()])
    return unrolling


def _forget() -> None:
    """A process that has searched before starts anew."""
    _search.cache_clear()
    _paths.cache_clear()


def _deepen(world: _World, unaided: bool) -> tuple[str, ...] | Unknown:
    return _search(world, unaided).deepen()


def _breaking(world: _World, unaided: bool, name: str) -> _Ending | Unknown | None:
    return _search(world, unaided).breaking(name)


def _breaking_by(world: _World, name: str, operation: str) -> _Ending | Unknown | None:
    return _search(world, False).breaking_by(name, operation)


def _advance(world: _World, unaided: bool) -> tuple[str, ...]:
    """Ends a depth; the names of what was decided on whole traces."""
    search = _search(world, unaided)
    if not unaided:
        search.advance()
    return tuple(search.unrolled)


def _lengthen(world: _World) -> None:
    """One more step; the relation with both mends is sound throughout, which the induction proves."""
    for anywhere in (False, True):
        unrolling = _paths(world, anywhere)
        unrolling.extend()
        unrolling.solver.add([unrolling.holds_after(name) for name in _FORMULAS])


def _reaching(world: _World, name: str, anywhere: bool) -> _Ending | Unknown | None:
    """A trace, or a path, of the present length whose last step is that situation."""
    unrolling = _paths(world, anywhere)
    return unrolling.ending(SITUATION_FORMULAS[name](unrolling.relation, unrolling.steps[-1]))


# --- Searching ---------------------------------------------------------------------------------------------


def default_target(switches: Switches) -> str:
    """The seeded defect that corresponds to the mends left out."""
    defects = []
    if not switches.hold_until_last_occurrence:
        defects.append("early-evictable")
    if not switches.report_only_absent:
        defects.append("unfiltered-freed")
    return f"port:{'+'.join(defects)}" if defects else "port"


def search(
    scope: Scope,
    discipline: Discipline,
    switches: Switches,
    properties: Sequence[str],
    depth: int,
    target: Target,
    *,
    seconds: float | None = None,
    progress: Progress | None = None,
    process: SolverProcess | None = None,
    unaided: bool = False,
) -> Search:
    """Searches for the shortest trace that breaks each property; an interrupt leaves the rest unknown.

    Args:
        scope: The bounds.
        discipline: Who makes the calls.
        switches: Which mends are in.
        properties: Names of properties.
        depth: Steps of the longest traces; at least 1.
        target: A real implementation on which each trace must replay.
        seconds: A limit for each question to the solver; one that needs longer is unknown.
        progress: Told after each depth.
        process: A solver process to use; one that has been started answers at once.
        unaided: Whether every question is asked of whole traces, without lemmas; the benchmarks compare.

    Raises:
        SearchError: An unknown property, one that has no formula, or a depth below 1.
        ModelMismatchError: A trace that does not replay.
    """
    refuse_unsearchable(properties, depth)
    run = _Run(scope, discipline, switches, target)
    with borrowed(process) as solver:
        try:
            run.carry_out(solver, tuple(properties), depth, seconds, progress, unaided)
        except KeyboardInterrupt:
            run.stop(Unknown("interrupted"))
    verdicts = tuple(run.verdicts[name] for name in properties)
    return Search(scope, discipline, switches, target.name, tuple(run.depths), verdicts)


def bounds_of(scope: Scope) -> Bounds:
    """A scope's numbers, for the relation."""
    return Bounds(**asdict(scope))


@contextmanager
def borrowed(process: SolverProcess | None) -> Iterator[SolverProcess]:
    """A process that somebody else will close, or a new one; what it kept of an earlier search is forgotten."""
    if process is None:
        with SolverProcess() as own:
            yield own
    else:
        process.ask(None, _forget)
        yield process


def refuse_unsearchable(properties: Sequence[str], depth: int) -> None:
    """Checks what a person asked for.

    Raises:
        SearchError: An unknown property, one that has no formula, or a depth below 1.
    """
    if depth < 1:
        raise SearchError(f"a depth of {depth} steps searches nothing; it must be at least 1")
    for name in properties:
        if name not in PROPERTY_FORMULAS:
            raise SearchError(
                f"{name!r} is not a property that z3 decides on the model; "
                f"those are {', '.join(PROPERTY_FORMULAS)}"
            )


class _Run:
    """A search under way."""

    def __init__(self, scope: Scope, discipline: Discipline, switches: Switches, target: Target) -> None:
        self._bounds = bounds_of(scope)
        self._discipline = discipline
        self._switches = switches
        self._target = target
        self.depths: list[Depth] = []
        self.verdicts: dict[str, Verdict] = {}

    def carry_out(
        self,
        solver: SolverProcess,
        properties: tuple[str, ...],
        depth: int,
        seconds: float | None,
        progress: Progress | None,
        unaided: bool,
    ) -> None:
        self.verdicts = {name: Verdict(name, None, 0) for name in properties}
        what = ((self._bounds, self._switches, self._discipline), unaided)
        solver.start()
        for steps in range(1, depth + 1):
            began = monotonic()
            lemmas = solver.ask(seconds, _deepen, *what)
            if isinstance(lemmas, Unknown):
                self.stop(lemmas)
                return
            for name in properties:
                if self.verdicts[name].depth is not None:
                    continue
                found = solver.ask(seconds, _breaking, *what, name)
                if isinstance(found, Unknown):
                    self.stop(found)
                    return
                self.verdicts[name] = self._verdict(name, steps, found)
            unrolled = solver.ask(seconds, _advance, *what)
            if isinstance(unrolled, Unknown):
                self.stop(unrolled)
                return
            self.depths.append(Depth(steps, monotonic() - began, lemmas, unrolled))
            if progress is not None:
                progress(self.depths[-1])
            if all(verdict.depth is not None for verdict in self.verdicts.values()):
                return

    def stop(self, unknown: Unknown) -> None:
        """What is not found yet stays unknown."""
        for name, verdict in self.verdicts.items():
            if verdict.depth is None:
                self.verdicts[name] = Verdict(name, None, verdict.ruled_out, None, unknown.reason)

    def _verdict(self, name: str, steps: int, found: _Ending | None) -> Verdict:
        if found is None:
            return Verdict(name, None, steps)
        return Verdict(name, steps, steps - 1, self._replayed(name, *found))

    def _replayed(self, name: str, workload: Workload, choices: tuple[Move, ...]) -> Counterexample:
        trace = _legal(workload, self._discipline, choices)
        violation = replay(trace, self._target)
        if violation is not None and _is_last(violation, name, trace):
            return Counterexample(trace, violation, self._target.name, ENGINE)
        what = "nothing breaks" if violation is None else f"{violation.property} breaks at {violation.call}"
        seen = f"on {self._target.name} {what}"
        defect = default_target(self._switches)
        if self._target.name != defect:
            on_defect = replay(trace, resolve(defect))
            if on_defect is not None and _is_last(on_defect, name, trace):
                raise SearchError(
                    f"the shortest trace that breaks {name} does so on {defect}, but {seen}: that target lacks "
                    f"the fault that --without leaves in, or has another one; replay on a target that has it"
                )
        raise ModelMismatchError(
            f"z3 found a trace that breaks {name} in the relation, but {seen}. The relation is wrong, which is a "
            f"fault of evictcheck: please report it with this trace: {trace}"
        )


def _is_last(violation: Violation, name: str, trace: Trace) -> bool:
    """Whether that property broke, and at the trace's last step."""
    before_last = sum(len(step.calls) for step in trace.steps[:-1])
    return violation.property == name and violation.call_index >= before_last


def _legal(workload: Workload, discipline: Discipline, choices: tuple[Move, ...]) -> Trace:
    try:
        return trace_of(workload, discipline, choices)
    except EvictcheckError as error:
        raise ModelMismatchError(
            f"z3 found a trace that the {discipline} discipline does not allow; the relation is wrong, which is "
            f"a fault of evictcheck: please report it with this message: {error}; {workload}; {choices}"
        ) from error


def trace_to(
    scope: Scope,
    discipline: Discipline,
    switches: Switches,
    name: str,
    operation: str,
    depth: int,
    *,
    seconds: float | None,
    process: SolverProcess,
) -> Trace | Unknown | None:
    """A shortest trace whose last step is an operation that breaks a property or supporting fact.

    It is legal by the rules of its discipline; a supporting fact is nothing that an implementation could show.

    Args:
        scope: The bounds.
        discipline: Who makes the calls.
        switches: Which mends are in.
        name: Name of a property or of a supporting fact.
        operation: Name of the operation, see `model.relation`.
        depth: Steps of the longest traces; at least 1.
        seconds: A limit for each question to the solver.
        process: A solver process to use.

    Returns:
        The trace, None if there is none to the depth, or why that is not known.
    """
    world = (bounds_of(scope), switches, discipline)
    process.ask(None, _forget)
    for _ in range(depth):
        lemmas = process.ask(seconds, _deepen, world, unaided=False)
        if isinstance(lemmas, Unknown):
            return lemmas
        found = process.ask(seconds, _breaking_by, world, name, operation)
        if isinstance(found, Unknown):
            return found
        if found is not None:
            return _legal(found[0], discipline, found[1])
        process.ask(seconds, _advance, world, unaided=False)
    return None


# --- Situations --------------------------------------------------------------------------------------------


def reach(
    scope: Scope,
    discipline: Discipline,
    depth: int,
    *,
    seconds: float | None = None,
    process: SolverProcess | None = None,
) -> tuple[Reached, ...]:
    """For each situation of the discipline a shortest trace to it, or that none within the scope reaches it.

    That none does, at any length, is shown by k-induction: no path of k steps from any sound state ends in it,
    where a state is sound if the properties and supporting facts hold, which `properties.induction` proves.

    Args:
        scope: The bounds.
        discipline: Who makes the calls.
        depth: Steps of the longest traces; at least 1.
        seconds: A limit for each question to the solver.
        process: A solver process to use.

    Raises:
        SearchError: A depth below 1.
        ModelMismatchError: A trace that does not reach the situation on the reference model.
    """
    refuse_unsearchable((), depth)
    world = (bounds_of(scope), Switches(), discipline)
    undecided = {situation.name: situation for situation in situations_of(discipline)}
    found: dict[str, Reached] = {}
    with borrowed(process) as solver:
        for steps in range(1, depth + 1):
            longer = solver.ask(seconds, _lengthen, world)
            for name, situation in list(undecided.items()):
                answer = (
                    longer if isinstance(longer, Unknown) else _asked(solver, seconds, world, situation, steps)
                )
                if isinstance(answer, Unknown):
                    answer = Reached(name, None, None, answer.reason)
                if answer is not None:
                    found[name] = answer
                    del undecided[name]
            if not undecided:
                break
    found.update({name: Reached(name, None) for name in undecided})
    return tuple(found[situation.name] for situation in situations_of(discipline))


def _asked(
    solver: SolverProcess, seconds: float | None, world: _World, situation: Situation, steps: int
) -> Reached | Unknown | None:
    """The answer at one depth; None if the next one must tell."""
    ending = solver.ask(seconds, _reaching, world, situation.name, anywhere=False)
    if isinstance(ending, Unknown):
        return ending
    if ending is not None:
        return Reached(situation.name, _reaching_trace(situation, world[2], *ending))
    path = solver.ask(seconds, _reaching, world, situation.name, anywhere=True)
    return Reached(situation.name, None, steps) if path is None else None


def _reaching_trace(
    situation: Situation, discipline: Discipline, workload: Workload, choices: tuple[Move, ...]
) -> Trace:
    trace = _legal(workload, discipline, choices)
    position = start(workload, discipline)
    for move in choices[:-1]:
        _, position = carry_out(position, move)
    if not _is_it(situation, position, choices[-1]):
        raise ModelMismatchError(
            f"z3 found a trace to {situation.name}, and on the reference model its last step is not that; one of "
            f"the two formulas is wrong, which is a fault of evictcheck: please report it with this trace: {trace}"
        )
    return trace


def _is_it(situation: Situation, position: Position, move: Move) -> bool:
    calls, _ = carry_out(position, move)
    if situation.of_step is not None:
        return situation.of_step(position, move, calls)
    assert situation.of_call is not None
    state = position.state
    for call in calls:
        after, _ = apply(state, call)
        if situation.of_call(state, call, after):
            return True
        state = after
    return False
