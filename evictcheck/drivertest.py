"""Checks a program against the driver protocol: whether it can be judged, not whether it is right."""

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from msgspec import Struct

from evictcheck.options import TimeoutOption
from impl.drivers.client import (
    TIMEOUT,
    call_line,
    look_lines,
    new_line,
    read_hello,
    read_look,
    read_result,
    request_line,
    result_text,
)
from impl.drivers.process import DriverProcess
from impl.errors import NoAnswerError
from impl.target import Observation
from model.operations import Allocate, CachedIds, Call, CanAllocate, Check, Drain, FreeInput, FreeRequest, Reset
from model.workload import Item, Request, Workload

_FIRST = Workload(
    4, (Request("r1", (Item("a", 1), Item("b", 2), Item("a", 1))), Request("r2", (Item("b", 2),))), 4
)
_SECOND = Workload(3, (Request("r1", (Item("c%20d", 3),)), _FIRST.requests[1]), 3)


class Fault(Struct, frozen=True):
    """A line of the exchange that the protocol does not allow.

    Attributes:
        number: Which operation it belongs to, from 1.
        operation: The operation.
        answer: Its answer; None if there was none.
        sentence: What is wrong with it.
    """

    number: int
    operation: str
    answer: str | None
    sentence: str


class DriverTest(Struct, frozen=True):
    """What a test found.

    Attributes:
        capabilities: What the driver announced.
        operations: How many operations it was asked.
        faults: What was wrong; empty if it can be judged.
    """

    capabilities: frozenset[str]
    operations: int
    faults: tuple[Fault, ...]

    @property
    def exit_code(self) -> int:
        """0 if nothing was wrong, else 1."""
        return 1 if self.faults else 0


class _Op(Struct, frozen=True):
    """An operation, the call that it makes, and what it has to show."""

    line: bytes
    call: Call | None = None
    shown: Observation | None = None
    workload: Workload | None = None


def driver_test_command(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="The driver and its arguments; write -- before it.")
    ],
    timeout: TimeoutOption = TIMEOUT,
) -> None:
    """Check a driver against the protocol (impl/drivers/PROTOCOL.md), and say which line was wrong."""
    test = check_driver(command, timeout=timeout)
    sys.stdout.write(in_text(test))
    raise typer.Exit(test.exit_code)


def check_driver(command: Sequence[str], *, timeout: float = TIMEOUT) -> DriverTest:
    """Asks a driver everything that it announces, one operation at a time and then all in one write.

    Args:
        command: The program and its arguments.
        timeout: Seconds that one answer may take.

    Raises:
        TargetError: It cannot be started.
    """
    asked: list[_Op] = []
    answers: list[bytes] = []
    faults: list[Fault] = []
    capabilities: frozenset[str] = frozenset()
    process = DriverProcess(command, timeout, {})
    try:
        hello = _Op(b"hello 1\n")
        asked.append(hello)
        answers.append(process.exchange(hello.line, 1)[:-1])
        try:
            capabilities = read_hello(answers[0].decode(errors="backslashreplace"))
        except ValueError as error:
            return DriverTest(capabilities, 1, (_fault(1, hello, answers[0], str(error)),))
        for operation in _script(capabilities):
            asked.append(operation)
            answers.append(process.exchange(operation.line, 1)[:-1])
            sentence = _objection(operation, answers[-1], capabilities)
            if sentence is not None:
                faults.append(_fault(len(asked), operation, answers[-1], sentence))
        faults += _pipelined(process, asked, answers)
        if not process.ends_with_its_input(timeout):
            faults.append(
                _fault(len(asked), _Op(b""), None, f"it did not end within {timeout:g} s of its input's end")
            )
    except NoAnswerError as trouble:
        faults.append(_fault(len(asked), asked[-1], None, str(trouble)))
    finally:
        process.end()
    return DriverTest(capabilities, len(asked), tuple(faults))


