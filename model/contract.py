"""Which calls a caller may make: the two disciplines.

*Caller* is what vLLM 0.33's scheduler does to a manager, in whole steps, applied to every release alike.
Everything that the outside world decides (who is admitted, how far its window reaches, whether there are KV
blocks or tokens for it, who is preempted, finished, or processed how late) is a free choice, so its steps
allow more than one scheduler does and never less. In a workload where one hash has several sizes it also
makes the calls of the schedulers up to 0.30, which do not notice: a hit whatever the size.

*Open* is any single call whose documented precondition holds: harsher than any scheduler, and the right
question for a manager that claims to keep its invariants by itself.

A `Position` is what legality depends on: the reference state and, under the caller discipline, where each
request stands in its life and in the pass.
"""

from collections.abc import Generator, Hashable, Iterator
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from model.errors import EvictcheckError
from model.operations import (
    Admit,
    Allocate,
    CachedIds,
    Call,
    CallerStep,
    CanAllocate,
    Check,
    Discipline,
    Drain,
    EndPass,
    Finish,
    FreeInput,
    FreeRequest,
    Move,
    Outcome,
    Preempt,
    Processed,
    Reset,
    ResetCache,
    Result,
    Step,
    Trace,
    TraceError,
    refuse_stranger,
)
from model.reference import State, apply, initial, outcomes
from model.workload import Workload


class Seat(Struct, frozen=True):
    """Where one request stands, seen by the scheduler.

    Attributes:
        running: Admitted and neither preempted nor finished; otherwise idle.
        processed: Inputs whose tokens are wholly computed; the next window starts at this input.
        granted: Inputs that its committed windows have reached.
        scheduled: Embeds picked for it in this pass; None if it was not admitted in this pass.
    """

    running: bool = False
    processed: int = 0
    granted: int = 0
    scheduled: int | None = None


_IDLE = Seat()


class Caller(Struct, frozen=True):
    """The scheduler's own state.

    Attributes:
        seats: One for each request of the workload, in its order.
        waiting_closed: After a give-up or a preemption no idle request is admitted in the same pass.
    """

    seats: tuple[Seat, ...]
    waiting_closed: bool = False

    def seat(self, workload: Workload, request_id: str) -> Seat:
        """The seat of a request.

        Raises:
            WorkloadError: The workload has no such request.
        """
        return self.seats[_place(workload, request_id)]

    @property
    def in_pass(self) -> bool:
        """Whether something was admitted or preempted since the last pass ended."""
        return self.waiting_closed or any(seat.scheduled is not None for seat in self.seats)


class Position(Struct, frozen=True):
    """What legality depends on; `caller` is None under the open discipline."""

    state: State
    caller: Caller | None


def start(workload: Workload, discipline: Discipline) -> Position:
    """An empty cache, and every request idle."""
    caller = Caller((_IDLE,) * len(workload.requests)) if discipline is Discipline.CALLER else None
    return Position(initial(workload), caller)


def moves(position: Position, *, resets: bool = True) -> list[Move]:
    """Everything that the discipline may do next, in a fixed order.

    Args:
        position: Where the cache and the caller stand.
        resets: Whether the manager has a `reset` (0.16.0 on).

    Queries (`get_cached_input_ids`) are left out under the open discipline: the judge makes one after every
    call. Budgets and promises of can-allocate are the two that matter at each size: just enough and one too
    little, nothing promised and one embed promised.
    """
    state, caller = position.state, position.caller
    candidates = _calls(state) if caller is None else _steps(state.workload)
    return [
        move
        for move in candidates
        if (resets or not isinstance(move, Reset | ResetCache)) and objection(position, move) is None
    ]


def freedom(position: Position) -> Hashable:
    """Two positions of one workload with equal freedom allow the same moves."""
    return position.state.cached if position.caller is None else position.caller


