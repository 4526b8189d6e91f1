"""The check on the checkers: the reference model and the relation for z3, compared exhaustively.

The two are written independently. For every state that the reference reaches within a scope, the steps that it
allows (which step, what is answered, which state follows) are compared with all those that z3 finds in the
relation. Both start in the same state, so if no state differs, the reachable states are the same too.

With a switch off the relation is compared with an earlier form of the reference, in which the mend is undone.
States are walked breadth first through workloads in ascending order of size: the first difference is a smallest.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import permutations
from time import monotonic
from typing import Any, TypeAlias

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
from model.relation import Answer, Reading, Relation, Snapshot, Switches, Visit
from model.workload import Workload
from properties.bounded_search import bounds_of
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


class _Packed:
    """Many expressions as one number, which costs one query of a model instead of one for each of them."""

    def __init__(self, name: str, parts: Sequence[Any]) -> None:
        fields = [z3.If(part, _BIT[1], _BIT[0]) if z3.is_bool(part) else part for part in parts]
        joined = z3.Concat(*fields) if len(fields) > 1 else fields[0]
        self.number = z3.BitVec(name, joined.size())
        self.definition = self.number == joined
        self._fields: dict[int, tuple[int, int]] = {}
        low = 0
        for part, field in zip(reversed(parts), reversed(fields), strict=True):
            self._fields[part.get_id()] = (low, (1 << field.size()) - 1)
            low += field.size()

    def value(self, model: z3.ModelRef) -> int:
        return int(model.eval(self.number, model_completion=True).as_long())

    def reading(self, packed: int) -> Reading:
        """Reads the expressions that were packed out of their number."""

        def read(part: Any) -> int:
            low, mask = self._fields[part.get_id()]
            return packed >> low & mask

        return read


_BIT = (z3.BitVecVal(0, 1), z3.BitVecVal(1, 1))


class _OfRelation:
    """All steps that z3 finds from a given state of one workload; states are handed around packed."""

    def __init__(self, relation: Relation, workload: Workload, names: list[str]) -> None:
        self._relation = relation
        self._workload = workload
        self._names = names
        before, self._state = relation.state("before"), relation.state("after")
        self._step = step = relation.step(before, self._state, "step")
        sizes = relation.sizes
        self._before = _Packed("packed-before", [*before.values(), *sizes])
        self._after = _Packed("packed-after", [*self._state.values(), *sizes])
        answers = [step.answer, *step.report]
        answers += [getattr(visit, fate) for visit in step.visits for fate in Visit.__struct_fields__]
        self._taken = _Packed("packed-step", [*step.arguments, *answers, step.ascending])
        self._world = [relation.world, *relation.pin_workload(workload, names), self._after.definition]
        self._solver = z3.SolverFor("QF_FD")
        self._solver.add(*self._world, step.constraint, self._before.definition, self._taken.definition)
        self._snapshots: dict[int, Snapshot] = {}
        self._moves: dict[int, tuple[Move, Answer, bool]] = {}

    def initial(self) -> dict[int, Snapshot]:
        """The initial states; there should be one."""
        found = {}
        solver = z3.SolverFor("QF_FD")
        solver.add(*self._world, self._relation.initial(self._state))
        while solver.check() == z3.sat:
            after = self._after.value(solver.model())
            found[after] = self._snapshot(after)
            solver.add(self._after.number != after)
        return found

    def steps(self, before: int) -> dict[Transition, int]:
        """Every step from a state, with the state after it."""
        found, solver = {}, self._solver
        solver.push()
        solver.add(self._before.number == before)
        while (verdict := solver.check()) == z3.sat:
            model = solver.model()
            taken, after = self._taken.value(model), self._after.value(model)
            move, answer, ascending = self._move(taken)
            found[Transition(move, answer, self._snapshot(after), ascending)] = after
            solver.add(z3.Or(self._taken.number != taken, self._after.number != after))
        solver.pop()
        assert verdict == z3.unsat, f"z3 gave up on one state: {solver.reason_unknown()}"
        return found

    def _snapshot(self, packed: int) -> Snapshot:
        known = self._snapshots.get(packed)
        if known is None:
            read = self._after.reading(packed)
            known = self._relation.snapshot(read, self._state, self._workload, self._names)
            self._snapshots[packed] = known
        return known

    def _move(self, packed: int) -> tuple[Move, Answer, bool]:
        known = self._moves.get(packed)
        if known is None:
            read = self._taken.reading(packed)
            move = self._relation.move(read, self._step, self._workload)
            answer = self._relation.answer(read, self._step, self._names)
            known = self._moves[packed] = (move, answer, bool(read(self._step.ascending)))
        return known


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


def compare(scope: Scope, discipline: Discipline, switches: Switches) -> Comparison:
    """Compares the reference and the relation in every state that the reference reaches within a scope.

    Args:
        scope: The bounds.
        discipline: Who makes the calls.
        switches: Which mends are in, on both sides.
    """
    began = monotonic()
    relation = Relation(bounds_of(scope), switches, discipline)
    workloads = states = transitions = 0
    differing: Disagreement | None = None
    for workload_class in workload_classes(scope, discipline):
        found = _compare_workload(relation, workload_class.workload, hash_names(scope))
        workloads += 1
        states += found[0]
        transitions += found[1]
        differing = found[2]
        if differing is not None:
            break
    return Comparison(workloads, states, transitions, differing, monotonic() - began)


def _compare_workload(
    relation: Relation, workload: Workload, names: list[str]
) -> tuple[int, int, Disagreement | None]:
    """States and steps compared, and the first state in which the two differ."""
    of_relation = _OfRelation(relation, workload, names)
    first = _first(workload, relation.discipline, relation.switches)
    initial = of_relation.initial()
    assert list(initial.values()) == [snapshot_of(first)], f"the relation starts in {initial}"
    states, transitions = 0, 0
    met = {first}
    queue = deque([(first, next(iter(initial)))])
    while queue:
        position, packed = queue.popleft()
        right, seen = _of_reference(position, relation.switches), of_relation.steps(packed)
        states += 1
        transitions += len(right)
        if seen.keys() != right.keys():
            missing, strange = right.keys() - seen.keys(), seen.keys() - right.keys()
            differing = Disagreement(workload, snapshot_of(position), tuple(missing), tuple(strange))
            return states, transitions, differing
        for step, after in right.items():
            if after not in met:
                met.add(after)
                queue.append((after, seen[step]))
    return states, transitions, None


def hash_names(scope: Scope) -> list[str]:
    """The names of a scope's hashes."""
    return [hash_name(number) for number in range(scope.hashes)]
