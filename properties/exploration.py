"""Exhaustive exploration: every transition within a scope, carried out on the real code.

Breadth first, so that the first counterexample to a property is its shortest. For each workload the explorer
walks the positions of the discipline; each call that a reference state allows is made once of the
implementation, brought there by copying it, and judged. Two states are the same if the judge's key is the
same: the reference state, and whatever the target shows that differs from it.

- Under the caller discipline many steps lead through the same state and call. What a call did is remembered,
  since making it again could show nothing new.
- Under the open discipline most calls change nothing, so one copy serves for a run of them, and is copied
  afresh only after a call that changed something. Should a call that seemed to change nothing have left a
  hidden trace, what breaks later is told with that call.

Positions that renaming makes equal count once. How many there are without renaming is computed from the size
of each one's class, and reported beside.

Workloads are independent of each other, so they are spread over processes; the results are put together in
the order of the workloads and do not depend on how many processes there were.
"""

import os
import pickle
import resource
import signal
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from functools import lru_cache
from time import time
from typing import ParamSpec, Protocol, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from impl.errors import TargetError
from impl.target import Shows
from model.contract import Caller, Position, freedom, moves, script, start, step_of
from model.errors import EvictcheckError
from model.operations import Call, Discipline, Move, Result, Step, Trace
from model.reference import State
from model.workload import Workload
from properties.counterexample import Counterexample, replay
from properties.lockstep import ENDS_BRANCH, Judge, Subject, Violation, legal_in_all, stand
from properties.scopes import Scope, WorkloadClass, workload_classes
from properties.situations import Situation, situations_of
from properties.symmetry import Symmetry

ENGINE = "exhaustive"

