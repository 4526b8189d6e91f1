"""A trace in words: one row a call, with its answer and only what it changed.

The rows are values; tables, Markdown and pages are made of them.
"""

from collections.abc import Iterator

from msgspec import Struct

from impl.target import Target
from model.contract import refuse_illegal
from model.operations import (
    Admit,
    Call,
    CallerStep,
    CanAllocate,
    Check,
    EndPass,
    Finish,
    Outcome,
    Preempt,
    Processed,
    Result,
    Trace,
)
from model.reference import Occurrence, State
from model.workload import Workload
from properties.invariants import listed
from properties.lockstep import Lockstep, Violation


class Row(Struct, frozen=True):
    """One call of a story.

    Attributes:
        number: Of the call in the trace, from 1.
        step: The caller's step that it begins, in words; "" within a step and for single calls.
        call: The call, by upstream's name.
        item: What it is about: `r1[0] a`, or "".
        answer: What the implementation answered, or "" if nothing.
        changes: What it changed, in words; for the broken call what was expected and what was seen.
        broken: Whether this call breaks the property.
    """

    number: int
    step: str
    call: str
    item: str
    answer: str
    changes: str
    broken: bool = False


def tell(trace: Trace, target: Target) -> tuple[Row, ...]:
    """Runs a trace against a fresh session and tells it up to the first broken call.

    Raises:
        TraceError: The trace is not legal under its discipline.
    """
    refuse_illegal(trace)
    judge = Lockstep(target, trace.workload)
    rows: list[Row] = []
    try:
        for step in trace.steps:
            for place, call in enumerate(step.calls):
                words = step_in_words(step.taken) if step.taken is not None and place == 0 else ""
                before = judge.state
                violation = judge.apply(call)
                rows.append(_row(len(rows) + 1, words, call, before, judge, violation))
                if violation is not None:
                    return tuple(rows)
        return tuple(rows)
    finally:
        judge.close()


def _row(number: int, step: str, call: Call, before: State, judge: Lockstep, violation: Violation | None) -> Row:
    name, item = call_in_words(call), subject_in_words(call, before.workload)
    if violation is not None:
        changes = f"expected {violation.expected}; observed {violation.observed}"
        return Row(number, step, name, item, "", changes, True)
    assert judge.last is not None
    answer = "" if judge.last.observed is None else _answer_in_words(judge.last.observed)
    return Row(number, step, name, item, answer, "; ".join(_changes(before, judge.state)))


def step_in_words(step: CallerStep) -> str:
    """A step of the caller, as a clause."""
    match step:
        case Admit(request_id, last_input_id, outcome):
            ends = {
                Outcome.COMMIT: " and runs",
                Outcome.GIVE_UP: ", but gets no KV blocks and gives up",
                Outcome.SKIP: ", but gets no tokens and is skipped",
            }
            return f"{request_id} is admitted up to input {last_input_id}{ends[outcome]}"
        case Preempt(request_id):
            return f"{request_id} is preempted"
        case EndPass():
            return "the pass ends"
        case Processed(request_id, input_id):
            return f"input {input_id} of {request_id} is processed"
        case Finish(request_id):
            return f"{request_id} finishes"
        case _:
            return "the weights change"


def call_in_words(call: Call) -> str:
    """A call by upstream's name, with the numbers that it is given."""
    name = str(call.__struct_config__.tag)
    if isinstance(call, Check):
        return "check_and_update_cache"
    if isinstance(call, CanAllocate):
        promised = f", {call.embeds_to_schedule} promised" if call.embeds_to_schedule else ""
        return f"{name} (budget {call.compute_budget}{promised})"
    return name


def subject_in_words(call: Call, workload: Workload) -> str:
    """What a call is about: `r1[0] a`, a request, or ""."""
    request_id = getattr(call, "request_id", None)
    if request_id is None:
        return ""
    input_id = getattr(call, "input_id", None)
    if input_id is None:
        return str(request_id)
    item = workload.item(request_id, input_id)
    return f"{_place((request_id, input_id))} {item.mm_hash}"


def _place(occurrence: Occurrence) -> str:
    request_id, input_id = occurrence
    return f"{request_id}[{input_id}]"


def _answer_in_words(result: Result) -> str:
    if isinstance(result, frozenset):
        return "{" + ", ".join(map(str, sorted(result, key=str))) + "}"
    return str(result)


def _changes(before: State, after: State) -> Iterator[str]:
    """What the reference says that a call changed; where it broke nothing, the implementation agrees."""
    was, now = dict(before.cached), dict(after.cached)
    for mm_hash in now.keys() - was.keys():
        yield f"{mm_hash} cached ({_embeds(now[mm_hash])})"
    gone = [mm_hash for mm_hash in before.evictable if mm_hash not in now]
    if gone and after.evicted != before.evicted | set(gone):
        yield f"{listed(gone)} forgotten"
    elif gone:
        yield f"{', '.join(gone)} evicted"
    for occurrence in sorted(after.held - before.held):
        yield f"{_place(occurrence)} holds {after.workload.item(*occurrence).mm_hash}"
    for occurrence in sorted(before.held - after.held):
        yield f"{_place(occurrence)} lets go"
    for mm_hash in after.evictable:
        if mm_hash not in before.evictable:
            yield f"{mm_hash} evictable"
    for mm_hash in before.evictable:
        if mm_hash not in after.evictable and mm_hash in now:
            yield f"{mm_hash} no longer evictable"
    if before.free_slots != after.free_slots:
        yield f"{after.free_slots} free"


def _embeds(number: int) -> str:
    return f"{number} embed" if number == 1 else f"{number} embeds"


def workload_in_words(workload: Workload) -> str:
    """Requests, items and sizes in a line: `capacity 2; r1: a, b; r2: c, a`; sizes where they are not 1."""
    parts = [f"capacity {workload.capacity}"]
    if workload.compute_budget != workload.capacity:
        parts.append(f"compute budget {workload.compute_budget}")
    for request in workload.requests:
        items = [item.mm_hash if item.embeds == 1 else f"{item.mm_hash} ({item.embeds})" for item in request.items]
        parts.append(f"{request.request_id}: {', '.join(items)}")
    return "; ".join(parts)
