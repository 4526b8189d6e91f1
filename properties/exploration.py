"""Exhaustive exploration: every transition within a scope, carried out on the real code.

Breadth first, so that the first counterexample to a property is its shortest. For each workload the explorer
walks the positions of the discipline; each call that a reference state allows is made once of the
implementation, brought there by copying it, and judged. What one call did is remembered: when another move
leads through the same state and call, nothing new could be seen. (States are the same if the judge's key is
the same: the reference state, and whatever the target shows that differs from it.)

Positions that renaming makes equal count once. How many there are without renaming is computed from the size
of each one's class, and reported beside.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from time import monotonic
from typing import TypeAlias

from msgspec import Struct

from impl.errors import TargetError
from impl.target import Shows, Target
from model.contract import Caller, Position, freedom, moves, script, start, step_of
from model.operations import Call, Discipline, Move, Result, Step, Trace
from model.reference import State
from model.workload import Workload
from properties.counterexample import Counterexample, replay
from properties.lockstep import Lockstep, Violation
from properties.scopes import Scope, WorkloadClass, workload_classes
from properties.situations import situations_of
from properties.symmetry import Symmetry

ENGINE = "exhaustive"


class Exploration(Struct, frozen=True):
    """What a run covered and found.

    Attributes:
        scope: The scope, or the workload's name where only one was explored.
        discipline: Under which discipline.
        complete: Whether everything in the scope was covered; False if time ran out or the run was interrupted.
        workloads: Workloads covered, up to renaming.
        states: Positions reached, up to renaming.
        transitions: Moves taken from them.
        calls: Calls made of the real code and judged.
        unreduced: (workloads, states, transitions) without renaming.
        situations: How often each situation was reached.
        counterexamples: For each broken property the shortest ones, one of each shape.
        seconds: Time taken.
    """

    scope: str
    discipline: Discipline
    complete: bool
    workloads: int
    states: int
    transitions: int
    calls: int
    unreduced: tuple[int, int, int]
    situations: dict[str, int]
    counterexamples: tuple[Counterexample, ...]
    seconds: float


class _Edge(Struct, frozen=True):
    """What one call did in one state: where it led, or what it broke."""

    node: int
    answer: Result
    situations: tuple[str, ...]
    violation: Violation | None = None


class _Executed:
    """The real code's own graph: judged states as nodes, each with a judge that stands there."""

    def __init__(self, target: Target, workload: Workload, discipline: Discipline) -> None:
        self._of_call = [(one.name, one.of_call) for one in situations_of(discipline) if one.of_call]
        root = Lockstep(target, workload)
        self._judges = [root]
        self._index: dict[Hashable, int] = {root.key: 0}
        self._edges: dict[tuple[int, Call], _Edge] = {}
        self.states: list[State] = [root.state]
        self.in_accord: list[bool] = [root.in_accord]

    @property
    def calls(self) -> int:
        return len(self._edges)

    def edge(self, node: int, call: Call) -> _Edge:
        """What the call does there, made of the real code the first time it is asked."""
        known = self._edges.get((node, call))
        if known is None:
            known = self._edges[node, call] = self._make(node, call)
        return known

    def take(
        self, node: int, position: Position, move: Move, reached: Counter[str]
    ) -> tuple[int, tuple[Call, ...], Caller | None, Violation | None]:
        """Carries out a move: where it led, its calls, the caller after it, and what it broke."""
        running = script(position, move)
        calls: list[Call] = []
        answer: Result = None
        while True:
            try:
                call = running.send(answer) if calls else next(running)
            except StopIteration as stop:
                return node, tuple(calls), stop.value, None
            edge = self.edge(node, call)
            calls.append(call)
            if edge.violation is not None:
                return node, tuple(calls), None, edge.violation
            if edge.situations:
                reached.update(edge.situations)
            node, answer = edge.node, edge.answer

    def _make(self, node: int, call: Call) -> _Edge:
        judge = self._judges[node].fork()
        before = judge.state
        violation = judge.apply(call)
        if violation is not None:
            judge.close()
            return _Edge(-1, None, (), violation)
        assert judge.last is not None
        reached = tuple([name for name, is_it in self._of_call if is_it(before, call, judge.state)])
        return _Edge(self._node(judge), judge.last.expected, reached)

    def _node(self, judge: Lockstep) -> int:
        node = self._index.setdefault(judge.key, len(self._judges))
        if node == len(self._judges):
            self._judges.append(judge)
            self.states.append(judge.state)
            self.in_accord.append(judge.in_accord)
        else:
            judge.close()
        return node

    def close(self) -> None:
        for judge in self._judges:
            judge.close()


class _Identity:
    """What makes two positions the same."""

    def __init__(self, executed: _Executed, target: Target, symmetry: Symmetry) -> None:
        self._executed = executed
        self._symmetry = symmetry
        self._shown = target.shows is Shows.INTERNALS

    def of(self, node: int, position: Position) -> tuple[Hashable, int]:
        """A value equal for equal positions, and how many positions renaming makes of it.

        Renaming is trusted only where the target shows its internals and they are the reference's: what is
        hidden, or differs, need not be symmetric.
        """
        if self._shown and self._executed.in_accord[node]:
            return self._symmetry.canonical(position)
        return (node, position.caller), 1


