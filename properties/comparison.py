"""The check on the checkers: the reference model and the relation for z3, compared exhaustively.

The two are written independently. For every state that the reference reaches within a scope, the steps that it
allows (which step, what is answered, which state follows) are compared with all those that z3 finds in the
relation. Both start in the same state, so if no state differs, the reachable states are the same too.

With a switch off the relation is compared with an earlier form of the reference, in which the mend is undone.
States are walked breadth first through workloads in ascending order of size: the first difference is a smallest.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import permutations
from time import monotonic
from typing import TypeAlias

import z3
from msgspec import Struct
from msgspec.structs import asdict, replace

from model import reference
from model.contract import Caller, Position, moves, script, start
from model.operations import (
    Admit,
    Allocate,
    Call,
    CanAllocate,
    Check,
    Discipline,
    Drain,
    EndPass,
    FreeInput,
    FreeRequest,
    Move,
    Reset,
    Result,
)
from model.reference import State
from model.relation import Answer, Bounds, Relation, Snapshot, Switches
from model.workload import Workload
from properties.scopes import Scope, hash_name, workload_classes

# --- The reference, and its earlier forms ------------------------------------------------------------------


class EarlierState(State, frozen=True, cache_hash=True):
    """A state of the manager up to 0.28.0, of which a request may refer to less than it holds.

    Attributes:
        given_up: (request id, mm_hash) where the request holds an occurrence and no longer refers to the hash.
    """

    given_up: frozenset[tuple[str, str]] = frozenset()


def _outcomes(state: State, call: Call, switches: Switches) -> Iterator[tuple[State, Result]]:
    """All that a call may do, with the mends that the switches leave in."""
    if isinstance(call, Drain) and not switches.report_only_absent:
        yield replace(state, evicted=frozenset()), state.evicted
    elif isinstance(state, EarlierState):
        yield from _earlier_outcomes(state, call)
    else:
        yield from reference.outcomes(state, call)


def _earlier_outcomes(state: EarlierState, call: Call) -> Iterator[tuple[State, Result]]:
    """Holding until the last occurrence undone: the first free of an occurrence gives up the reference."""
    match call:
        case FreeInput(request_id, input_id):
            yield _free_earlier(state, request_id, input_id), None
        case FreeRequest(request_id):
            orders = permutations(sorted(reference.held_inputs(state, request_id)))
            ends = dict.fromkeys(_free_in_order(state, request_id, order) for order in orders)
            yield from ((end, None) for end in ends)
        case Reset():
            yield EarlierState(state.workload), None
        case Check(request_id, input_id) | Allocate(request_id, input_id):
            refers = (request_id, state.workload.item(request_id, input_id).mm_hash)
            after, result = reference.apply(state, call)
            assert isinstance(after, EarlierState)
            taken = isinstance(call, Allocate) or result is True
            yield (replace(after, given_up=after.given_up - {refers}) if taken else after), result
        case _:
            yield from reference.outcomes(state, call)


def _free_in_order(state: EarlierState, request_id: str, order: tuple[int, ...]) -> EarlierState:
    for input_id in order:
        state = _free_earlier(state, request_id, input_id)
    return state


def _free_earlier(state: EarlierState, request_id: str, input_id: int) -> EarlierState:
    if (request_id, input_id) not in state.held:
        return state
    mm_hash = state.workload.item(request_id, input_id).mm_hash
    mine = (request_id, mm_hash)
    referred = mine not in state.given_up
    held = state.held - {(request_id, input_id)}
    holders = {holder for holder, other in held if state.workload.item(holder, other).mm_hash == mm_hash}
    given_up = state.given_up | {mine} if request_id in holders else state.given_up - {mine}
    after = replace(state, held=held, given_up=given_up)
    if referred and all((holder, mm_hash) in given_up for holder in holders):
        after = replace(after, evictable=(*after.evictable, mm_hash))
    return after


def _first(workload: Workload, discipline: Discipline, switches: Switches) -> Position:
    position = start(workload, discipline)
    if switches.hold_until_last_occurrence:
        return position
    return Position(EarlierState(**asdict(position.state)), position.caller)


def snapshot_of(position: Position) -> Snapshot:
    """A position of the reference, with what the relation keeps and the reference derives."""
    state = position.state
    refers = frozenset((holder, state.workload.item(holder, input_id).mm_hash) for holder, input_id in state.held)
    if isinstance(state, EarlierState):
        refers -= state.given_up
    return Snapshot(
        state.cached,
        state.held,
        refers,
        state.evictable,
        state.evicted,
        state.free_slots,
        state.freeable_slots,
        position.caller,
    )


# --- Steps of both, in one form ----------------------------------------------------------------------------


class Transition(Struct, frozen=True):
    """One step from a given state.

    Attributes:
        move: The step.
        answer: What it answers, see `model.relation.Answer`.
        after: The state after it.
        ascending: Whether a free of a request in it gives up the inputs in ascending order.
    """

    move: Move
    answer: Answer
    after: Snapshot
    ascending: bool


_Ending: TypeAlias = tuple[list[tuple[Call, Result]], Position, bool]


def _endings(position: Position, move: Move, switches: Switches) -> Iterator[_Ending]:
    """All ways in which a move can go: its calls with their answers, the position after, whether ascending."""
    untried: list[tuple[int, ...]] = [()]
    while untried:
        choices = untried.pop()
        running = script(position, move)
        state, done = position.state, list[tuple[Call, Result]]()
        answer: Result = None
        caller: Caller | None = None
        while True:
            try:
                call = running.send(answer) if done else next(running)
            except StopIteration as stop:
                caller = stop.value
                break
            ways = list(_outcomes(state, call, switches))
            if len(done) == len(choices):
                untried += [(*choices, other) for other in range(1, len(ways))]
                choices = (*choices, 0)
            state, answer = ways[choices[len(done)]]
            done.append((call, answer))
        yield done, Position(state, caller), not any(choices)


def _answer(position: Position, move: Move, calls: list[tuple[Call, Result]]) -> Answer:
    match move:
        case Check() | CanAllocate() | Drain() | EndPass():
            return calls[0][1]  # type: ignore[return-value]  # a bool or a report
        case Admit():
            return _fates(position, move, calls)
        case _:
            return None


def _fates(position: Position, move: Admit, calls: list[tuple[Call, Result]]) -> tuple[str, ...]:
    """What became of each input, read off the calls that were made."""
    assert position.caller is not None
    workload = position.state.workload
    first = position.caller.seat(workload, move.request_id).processed
    fates = ["unvisited"] * len(workload.request(move.request_id).items)
    reached = move.last_input_id
    for call, answer in calls:
        match call:
            case Check(_, input_id) if fates[input_id] == "unvisited" and answer:
                fates[input_id] = "hit"
            case CanAllocate(_, input_id):
                fates[input_id] = "picked" if answer else "refused"
                reached = reached if answer else input_id
            case Allocate():
                break
            case _:
                pass
    for input_id in range(first, reached + 1):
        if fates[input_id] == "unvisited":
            fates[input_id] = "duplicate"
    return tuple(fates)


def _of_reference(position: Position, switches: Switches) -> dict[Transition, Position]:
    return {
        Transition(move, _answer(position, move, calls), snapshot_of(after), ascending): after
        for move in moves(position)
        for calls, after, ascending in _endings(position, move, switches)
    }


class _OfRelation:
    """All steps that z3 finds from a given state."""

    def __init__(self, relation: Relation, names: list[str]) -> None:
        self._relation = relation
        self._names = names
        self._before, self._after = relation.state("before"), relation.state("after")
        self._step = relation.step(self._before, self._after, "step")
        self._solver = z3.SolverFor("QF_FD")
        self._solver.add(relation.world, self._step.constraint)
        self._parts = [*self._after.values(), *self._step.arguments]

    def initial(self, workload: Workload) -> list[Snapshot]:
        """The initial states of the relation: there should be one."""
        found = []
        solver = z3.SolverFor("QF_FD")
        solver.add(self._relation.world, self._relation.initial(self._before))
        solver.add(self._relation.pin_workload(workload, self._names))
        while solver.check() == z3.sat:
            model = solver.model()
            found.append(self._relation.snapshot(model, self._before, workload, self._names))
            solver.add(z3.Or([part != _value(model, part) for part in self._before.values()]))
        return found

    def of(self, snapshot: Snapshot, workload: Workload) -> set[Transition]:
        relation, solver = self._relation, self._solver
        found = set()
        solver.push()
        solver.add(relation.pin_workload(workload, self._names))
        solver.add(relation.pin_state(self._before, snapshot, workload, self._names))
        while (verdict := solver.check()) == z3.sat:
            model = solver.model()
            found.add(
                Transition(
                    relation.move(model, self._step, workload),
                    relation.answer(model, self._step, self._names),
                    relation.snapshot(model, self._after, workload, self._names),
                    z3.is_true(model.eval(self._step.ascending, model_completion=True)),
                )
            )
            solver.add(z3.Or([part != _value(model, part) for part in self._parts]))
        solver.pop()
        assert verdict == z3.unsat, f"z3 gave up on one state: {solver.reason_unknown()}"
        return found


def _value(model: z3.ModelRef, part: z3.ExprRef) -> z3.ExprRef:
    return model.eval(part, model_completion=True)


# --- The comparison ----------------------------------------------------------------------------------------


class Disagreement(Struct, frozen=True):
    """A state in which the two differ, and one step that only one of them allows.

    Attributes:
        workload: The requests and sizes.
        state: The state before.
        only_reference: Steps of the reference that the relation lacks.
        only_relation: Steps of the relation that the reference lacks.
    """

    workload: Workload
    state: Snapshot
    only_reference: tuple[Transition, ...]
    only_relation: tuple[Transition, ...]

    def __str__(self) -> str:
        lines = [f"workload: {self.workload}", f"state: {self.state}"]
        for who, steps in (("reference", self.only_reference), ("relation", self.only_relation)):
            lines += [f"only the {who}: {one.move} answers {one.answer} and leads to {one.after}" for one in steps]
        return "\n".join(lines)


class Comparison(Struct, frozen=True):
    """What was compared.

    Attributes:
        workloads: Workloads, up to renaming.
        states: States in which all steps were compared.
        transitions: Steps that both allow.
        disagreement: The first state in which they differ; None if none does.
        seconds: Time taken.
    """

    workloads: int
    states: int
    transitions: int
    disagreement: Disagreement | None
    seconds: float


def compare(
    scope: Scope,
    discipline: Discipline,
    switches: Switches = Switches(),  # noqa: B008 - immutable
    relation_class: Callable[[Bounds, Switches, Discipline], Relation] = Relation,
) -> Comparison:
    """Compares the reference and the relation in every state that the reference reaches within a scope.

    Args:
        scope: The bounds.
        discipline: Who makes the calls.
        switches: Which mends are in, on both sides.
        relation_class: Makes the relation; tests hand in faulty ones.
    """
    began = monotonic()
    relation = relation_class(bounds_of(scope), switches, discipline)
    of_relation = _OfRelation(relation, hash_names(scope))
    workloads = states = transitions = 0
    for workload_class in workload_classes(scope, discipline):
        workload = workload_class.workload
        workloads += 1
        first = _first(workload, discipline, switches)
        initial = of_relation.initial(workload)
        assert initial == [snapshot_of(first)], f"the relation starts in {initial}"
        met = {first}
        queue = deque([first])
        while queue:
            position = queue.popleft()
            snapshot = snapshot_of(position)
            right = _of_reference(position, switches)
            seen = of_relation.of(snapshot, workload)
            states += 1
            transitions += len(right)
            if seen != right.keys():
                differing = Disagreement(
                    workload, snapshot, tuple(right.keys() - seen), tuple(seen - right.keys())
                )
                return Comparison(workloads, states, transitions, differing, monotonic() - began)
            for after in right.values():
                if after not in met:
                    met.add(after)
                    queue.append(after)
    return Comparison(workloads, states, transitions, None, monotonic() - began)


def bounds_of(scope: Scope) -> Bounds:
    """A scope's numbers, for the relation."""
    return Bounds(**asdict(scope))


def hash_names(scope: Scope) -> list[str]:
    """The names of a scope's hashes."""
    return [hash_name(number) for number in range(scope.hashes)]
