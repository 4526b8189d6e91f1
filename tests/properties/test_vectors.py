"""Conformance suites: every transition of a scope is made, byte for byte the same, and no defect gets through."""

import re
from collections.abc import Callable
from functools import cache

import pytest
from msgspec.structs import replace

from impl.defects import DEFECTS, Defect
from impl.inprocess import PythonTarget, python_target
from impl.port import PortManager
from impl.target import Shows
from model.contract import moves, refuse_illegal, start
from model.operations import Call, Discipline, FreeRequest, Reset
from model.reference import State, apply, initial
from model.workload import Workload
from properties import vectors
from properties.counterexample import replay
from properties.scopes import DEFAULT_SCOPE, parse_scope, workload_classes
from properties.symmetry import Symmetry
from properties.vectors import (
    MIXED_SCOPE,
    Vectors,
    VectorsError,
    decode_vectors,
    encode_vectors,
    make_vectors,
    run_vectors,
)

OPEN = Discipline.OPEN
PORT = python_target("port", PortManager)
SMALL = "2r2i2h/sizes=1/capacity=1..2"
CI = "3r1i3h/sizes=1/capacity=1..2"


@cache
def suite(text: str) -> Vectors:
    return make_vectors(parse_scope(text))


# --- Coverage ---------------------------------------------------------------------------------------------


def reachable(workload: Workload) -> set[tuple[State, Call]]:
    """Every transition of one workload, by brute force: single calls, frees of a request left out."""
    first = initial(workload)
    seen, todo, transitions = {first}, [first], set[tuple[State, Call]]()
    position = start(workload, OPEN)
    while todo:
        state = todo.pop()
        for call in moves(replace(position, state=state)):
            if isinstance(call, FreeRequest):
                continue
            after, _ = apply(state, call)  # type: ignore[arg-type]  # the open discipline has calls only
            transitions.add((state, call))  # type: ignore[arg-type]
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return transitions


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        CI,
        "1r3i2h/sizes=1..2/capacity=2..3",
        "2r1i2h/sizes=1..2/capacity=2/mixed",
        "1r1i1h/sizes=1/capacity=1",
    ],
)
def test_every_reachable_transition_is_made(text: str) -> None:
    made: dict[Workload, set[object]] = {}
    for trace in suite(text).traces:
        symmetry = Symmetry(trace.workload, OPEN)
        state = initial(trace.workload)
        for call in trace.calls:
            made.setdefault(trace.workload, set()).add(symmetry.transition(state, call))
            state, _ = apply(state, call)
    worlds = [one.workload for one in workload_classes(parse_scope(text), OPEN)]
    assert {replace(one, compute_budget=one.capacity) for one in worlds} == set(made)
    for world in worlds:
        symmetry = Symmetry(world, OPEN)
        wanted = {symmetry.transition(state, call) for state, call in reachable(world)}
        assert made[world] == wanted
    assert suite(text).transitions == sum(map(len, made.values()))


def test_up_to_renaming_is_no_weaker_than_renaming() -> None:
    """Of a workload without symmetries every single transition is made, as it stands."""
    scope = parse_scope("1r2i2h/sizes=1/capacity=1..2")
    for one in workload_classes(scope, OPEN):
        transitions = reachable(one.workload)
        symmetry = Symmetry(one.workload, OPEN)
        alike = {symmetry.transition(state, call) for state, call in transitions}
        if {item.mm_hash for item in one.workload.requests[0].items} == {"a"}:
            assert len(alike) < len(transitions)
        made = {
            (state, call)
            for trace in suite(str(scope)).traces
            if trace.workload == one.workload
            for state, call in zip(states(trace.workload, list(trace.calls)), trace.calls, strict=False)
        }
        assert made <= transitions
        assert {symmetry.transition(state, call) for state, call in made} == alike


def states(workload: Workload, calls: list[Call]) -> list[State]:
    """The state before each call."""
    result = [initial(workload)]
    for call in calls:
        result.append(apply(result[-1], call)[0])
    return result


def test_traces_are_legal_and_ask_for_no_order_that_is_left_open() -> None:
    for trace in suite(SMALL).traces:
        refuse_illegal(trace)
        assert not any(isinstance(call, FreeRequest) for call in trace.calls)


def test_resets_stand_in_traces_of_their_own() -> None:
    resets = [any(isinstance(call, Reset) for call in trace.calls) for trace in suite(SMALL).traces]
    assert sum(resets) == len(workload_classes(parse_scope(SMALL), OPEN))


# --- Bytes ------------------------------------------------------------------------------------------------


def test_the_bytes_are_the_same_in_every_run() -> None:
    assert encode_vectors(make_vectors(parse_scope(SMALL))) == encode_vectors(suite(SMALL))


def test_the_file_reads_as_the_documentation_says() -> None:
    lines = encode_vectors(suite("1r1i1h/sizes=1/capacity=1")).decode().splitlines()
    assert lines == [
        '{"format":"evictcheck-vectors/1","scope":"1r1i1h/sizes=1/capacity=1","traces":2,"transitions":17}',
        '{"capacity":1,"requests":[["a",1]],"calls":"k10- q10.1.0+ q10.1.1- q10.0.0- q10.0.1- f10 d= a10/0.0 '
        'k10+ d= f10/0.1 f10 d= k10+/0.0"}',
        '{"capacity":1,"requests":[["a",1]],"calls":"z d= a10/0.0 z/1.1 d= a10/0.0 f10/0.1 z/1.1 d="}',
    ]


def test_a_suite_is_read_back() -> None:
    for text in (SMALL, "1r3i2h/sizes=1..2/capacity=2..3"):
        assert decode_vectors(encode_vectors(suite(text)), "file") == suite(text)