HANGS = 0.5
"""Seconds after which a call that broke something is taken to have hung; such a target is explored no further."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


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
        too_large: Workloads given up, since they have more positions than one process may hold.
        trouble: What else ended the run early, as a sentence; "" if nothing did, or time or an interrupt.
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
    too_large: int = 0
    trouble: str = ""


class Covered(Struct, frozen=True):
    """What one workload adds to an exploration.

    Attributes:
        complete: Whether all of it was covered.
        states: Positions reached, up to renaming.
        transitions: Moves taken from them.
        calls: Calls made of the real code and judged.
        all_states: Positions without renaming, of this workload alone.
        all_transitions: Moves without renaming, of this workload alone.
        situations: How often each situation was reached.
        counterexamples: The shortest ones, for each property one of each shape.
        too_large: Whether it was given up, since it has more positions than one process may hold.
        hung: Whether it was given up, since a call hung; every further one could take as long.
    """

    complete: bool
    states: int
    transitions: int
    calls: int
    all_states: int
    all_transitions: int
    situations: dict[str, int]
    counterexamples: tuple[Counterexample, ...]
    too_large: bool = False
    hung: bool = False


Progress: TypeAlias = Callable[[int, int], None]
"""Told after each workload how many are done, of how many."""


class Record(Protocol):
    """What is known of an exploration that may go on in another run; workloads are numbered as in their list."""

    @property
    def covered(self) -> Mapping[int, Covered]:
        """Workloads that were covered wholly."""

    def keep(self, number: int, covered: Covered) -> None:
        """Adds one."""


# --- A scope -----------------------------------------------------------------------------------------------


def explore(
    target: Subject,
    scope: Scope,
    discipline: Discipline,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    record: Record | None = None,
) -> Exploration:
    """Explores every workload of a scope.

    Args:
        target: What to judge.
        scope: The bounds.
        discipline: Who makes the calls.
        deadline: When to stop, on the clock of `time.time`; what was covered by then is reported.
        progress: Told after each workload.
        executor: Where to explore workloads side by side (`LocalProcesses`, or one of another machine's):
            the target goes over there by its name. None explores them here, one after the other.
        record: What earlier runs have covered, and where this one puts what it covers.
    """
    classes = workload_classes(scope, discipline)
    return explore_classes(
        target,
        classes,
        discipline,
        name=str(scope),
        deadline=deadline,
        progress=progress,
        executor=executor,
        record=record,
    )


def explore_classes(
    target: Subject,
    classes: Iterable[WorkloadClass],
    discipline: Discipline,
    *,
    name: str,
    deadline: float | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    deepest: int | None = None,
    record: Record | None = None,
) -> Exploration:
    """Explores given workloads, to a depth if one is given; see `explore`."""
    began = time()
    every = tuple(classes)
    done = dict(record.covered) if record is not None else {}
    todo = [(number, one.workload) for number, one in enumerate(every) if number not in done]
    covering = (
        _one_by_one(target, todo, discipline, deadline, deepest)
        if executor is None
        else _side_by_side(executor, target, todo, discipline, deadline, deepest)
    )
    trouble = ""
    try:
        for number, covered in covering:
            done[number] = covered
            if record is not None and covered.complete:
                record.keep(number, covered)
            if progress is not None:
                progress(len(done), len(every))
    except KeyboardInterrupt:
        # What was found until now is worth more than the interrupt; the caller sees that it is not all.
        pass
    except LostProcessesError as lost:
        trouble = str(lost)
    return replace(_put_together(name, discipline, every, done, time() - began), trouble=trouble)


def _one_by_one(
    target: Subject,
    todo: list[tuple[int, Workload]],
    discipline: Discipline,
    deadline: float | None,
    deepest: int | None,
) -> Iterator[tuple[int, Covered]]:
    for number, workload in todo:
        covered = cover(target, workload, discipline, deadline, deepest)
        yield number, covered
        if not covered.complete and not covered.too_large:
            return


def _side_by_side(
    executor: Executor,
    subject: Subject,
    todo: list[tuple[int, Workload]],
    discipline: Discipline,
    deadline: float | None,
    deepest: int | None,
) -> Iterator[tuple[int, Covered]]:
    packed = pickle.dumps(subject)
    # The large ones come last in the list; begun first, they do not keep one process busy at the end.
    left = dict(reversed(todo))
    for _ in range(_ATTEMPTS):
        futures: dict[Future[Covered], int] = {}
        try:
            for number, workload in left.items():
                future = executor.submit(cover_packed, packed, workload, discipline, deadline, deepest)
                futures[future] = number
            for future in as_completed(futures):
                covered = future.result()
                del left[futures[future]]
                yield futures[future], covered
                if covered.hung:
                    return
            return
        except BrokenExecutor:
            if not isinstance(executor, LocalProcesses):
                raise
            executor.renew()
        finally:
            for future in futures:
                future.cancel()
    raise LostProcessesError(
        f"a process was killed {_ATTEMPTS} times, as a machine does when memory runs out; with fewer --jobs or a "
        f"smaller scope it need not be"
    )


_ATTEMPTS = 3
"""How often what a killed process was doing is begun again, counting the first time."""


class LostProcessesError(EvictcheckError):
    """Processes were killed again and again."""


class LocalProcesses(Executor):
    """Processes of this machine that can be renewed once one of them was killed.

    An interrupt is left to the process that waits for them.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._pool = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._jobs, initializer=_ignore_interrupts)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Hands a call to one of them."""
        return self._pool.submit(fn, *args, **kwargs)

    def renew(self) -> None:
        """Begins again with fresh processes; what was not done is forgotten."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._new()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends them."""
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@lru_cache(maxsize=8)
def _unpacked(packed: bytes) -> Subject:
    subject: Subject = pickle.loads(packed)  # noqa: S301 - packed by `_side_by_side`, and one subject serves many workloads
    return subject


def cover_packed(
    packed: bytes, workload: Workload, discipline: Discipline, deadline: float | None, deepest: int | None
) -> Covered:
    """`cover` for a subject that was pickled, in another process."""
    return cover(_unpacked(packed), workload, discipline, deadline, deepest)


