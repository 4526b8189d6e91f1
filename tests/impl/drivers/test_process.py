"""Drivers that misbehave: each is a violation with its reason, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from impl.drivers.client import DriverTarget
from impl.errors import NoAnswerError, TargetError
from model.operations import Check, Discipline, Drain, Step, Trace
from model.workload import Item, Request, Workload
from properties.counterexample import replay
from properties.lockstep import Lockstep

DRIVER = Path(__file__).parents[1] / "misbehaving" / "driver.py"
WORKLOAD = Workload(2, (Request("r1", (Item("a", 1),)),), 2)


def trace(*calls: Check | Drain) -> Trace:
    return Trace(WORKLOAD, Discipline.OPEN, tuple(Step((call,)) for call in calls))


BREAKING = trace(Drain(), Check("r1", 0))
HARMLESS = trace(Drain(), Drain())

WHAT_THE_USER_SEES = {
    "segfault": "the driver was killed by SIGSEGV",
    "exit": "the driver exited with status 3",
    "last-words": "it said: assertion failed: free >= 0",
    "hang": "the driver did not answer within 0.5 s",
    "spin": "the driver did not answer within 0.5 s",
    "nonsense": "the driver answered 'maybe' to 'check r1 0'",
    "not-text": r"the driver answered '\\\\xff\\\\xfe' to 'check r1 0'",
    # Whether the line too many comes with the next answer or before it is a matter of time.
    "too-many": "the driver (wrote more than it was asked for|answered '0' to 'state r1')",
    "half-a-line": "the driver did not answer within 0.5 s",
    "flood-of-lines": "the driver (wrote more than it was asked for|answered '0' to 'state r1')",
    "flood-of-one-line": "the driver wrote a line of more than 1048576 bytes",
    "flood-of-stderr": "the driver did not answer within 0.5 s",
    "closes-output": "the driver closed its standard output",
    "closes-input": "the driver did not answer within 0.5 s",
    "closes-all": "the driver closed its standard output",
    "ignores-termination": "the driver did not answer within 0.5 s",
    "leaves-children": "the driver exited with status 0",
    "leaves-daemons": "the driver exited with status 0",
}


def processes() -> set[int]:
    """All that a driver of these tests is or has started: its mark is inherited."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"EVICTCHECK_DRIVER_TEST=here" in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    until = time.monotonic() + 5
    while processes() and time.monotonic() < until:
        time.sleep(0.01)
    assert not processes()


def target(fault: str, timeout: float = 0.5) -> DriverTarget:
    environment = {"EVICTCHECK_DRIVER_TEST": "here"}
    return DriverTarget(
        f"cmd:{fault}", (sys.executable, str(DRIVER), fault), timeout=timeout, environment=environment
    )


@pytest.mark.parametrize("fault", WHAT_THE_USER_SEES)
def test_a_driver_that_misbehaves_breaks_no_crash(fault: str) -> None:
    judged = target(fault)
    for _ in range(2):
        violation = replay(BREAKING, judged)
        assert violation is not None
        assert violation.property == "no-crash"
        assert violation.call_index == 1
        assert re.search(WHAT_THE_USER_SEES[fault], violation.observed), violation.observed
        assert "> check r1 0" in violation.observed, "the last lines exchanged are shown"
        assert replay(HARMLESS, judged) is None, "the next session gets a new process"
    judged.close()


@pytest.mark.parametrize("fault", ["leaves-children", "leaves-daemons", "ignores-termination"])
def test_children_end_with_the_violation_and_not_with_the_target(fault: str) -> None:
    judged = target(fault)
    assert len(processes()) == 1
    assert replay(BREAKING, judged) is not None
    until = time.monotonic() + 5
    while processes() and time.monotonic() < until:
        time.sleep(0.01)
    assert not processes()


def test_a_line_that_nobody_asked_for_is_noticed_before_the_next_call() -> None:
    with pytest.raises((TargetError, NoAnswerError), match="asked for"):  # noqa: PT012 - it may come early
        session = target("late-line").start(WORKLOAD)
        time.sleep(0.5)
        session.call(Drain())


def test_a_process_ends_with_its_target() -> None:
    judged = target("hang")
    assert replay(HARMLESS, judged) is None
    assert len(processes()) == 1
    del judged
    assert not processes()


def test_a_process_ends_with_this_one(tmp_path: Path) -> None:
    """Killed without a chance to clean up, this side closes the pipes, and the driver's input ends."""
    script = tmp_path / "judge.py"
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {str(Path.cwd())!r})\n"
        "from impl.drivers.client import DriverTarget\n"
        f"target = DriverTarget('cmd:x', ({sys.executable!r}, {str(DRIVER)!r}, 'hang'), "
        "environment={'EVICTCHECK_DRIVER_TEST': 'here'})\n"
        "print('ready', flush=True)\ntime.sleep(600)\n",
        "utf-8",
    )
    judge = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert judge.stdout is not None
    assert judge.stdout.readline() == b"ready\n"
    assert len(processes()) == 1
    os.kill(judge.pid, signal.SIGKILL)
    judge.wait()
    judge.stdout.close()


def test_a_program_that_does_not_exist_is_a_sentence() -> None:
    with pytest.raises(TargetError, match=r"'no-such-program' cannot be started: .*\.$"):
        DriverTarget("cmd:no-such-program", ("no-such-program",))


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ("print('hello 2')", "it answered 'hello 2' to 'hello 1', not 'hello 1' and its capabilities"),
        ("print('hello 1 wings')", "it announced 'wings', which is none of counters, ids, reset, internals"),
        ("print('hello 1 internals')", "it announced internals without counters"),
        ("print('error no manager here')", "cmd:x: no manager here."),
        ("raise SystemExit(4)", "the driver exited with status 4"),
        ("sys.stdout.write('welcome\\nhello 1\\n')", "the driver wrote more than it was asked for"),
    ],
)
def test_a_program_that_does_not_speak_the_protocol_is_a_sentence(says: str, sentence: str) -> None:
    with pytest.raises(TargetError) as error:
        DriverTarget("cmd:x", (sys.executable, "-c", f"import sys; input(); {says}; sys.stdout.flush(); input()"))
    assert sentence in str(error.value)


def test_a_fork_outlives_the_process_that_its_twin_has_killed() -> None:
    judge = Lockstep(target("segfault"), WORKLOAD)
    assert judge.apply(Drain()) is None
    twin = judge.fork()
    assert judge.apply(Check("r1", 0)) is not None
    assert twin.apply(Drain()) is None
    assert twin.in_accord


def test_a_program_that_says_nothing_is_a_sentence() -> None:
    with pytest.raises(TargetError, match="does not speak the driver protocol: the driver did not answer within"):
        DriverTarget("cmd:x", (sys.executable, "-c", "import time; time.sleep(600)"), timeout=0.1, starting=0.1)


def test_an_interruption_ends_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would be taken for that of the next call."""
    judged = target("hang", timeout=60)
    session = judged.start(WORKLOAD)
    monkeypatch.setattr("impl.drivers.process.monotonic", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.call(Check("r1", 0))
    assert not processes()


def interrupt() -> float:
    raise KeyboardInterrupt
