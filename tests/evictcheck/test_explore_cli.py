"""`evictcheck explore`: what it says, what it writes, and how it ends."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.operations import Discipline
from properties import checkpoint, exploration
from properties.scopes import parse_scope, workload_classes

Run = Callable[..., Any]

SMALL = ("--scope", "2r1i2h/sizes=1/capacity=1", "--discipline", "open", "--jobs", "1")


def test_0_with_all_that_was_covered(run: Run, tmp_path: Path) -> None:
    ended = run("explore", "port", *SMALL, "--json", "found.json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("port, open discipline, 2r1i2h/sizes=1/capacity=1 ")
    for words in (
        "workloads",
        "up to renaming",
        "without renaming",
        "reached: readmitted-before-drain",
        "peak memory of a process",
        "positions that fit in one",
    ):
        assert words in ended.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {
        "format",
        "target",
        "discipline",
        "scope",
        "complete",
        "workloads",
        "states",
        "transitions",
        "calls",
        "unreduced",
        "situations",
        "too_large",
        "counterexamples",
    }
    assert found["format"] == "evictcheck-explore/1"
    assert (found["target"], found["discipline"], found["complete"]) == ("port", "open", True)
    assert set(found["unreduced"]) == {"workloads", "states", "transitions"}
    assert found["unreduced"]["workloads"] == 4
    assert found["counterexamples"] == []


def test_1_with_the_counterexample_and_its_files(run: Run, tmp_path: Path) -> None:
    ended = run(
        "explore", "port:unfiltered-freed", "--scope", "2r1i2h/sizes=1/capacity=1", "--jobs", 1, "--json", "f"
    )
    assert ended.code == 1
    assert "1. freed-disjoint-cached" in ended.out
    (one,) = json.loads((tmp_path / "f").read_text())["counterexamples"]
    assert one["property"] == "freed-disjoint-cached"
    assert all((tmp_path / name).is_file() for name in one["files"])


def test_3_when_time_is_up(run: Run, tmp_path: Path) -> None:
    ended = run("explore", "port", *SMALL, "--seconds", 0, "--json", "found.json")
    assert ended.code == 3
    assert "2r1i2h/sizes=1/capacity=1 (partial)" in ended.out
    assert ended.out.endswith("partial: what was not covered is unknown\n")
    assert json.loads((tmp_path / "found.json").read_text())["complete"] is False


def test_3_when_memory_does_not_suffice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploration, "positions_that_fit", lambda: 5)
    ended = run("explore", "port", *SMALL, "--seconds", 60)
    assert ended.code == 3
    said = " ".join(ended.out.split())
    assert " workloads have more than the " in said
    assert "and were given up half way partial: what was not covered is unknown" in said


def test_the_numbers_are_the_same_with_two_processes(run: Run, tmp_path: Path) -> None:
    for jobs in (1, 2):
        run("explore", "port", "--scope", "2r2i2h/sizes=1/capacity=1", "--jobs", jobs, "--json", f"{jobs}.json")
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_a_scope_that_takes_hours_is_refused_with_an_estimate(run: Run) -> None:
    began = time.monotonic()
    ended = run("explore", "port", "--scope", "3r3i3h/sizes=1..2")
    assert time.monotonic() - began < 30
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("evictcheck: 3r3i3h has ")
    assert " hours of one core in all. Narrow the scope (sizes=1, capacity=2), or say how long" in ended.err


def test_a_scope_with_countless_workloads_is_refused(run: Run) -> None:
    ended = run("explore", "port", "--scope", "6r4i6h", "--seconds", 5)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("evictcheck: scope 6r4i6h has up to 426,085,688,844,541,440 workloads")


# --- Checkpoints ------------------------------------------------------------------------------------------


def test_another_run_goes_on_and_says_what_it_skips(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = ("--scope", "2r2i2h/sizes=1/capacity=1", "--discipline", "open", "--jobs", 1)
    total = len(workload_classes(parse_scope(scope[1]), Discipline.OPEN))
    assert run("explore", "port", *scope, "--seconds", 0, "--checkpoint", "c").code == 3
    whole = run("explore", "port", *scope, "--checkpoint", "c", "--json", "whole.json")
    assert "skipped" not in whole.out
    again = run("explore", "port", *scope, "--checkpoint", "c", "--json", "again.json")
    assert again.out.startswith(f"{total} workloads were covered by an earlier run (c) and are skipped\n")
    assert (tmp_path / "whole.json").read_bytes() == (tmp_path / "again.json").read_bytes()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b'{"format": "evictcheck-che', "c is truncated or not a checkpoint: "),
        (b"{}", f"c is not a checkpoint of this version ({checkpoint.CHECKPOINT_FORMAT}): "),
    ],
)
def test_2_for_a_checkpoint_that_is_none(run: Run, tmp_path: Path, data: bytes, sentence: str) -> None:
    (tmp_path / "c").write_bytes(data)
    ended = run("explore", "port", *SMALL, "--checkpoint", "c")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"evictcheck: {sentence}")
    assert (tmp_path / "c").read_bytes() == data


def test_2_for_a_checkpoint_of_another_run(run: Run) -> None:
    assert run("explore", "port", *SMALL, "--checkpoint", "c").code == 0
    ended = run("explore", "port:early-evictable", *SMALL, "--checkpoint", "c")
    assert ended.code == 2
    assert ended.err == (
        "evictcheck: c is of another run: its target is port, this run's is port:early-evictable; "
        "name another file\n"
    )


# --- Clusters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "reason"), [("tcp://127.0.0.1:9", "Timed out"), ("nonsense", "missing port number")]
)
def test_2_for_a_cluster_that_is_not_there(run: Run, address: str, reason: str) -> None:
    began = time.monotonic()
    ended = run("explore", "port", *SMALL, "--cluster", address)
    assert time.monotonic() - began < 30
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.splitlines()[-1]
    assert last.startswith(f"evictcheck: there is no Dask scheduler at {address}: {reason}")


def test_2_where_dask_is_not_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    ended = run("explore", "port", *SMALL, "--cluster", "tcp://127.0.0.1:9")
    assert (ended.code, ended.err) == (2, "evictcheck: --cluster needs Dask: install evictcheck[cluster]\n")


@pytest.mark.parametrize("option", ["--json", "--checkpoint"])
def test_2_before_a_long_run_for_a_file_that_cannot_be_written(run: Run, option: str) -> None:
    ended = run("explore", "port", *SMALL, option, "nowhere/file")
    assert ended.code == 2
    assert ended.err == "evictcheck: nowhere/file cannot be written: there is no folder nowhere\n"