def _put_together(
    name: str,
    discipline: Discipline,
    todo: tuple[WorkloadClass, ...],
    done: dict[int, Covered],
    seconds: float,
) -> Exploration:
    parts = [(todo[number], done[number]) for number in sorted(done)]
    whole = [one for one in parts if one[1].complete]
    situations = Counter({one.name: 0 for one in situations_of(discipline)})
    found = Shortest()
    for _, covered in parts:
        situations.update(covered.situations)
        for counterexample in covered.counterexamples:
            found.keep(counterexample)
    return Exploration(
        name,
        discipline,
        len(whole) == len(todo),
        len(whole),
        sum(covered.states for _, covered in parts),
        sum(covered.transitions for _, covered in parts),
        sum(covered.calls for _, covered in parts),
        (
            sum(workload_class.members for workload_class, _ in whole),
            sum(workload_class.members * covered.all_states for workload_class, covered in parts),
            sum(workload_class.members * covered.all_transitions for workload_class, covered in parts),
        ),
        dict(situations),
        found.kept(),
        seconds,
        sum(covered.too_large for _, covered in parts),
    )


class Shortest:
    """Keeps for each property its shortest counterexamples, one of each shape."""

    def __init__(self) -> None:
        self._length: dict[str, int] = {}
        self._kept: dict[tuple[str, ...], Counterexample] = {}

    def admits(self, broken: str, length: int) -> bool:
        """Whether a counterexample of this length could be kept."""
        return length <= self._length.get(broken, length)

    def keep(self, offered: Counterexample) -> None:
        """Takes a counterexample if it is shorter, or of a new shape, or smaller than its like."""
        broken, length = offered.violation.property, len(offered.trace)
        if not self.admits(broken, length):
            return
        if length < self._length.get(broken, length + 1):
            self._length[broken] = length
            self._kept = {shape: one for shape, one in self._kept.items() if one.violation.property != broken}
        like = self._kept.get(offered.shape)
        if like is None or offered.size < like.size:
            self._kept[offered.shape] = offered

    def kept(self) -> tuple[Counterexample, ...]:
        """What was kept, by property and size."""
        return tuple(sorted(self._kept.values(), key=lambda one: (one.violation.property, one.size)))


# --- One workload ------------------------------------------------------------------------------------------


class _Edge(Struct, frozen=True):
    """What one call did in one state: where it led, or what it broke.

    Attributes:
        node: The state that it led to.
        answer: The reference's answer.
        situations: The situations that it is.
        violation: What it broke, if it did.
        before: Calls made in the same state just before that seemed to change nothing, but without which the
            violation does not come.
        history: All calls that the broken judge has seen.
    """

    node: int
    answer: Result
    situations: tuple[str, ...]
    violation: Violation | None = None
    before: tuple[Call, ...] = ()
    history: tuple[Call, ...] = ()