def test_more_than_nine_inputs_cannot_be_written() -> None:
    with pytest.raises(VectorsError, match="numbers requests and inputs with single digits"):
        make_vectors(parse_scope("1r10i1h/sizes=1/capacity=1"))


# --- Refused files ----------------------------------------------------------------------------------------


def refusal(data: bytes) -> str:
    with pytest.raises(VectorsError) as refused:
        decode_vectors(data, "suite.jsonl")
    return str(refused.value)


DATA = encode_vectors(make_vectors(parse_scope("1r2i2h/sizes=1/capacity=1")))


def test_truncated_at_any_byte() -> None:
    for length in range(len(DATA)):
        message = refusal(DATA[:length])
        assert re.match(
            r"suite\.jsonl (is not a vectors file|is truncated: its (header says \d|line \d+ is cut off))",
            message,
        )


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02", b"a,b\n1,2\n", b"[]\n", b"{}\n"])
def test_foreign(data: bytes) -> None:
    assert refusal(data).startswith("suite.jsonl is not a vectors file: its first line is not a header (")


def test_another_version() -> None:
    assert refusal(DATA.replace(b"evictcheck-vectors/1", b"evictcheck-vectors/2")) == (
        "suite.jsonl is of format 'evictcheck-vectors/2'; this evictcheck reads 'evictcheck-vectors/1'"
    )


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (b"k10-", b"k10+", "call 1 is 'k10+', and by the reference it is 'k10-'; the file was changed"),
        (b"/0.0", b"/0.1", "and by the reference it is"),
        (b"k10-", b"x10-", "there is no call 'x10-'"),
        (b"k10-", b"k90-", "there is no request 'r9'"),
        (b"k10-", b"k1", "index out of range"),
        (b'"calls"', b'"call"', "not a trace"),
        (b'"capacity":1', b'"capacity":0', "a capacity of 0 embeds holds nothing"),
        (b'["a",1', b'["a","one"', "invalid literal"),
        (b'["a",1', b'["a",1,"b"', "invalid literal"),
        (b'["a",1,"a",1]', b'["a",1,"a"]', "argument 2 is shorter"),
    ],
)
def test_a_changed_line_is_named(before: bytes, after: bytes, reason: str) -> None:
    assert before in DATA
    message = refusal(DATA.replace(before, after, 1))
    assert re.match(r"suite\.jsonl, line \d+: ", message)
    assert reason in message


def test_an_answer_changed_on_any_line_is_noticed() -> None:
    lines = DATA.splitlines(keepends=True)
    for number in range(1, len(lines)):
        changed = re.sub(rb"(.*)-", rb"\1+", lines[number], count=1)
        if changed == lines[number]:
            continue
        message = refusal(b"".join([*lines[:number], changed, *lines[number + 1 :]]))
        assert message.startswith(f"suite.jsonl, line {number + 1}: call ")


# --- Running ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shows", Shows)
def test_what_is_right_passes(shows: Shows, release: Callable[[str], PythonTarget]) -> None:
    for target in (PORT, release("0.33.0")):
        assert run_vectors(suite(SMALL), replace(target, shows=shows)) == (None, 0)


def seen_by_counters(defect: Defect) -> PythonTarget:
    return replace(python_target(f"port:{defect.name}", defect.manager_class), shows=Shows.COUNTERS)


OBSERVABLE = [one for one in DEFECTS if one.property != "nothing-stale"]


@pytest.mark.parametrize("defect", OBSERVABLE, ids=lambda one: one.name)
def test_every_observable_defect_is_detected_where_it_shows(defect: Defect) -> None:
    scope = parse_scope(defect.scope)
    found, skipped = run_vectors(suite(str(replace(scope, budgets=()))), seen_by_counters(defect))
    assert skipped == 0
    assert found is not None
    assert re.fullmatch(r"vectors, trace \d+", found.engine)
    assert replay(found.trace, seen_by_counters(defect)) == found.violation
    assert found.violation.call_index == len(found.trace) - 1


@cache
def default_suite() -> Vectors:
    return make_vectors(DEFAULT_SCOPE, MIXED_SCOPE)


@pytest.mark.nightly
@pytest.mark.parametrize("defect", OBSERVABLE, ids=lambda one: one.name)
def test_the_default_suite_detects_every_observable_defect(defect: Defect) -> None:
    found, _ = run_vectors(default_suite(), seen_by_counters(defect))
    assert found is not None


@pytest.mark.nightly
def test_the_default_scope_fits_into_a_repository() -> None:
    assert len(encode_vectors(default_suite())) < 1_000_000


def test_what_only_internals_show_is_not_detected_by_counters() -> None:
    (stale,) = [one for one in DEFECTS if one.property == "nothing-stale"]
    assert run_vectors(suite(SMALL), seen_by_counters(stale)) == (None, 0)


def test_a_target_without_reset_runs_the_rest(release: Callable[[str], PythonTarget]) -> None:
    old = release("0.15.1")
    assert not old.has_reset
    walks = [trace for trace in suite(SMALL).traces if not any(isinstance(call, Reset) for call in trace.calls)]
    found, skipped = run_vectors(replace(suite(SMALL), traces=tuple(walks)), old)
    assert found is not None
    assert skipped == 0
    _, skipped = run_vectors(suite(SMALL), replace(PORT, has_reset=False))
    assert skipped == len(suite(SMALL).traces) - len(walks) > 0


def test_the_published_schema_is_where_the_command_says() -> None:
    assert vectors.__doc__ is not None
    for letter in "kqafdz":
        assert re.search(rf"^    {letter}[ <]", vectors.__doc__, re.MULTILINE)
