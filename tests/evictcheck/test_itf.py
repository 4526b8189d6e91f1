"""Traces in ITF, read back by a library that others wrote for it."""

import json
from collections.abc import Iterator
from typing import Any

import itf_py
import msgspec
import pytest

from evictcheck.itf import itf_document
from model.contract import trace_of
from model.operations import (
    Admit,
    Allocate,
    CachedIds,
    CanAllocate,
    Check,
    Discipline,
    Drain,
    EndPass,
    FreeInput,
    FreeRequest,
    Outcome,
    Reset,
    Trace,
)
from model.reference import State, apply, initial
from model.workload import Item, Request, Workload
from properties.corpus import known_faults

KNOWN = {one.name: one.trace for discipline in Discipline for one in known_faults(discipline)}

WORKLOAD = Workload(3, (Request("r1", (Item("a", 2), Item("a", 2))), Request("r2", (Item("b", 3),))), 3)
EVERY_CALL = trace_of(
    WORKLOAD,
    Discipline.OPEN,
    (
        Check("r1", 0),
        Allocate("r1", 0),
        Check("r1", 1),
        CachedIds("r1"),
        FreeInput("r1", 0),
        FreeRequest("r1"),
        CanAllocate("r2", 0, 3, 0),
        Drain(),
        Reset(),
    ),
)
NOTHING = Trace(WORKLOAD, Discipline.OPEN, ())


def read(trace: Trace, note: str = "") -> Any:
    """What a viewer reads out of the file."""
    text = msgspec.json.encode(itf_document(trace, note))
    return itf_py.trace_from_json(json.loads(text))


def states(trace: Trace) -> Iterator[State]:
    state = initial(trace.workload)
    yield state
    for call in trace.calls:
        state, _ = apply(state, call)
        yield state


@pytest.mark.parametrize("trace", [*KNOWN.values(), EVERY_CALL, NOTHING], ids=[*KNOWN, "every-call", "nothing"])
def test_a_viewer_reads_the_states_of_the_reference(trace: Trace) -> None:
    document = read(trace)
    expected = list(states(trace))
    assert len(document.states) == len(expected) == 1 + sum(1 for _ in trace.calls)
    for shown, state in zip(document.states, expected, strict=True):
        assert sorted(shown.values) == sorted(document.vars)
        assert dict(shown.values["cached"]) == dict(state.cached)
        assert shown.values["held"] == {f"{request_id}[{input_id}]" for request_id, input_id in state.held}
        assert tuple(shown.values["evictable"]) == state.evictable
        assert shown.values["evicted"] == state.evicted
        assert shown.values["free_slots"] == state.free_slots
        assert shown.values["freeable_slots"] == state.freeable_slots


@pytest.mark.parametrize("trace", [*KNOWN.values(), EVERY_CALL], ids=[*KNOWN, "every-call"])
def test_a_variable_keeps_its_type(trace: Trace) -> None:
    # Viewers that type their variables, as Apalache does, refuse anything else.
    document = read(trace)
    for name in document.vars:
        assert len({type(state.values[name]) for state in document.states}) == 1, name


def test_every_call_and_answer_in_words() -> None:
    shown = [(state.values["call"], state.values["answer"]) for state in read(EVERY_CALL).states]
    assert shown == [
        ("start", ""),
        ("check(r1, 0)", "False"),
        ("allocate(r1, 0)", ""),
        ("check(r1, 1)", "True"),
        ("get_cached_input_ids(r1)", "{0, 1}"),
        ("free_encoder_input(r1, 0)", ""),
        ("free(r1)", ""),
        ("can_allocate(r2, 0, 3, 0)", "True"),
        ("get_freed_mm_hashes()", "{a}"),
        ("reset()", ""),
    ]


def test_the_head_of_a_document() -> None:
    document = itf_document(EVERY_CALL, "what it shows")
    assert list(document) == ["#meta", "params", "vars", "states"]
    assert document["#meta"] == {
        "format": "ITF",
        "format-description": "Informal Trace Format",
        "description": "what it shows",
    }
    assert [state["#meta"]["index"] for state in document["states"]] == list(range(10))


def test_steps_of_a_caller_are_told_call_by_call() -> None:
    trace = trace_of(WORKLOAD, Discipline.CALLER, (Admit("r1", 1, Outcome.COMMIT), EndPass()))
    calls = [state.values["call"] for state in read(trace).states]
    assert calls == [
        "start",
        "check(r1, 0)",
        "can_allocate(r1, 0, 3, 0)",
        "allocate(r1, 0)",
        "check(r1, 1)",
        "get_freed_mm_hashes()",
    ]
