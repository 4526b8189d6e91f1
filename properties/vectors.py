"""A conformance suite for a port in any language: traces with the expected answer of each call.

Made from the reference model alone. The traces are walks over the open discipline's graph that together make
every reachable transition of a scope at least once; a free of a request is spelled out as frees of its inputs
in ascending order, so that no order is asked for that the specification leaves open.

The file is JSON Lines. The first line is a header; each further line is one trace for a fresh manager:

    {"capacity": 2, "requests": [["a", 1, "a", 1], ["b", 2]], "calls": "k00- q00.1.0+ a00/1.1 ..."}

`requests` holds for each request its items as hash and embeds in turn; the request's id is `r1`, `r2`, ... A
call is a letter, the number of the request and the number of the input, then what is expected:

    k<request><input>                        check_and_update_cache: + or -
    q<request><input>.<budget>.<promised>    can_allocate: + or -
    a<request><input>                        allocate
    f<request><input>                        free_encoder_input
    d                                        get_freed_mm_hashes: = and the hashes in ascending order
    z                                        reset

and, where the call changed them, `/` with the free and the freeable slots, a dot between. Requests and inputs
are single digits. Reports compare as sets.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from impl.target import Target
from model.contract import moves, start
from model.errors import EvictcheckError
from model.operations import (
    Allocate,
    Call,
    CanAllocate,
    Check,
    Discipline,
    Drain,
    FreeInput,
    FreeRequest,
    Reset,
    Result,
    Step,
    Trace,
)
from model.reference import State, apply, initial
from model.workload import Item, Request, Workload
from properties.counterexample import Counterexample, replay
from properties.scopes import Scope, workload_classes
from properties.symmetry import Symmetry

VECTORS_FORMAT = "evictcheck-vectors/1"

MIXED_SCOPE = Scope(2, 1, 1, capacities=(2,), mixed=True)
"""The least scope where one hash has two sizes: beside the default one, a suite asks about that too."""


class VectorsError(EvictcheckError):
    """A file that is not a vectors file of this version, or was changed."""


class Vectors(Struct, frozen=True):
    """A conformance suite.

    Attributes:
        scope: The scope that it covers.
        traces: Its traces, each for a fresh manager.
        transitions: How many different transitions they make, up to renaming.
    """

    scope: str
    traces: tuple[Trace, ...]
    transitions: int

    @property
    def calls(self) -> int:
        """Calls of all traces."""
        return sum(len(trace) for trace in self.traces)


# --- Making ------------------------------------------------------------------------------------------------


def make_vectors(*scopes: Scope) -> Vectors:
    """Walks that together make every reachable transition of the scopes.

    Raises:
        VectorsError: A scope has more requests or inputs than the format has digits.
    """
    traces: list[Trace] = []
    transitions = 0
    for scope in scopes:
        if max(scope.requests, scope.inputs) > 9:
            raise VectorsError(f"{scope}: a vectors file numbers requests and inputs with single digits")
        for workload_class in workload_classes(scope, Discipline.OPEN):
            graph = _Graph(workload_class.workload)
            traces += graph.walks()
            transitions += graph.transitions
    return Vectors(" + ".join(map(str, scopes)), tuple(traces), transitions)


class _Graph:
    """The open discipline's transitions in one workload, and which of them are still to be made.

    Resets are made in a trace of their own, so that a manager that has none can run the rest.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._symmetry = Symmetry(workload, Discipline.OPEN)
        self._edges: dict[State, list[tuple[Call, State, object]]] = {}
        self._made: set[object] = set()

    @property
    def transitions(self) -> int:
        """How many were made, up to renaming."""
        return len(self._made)

    def walks(self) -> Iterator[Trace]:
        """Traces that make every transition."""
        first = initial(self._workload)
        while (way := self._way_to_new(first)) is not None:
            calls: list[Call] = []
            while way is not None:
                calls += [call for call, _, _ in way]
                self._made.update(transition for _, _, transition in way)
                way = self._way_to_new(way[-1][1])
            # Without a reset there is no way back to an empty cache, only a fresh manager.
            yield self._trace(calls)
        resets: list[Call] = []
        for state, way_there in self._reached().items():
            transition = self._symmetry.transition(state, Reset())
            if transition not in self._made:
                self._made.add(transition)
                resets += [*way_there, Reset(), Drain()]
        yield self._trace(resets)

    def _trace(self, calls: list[Call]) -> Trace:
        return Trace(self._workload, Discipline.OPEN, tuple(Step((call,)) for call in calls))

    def _out(self, state: State) -> list[tuple[Call, State, object]]:
        """What can be called there, where it leads, and what that transition is up to renaming."""
        known = self._edges.get(state)
        if known is None:
            position = start(self._workload, Discipline.OPEN)
            edges = [
                (call, apply(state, call)[0], self._symmetry.transition(state, call))
                for call in moves(msgspec.structs.replace(position, state=state), resets=False)
                if isinstance(call, Check | CanAllocate | Allocate | FreeInput | Drain)
            ]
            # What stays comes first: there may be no way back.
            known = self._edges[state] = sorted(edges, key=lambda edge: edge[1] != state)
        return known

    def _way_to_new(self, origin: State) -> list[tuple[Call, State, object]] | None:
        """The shortest way from a state that ends with a transition not made before."""
        seen = {origin}
        queue: deque[tuple[State, tuple[tuple[Call, State, object], ...]]] = deque([(origin, ())])
        while queue:
            state, way = queue.popleft()
            for edge in self._out(state):
                if edge[2] not in self._made:
                    return [*way, edge]
                if edge[1] not in seen:
                    seen.add(edge[1])
                    queue.append((edge[1], (*way, edge)))
        return None

    def _reached(self) -> dict[State, list[Call]]:
        """Every state, with a shortest way there."""
        first = initial(self._workload)
        ways: dict[State, list[Call]] = {first: []}
        queue = deque([first])
        while queue:
            state = queue.popleft()
            for call, after, _ in self._out(state):
                if after not in ways:
                    ways[after] = [*ways[state], call]
                    queue.append(after)
        return ways