def _calls(state: State) -> Iterator[Call]:
    for request in state.workload.requests:
        request_id = request.request_id
        for input_id, item in enumerate(request.items):
            yield Check(request_id, input_id)
            for compute_budget in (item.embeds, item.embeds - 1):
                for promised in (0, 1):
                    yield CanAllocate(request_id, input_id, compute_budget, promised)
            yield Allocate(request_id, input_id)
            yield FreeInput(request_id, input_id)
        yield FreeRequest(request_id)
    yield Drain()
    yield Reset()


def _steps(workload: Workload) -> Iterator[CallerStep]:
    for request in workload.requests:
        request_id = request.request_id
        for input_id in range(len(request.items)):
            for outcome in Outcome:
                yield Admit(request_id, input_id, outcome)
            yield Processed(request_id, input_id)
        yield Preempt(request_id)
        yield Finish(request_id)
    yield EndPass()
    yield ResetCache()


def objection(position: Position, move: Move) -> str | None:
    """Why the discipline does not allow a move here; None if it does."""
    state, caller = position.state, position.caller
    if caller is None:
        return _objection_to_call(state, move)
    return _objection_to_step(state.workload, caller, move)


def _objection_to_call(state: State, move: Move) -> str | None:
    match move:
        case CanAllocate(request_id, input_id, compute_budget, embeds_to_schedule):
            item = state.workload.item(request_id, input_id)
            if state.embeds_of(item.mm_hash):
                return f"can_allocate is asked only of a hash that is absent, and {item.mm_hash} is cached"
            if compute_budget < 0 or embeds_to_schedule < 0:
                return "can_allocate takes a compute budget and promised embeds of at least 0"
        case Allocate(request_id, input_id):
            item = state.workload.item(request_id, input_id)
            if state.embeds_of(item.mm_hash):
                return f"allocate is for a hash that is absent, and {item.mm_hash} is cached"
            if item.embeds > state.free_slots:
                return f"allocate needs {item.embeds} free slots, and {state.free_slots} are free"
        case Admit() | Preempt() | EndPass() | Processed() | Finish() | ResetCache():
            return "the open discipline makes single calls, not steps of a caller"
        case _:
            pass
    return None


def _objection_to_step(workload: Workload, caller: Caller, move: Move) -> str | None:
    match move:
        case Admit(request_id, last_input_id):
            return _objection_to_admission(workload, caller, request_id, last_input_id)
        case Preempt(request_id):
            if not caller.seat(workload, request_id).running:
                return f"{request_id} is not running, so it cannot be preempted"
        case Processed(request_id, input_id):
            seat = caller.seat(workload, request_id)
            if caller.in_pass:
                return "inputs are processed between passes, and this pass has not ended"
            if not seat.running:
                return f"{request_id} is not running, so none of its inputs is processed"
            if input_id != seat.processed:
                return f"inputs are processed in ascending order, and {request_id} is at input {seat.processed}"
            if input_id >= seat.granted:
                return f"no window of {request_id} has reached its input {input_id} yet"
        case Finish() | ResetCache():
            if caller.in_pass:
                return "requests finish and caches are reset between passes, and this pass has not ended"
        case EndPass():
            pass
        case _:
            return "the caller discipline takes whole steps, not single calls"
    return None


def _objection_to_admission(workload: Workload, caller: Caller, request_id: str, last_input_id: int) -> str | None:
    seat = caller.seat(workload, request_id)
    if seat.scheduled is not None:
        return f"{request_id} was admitted in this pass already"
    if not seat.running and caller.waiting_closed:
        return f"{request_id} is idle, and after a give-up or a preemption no idle request is admitted in a pass"
    if last_input_id < seat.processed:
        return f"input {last_input_id} of {request_id} is processed; its window starts at {seat.processed}"
    if last_input_id < seat.granted - 1:
        return f"a window of {request_id} has reached input {seat.granted - 1}; windows do not shrink"
    return None


