import json
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model import operations
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
    Step,
    Trace,
    TraceError,
    decode_trace,
    encode_trace,
    refuse_stranger,
)
from model.workload import Item, Request, Workload, WorkloadError

WORKLOAD = Workload(3, (Request("r1", (Item("a", 1), Item("b", 2))), Request("r2", (Item("a", 1),))), 2)

TRACE = Trace(
    WORKLOAD,
    Discipline.CALLER,
    (
        Step(
            (Check("r1", 0), CanAllocate("r1", 0, 2, 0), Allocate("r1", 0)),
            Admit("r1", 0, Outcome.COMMIT),
        ),
        Step((Drain(),), EndPass()),
        Step((CachedIds("r1"), FreeInput("r1", 0)), Processed("r1", 0)),
    ),
)


# --- Round trip -------------------------------------------------------------------------------------------

names = st.text(min_size=1, max_size=4).filter(lambda text: text.isprintable())


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any trace whose names exist, legal or not: the codec does not ask."""
    ids = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    items = st.builds(Item, names, st.integers(1, 9))
    requests = tuple(
        Request(request_id, tuple(draw(st.lists(items, min_size=1, max_size=3)))) for request_id in ids
    )
    workload = Workload(draw(st.integers(1, 9)), requests, draw(st.integers(1, 9)))
    places = st.sampled_from(
        [(request.request_id, place) for request in requests for place in range(len(request.items))]
    )
    request_ids = st.sampled_from(ids)
    numbers = st.integers(0, 9)
    calls: st.SearchStrategy[Call] = st.one_of(
        places.map(lambda place: Check(*place)),
        st.builds(
            lambda place, budget, promised: CanAllocate(place[0], place[1], budget, promised),
            places,
            numbers,
            numbers,
        ),
        places.map(lambda place: Allocate(*place)),
        places.map(lambda place: FreeInput(*place)),
        request_ids.map(FreeRequest),
        request_ids.map(CachedIds),
        st.just(Drain()),
        st.just(Reset()),
    )
    taken: st.SearchStrategy[CallerStep] = st.one_of(
        st.builds(lambda place, outcome: Admit(place[0], place[1], outcome), places, st.sampled_from(Outcome)),
        places.map(lambda place: Processed(*place)),
        request_ids.map(Preempt),
        request_ids.map(Finish),
        st.just(EndPass()),
        st.just(ResetCache()),
    )
    steps = st.builds(lambda made, step: Step(tuple(made), step), st.lists(calls, max_size=4), st.none() | taken)
    return Trace(workload, draw(st.sampled_from(Discipline)), tuple(draw(st.lists(steps, max_size=4))))


@given(traces(), st.text(max_size=20))
def test_a_trace_and_its_note_come_back_as_they_were(trace: Trace, note: str) -> None:
    assert decode_trace(encode_trace(trace, note), "file") == (trace, note)


@given(traces())
def test_equal_traces_give_equal_bytes_that_end_in_a_line_feed(trace: Trace) -> None:
    text = encode_trace(trace)
    again, _ = decode_trace(text, "file")
    assert encode_trace(again) == text
    assert text.endswith(b"\n")
    assert not text.endswith(b"\n\n")


def test_length_is_counted_in_steps_and_calls_are_flattened() -> None:
    assert len(TRACE) == 3
    assert list(TRACE.calls) == [
        Check("r1", 0),
        CanAllocate("r1", 0, 2, 0),
        Allocate("r1", 0),
        Drain(),
        CachedIds("r1"),
        FreeInput("r1", 0),
    ]


def test_calls_are_written_under_fixed_names() -> None:
    steps = json.loads(encode_trace(TRACE))["trace"]["steps"]
    assert [call["call"] for step in steps for call in step["calls"]] == [
        "check",
        "can_allocate",
        "allocate",
        "get_freed_mm_hashes",
        "get_cached_input_ids",
        "free_encoder_input",
    ]


# --- Bad files --------------------------------------------------------------------------------------------


def document() -> Any:
    return json.loads(encode_trace(TRACE))


def refusal(data: bytes) -> str:
    with pytest.raises(TraceError) as caught:
        decode_trace(data, "bad.json")
    sentence = str(caught.value)
    assert sentence.startswith("bad.json")
    return sentence


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b'{"format": "\xff"}', b"nonsense", b'{"a": 1} trailing', b"[" * 100_000],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    assert refusal(data).startswith("bad.json is not JSON: ")


@pytest.mark.parametrize("data", [b"[]", b"1", b"null", b'"text"', b"{}", b'{"trace": {}}'])
def test_json_that_is_no_trace_is_refused(data: bytes) -> None:
    assert refusal(data) == (
        "bad.json is not an evictcheck trace: it has no \"format\" (expected 'evictcheck-trace/1')"
    )


@pytest.mark.parametrize("version", ["evictcheck-trace/2", "", 1, None, [], {}])
def test_another_format_is_refused(version: object) -> None:
    raw = document()
    raw["format"] = version
    assert refusal(json.dumps(raw).encode()) == (
        f"bad.json is of format {version!r}; this evictcheck reads 'evictcheck-trace/1'"
    )


Edit = Callable[[Any], object]


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (
            lambda raw: raw.pop("trace"),
            "bad.json is not a valid trace: Object missing required field `trace`",
        ),
        (
            lambda raw: raw.update(extra=1),
            "bad.json is not a valid trace: Object contains unknown field `extra`",
        ),
        (
            lambda raw: raw["trace"].update(discipline="open-ended"),
            "bad.json is not a valid trace: Invalid enum value 'open-ended' - at `$.trace.discipline`",
        ),
        (
            lambda raw: raw["trace"]["workload"].update(capacity="three"),
            "bad.json is not a valid trace: Expected `int`, got `str` - at `$.trace.workload.capacity`",
        ),
        (
            lambda raw: raw["trace"]["workload"].update(capacity=True),
            "bad.json is not a valid trace: Expected `int`, got `bool` - at `$.trace.workload.capacity`",
        ),
        (
            lambda raw: raw["trace"]["workload"]["requests"][1]["items"][0].pop("embeds"),
            "bad.json is not a valid trace: Object missing required field `embeds` - "
            "at `$.trace.workload.requests[1].items[0]`",
        ),
        (
            lambda raw: raw["trace"]["steps"][0]["calls"][1].update(call="evict"),
            "bad.json is not a valid trace: Invalid value 'evict' - at `$.trace.steps[0].calls[1].call`",
        ),
        (
            lambda raw: raw["trace"]["steps"][0]["calls"][1].pop("call"),
            "bad.json is not a valid trace: Object missing required field `call` - at `$.trace.steps[0].calls[1]`",
        ),
        (
            lambda raw: raw["trace"]["steps"][0]["taken"].update(outcome="maybe"),
            "bad.json is not a valid trace: Invalid enum value 'maybe' - at `$.trace.steps[0].taken.outcome`",
        ),
        (
            lambda raw: raw["trace"]["steps"][2].update(calls=None),
            "bad.json is not a valid trace: Expected `array`, got `null` - at `$.trace.steps[2].calls`",
        ),
        # A misspelt name must not silently fall back to a default or to nothing.
        (
            lambda raw: raw["trace"]["steps"][0].update(takes=raw["trace"]["steps"][0].pop("taken")),
            "bad.json is not a valid trace: Object contains unknown field `takes` - at `$.trace.steps[0]`",
        ),
        (
            lambda raw: raw["trace"]["steps"][0]["calls"][0].update(budget=1),
            "bad.json is not a valid trace: Object contains unknown field `budget` - "
            "at `$.trace.steps[0].calls[0]`",
        ),
        (
            lambda raw: raw["trace"]["workload"].update(colour="red"),
            "bad.json is not a valid trace: Object contains unknown field `colour` - at `$.trace.workload`",
        ),
    ],
)
def test_a_misshapen_trace_is_refused_with_the_place(edit: Edit, sentence: str) -> None:
    raw = document()
    edit(raw)
    assert refusal(json.dumps(raw).encode()) == sentence


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (
            lambda raw: raw["trace"]["workload"].update(capacity=0),
            "bad.json: a capacity of 0 embeds holds nothing; it must be at least 1",
        ),
        (
            lambda raw: raw["trace"]["workload"]["requests"][0]["items"][1].update(embeds=-1),
            "bad.json: input 1 of request 'r1' has -1 embeds; it must have at least 1",
        ),
        (
            lambda raw: raw["trace"]["workload"]["requests"][0].update(request_id="r2"),
            "bad.json: two requests are called 'r2'; ids must be distinct",
        ),
    ],
)
def test_an_impossible_workload_is_refused_with_the_reason(edit: Edit, sentence: str) -> None:
    raw = document()
    edit(raw)
    assert refusal(json.dumps(raw).encode()) == sentence


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (
            lambda raw: raw["trace"]["steps"][0]["calls"][2].update(request_id="r9"),
            "bad.json: there is no request 'r9' in the workload (it has: r1, r2) - at `$.trace.steps[0].calls[2]`",
        ),
        (
            lambda raw: raw["trace"]["steps"][2]["calls"][1].update(input_id=2),
            "bad.json: request 'r1' has no input 2 (its inputs are 0 to 1) - at `$.trace.steps[2].calls[1]`",
        ),
        (
            lambda raw: raw["trace"]["steps"][2]["calls"][1].update(input_id=-1),
            "bad.json: request 'r1' has no input -1 (its inputs are 0 to 1) - at `$.trace.steps[2].calls[1]`",
        ),
        (
            lambda raw: raw["trace"]["steps"][0]["taken"].update(last_input_id=7),
            "bad.json: request 'r1' has no input 7 (its inputs are 0 to 1) - at `$.trace.steps[0].taken`",
        ),
    ],
)
def test_a_name_that_the_workload_lacks_is_refused_with_the_place(edit: Edit, sentence: str) -> None:
    raw = document()
    edit(raw)
    assert refusal(json.dumps(raw).encode()) == sentence


STRANGERS: tuple[Move, ...] = (
    Check("r9", 0),
    CanAllocate("r9", 0, 1, 0),
    Allocate("r9", 0),
    FreeInput("r9", 0),
    FreeRequest("r9"),
    CachedIds("r9"),
    Admit("r9", 0, Outcome.SKIP),
    Preempt("r9"),
    Processed("r9", 0),
    Finish("r9"),
)
NAMELESS: tuple[Move, ...] = (Drain(), Reset(), EndPass(), ResetCache())


@pytest.mark.parametrize("move", STRANGERS, ids=lambda move: type(move).__name__)
def test_every_move_that_names_a_request_is_looked_up(move: Move) -> None:
    with pytest.raises(WorkloadError, match="there is no request 'r9'"):
        refuse_stranger(WORKLOAD, move)


@pytest.mark.parametrize("move", NAMELESS, ids=lambda move: type(move).__name__)
def test_moves_that_name_nothing_fit_any_workload(move: Move) -> None:
    refuse_stranger(Workload(1, (), 1), move)
    assert not move.__struct_fields__


def test_the_two_tables_above_cover_the_alphabet() -> None:
    assert {type(move) for move in STRANGERS + NAMELESS} == set(get_args(Call)) | set(get_args(CallerStep))
    assert set(get_args(operations.Move)) == set(get_args(Call)) | set(get_args(CallerStep))
