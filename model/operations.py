"""The alphabet: the calls that a manager answers, the steps that a caller takes, and traces of them.

Calls form a closed set of immutable values, one class for each method of upstream's `EncoderCacheManager`.
A trace is a program: a workload, and the calls that were made, grouped by the caller's whole steps.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from model.errors import EvictcheckError
from model.workload import Workload

TRACE_FORMAT = "evictcheck-trace/1"


class TraceError(EvictcheckError):
    """A trace that cannot be read, or that the rules of its discipline do not allow."""


class Discipline(StrEnum):
    """Who makes the calls, and so which of them are legal (`model.contract`)."""

    CALLER = "caller"
    OPEN = "open"


# --- Calls -------------------------------------------------------------------------------------------------


class Check(Struct, frozen=True, forbid_unknown_fields=True, tag="check", tag_field="call"):
    """`check_and_update_cache(request, input)`: a bool, whether the item is cached; a hit holds it."""

    request_id: str
    input_id: int


class CanAllocate(Struct, frozen=True, forbid_unknown_fields=True, tag="can_allocate", tag_field="call"):
    """`can_allocate(...)`: a bool, whether there is room for the item; evicts to make room.

    Attributes:
        compute_budget: Embeds that the encoder may still compute in this pass.
        embeds_to_schedule: Embeds promised so far to the same request in this pass.
    """

    request_id: str
    input_id: int
    compute_budget: int
    embeds_to_schedule: int


class Allocate(Struct, frozen=True, forbid_unknown_fields=True, tag="allocate", tag_field="call"):
    """`allocate(request, input)`: the item's entry comes into being, held by this occurrence."""

    request_id: str
    input_id: int


class FreeInput(Struct, frozen=True, forbid_unknown_fields=True, tag="free_encoder_input", tag_field="call"):
    """`free_encoder_input(request, input)`: the request no longer needs this occurrence."""

    request_id: str
    input_id: int


class FreeRequest(Struct, frozen=True, forbid_unknown_fields=True, tag="free", tag_field="call"):
    """`free(request)`: the request no longer needs any of its occurrences."""

    request_id: str


class CachedIds(Struct, frozen=True, forbid_unknown_fields=True, tag="get_cached_input_ids", tag_field="call"):
    """`get_cached_input_ids(request)`: the set of input ids that the request holds."""

    request_id: str


class Drain(Struct, frozen=True, forbid_unknown_fields=True, tag="get_freed_mm_hashes", tag_field="call"):
    """`get_freed_mm_hashes()`: the hashes evicted since the last drain that are absent now; clears them."""


class Reset(Struct, frozen=True, forbid_unknown_fields=True, tag="reset", tag_field="call"):
    """`reset()`: as constructed. Absent from releases up to 0.15.1."""


Call: TypeAlias = Check | CanAllocate | Allocate | FreeInput | FreeRequest | CachedIds | Drain | Reset

Result: TypeAlias = bool | frozenset[int] | frozenset[str] | None
"""What a call answers: a bool (check, can-allocate), input ids, reported hashes, or nothing."""


# --- Steps of the caller -----------------------------------------------------------------------------------


class Outcome(StrEnum):
    """How the admission of a request ends, once its inputs were visited."""

    COMMIT = "commit"
    """The request gets its KV blocks: picks are allocated, duplicates checked, the request runs."""
    GIVE_UP = "give-up"
    """No KV blocks: the request is freed and idle again."""
    SKIP = "skip"
    """No tokens left for it: picks are dropped, hits are kept, nothing is freed."""


class Admit(Struct, frozen=True, forbid_unknown_fields=True, tag="admit", tag_field="step"):
    """The scheduler visits a request's inputs from the first unprocessed one to the last of its window."""

    request_id: str
    last_input_id: int
    outcome: Outcome


class Preempt(Struct, frozen=True, forbid_unknown_fields=True, tag="preempt", tag_field="step"):
    """A running request loses its KV blocks within a pass: freed, idle, nothing processed."""

    request_id: str


class EndPass(Struct, frozen=True, forbid_unknown_fields=True, tag="end-pass", tag_field="step"):
    """The pass ends with a drain; its report goes to the worker."""


class Processed(Struct, frozen=True, forbid_unknown_fields=True, tag="processed", tag_field="step"):
    """Between passes: the tokens of an input are computed, and the input is freed as it is still listed."""

    request_id: str
    input_id: int