# --- Writing and reading -----------------------------------------------------------------------------------


def encode_vectors(vectors: Vectors) -> bytes:
    """The file; equal suites give equal bytes."""
    header = {
        "format": VECTORS_FORMAT,
        "scope": vectors.scope,
        "traces": len(vectors.traces),
        "transitions": vectors.transitions,
    }
    lines = [header, *map(_line, vectors.traces)]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _line(trace: Trace) -> dict[str, Any]:
    return {
        "capacity": trace.workload.capacity,
        "requests": [
            [part for item in request.items for part in (item.mm_hash, item.embeds)]
            for request in trace.workload.requests
        ],
        "calls": " ".join(_tokens(trace)),
    }


def _tokens(trace: Trace) -> Iterator[str]:
    state = initial(trace.workload)
    for call in trace.calls:
        after, answer = apply(state, call)
        yield _token(call) + _answer(call, answer) + _slots(state, after)
        state = after


def _token(call: Call) -> str:
    match call:
        case Check(request_id, input_id):
            return f"k{request_id[1:]}{input_id}"
        case CanAllocate(request_id, input_id, compute_budget, embeds_to_schedule):
            return f"q{request_id[1:]}{input_id}.{compute_budget}.{embeds_to_schedule}"
        case Allocate(request_id, input_id):
            return f"a{request_id[1:]}{input_id}"
        case FreeInput(request_id, input_id):
            return f"f{request_id[1:]}{input_id}"
        case Drain():
            return "d"
        case Reset():
            return "z"
        case FreeRequest() | _:
            raise VectorsError(f"a vectors file has no call {type(call).__name__}")


def _answer(call: Call, answer: Result) -> str:
    if isinstance(answer, bool):
        return "+" if answer else "-"
    if isinstance(answer, frozenset):
        return "=" + ",".join(sorted(map(str, answer)))
    return ""