class _Code:
    """The real code's own graph: judged states as nodes, each with a judge that stands there."""

    def __init__(self, target: Subject, workload: Workload, discipline: Discipline) -> None:
        self._remembers = discipline is Discipline.CALLER
        self._of_call = _by_kind(situations_of(discipline))
        root = stand(target, workload)
        self._judges: list[Judge | None] = [root]
        self._index: dict[Hashable, int] = {root.key: 0}
        self._edges: dict[tuple[int, Call], _Edge] = {}
        self._copy: Judge | None = None
        self._copy_of = -1
        self._idle: list[Call] = []
        self.states: list[State] = [root.state]
        self.in_accord: list[bool] = [root.in_accord]
        self.repeated: list[bool] = [root.repeated]
        self.possible: list[tuple[State, ...]] = [root.possible]
        self.calls = 0

    def edge(self, node: int, call: Call) -> _Edge:
        """What a call does in a state."""
        if not self._remembers:
            return self._make(node, call)
        known = self._edges.get((node, call))
        if known is None:
            known = self._edges[node, call] = self._make(node, call)
        return known

    def _make(self, node: int, call: Call) -> _Edge:
        self.calls += 1
        judge = self._standing_in(node)
        before = self.states[node]
        violation = judge.apply(call)
        if violation is not None:
            self._copy = None
            judge.close()
            return self._broken(node, call, violation, judge.calls)
        assert judge.last is not None
        after = judge.state
        predicates = self._of_call.get(type(call), ())
        reached = tuple([name for name, of_call in predicates if of_call(before, call, after)])
        if not self._remembers and judge.in_accord and self.in_accord[node] and after == before:
            self._idle.append(call)
            return _Edge(node, judge.last.expected, reached)
        self._copy = None
        return _Edge(self._node(judge), judge.last.expected, reached)

    def _standing_in(self, node: int) -> Judge:
        """A judge in that state that may be used up."""
        if self._copy is None or self._copy_of != node:
            if self._copy is not None:
                self._copy.close()
            self._copy, self._copy_of, self._idle = self._judge(node).fork(), node, []
        return self._copy

    def _broken(self, node: int, call: Call, violation: Violation, history: tuple[Call, ...]) -> _Edge:
        """A violation, with the calls before it if it does not come without them."""
        idle = tuple(self._idle)
        if idle:
            judge = self._judge(node).fork()
            alone = judge.apply(call)
            judge.close()
            if alone is not None and alone.property == violation.property:
                idle = ()
        return _Edge(-1, None, (), violation, idle, history)

    def _node(self, judge: Judge) -> int:
        node = self._index.setdefault(judge.key, len(self._judges))
        if node == len(self._judges):
            self._judges.append(judge)
            self.states.append(judge.state)
            self.in_accord.append(judge.in_accord)
            self.repeated.append(judge.repeated)
            self.possible.append(judge.possible)
        else:
            judge.close()
        return node

    def take(self, node: int, position: Position, move: Move, reached: Counter[str]) -> "_Taken":
        """Carries out a move."""
        if position.caller is None:
            return self._take_call(node, move, reached)  # type: ignore[arg-type]  # the open discipline has calls only
        running = script(position, move)
        calls: list[Call] = []
        answer: Result = None
        while True:
            try:
                call = running.send(answer) if calls else next(running)
            except StopIteration as stop:
                return _Taken(node, tuple(calls), stop.value)
            edge = self.edge(node, call)
            calls.append(call)
            if edge.violation is not None:
                return _Taken(node, tuple(calls), None, edge)
            for name in edge.situations:
                reached[name] += 1
            node, answer = edge.node, edge.answer

    def _take_call(self, node: int, call: Call, reached: Counter[str]) -> "_Taken":
        edge = self._make(node, call)
        if edge.violation is not None:
            return _Taken(node, (call,), None, edge)
        for name in edge.situations:
            reached[name] += 1
        return _Taken(edge.node, (call,), None)

    def leave(self, node: int) -> None:
        """Gives back the judge of a state where no call will be made any more."""
        judge = self._judges[node]
        if not self._remembers and judge is not None:
            self._judges[node] = None
            judge.close()

    def _judge(self, node: int) -> Judge:
        judge = self._judges[node]
        assert judge is not None, "the explorer has left this state"
        return judge

    def close(self) -> None:
        """Gives back what the sessions occupy."""
        for judge in self._judges:
            if judge is not None:
                judge.close()
        if self._copy is not None:
            self._copy.close()


class _Taken(Struct, frozen=True):
    """Where a move led, its calls, the caller after it, and the call that broke something."""

    node: int
    calls: tuple[Call, ...]
    caller: Caller | None
    broken: _Edge | None = None


_OfCall: TypeAlias = tuple[str, Callable[[State, Call, State], bool]]
"""A situation that one call can be: its name, and whether a call is it."""


def _by_kind(situations: tuple[Situation, ...]) -> dict[type, list[_OfCall]]:
    kinds: dict[type, list[_OfCall]] = {}
    for one in situations:
        if one.of_call is not None:
            for kind in one.kinds:
                kinds.setdefault(kind, []).append((one.name, one.of_call))
    return kinds


class _Identity:
    """What makes two positions the same."""

    def __init__(self, code: _Code, target: Subject, symmetry: Symmetry) -> None:
        self._code = code
        self._symmetry = symmetry
        self._shown = target.shows is Shows.INTERNALS

    def of(self, node: int, position: Position) -> tuple[Hashable, int]:
        """A value equal for equal positions, and how many positions renaming makes of it.

        Renaming is trusted only where the target shows its internals and they are the reference's: what is
        hidden, or differs, need not be symmetric.
        """
        if self._shown and self._code.in_accord[node]:
            return self._symmetry.canonical(position, self._code.repeated[node])
        return (node, position.caller), 1


_POSITION_BYTES = 4096
"""A position with its manager, its judge and the way there; measured are 1.2 to 2.3 KiB."""