class Finish(Struct, frozen=True, forbid_unknown_fields=True, tag="finish", tag_field="step"):
    """Between passes: a request finished or was aborted; it may arrive again under the same id."""

    request_id: str


class ResetCache(Struct, frozen=True, forbid_unknown_fields=True, tag="reset-cache", tag_field="step"):
    """Between passes: the model's weights changed, so everything cached is stale."""


CallerStep: TypeAlias = Admit | Preempt | EndPass | Processed | Finish | ResetCache

Move: TypeAlias = CallerStep | Call
"""What a discipline chooses next: a whole step of the caller, or, under the open discipline, one call."""


# --- Traces ------------------------------------------------------------------------------------------------


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """Calls that belong together: those of one step of the caller, or a single call on its own."""

    calls: tuple[Call, ...]
    taken: CallerStep | None = None


class Trace(Struct, frozen=True, forbid_unknown_fields=True):
    """A workload and the calls made to a manager that starts empty.

    Its length is counted in steps, which under the open discipline are single calls.
    """

    workload: Workload
    discipline: Discipline
    steps: tuple[Step, ...]

    @property
    def calls(self) -> Iterator[Call]:
        """All calls in order."""
        for step in self.steps:
            yield from step.calls

    def __len__(self) -> int:
        return len(self.steps)


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    """The file around a trace: what makes it recognisable, and room for a note on its origin."""

    format: str
    trace: Trace
    note: str = ""


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(_Document)


def encode_trace(trace: Trace, note: str = "") -> bytes:
    """The JSON text of a trace, indented, ending in a line feed; equal traces give equal bytes."""
    document = _encoder.encode(_Document(TRACE_FORMAT, trace, note))
    return msgspec.json.format(document, indent=1) + b"\n"


def decode_trace(data: bytes, name: str) -> tuple[Trace, str]:
    """Reads a trace and its note back.

    Args:
        data: What `encode_trace` wrote, possibly edited by hand.
        name: What to call the source in a message, for example its file name.

    Raises:
        TraceError: Not JSON, not a trace, of another version, or naming what its workload does not have;
            the message gives the place and the reason.
    """
    try:
        raw: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{name} is not JSON: {error}") from error
    if not isinstance(raw, dict) or "format" not in raw:
        raise TraceError(f'{name} is not an evictcheck trace: it has no "format" (expected {TRACE_FORMAT!r})')
    if raw["format"] != TRACE_FORMAT:
        raise TraceError(f"{name} is of format {raw['format']!r}; this evictcheck reads {TRACE_FORMAT!r}")
    try:
        document = _decoder.decode(data)
    except EvictcheckError as error:
        raise TraceError(f"{name}: {error}") from error
    except msgspec.ValidationError as error:
        raise TraceError(f"{name} is not a valid trace: {error}") from error
    _refuse_strangers(document.trace, name)
    return document.trace, document.note


def _refuse_strangers(trace: Trace, name: str) -> None:
    """Every request and input named in a step or a call must exist in the workload."""
    for number, step in enumerate(trace.steps):
        named: list[tuple[str, CallerStep | Call]] = [
            (f"$.trace.steps[{number}].calls[{place}]", call) for place, call in enumerate(step.calls)
        ]
        if step.taken is not None:
            named.append((f"$.trace.steps[{number}].taken", step.taken))
        for place, move in named:
            try:
                refuse_stranger(trace.workload, move)
            except EvictcheckError as error:
                raise TraceError(f"{name}: {error} - at `{place}`") from error


def refuse_stranger(workload: Workload, move: Move) -> None:
    """Checks that what a step or a call names is in the workload.

    Raises:
        WorkloadError: It names a request or an input that the workload does not have.
    """
    match move:
        case Admit(request_id, input_id) | Processed(request_id, input_id):
            workload.item(request_id, input_id)
        case Check(request_id, input_id) | Allocate(request_id, input_id) | FreeInput(request_id, input_id):
            workload.item(request_id, input_id)
        case CanAllocate(request_id, input_id):
            workload.item(request_id, input_id)
        case FreeRequest(request_id) | CachedIds(request_id) | Preempt(request_id) | Finish(request_id):
            workload.request(request_id)
        case Drain() | Reset() | EndPass() | ResetCache():
            pass