def _slots(before: State, after: State) -> str:
    slots = (after.free_slots, after.freeable_slots)
    return "" if slots == (before.free_slots, before.freeable_slots) else f"/{slots[0]}.{slots[1]}"


class _Header(Struct, frozen=True):
    format: str
    scope: str
    traces: int
    transitions: int


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    capacity: int
    requests: list[list[str | int]]
    calls: str


def decode_vectors(data: bytes, name: str) -> Vectors:
    """Reads a file back, and checks each expected answer against the reference model.

    Args:
        data: What `encode_vectors` wrote.
        name: What to call the source in a message.

    Raises:
        VectorsError: Not a vectors file, of another version, truncated or changed; the message has the line.
    """
    head, *lines = data.splitlines() or [b""]
    try:
        header = msgspec.json.decode(head, type=_Header)
    except msgspec.DecodeError as error:
        raise VectorsError(f"{name} is not a vectors file: its first line is not a header ({error})") from error
    if header.format != VECTORS_FORMAT:
        raise VectorsError(f"{name} is of format {header.format!r}; this evictcheck reads {VECTORS_FORMAT!r}")
    if not data.endswith(b"\n"):
        raise VectorsError(f"{name} is truncated: its line {len(lines) + 1} is cut off")
    if len(lines) != header.traces:
        raise VectorsError(f"{name} is truncated: its header says {header.traces} traces, it has {len(lines)}")
    traces = tuple(_read_line(line, f"{name}, line {number}") for number, line in enumerate(lines, start=2))
    return Vectors(header.scope, traces, header.transitions)


def _read_line(line: bytes, where: str) -> Trace:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise VectorsError(f"{where}: not a trace ({error})") from error
    try:
        requests = tuple(
            Request(
                f"r{number}",
                tuple(
                    Item(str(mm_hash), int(embeds))
                    for mm_hash, embeds in zip(parts[::2], parts[1::2], strict=True)
                ),
            )
            for number, parts in enumerate(read.requests, start=1)
        )
        workload = Workload(read.capacity, requests, read.capacity)
        trace = Trace(workload, Discipline.OPEN, tuple(Step((_read_call(token),)) for token in read.calls.split()))
        right = list(_tokens(trace))
    except (EvictcheckError, ValueError, IndexError) as error:
        raise VectorsError(f"{where}: {error}") from error
    for number, (token, expected) in enumerate(zip(read.calls.split(), right, strict=True), start=1):
        if token != expected:
            raise VectorsError(
                f"{where}: call {number} is {token!r}, and by the reference it is {expected!r}; the file was "
                f"changed, or made by another version"
            )
    return trace


def _read_call(token: str) -> Call:
    kind, rest = token[0], token[1:].split("/")[0].rstrip("+-")
    if kind == "d":
        return Drain()
    if kind == "z":
        return Reset()
    request_id, input_id = f"r{rest[0]}", int(rest[1])
    match kind:
        case "k":
            return Check(request_id, input_id)
        case "q":
            _, budget, promised = rest.split(".")
            return CanAllocate(request_id, input_id, int(budget), int(promised))
        case "a":
            return Allocate(request_id, input_id)
        case "f":
            return FreeInput(request_id, input_id)
        case _:
            raise VectorsError(f"there is no call {token!r}")


# --- Running -----------------------------------------------------------------------------------------------


def run_vectors(vectors: Vectors, target: Target) -> tuple[Counterexample | None, int]:
    """Runs a suite against a target, by what results and counters show, until something breaks.

    Returns:
        The first violation, or None; and how many traces could not be run because the target has no reset.
    """
    skipped = 0
    for number, trace in enumerate(vectors.traces, start=1):
        if not target.has_reset and any(isinstance(call, Reset) for call in trace.calls):
            skipped += 1
            continue
        violation = replay(trace, target)
        if violation is not None:
            steps = trace.steps[: violation.call_index + 1]
            cut = msgspec.structs.replace(trace, steps=steps)
            return Counterexample(cut, violation, target.name, f"vectors, trace {number}"), skipped
    return None, skipped