def positions_that_fit() -> int:
    """How many positions one process may hold: its core's share of half of this machine's memory.

    It depends on the cores, not on how many processes there are, so that results do not either.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        memory = min(memory, limit)
    return memory // 2 // (os.cpu_count() or 1) // _POSITION_BYTES


_Path: TypeAlias = tuple["_Path", Step] | None
"""How a position was reached, last step outermost."""


def cover(
    target: Subject,
    workload: Workload,
    discipline: Discipline,
    deadline: float | None = None,
    deepest: int | None = None,
) -> Covered:
    """Explores one workload, to a depth if one is given, until the deadline if there is one.

    A workload with more positions than fit (`positions_that_fit`) is given up half way, and said to be.
    """
    code = _Code(target, workload, discipline)
    identity = _Identity(code, target, Symmetry(workload, discipline))
    of_step = [(one.name, one.of_step) for one in situations_of(discipline) if one.of_step]
    situations: Counter[str] = Counter()
    found = Shortest()
    allowed: dict[Hashable, list[Move]] = {}

    first = start(workload, discipline)
    met = {(0, first.caller)}
    key, size = identity.of(0, first)
    seen = {key}
    queue: deque[tuple[int, Position, int, int, _Path]] = deque([(0, first, size, 0, None)])
    states = transitions = all_states = all_transitions = 0
    in_time, fits, hung, most = True, True, False, positions_that_fit()
    while queue and in_time and fits and not hung:
        node, position, variants, depth, path = queue.popleft()
        states += 1
        all_states += variants
        if depth == deepest:
            continue
        free = freedom(position)
        choices = allowed.get(free)
        if choices is None:
            choices = allowed[free] = moves(position, resets=target.has_reset)
        choices = legal_in_all(choices, code.possible[node], position.caller)
        transitions += len(choices)
        all_transitions += variants * len(choices)
        for move in choices:
            began = time()
            taken = code.take(node, position, move, situations)
            if taken.broken is not None:
                hung = time() - began > HANGS
                _offer(found, target, Trace(workload, discipline, ()), path, move, taken)
                if hung:
                    break
                continue
            for name, is_it in of_step:
                if is_it(position, move, taken.calls):
                    situations[name] += 1
            if (taken.node, taken.caller) in met:
                continue
            met.add((taken.node, taken.caller))
            following = Position(code.states[taken.node], taken.caller)
            key, size = identity.of(taken.node, following)
            if key not in seen:
                seen.add(key)
                queue.append((taken.node, following, size, depth + 1, (path, step_of(move, taken.calls))))
            else:
                code.leave(taken.node)
        code.leave(node)
        in_time = deadline is None or time() < deadline
        fits = len(met) <= most
    code.close()
    return Covered(
        not queue and not hung,
        states,
        transitions,
        code.calls,
        all_states,
        all_transitions,
        dict(situations),
        found.kept(),
        bool(queue) and not fits,
        hung,
    )


def _offer(found: Shortest, target: Subject, empty: Trace, path: _Path, move: Move, taken: _Taken) -> None:
    """Offers a violation, once a fresh session has shown it again."""
    assert taken.broken is not None
    assert taken.broken.violation is not None
    broken = taken.broken.violation.property
    if broken == ENDS_BRANCH:
        return
    steps = [step_of(move, taken.calls)]
    steps += [Step((call,)) for call in reversed(taken.broken.before)]
    while path is not None:
        path, step = path
        steps.append(step)
    if not found.admits(broken, len(steps)):
        return
    trace = Trace(empty.workload, empty.discipline, tuple(reversed(steps)))
    again = replay(trace, target)
    if again is None:
        # A target that hides state can tell two ways to one position apart: the calls that the broken copy has
        # seen are another way, legal call by call.
        single = tuple([Step((call,)) for call in taken.broken.history])
        trace = Trace(empty.workload, Discipline.OPEN, single)
        again = replay(trace, target)
    if again is None:
        raise TargetError(
            f"{target.name} does not do the same thing twice: {broken} broke on a copy of its manager and not on "
            f"a fresh one; it is random, or keeps state outside of the manager object"
        )
    found.keep(Counterexample(trace, again, target.name, ENGINE))