def _place(workload: Workload, request_id: str) -> int:
    return workload.requests.index(workload.request(request_id))


Script: TypeAlias = Generator[Call, Result, Caller | None]
"""A move as a program: it yields calls, is sent their answers, and returns the caller's state after it."""


def script(position: Position, move: Move) -> Script:
    """The calls of a legal move, one after the other, each chosen by the answers before it.

    The answers must be the reference's. Where an implementation answers differently the step is broken at
    that very call, and what would follow no longer matters. That holds too for releases that list inputs by
    membership (up to 0.22.1): an input that is listed but not held belongs to a request that holds no
    occurrence of its hash, and freeing it changes nothing.
    """
    state, caller = position.state, position.caller
    if caller is None:
        return _one_call(move)
    return _steps_calls(state, caller, move)


def _one_call(move: Move) -> Script:
    yield move  # type: ignore[misc]  # the open discipline has calls only, see `objection`
    return None


def _steps_calls(state: State, caller: Caller, move: Move) -> Script:
    workload = state.workload
    match move:
        case Admit():
            return (yield from _admit(workload, caller, move))
        case Preempt(request_id):
            yield FreeRequest(request_id)
            return _seated(workload, caller, request_id, _IDLE, closes=True)
        case EndPass():
            yield Drain()
            return Caller(tuple([replace(seat, scheduled=None) for seat in caller.seats]))
        case Processed(request_id, input_id):
            yield CachedIds(request_id)
            if (request_id, input_id) in state.held:
                yield FreeInput(request_id, input_id)
            seat = replace(caller.seat(workload, request_id), processed=input_id + 1)
            return _seated(workload, caller, request_id, seat)
        case Finish(request_id):
            yield FreeRequest(request_id)
            return _seated(workload, caller, request_id, _IDLE)
        case _:
            yield Reset()
            return caller


def _seated(workload: Workload, caller: Caller, request_id: str, seat: Seat, *, closes: bool = False) -> Caller:
    place = _place(workload, request_id)
    seats = (*caller.seats[:place], seat, *caller.seats[place + 1 :])
    return Caller(seats, caller.waiting_closed or closes)


def _admit(workload: Workload, caller: Caller, move: Admit) -> Script:
    """One request's turn in a pass (upstream: `_try_schedule_encoder_inputs`, then the KV blocks)."""
    request_id = move.request_id
    items = workload.request(request_id).items
    seat = caller.seat(workload, request_id)
    budget = workload.compute_budget - sum([other.scheduled or 0 for other in caller.seats])
    picks: list[int] = []
    duplicates: list[int] = []
    picked_hashes: set[str] = set()
    promised = 0
    reached = seat.processed
    for input_id in range(seat.processed, move.last_input_id + 1):
        item = items[input_id]
        if item.mm_hash in picked_hashes:
            duplicates.append(input_id)
        elif not (yield Check(request_id, input_id)):
            if not (yield CanAllocate(request_id, input_id, budget - promised, promised)):
                break
            picks.append(input_id)
            picked_hashes.add(item.mm_hash)
            promised += item.embeds
        reached = input_id + 1

    match move.outcome:
        case Outcome.COMMIT:
            for input_id in picks:
                yield Allocate(request_id, input_id)
            for input_id in duplicates:
                yield Check(request_id, input_id)
            seat = Seat(True, seat.processed, max(seat.granted, reached), promised)
        case Outcome.GIVE_UP:
            yield FreeRequest(request_id)
            seat = _IDLE
        case Outcome.SKIP:
            seat = replace(seat, scheduled=0)
    return _seated(workload, caller, request_id, seat, closes=move.outcome is Outcome.GIVE_UP)


def carry_out(position: Position, move: Move) -> tuple[tuple[Call, ...], Position]:
    """The calls that a legal move makes of the reference model, and the position after them."""
    running = script(position, move)
    state = position.state
    calls: list[Call] = []
    answer: Result = None
    while True:
        try:
            call = next(running) if not calls else running.send(answer)
        except StopIteration as stop:
            caller: Caller | None = stop.value
            return tuple(calls), Position(state, caller)
        state, answer = apply(state, call)
        calls.append(call)


