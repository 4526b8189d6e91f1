"""Exploration side by side: the same results however it is spread, and whatever is killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path

import pytest
from distributed import Client
from msgspec.structs import replace

from evictcheck import cli
from impl.inprocess import PythonTarget, python_target
from impl.port import PortManager
from impl.targets import resolve
from model.operations import Discipline
from properties import exploration
from properties.exploration import Exploration, LocalProcesses, cover, explore, explore_classes
from properties.scopes import parse_scope, workload_classes

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN
PORT = python_target("port", PortManager)
SMALL = parse_scope("2r2i2h/sizes=1/capacity=1..2")


def untimed(found: Exploration) -> Exploration:
    return replace(found, seconds=0.0)


@contextmanager
def processes(jobs: int) -> Iterator[Executor]:
    with LocalProcesses(jobs) as executor:
        yield executor


@contextmanager
def threads(jobs: int) -> Iterator[Executor]:
    with ThreadPoolExecutor(jobs) as executor:
        yield executor


@pytest.mark.parametrize("name", ["port", "port:early-evictable", "vllm:0.26.0"])
@pytest.mark.parametrize("discipline", Discipline)
def test_results_do_not_depend_on_how_many_explore(name: str, discipline: Discipline) -> None:
    target = resolve(name)
    scope = parse_scope("2r2i2h/sizes=1/capacity=1")
    alone = untimed(explore(target, scope, discipline))
    assert alone.complete
    for executor in (processes(1), processes(2), threads(3)):
        with executor as given:
            assert untimed(explore(target, scope, discipline, executor=given)) == alone


def test_the_default_scope_is_the_same_with_two() -> None:
    scope = parse_scope("2r2i3h/sizes=1/capacity=2")
    with LocalProcesses(2) as executor:
        assert untimed(explore(PORT, scope, OPEN, executor=executor)) == untimed(explore(PORT, scope, OPEN))


def test_a_limit_in_time_holds_over_there_too() -> None:
    with LocalProcesses(2) as executor:
        found = explore(PORT, SMALL, OPEN, deadline=time.time() - 1, executor=executor)
    assert (found.complete, found.workloads) == (False, 0)


# --- Interrupts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [None, 2])
def test_an_interrupt_keeps_what_is_done(jobs: int | None) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    if jobs is None:
        found = explore(PORT, SMALL, OPEN, progress=interrupt)
        first = workload_classes(SMALL, OPEN)[:3]
        alone = explore_classes(PORT, first, OPEN, name=str(SMALL))
        assert untimed(found) == replace(untimed(alone), complete=False)
    else:
        with LocalProcesses(jobs) as executor:
            found = explore(PORT, SMALL, OPEN, progress=interrupt, executor=executor)
        assert (found.complete, found.workloads) == (False, 3)
        assert found.transitions > 0


# --- Killed processes -------------------------------------------------------------------------------------


MANY = parse_scope("2r2i3h/sizes=1..2/capacity=1..2")


def kill_one_child() -> None:
    """As the kernel does when memory runs out."""
    for worker in active_children()[:1]:
        worker.kill()


def test_a_process_that_is_killed_loses_nothing() -> None:
    killed: list[int] = []

    def kill_once(done: int, total: int) -> None:
        if not killed:
            killed.append(done)
            kill_one_child()

    alone = untimed(explore(PORT, MANY, OPEN))
    with LocalProcesses(2) as executor:
        found = untimed(explore(PORT, MANY, OPEN, progress=kill_once, executor=executor))
    assert killed
    assert found == alone


def test_processes_that_are_killed_again_and_again_end_in_a_sentence() -> None:
    with LocalProcesses(2) as executor:
        found = explore(PORT, MANY, OPEN, progress=lambda done, total: kill_one_child(), executor=executor)
    assert not found.complete
    assert 0 < found.workloads < len(workload_classes(MANY, OPEN))
    assert found.trouble == (
        "a process was killed 3 times, as a machine does when memory runs out; with fewer --jobs or a smaller "
        "scope it need not be"
    )


# --- Memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", Discipline)
def test_what_does_not_fit_is_partial_and_never_holds(
    discipline: Discipline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exploration, "positions_that_fit", lambda: 40)
    scope = parse_scope("2r1i2h/sizes=1/capacity=1..2")
    found = explore(PORT, scope, discipline)
    whole = [cover(PORT, one.workload, discipline) for one in workload_classes(scope, discipline)]
    assert found.too_large == sum(one.too_large for one in whole) > 0
    assert not found.complete
    assert found.workloads + found.too_large == len(whole)
    for one in whole:
        assert one.complete is not one.too_large


def test_a_workload_that_just_fits_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    (world,) = workload_classes(parse_scope("1r1i1h/sizes=1/capacity=1"), OPEN)
    monkeypatch.setattr(exploration, "positions_that_fit", lambda: 3)
    found = cover(PORT, world.workload, OPEN)
    assert (found.complete, found.too_large, found.states) == (True, False, 3)
    monkeypatch.setattr(exploration, "positions_that_fit", lambda: 1)
    assert cover(PORT, world.workload, OPEN).too_large


def test_some_positions_fit_on_this_machine() -> None:
    assert exploration.positions_that_fit() > 10_000


# --- A cluster --------------------------------------------------------------------------------------------


class Cluster:
    """A real scheduler and two workers, each a process of its own, on this machine."""

    def __init__(self, folder: Path) -> None:
        said = self._said = folder / "scheduler.json"
        self._folder = folder
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._environment = environment
        self._scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(said)
        )
        deadline = time.time() + 60
        while not said.exists() and time.time() < deadline:
            time.sleep(0.1)
        self.workers = [
            self._start(
                "worker",
                "--scheduler-file",
                str(said),
                "--nthreads",
                "1",
                "--no-nanny",
                "--no-dashboard",
                "--local-directory",
                str(folder),
            )
            for _ in range(2)
        ]
        self.client = Client(scheduler_file=str(said), timeout=60)  # type: ignore[no-untyped-call]
        self.client.wait_for_workers(2, timeout=60)

    @property
    def address(self) -> str:
        return str(json.loads(self._said.read_text())["address"])

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def kill_a_worker(self) -> None:
        self.workers[0].kill()
        self.workers[0].wait()

    def close(self) -> None:
        self.client.close()  # type: ignore[no-untyped-call]
        # Nothing is asked of them any more, and a loaded machine can keep a polite end waiting.
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path)
    yield running
    running.close()


def test_a_cluster_that_loses_a_worker_half_way_gives_the_same_numbers(
    cluster: Cluster,
    release: Callable[[str], PythonTarget],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = release("0.33.0")
    scope = parse_scope("2r2i3h/sizes=1..2/capacity=2")
    alone = untimed(explore(target, scope, OPEN))
    told: list[int] = []

    def kill_half_way(done: int, total: int) -> None:
        told.append(done)
        if done == total // 2:
            cluster.kill_a_worker()

    executor = cluster.client.get_executor()  # type: ignore[no-untyped-call]
    found = untimed(explore(target, scope, OPEN, executor=executor, progress=kill_half_way))
    assert cluster.workers[0].returncode == -signal.SIGKILL
    assert told == list(range(1, alone.workloads + 1))
    assert found == alone

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["evictcheck", "explore", "port", "--scope", "1r2i2h", "--cluster", cluster.address]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert "port, caller discipline, 1r2i2h" in capsys.readouterr().out
