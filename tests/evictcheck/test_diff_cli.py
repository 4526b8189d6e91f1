"""`evictcheck diff`: what it says, what it writes, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.operations import decode_trace

Run = Callable[..., Any]

SMALL = ("--scope", "2r2i2h/sizes=1/capacity=2", "--discipline", "open", "--jobs", "1")
TINY = ("--scope", "1r2i1h/sizes=1/capacity=1", "--discipline", "open", "--jobs", "1")


def test_0_equivalent(run: Run, tmp_path: Path) -> None:
    ended = run("diff", "port", "vllm:0.33.0", *TINY, "--json", "d.json")
    assert (ended.code, ended.err) == (0, "")
    first, last = ended.out.splitlines()
    assert first == (
        "A is port, B is vllm:0.33.0; compared: answers, counters, entries, queue and pending reports"
    )
    found = json.loads((tmp_path / "d.json").read_text())
    assert last == (
        f"equivalent: no difference in all {found['transitions']} transitions of 1r2i1h/sizes=1/capacity=1, open "
        f"discipline"
    )
    assert set(found) == {
        "format",
        "first",
        "second",
        "up_to",
        "scope",
        "complete",
        "workloads",
        "states",
        "transitions",
        "calls",
        "unreduced",
        "situations",
        "too_large",
        "differences",
    }
    assert (found["format"], found["first"], found["second"]) == ("evictcheck-diff/1", "port", "vllm:0.33.0")
    assert (found["up_to"], found["differences"], found["complete"]) == ([], [], True)
    assert not (tmp_path / "evictcheck-out").exists()


def test_1_each_difference_in_words_with_its_trace(run: Run, tmp_path: Path) -> None:
    ended = run("diff", "vllm:0.26.0", "vllm:0.33.0", *SMALL, "--json", "d.json")
    assert ended.code == 1
    assert (
        "1. evictable-unreferenced: A has evictable [a], B has evictable []\nafter 2 calls; capacity 1; r1: a, a"
        in (ended.out)
    )
    assert "2. freed-disjoint-cached: A reports [a], B reports []\nafter 5 calls; " in ended.out
    assert "2 kinds of difference in " in ended.out
    differences = json.loads((tmp_path / "d.json").read_text())["differences"]
    assert [one["property"] for one in differences] == ["evictable-unreferenced", "freed-disjoint-cached"]
    for one in differences:
        (path,) = one["files"]
        trace, note = decode_trace((tmp_path / path).read_bytes(), path)
        assert len(trace) == one["length"]
        assert note.startswith(f"{one['property']}: A ")


def test_up_to_leaves_out_what_is_known(run: Run, tmp_path: Path) -> None:
    both = "evictable-unreferenced,freed-disjoint-cached"
    ended = run("diff", "vllm:0.26.0", "vllm:0.33.0", *SMALL, "--up-to", both, "--json", "d.json")
    assert ended.code == 0
    assert "equivalent, up to evictable-unreferenced, freed-disjoint-cached: no difference in all " in ended.out
    assert json.loads((tmp_path / "d.json").read_text())["up_to"] == both.split(",")
    one = run("diff", "vllm:0.26.0", "vllm:0.33.0", *SMALL, "--up-to", "freed-disjoint-cached")
    assert one.code == 1
    assert "one kind of difference in " in one.out
    assert ", up to freed-disjoint-cached; a branch ends where the two part" in one.out.replace("\n", " ")


def test_2_for_a_property_that_there_is_not(run: Run) -> None:
    ended = run("diff", "port", "port", "--up-to", "freed-disjoint-cached,nonsense")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(
        "evictcheck: there is no property 'nonsense'; the properties are freed-disjoint-cached, "
    )


def test_2_for_a_target_that_there_is_not(run: Run) -> None:
    ended = run("diff", "port", "nonsense")
    assert ended.code == 2
    assert ended.err.startswith("evictcheck: 'nonsense' names no target; a target is one of: port, ")


def test_3_when_time_is_up(run: Run) -> None:
    ended = run("diff", "port", "vllm:0.33.0", *TINY, "--seconds", 0)
    assert ended.code == 3
    assert "stopped early, so what was not compared is unknown" in " ".join(ended.out.split())
    assert "equivalent" not in ended.out


@pytest.mark.parametrize("discipline", ["caller", "open"])
def test_both_disciplines(run: Run, discipline: str) -> None:
    ended = run("diff", "vllm:0.28.0", "vllm:0.29.0", "--scope", TINY[1], "--discipline", discipline, "--jobs", 1)
    assert ended.code == 1
    assert f"after {'3 steps' if discipline == 'caller' else '2 calls'}; " in ended.out