def trace_of(workload: Workload, discipline: Discipline, choices: tuple[Move, ...]) -> Trace:
    """The trace that moves spell out, with the reference's order wherever a free leaves one open.

    Raises:
        TraceError: A move is not legal where it stands; the message has its number, the reason and what was
            allowed instead.
    """
    position = start(workload, discipline)
    trace = Trace(workload, discipline, ())
    for number, move in enumerate(choices):
        _refuse_move(trace, number, position, move)
        calls, position = carry_out(position, move)
        trace = replace(trace, steps=(*trace.steps, step_of(move, calls)))
    return trace


def moves_of(trace: Trace) -> tuple[Move, ...]:
    """The moves that a trace was made of.

    Raises:
        TraceError: A step of it is neither a step of the caller nor a single call.
    """
    choices: list[Move] = []
    for number, step in enumerate(trace.steps):
        if step.taken is not None:
            choices.append(step.taken)
        elif len(step.calls) == 1:
            choices.append(step.calls[0])
        else:
            raise TraceError(
                f"step {number} holds {len(step.calls)} calls and no step of a caller; "
                f"a step on its own holds one call"
            )
    return tuple(choices)


def refuse_illegal(trace: Trace) -> None:
    """Checks that every step is legal where it stands and makes exactly the calls that it should.

    A trace may end in the middle of a step. Where a free of a request leaves a choice, it may go on from any.

    Raises:
        TraceError: It does not; the message has the step's number, the reason and what was allowed instead.
    """
    positions = [start(trace.workload, trace.discipline)]
    for number, (step, move) in enumerate(zip(trace.steps, moves_of(trace), strict=True)):
        _refuse_move(trace, number, positions[0], move)
        planned = [(position, *carry_out(position, move)) for position in positions]
        last = number == len(trace) - 1
        matching = [
            (position, calls, following)
            for position, calls, following in planned
            if step.calls == calls or (last and step.calls == calls[: len(step.calls)])
        ]
        if not matching:
            made = ", ".join(map(_word, step.calls))
            wanted = ", ".join(map(_word, planned[0][1]))
            raise TraceError(f"step {number} makes the calls {made}; its caller would make {wanted}")
        positions = [one for position, calls, following in matching for one in _chosen(position, calls, following)]


def _chosen(position: Position, calls: tuple[Call, ...], following: Position) -> Iterator[Position]:
    """Where a step can lead: a free of a request, which is the last call of any step, leaves a choice."""
    *before, last = calls
    state = position.state
    for call in before:
        state, _ = apply(state, call)
    for after, _ in outcomes(state, last):
        yield Position(after, following.caller)


def _refuse_move(trace: Trace, number: int, position: Position, move: Move) -> None:
    try:
        refuse_stranger(trace.workload, move)
    except EvictcheckError as error:
        raise TraceError(f"step {number}: {error}") from error
    reason = objection(position, move)
    if reason is not None:
        allowed = ", ".join(sorted({_word(other) for other in moves(position)}))
        raise TraceError(
            f"step {number} is not legal under the {trace.discipline} discipline: {reason}; "
            f"allowed here: {allowed}"
        )


def step_of(move: Move, calls: tuple[Call, ...]) -> Step:
    """The calls of a move, with the move itself if it is a step of the caller."""
    if isinstance(move, Admit | Preempt | EndPass | Processed | Finish | ResetCache):
        return Step(calls, move)
    return Step(calls)


def _word(move: Move) -> str:
    """A move as a person writes it: `free_encoder_input(r1, 0)`."""
    name = move.__struct_config__.tag
    return f"{name}({', '.join(str(getattr(move, field)) for field in move.__struct_fields__)})"
