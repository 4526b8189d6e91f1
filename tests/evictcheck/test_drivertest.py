"""The protocol checked from outside: right drivers pass, and each wrong answer is named with its line."""

import sys
from pathlib import Path

import pytest

from evictcheck.drivertest import check_driver, in_text
from impl.drivers import python
from impl.errors import TargetError

DRIVER = Path(python.__file__).with_name("python_driver.py")
COMMAND = (sys.executable, str(DRIVER), "impl.port:PortManager")

# Stands before the right driver and changes one kind of answer.
WRONG = """
import subprocess, sys
operation, right, wrong = sys.argv[1:4]
driver = subprocess.Popen(sys.argv[4:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in sys.stdin.buffer:
    driver.stdin.write(line)
    driver.stdin.flush()
    answer = driver.stdout.readline()
    if line.split()[0].decode() == operation and (right == '*' or answer.decode().strip() == right):
        answer = wrong.encode() + b'\\n'
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
"""


def wrong(operation: str, right: str, answer: str) -> tuple[str, ...]:
    return (sys.executable, "-c", WRONG, operation, right, answer, *COMMAND)


def test_the_python_driver_keeps_to_the_protocol() -> None:
    test = check_driver(COMMAND)
    assert not test.faults
    assert test.exit_code == 0
    assert in_text(test) == (
        f"{test.operations} operations answered as the protocol says; "
        "capabilities: counters, ids, internals, reset\n"
    )
    assert test.operations > 50


@pytest.mark.parametrize(
    ("operation", "right", "answer", "sentence"),
    [
        ("hello", "*", "hello 2", "not 'hello 1' and its capabilities"),
        ("request", "*", "done", "it must be 'ok'"),
        ("new", "*", "", "it must be 'ok'"),
        ("check", "*", "True", "it must be 0 or 1"),
        ("can_allocate", "1", "yes", "it must be 0 or 1"),
        ("allocate", "*", "1", "it must be 'ok'"),
        ("free_input", "*", "0", "it must be 'ok'"),
        ("free", "*", "0", "it must be 'ok'"),
        ("reset", "*", "0", "it must be 'ok'"),
        ("ids", "1 0", "0", None),
        ("ids", "1 0", "2 0", "it must be a list of input ids"),
        ("ids", "1 0", "2 0 0", "in ascending order, each once"),
        ("ids", "1 0", "1  0", "it must be a list of input ids"),
        ("drain", "*", "[]", "it must be a list of hashes"),
        ("drain", "*", "2 b a", "in ascending order, each once"),
        ("state", "*", "4 4", "it must be the counters and lists"),
        ("state", "4 4 0 0", "3 4 0 0", "a fresh manager of 4 embeds has all of them free"),
        ("state", "4 4 0 0", "4 4 1 0 0", "a fresh manager of 4 embeds has all of them free"),
        ("internals", "*", "0 0 0", "it must be the counters and lists"),
        ("check", "0", "error KeyError", "it reports a failure"),
    ],
)
def test_a_wrong_answer_is_named_with_its_line(
    operation: str, right: str, answer: str, sentence: str | None
) -> None:
    test = check_driver(wrong(operation, right, answer))
    if sentence is None:
        assert not test.faults, "what a manager answers is the judge's business, not the protocol's"
        return
    assert test.exit_code == 1
    fault = test.faults[0]
    assert fault.operation.split()[0] == operation
    assert fault.answer == answer
    assert sentence in fault.sentence
    assert f"line {fault.number}: {fault.operation!r}: answered {answer!r}: " in in_text(test)


def test_a_driver_that_dies_is_named_with_the_operation() -> None:
    test = check_driver((sys.executable, "-c", "print('hello 1', flush=True); input(); input()"))
    (fault,) = test.faults
    assert fault.operation.startswith("request ")
    assert fault.answer is None
    assert "exited with status 0" in fault.sentence


def test_a_driver_that_answers_in_another_order_when_pipelined_is_found() -> None:
    forgetful = "import sys\nseen = 0\nfor line in sys.stdin:\n    seen += 1\n"
    forgetful += "    word = line.split()[0]\n"
    forgetful += "    print({'hello': 'hello 1', 'drain': '0', 'check': int(seen > 30), 'can_allocate': '1'}"
    forgetful += ".get(word, 'ok'), flush=True)\n"
    test = check_driver((sys.executable, "-c", forgetful))
    (fault,) = test.faults
    assert fault.operation.startswith("check ")
    assert fault.sentence == "it answered '0' before, to the same operations"


def test_a_driver_that_outlives_its_input_is_found() -> None:
    deaf = "import subprocess, sys, time\n"
    deaf += f"driver = subprocess.Popen({list(COMMAND)!r}, stdin=0, stdout=1)\n"
    deaf += "driver.wait()\ntime.sleep(600)\n"
    test = check_driver((sys.executable, "-c", deaf), timeout=2)
    (fault,) = test.faults
    assert fault.sentence == "it did not end within 2 s of its input's end"


def test_a_program_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(TargetError, match="cannot be started"):
        check_driver(("no-such-program",))