class _Found:
    """The shortest counterexamples so far: for each property one of each shape."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._shortest: dict[str, int] = {}
        self._kept: dict[tuple[str, ...], Counterexample] = {}

    def offer(
        self, workload: Workload, discipline: Discipline, steps: tuple[Step, ...], violation: Violation
    ) -> None:
        length = len(steps)
        if length > self._shortest.get(violation.property, length):
            return
        offered = self._replayed(Trace(workload, discipline, steps), violation)
        if length < self._shortest.get(violation.property, length + 1):
            self._shortest[violation.property] = length
            self._kept = {
                shape: kept for shape, kept in self._kept.items() if kept.violation.property != violation.property
            }
        kept = self._kept.get(offered.shape)
        if kept is None or offered.size < kept.size:
            self._kept[offered.shape] = offered

    def _replayed(self, trace: Trace, violation: Violation) -> Counterexample:
        """Nothing is shown that a fresh session does not do again."""
        again = replay(trace, self._target)
        if again is None or again.property != violation.property:
            raise TargetError(
                f"{self._target.name} does not do the same thing twice: {violation.property} broke on a copy of "
                f"its manager and not on a fresh one; it is random, or keeps state outside of the manager object"
            )
        return Counterexample(trace, again, self._target.name, ENGINE)

    def shortest(self) -> tuple[Counterexample, ...]:
        return tuple(sorted(self._kept.values(), key=lambda one: (one.violation.property, one.size)))


Progress: TypeAlias = Callable[[int, int], None]
"""Told after each workload how many are done, of how many."""


class _Tally:
    """Sums over workloads."""

    def __init__(self, discipline: Discipline) -> None:
        self.workloads = self.states = self.transitions = self.calls = 0
        self.all_workloads = self.all_states = self.all_transitions = 0
        self.situations = Counter({one.name: 0 for one in situations_of(discipline)})


def explore(
    target: Target,
    scope: Scope,
    discipline: Discipline,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Exploration:
    """Explores every workload of a scope.

    Args:
        target: What to judge.
        scope: The bounds.
        discipline: Who makes the calls.
        deadline: When to stop, on the clock of `time.monotonic`; what was covered by then is reported.
        progress: Told after each workload.
    """
    classes = workload_classes(scope, discipline)
    return explore_classes(target, classes, discipline, name=str(scope), deadline=deadline, progress=progress)


def explore_classes(
    target: Target,
    classes: Iterable[WorkloadClass],
    discipline: Discipline,
    *,
    name: str,
    deadline: float | None = None,
    progress: Progress | None = None,
    deepest: int | None = None,
) -> Exploration:
    """Explores given workloads, to a depth if one is given; see `explore`."""
    began = monotonic()
    tally, found = _Tally(discipline), _Found(target)
    complete = True
    todo = tuple(classes)
    try:
        for number, workload_class in enumerate(todo, start=1):
            complete = _explore_workload(target, workload_class, discipline, tally, found, deadline, deepest)
            if not complete:
                break
            if progress is not None:
                progress(number, len(todo))
    except KeyboardInterrupt:
        # What was found until now is worth more than the interrupt; the caller sees that it is not all.
        complete = False
    return Exploration(
        name,
        discipline,
        complete,
        tally.workloads,
        tally.states,
        tally.transitions,
        tally.calls,
        (tally.all_workloads, tally.all_states, tally.all_transitions),
        dict(tally.situations),
        found.shortest(),
        monotonic() - began,
    )


_Path: TypeAlias = tuple["_Path", Step] | None
"""How a position was reached, last move outermost."""


def _explore_workload(
    target: Target,
    workload_class: WorkloadClass,
    discipline: Discipline,
    tally: _Tally,
    found: _Found,
    deadline: float | None,
    deepest: int | None,
) -> bool:
    """Adds one workload to the sums; False if time ran out on the way."""
    workload, members = workload_class.workload, workload_class.members
    executed = _Executed(target, workload, discipline)
    identity = _Identity(executed, target, Symmetry(workload, discipline))
    of_step = [(one.name, one.of_step) for one in situations_of(discipline) if one.of_step]
    allowed: dict[Hashable, list[Move]] = {}

    first = start(workload, discipline)
    met = {(0, first.caller)}
    key, size = identity.of(0, first)
    seen = {key}
    queue: deque[tuple[int, Position, int, int, _Path]] = deque([(0, first, size, 0, None)])
    states = transitions = all_states = all_transitions = 0
    in_time = True
    while queue and in_time:
        node, position, variants, depth, path = queue.popleft()
        states += 1
        all_states += variants
        if depth == deepest:
            continue
        free = freedom(position)
        choices = allowed.get(free)
        if choices is None:
            choices = allowed[free] = moves(position, resets=target.has_reset)
        transitions += len(choices)
        all_transitions += variants * len(choices)
        for move in choices:
            reached, calls, caller, violation = executed.take(node, position, move, tally.situations)
            if violation is not None:
                found.offer(workload, discipline, _unrolled((path, step_of(move, calls))), violation)
                continue
            for name, is_it in of_step:
                if is_it(position, move, calls):
                    tally.situations[name] += 1
            if (reached, caller) in met:
                continue
            met.add((reached, caller))
            following = Position(executed.states[reached], caller)
            key, size = identity.of(reached, following)
            if key not in seen:
                seen.add(key)
                queue.append((reached, following, size, depth + 1, (path, step_of(move, calls))))
        in_time = deadline is None or monotonic() < deadline
    tally.workloads += in_time
    tally.states += states
    tally.transitions += transitions
    tally.calls += executed.calls
    tally.all_workloads += members * in_time
    tally.all_states += members * all_states
    tally.all_transitions += members * all_transitions
    executed.close()
    return in_time


def _unrolled(path: _Path) -> tuple[Step, ...]:
    taken: list[Step] = []
    while path is not None:
        path, step = path
        taken.append(step)
    return tuple(reversed(taken))
