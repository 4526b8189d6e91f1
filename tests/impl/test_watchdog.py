"""Calls of this process that hang are interrupted and reported."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from impl.inprocess import python_target
from impl.port import PortManager
from impl.watchdog import WATCHDOG
from model.manager import ManagedRequest
from model.operations import CanAllocate, Check, Discipline, Step, Trace
from model.workload import Item, Request, Workload
from properties.counterexample import replay

WORKLOAD = Workload(1, (Request("r1", (Item("a", 1),)),), 1)
TRACE = Trace(WORKLOAD, Discipline.OPEN, (Step((Check("r1", 0),)), Step((CanAllocate("r1", 0, 1, 0),))))


class Spins(PortManager):
    def can_allocate(
        self, request: ManagedRequest, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        while True:
            pass


class SpinsWhereExceptionsAreSwallowed(PortManager):
    def can_allocate(
        self, request: ManagedRequest, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        while True:
            try:
                time.sleep(0.001)
            except Exception:  # noqa: BLE001, S112 - a manager may
                continue


class SpinsInCounters(PortManager):
    asked = 0

    def get_cached_input_ids(self, request: ManagedRequest) -> set[int]:
        self.asked += 1
        while self.asked > 2:
            pass
        return set()


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    WATCHDOG.stop()
    WATCHDOG.start(0.1)
    yield
    WATCHDOG.stop()


@pytest.mark.parametrize("manager_class", [Spins, SpinsWhereExceptionsAreSwallowed, SpinsInCounters])
def test_a_call_that_hangs_breaks_no_crash(manager_class: type[PortManager]) -> None:
    began = time.monotonic()
    violation = replay(TRACE, python_target("spins", manager_class))
    assert violation is not None
    assert violation.property == "no-crash"
    assert violation.call_index == 1
    assert violation.observed == "it did not answer within 0.1 s"
    assert time.monotonic() - began < 5


def test_many_calls_that_take_long_together_are_not_interrupted() -> None:
    target = python_target("port", PortManager)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        assert replay(TRACE, target) is None


def test_what_hangs_outside_of_a_call_is_nobodys_business() -> None:
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        pass


def test_a_handler_of_somebody_else_is_left_alone() -> None:
    WATCHDOG.stop()
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    try:
        WATCHDOG.start()
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
        WATCHDOG.stop()
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_another_thread_is_not_guarded_and_not_broken() -> None:
    WATCHDOG.stop()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(replay(TRACE, python_target("port", PortManager))))
    thread.start()
    thread.join()
    assert seen == [None]
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_the_end_of_the_interpreter_is_not_mistaken_for_a_hang() -> None:
    # Ticks so dense that one comes while the interpreter takes itself apart.
    code = "from impl.watchdog import WATCHDOG; WATCHDOG.start(0.001)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