def in_text(test: DriverTest) -> str:
    """A test in words, a line for each fault."""
    able = ", ".join(sorted(test.capabilities)) or "none"
    if not test.faults:
        return f"{test.operations} operations answered as the protocol says; capabilities: {able}\n"
    lines = [
        f"{len(test.faults)} of {test.operations} answers are not what the protocol says; capabilities: {able}"
    ]
    for fault in test.faults:
        answer = "no answer" if fault.answer is None else f"answered {fault.answer!r}"
        lines.append(f"  line {fault.number}: {fault.operation!r}: {answer}: {fault.sentence}")
    return "\n".join(lines) + "\n"


def _script(capabilities: frozenset[str]) -> Iterator[_Op]:
    for workload in (_FIRST, _SECOND):
        for request in workload.requests:
            yield _Op(request_line(request))
        yield _Op(new_line(workload))
        yield from _looks(workload, capabilities, fresh=True)
        for call in _calls(workload):
            if isinstance(call, Reset) and "reset" not in capabilities:
                continue
            if isinstance(call, CachedIds) and "ids" not in capabilities:
                continue
            yield _Op(call_line(call), call)
            yield from _looks(workload, capabilities, fresh=isinstance(call, Reset))


def _calls(workload: Workload) -> Iterator[Call]:
    """A visit, two frees and a drain for each request, within the room that there is."""
    for request in workload.requests:
        item = request.items[0]
        yield Check(request.request_id, 0)
        yield CanAllocate(request.request_id, 0, item.embeds - 1, 0)
        yield CanAllocate(request.request_id, 0, item.embeds, 0)
        yield Allocate(request.request_id, 0)
        for input_id in range(len(request.items)):
            yield CachedIds(request.request_id)
            yield FreeInput(request.request_id, input_id)
        yield FreeRequest(request.request_id)
        yield Drain()
    yield Reset()


def _looks(workload: Workload, capabilities: frozenset[str], *, fresh: bool) -> Iterator[_Op]:
    shown = None
    if fresh:
        slots = workload.capacity if "counters" in capabilities else None
        inputs = tuple([frozenset[int]() for _ in workload.requests]) if "ids" in capabilities else None
        shown = Observation(inputs, slots, slots)
    for line in look_lines(workload, capabilities):
        yield _Op(line, None, shown if line.startswith(b"state") else None, workload)


def _objection(operation: _Op, answer: bytes, capabilities: frozenset[str]) -> str | None:
    if answer.startswith(b"error "):
        return "it reports a failure of an operation that is allowed here"
    if operation.call is not None:
        try:
            result = read_result(operation.call, answer)
        except ValueError:
            return f"it must be {_FORMS[type(operation.call)]}"
        if result_text(result) != answer:
            return "a list is its length, then its items in ascending order, each once"
        return None
    if operation.workload is None:
        return None if answer == b"ok" else "it must be 'ok'"
    wanted = capabilities - {"internals"} if operation.line.startswith(b"state") else frozenset({"internals"})
    try:
        seen = read_look((answer,), wanted, len(operation.workload.requests))
    except ValueError:
        return "it must be the counters and lists of PROTOCOL.md, for what was announced"
    if operation.shown is not None and seen != operation.shown:
        return f"a fresh manager of {operation.workload.capacity} embeds has all of them free and lists no inputs"
    return None


_FORMS: dict[type[Call], str] = {
    Check: "0 or 1",
    CanAllocate: "0 or 1",
    Allocate: "'ok'",
    FreeInput: "'ok'",
    FreeRequest: "'ok'",
    Reset: "'ok'",
    CachedIds: "a list of input ids",
    Drain: "a list of hashes",
}


def _pipelined(process: DriverProcess, asked: Sequence[_Op], answers: Sequence[bytes]) -> Iterator[Fault]:
    """The same again in one write: managers and requests are replaced, so every answer must be the same."""
    again = process.exchange(b"".join([operation.line for operation in asked[1:]]), len(asked) - 1).split(b"\n")
    for number, (operation, first, second) in enumerate(zip(asked[1:], answers[1:], again, strict=False), start=2):
        if first != second:
            sentence = f"it answered {first.decode(errors='backslashreplace')!r} before, to the same operations"
            yield _fault(number, operation, second, sentence)
            return


def _fault(number: int, operation: _Op, answer: bytes | None, sentence: str) -> Fault:
    shown = None if answer is None else answer.decode(errors="backslashreplace")
    return Fault(number, operation.line.decode().rstrip("\n"), shown, sentence)
