"""Shrinking a trace: nothing can be left out of the result and the same property still break.

Moves are removed in ever smaller runs, then requests, inputs, embeds of items, capacity, budget, and what a
move may do less of, until no single change is possible any more and no two moves can go together. A move that
is no longer legal after a change is dropped with it, so every trace on the way is legal. Deterministic.

The result is locally minimal. What is left is small, so breadth-first search over its workload then tells
whether anything shorter exists there (`shortest`).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from time import time
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from impl.errors import TargetError
from model.contract import moves_of, objection, start
from model.operations import (
    Admit,
    Allocate,
    CanAllocate,
    Check,
    Discipline,
    FreeInput,
    Move,
    Outcome,
    Processed,
    Step,
    Trace,
)
from model.reference import Occurrence
from model.workload import Item, Request, Workload
from properties.counterexample import Counterexample
from properties.exploration import explore_classes
from properties.lockstep import Subject, Violation, stand, take
from properties.scopes import DEFAULT_SCOPE, Scope, WorkloadClass, hash_name, workload_classes


class _Attempt(Struct, frozen=True):
    """A workload and moves that break the property with the last of them."""

    workload: Workload
    choices: tuple[Move, ...]
    trace: Trace
    violation: Violation


Try: TypeAlias = Callable[[Workload, tuple[Move, ...]], _Attempt | None]


def minimize(counterexample: Counterexample, target: Subject, *, seconds: float = 20.0) -> Counterexample:
    """The counterexample with everything left out that can be.

    Args:
        counterexample: What was found.
        target: The target that it breaks.
        seconds: When to be content with what is left; only a target that hangs, each time for its time-out,
            takes so long.

    Raises:
        TraceError: A step of the trace is neither a step of the caller nor a single call.
    """
    trace = counterexample.trace
    wanted = counterexample.violation.property
    discipline = trace.discipline

    deadline = time() + seconds

    def attempt(workload: Workload, choices: tuple[Move, ...]) -> _Attempt | None:
        if time() > deadline:
            return None
        return _attempt(workload, discipline, choices, target, wanted)

    best = attempt(trace.workload, moves_of(trace))
    if best is None:
        return counterexample
    best = _without_runs(best, attempt)
    while (smaller := _one_smaller(best, attempt)) is not None:
        best = smaller
    best = attempt(*_renamed(best.workload, best.choices)) or best
    return replace(counterexample, trace=best.trace, violation=best.violation)


def shortest(counterexample: Counterexample, target: Subject, *, seconds: float = 1.0) -> Counterexample:
    """A minimised counterexample to the same property that is as short as a short search can make it.

    Removing things from one trace can end where only another story is shorter. So small workloads, and the one
    that is left, are searched breadth first for something shorter.

    Args:
        counterexample: What was found.
        target: The target that it breaks.
        seconds: How long the search may take at most; with too few, what was found until then is the answer.
    """
    best = minimize(counterexample, target)
    deadline = time() + seconds
    small = workload_classes(_small_scope(best.trace.workload), best.trace.discipline)
    best = _shorter(best, small, target, deadline)
    return _shorter(best, [WorkloadClass(best.trace.workload, 1)], target, deadline)


def _shorter(
    best: Counterexample, classes: Iterable[WorkloadClass], target: Subject, deadline: float
) -> Counterexample:
    try:
        found = explore_classes(
            target,
            classes,
            best.trace.discipline,
            name=f"{len(best.trace) - 1} steps",
            deepest=len(best.trace) - 1,
            deadline=deadline,
        )
    except TargetError:
        return best
    for shorter in found.counterexamples:
        if shorter.violation.property == best.violation.property:
            return replace(minimize(shorter, target), engine=best.engine)
    return best


def _small_scope(workload: Workload) -> Scope:
    """The default scope, narrowed to what the story needs: sizes, budgets, and little capacity."""
    items = {item for request in workload.requests for item in request.items}
    mixed = len({item.mm_hash for item in items}) < len(items)
    unit = all(item.embeds == 1 for item in items)
    return replace(
        DEFAULT_SCOPE,
        sizes=(1,) if unit else (1, 2),
        capacities=tuple(range(1, min(workload.capacity, 2) + 1)),
        mixed=mixed,
        budgets=() if workload.compute_budget == workload.capacity else (workload.compute_budget,),
    )


def _attempt(
    workload: Workload, discipline: Discipline, choices: tuple[Move, ...], target: Subject, wanted: str
) -> _Attempt | None:
    """Plays moves, leaving out those that are not legal where they stand; None if `wanted` does not break."""
    try:
        judge = stand(target, workload)
    except TargetError:
        # It could be started for the workload at hand, but not for this smaller one.
        return None
    position = start(workload, discipline)
    made: list[Move] = []
    steps: list[Step] = []
    try:
        for move in choices:
            if objection(position, move) is not None:
                continue
            taken = take(judge, position, move)
            made.append(move)
            steps.append(taken.step)
            if taken.violation is not None:
                trace = Trace(workload, discipline, tuple(steps))
                matches = taken.violation.property == wanted
                return _Attempt(workload, tuple(made), trace, taken.violation) if matches else None
            assert taken.position is not None
            position = taken.position
        return None
    finally:
        judge.close()


def _without_runs(best: _Attempt, attempt: Try) -> _Attempt:
    """Removes runs of moves, from half of them down to single ones."""
    length = len(best.choices) // 2
    while length >= 1:
        begin = 0
        while begin < len(best.choices):
            shorter = best.choices[:begin] + best.choices[begin + length :]
            found = attempt(best.workload, shorter)
            if found is not None and len(found.choices) < len(best.choices):
                best = found
            else:
                begin += length
        length //= 2
    return best


def _one_smaller(best: _Attempt, attempt: Try) -> _Attempt | None:
    """The first single change that leaves something out and still breaks the property."""
    for workload, choices in _smaller(best.workload, best.choices):
        found = attempt(workload, choices)
        if found is not None:
            return found
    return None


def _smaller(workload: Workload, choices: tuple[Move, ...]) -> Iterator[tuple[Workload, tuple[Move, ...]]]:
    """Every single change that leaves something out, and every two moves."""
    for place in range(len(choices)):
        yield workload, choices[:place] + choices[place + 1 :]
    for request in workload.requests:
        yield _without_request(workload, choices, request.request_id)
    for request in workload.requests:
        for input_id in range(len(request.items)):
            yield _without_input(workload, choices, request.request_id, input_id)
    for lower in _lower_sizes(workload):
        yield lower, choices
    for place, move in enumerate(choices):
        for less in _lesser(move):
            yield workload, (*choices[:place], less, *choices[place + 1 :])
    # Last, since there are many: what was there to make up for each other leaves only together.
    for first, second in combinations(range(len(choices)), 2):
        yield workload, choices[:first] + choices[first + 1 : second] + choices[second + 1 :]


def _without_request(
    workload: Workload, choices: tuple[Move, ...], request_id: str
) -> tuple[Workload, tuple[Move, ...]]:
    requests = tuple([request for request in workload.requests if request.request_id != request_id])
    kept = tuple([move for move in choices if getattr(move, "request_id", None) != request_id])
    return replace(workload, requests=requests), kept


def _without_input(
    workload: Workload, choices: tuple[Move, ...], request_id: str, input_id: int
) -> tuple[Workload, tuple[Move, ...]]:
    requests = tuple(
        [
            replace(request, items=request.items[:input_id] + request.items[input_id + 1 :])
            if request.request_id == request_id
            else request
            for request in workload.requests
        ]
    )
    moved = [_after_removal(move, request_id, input_id) for move in choices]
    return replace(workload, requests=requests), tuple([move for move in moved if move is not None])


def _after_removal(move: Move, request_id: str, gone: int) -> Move | None:
    """The move once an input is gone: later inputs move up, and a window that ended there ends before."""
    if getattr(move, "request_id", None) != request_id:
        return move
    match move:
        case Admit(_, last_input_id, outcome):
            last = last_input_id - 1 if last_input_id >= gone else last_input_id
            return Admit(request_id, last, outcome) if last >= 0 else None
        case Check() | CanAllocate() | Allocate() | FreeInput() | Processed():
            if move.input_id == gone:
                return None
            return replace(move, input_id=move.input_id - (move.input_id > gone))
        case _:
            return move


def _lower_sizes(workload: Workload) -> Iterator[Workload]:
    """One embed less: of all items of a hash, of a single item, of the capacity and the budget."""
    places: dict[str, set[Occurrence]] = {}
    for request in workload.requests:
        for input_id, item in enumerate(request.items):
            places.setdefault(item.mm_hash, set()).add((request.request_id, input_id))
    for together in places.values():
        yield from _with_smaller(workload, together)
    for together in places.values():
        for place in sorted(together):
            yield from _with_smaller(workload, {place})
    capacity, budget = workload.capacity, workload.compute_budget
    if capacity == budget and capacity > 1:
        yield replace(workload, capacity=capacity - 1, compute_budget=budget - 1)
    if capacity != budget:
        # A budget equal to the capacity is the default and needs no explanation.
        yield replace(workload, compute_budget=capacity)
        if capacity > 1:
            yield replace(workload, capacity=capacity - 1)
        if budget > 1:
            yield replace(workload, compute_budget=budget - 1)


def _with_smaller(workload: Workload, places: set[Occurrence]) -> Iterator[Workload]:
    requests = tuple(
        [
            replace(
                request,
                items=tuple(
                    [
                        replace(item, embeds=max(1, item.embeds - ((request.request_id, input_id) in places)))
                        for input_id, item in enumerate(request.items)
                    ]
                ),
            )
            for request in workload.requests
        ]
    )
    if requests != workload.requests:
        yield replace(workload, requests=requests)


def _lesser(move: Move) -> Iterator[Move]:
    match move:
        case Admit(request_id, last_input_id, outcome):
            if last_input_id > 0:
                yield Admit(request_id, last_input_id - 1, outcome)
            if outcome is Outcome.GIVE_UP:
                yield Admit(request_id, last_input_id, Outcome.SKIP)
        case CanAllocate(request_id, input_id, compute_budget, embeds_to_schedule):
            if embeds_to_schedule > 0:
                yield CanAllocate(request_id, input_id, compute_budget, embeds_to_schedule - 1)
        case _:
            pass


def _renamed(workload: Workload, choices: tuple[Move, ...]) -> tuple[Workload, tuple[Move, ...]]:
    """Requests called r1, r2 and hashes a, b in the order in which the moves meet them."""
    met = [getattr(move, "request_id", None) for move in choices]
    ordered = sorted(workload.requests, key=lambda request: met.index(request.request_id))
    requests = {request.request_id: f"r{number}" for number, request in enumerate(ordered, start=1)}
    used = dict.fromkeys(item.mm_hash for request in ordered for item in request.items)
    hashes = {mm_hash: hash_name(number) for number, mm_hash in enumerate(used)}
    named = tuple(
        Request(
            requests[request.request_id],
            tuple(Item(hashes[item.mm_hash], item.embeds) for item in request.items),
        )
        for request in ordered
    )
    moved = tuple(
        replace(move, request_id=requests[move.request_id]) if hasattr(move, "request_id") else move
        for move in choices
    )
    return replace(workload, requests=named), moved
