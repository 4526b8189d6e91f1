"""Traces in words: one row a call, with only what it changed."""

import pytest

from evictcheck.story import Row, call_in_words, step_in_words, tell, workload_in_words
from impl.target import Target
from impl.targets import resolve
from model.contract import trace_of
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
)
from model.workload import Item, Request, Workload

OPEN, CALLER = Discipline.OPEN, Discipline.CALLER
PORT = resolve("port")
WORKLOAD = Workload(
    3,
    (Request("r1", (Item("a", 1), Item("a", 1), Item("b", 2))), Request("r2", (Item("c", 3),))),
    3,
)


def rows(*made: Move, target: Target = PORT, discipline: Discipline = OPEN) -> tuple[Row, ...]:
    return tell(trace_of(WORKLOAD, discipline, made), target)


def last_change(*made: Move) -> str:
    return rows(*made)[-1].changes


# --- What a call changed ------------------------------------------------------------------------------------

A, B = Allocate("r1", 0), Allocate("r1", 2)


@pytest.mark.parametrize(
    ("made", "changes"),
    [
        ((Check("r1", 0),), ""),
        ((A,), "a cached (1 embed); r1[0] holds a; 2 free"),
        ((B,), "b cached (2 embeds); r1[2] holds b; 1 free"),
        ((A, Check("r1", 1)), "r1[1] holds a"),
        ((A, Check("r1", 0)), ""),
        ((A, Check("r1", 1), FreeInput("r1", 0)), "r1[0] lets go"),
        ((A, FreeInput("r1", 0)), "r1[0] lets go; a evictable"),
        ((A, FreeInput("r1", 1)), ""),
        ((A, B, FreeRequest("r1")), "r1[0] lets go; r1[2] lets go; a evictable; b evictable"),
        ((A, FreeRequest("r1"), Check("r1", 1)), "r1[1] holds a; a no longer evictable"),
        ((A, FreeRequest("r1"), CanAllocate("r2", 0, 3, 0)), "a evicted; 3 free"),
        ((A, B, FreeRequest("r1"), CanAllocate("r2", 0, 3, 0)), "a, b evicted; 3 free"),
        ((A, FreeRequest("r1"), CanAllocate("r2", 0, 2, 0)), ""),
        ((A, Drain()), ""),
        ((A, FreeRequest("r1"), CanAllocate("r2", 0, 3, 0), Drain()), ""),
        ((A, FreeRequest("r1"), Reset()), "a forgotten; 3 free"),
        ((A, Reset()), "r1[0] lets go; 3 free"),
    ],
)
def test_only_what_changed_is_told(made: tuple[Move, ...], changes: str) -> None:
    assert last_change(*made) == changes


@pytest.mark.parametrize(
    ("made", "answer"),
    [
        ((Check("r1", 0),), "False"),
        ((A, Check("r1", 1)), "True"),
        ((CanAllocate("r1", 0, 0, 0),), "False"),
        ((A,), ""),
        ((A, Check("r1", 1), CachedIds("r1")), "{0, 1}"),
        ((Drain(),), "{}"),
        ((A, FreeRequest("r1"), CanAllocate("r2", 0, 3, 0), Drain()), "{a}"),
    ],
)
def test_answers_are_those_of_the_implementation(made: tuple[Move, ...], answer: str) -> None:
    assert rows(*made)[-1].answer == answer


def test_rows_are_numbered_and_name_what_they_are_about() -> None:
    told = rows(A, FreeRequest("r1"), CanAllocate("r2", 0, 3, 1), Drain())
    assert [(row.number, row.call, row.item) for row in told] == [
        (1, "allocate", "r1[0] a"),
        (2, "free", "r1"),
        (3, "can_allocate (budget 3, 1 promised)", "r2[0] c"),
        (4, "get_freed_mm_hashes", ""),
    ]
    assert not any(row.step or row.broken for row in told)


# --- The broken call ----------------------------------------------------------------------------------------


def test_the_story_ends_at_the_broken_call() -> None:
    target = resolve("port:early-evictable")
    told = rows(A, Check("r1", 1), FreeInput("r1", 0), Drain(), Drain(), target=target)
    assert len(told) == 3
    assert [row.broken for row in told] == [False, False, True]
    assert told[-1] == Row(
        3,
        "",
        "free_encoder_input",
        "r1[0] a",
        "",
        "expected a not evictable: input 1 of r1 still needs it; observed a is in the evictable queue",
        True,
    )


def test_a_step_is_named_at_its_first_call() -> None:
    told = rows(Admit("r1", 1, Outcome.COMMIT), EndPass(), discipline=CALLER)
    assert [row.step for row in told] == [
        "r1 is admitted up to input 1 and runs",
        "",
        "",
        "",
        "the pass ends",
    ]


def test_an_illegal_trace_is_not_told() -> None:
    trace = Trace(WORKLOAD, OPEN, (Step((A,)), Step((A,))))
    with pytest.raises(TraceError, match=r"^step 1 is not legal under the open discipline: allocate is for"):
        tell(trace, PORT)


def test_a_trace_without_calls_has_no_rows() -> None:
    assert rows() == ()


# --- Words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Admit("r1", 1, Outcome.COMMIT), "r1 is admitted up to input 1 and runs"),
        (Admit("r1", 0, Outcome.GIVE_UP), "r1 is admitted up to input 0, but gets no KV blocks and gives up"),
        (Admit("r1", 0, Outcome.SKIP), "r1 is admitted up to input 0, but gets no tokens and is skipped"),
        (Preempt("r1"), "r1 is preempted"),
        (EndPass(), "the pass ends"),
        (Processed("r1", 1), "input 1 of r1 is processed"),
        (Finish("r1"), "r1 finishes"),
        (ResetCache(), "the weights change"),
    ],
)
def test_steps_in_words(step: CallerStep, words: str) -> None:
    assert step_in_words(step) == words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Check("r1", 0), "check_and_update_cache"),
        (CanAllocate("r1", 0, 3, 0), "can_allocate (budget 3)"),
        (CanAllocate("r1", 0, 3, 2), "can_allocate (budget 3, 2 promised)"),
        (Allocate("r1", 0), "allocate"),
        (FreeInput("r1", 0), "free_encoder_input"),
        (FreeRequest("r1"), "free"),
        (CachedIds("r1"), "get_cached_input_ids"),
        (Drain(), "get_freed_mm_hashes"),
        (Reset(), "reset"),
    ],
)
def test_calls_by_upstreams_names(call: Call, words: str) -> None:
    assert call_in_words(call) == words


def test_workloads_in_a_line() -> None:
    assert workload_in_words(WORKLOAD) == "capacity 3; r1: a, a, b (2); r2: c (3)"
    plain = Workload(2, (Request("r1", (Item("a", 1),)),), 1)
    assert workload_in_words(plain) == "capacity 2; compute budget 1; r1: a"
