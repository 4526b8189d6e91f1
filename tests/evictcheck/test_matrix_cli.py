"""`evictcheck matrix`: what it says, what it writes, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.operations import decode_trace
from properties.invariants import MANAGER_PROPERTIES
from properties.matrix import matrix

Run = Callable[..., Any]

SMALL = ("--scope", "2r2i2h/sizes=1/capacity=2", "--discipline", "open", "--jobs", "1")
ALL_THREE = ("--releases", "0.26.0,0.28.0,0.33.0")


def test_a_row_a_release_and_a_trace_for_each_violated_cell(run: Run, tmp_path: Path) -> None:
    ended = run("matrix", *ALL_THREE, *SMALL, "--markdown", "m.md", "--json", "m.json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("vLLM, open discipline, 2r2i2h/sizes=1/capacity=2")
    assert "1 freed-disjoint-cached, 2 evictable-unreferenced" in ended.out
    rows = [line.split() for line in ended.out.splitlines() if line.startswith("  0.")]
    assert [row[0] for row in rows] == ["0.26.0", "0.28.0", "0.33.0"]
    assert rows[0][1:5] == ["X", "5", "X", "2"]
    assert rows[2][1:] == ["+"] * len(MANAGER_PROPERTIES)
    traces = {path.name for path in (tmp_path / "evictcheck-out").glob("*.trace.json")}
    assert traces == {
        "vllm-0-26-0-open-evictable-unreferenced.trace.json",
        "vllm-0-26-0-open-freed-disjoint-cached.trace.json",
        "vllm-0-28-0-open-evictable-unreferenced.trace.json",
    }
    for path in (tmp_path / "evictcheck-out").glob("*.trace.json"):
        decode_trace(path.read_bytes(), path.name)


def test_the_same_as_markdown_and_json(run: Run, tmp_path: Path) -> None:
    run("matrix", *ALL_THREE, *SMALL, "--markdown", "m.md", "--json", "m.json")
    head, rule, *rows = (tmp_path / "m.md").read_text().splitlines()
    assert head == "| release | " + " | ".join(f"`{one.name}`" for one in MANAGER_PROPERTIES) + " |"
    assert rule == "|" + " --- |" * (1 + len(MANAGER_PROPERTIES))
    assert rows[0].startswith("| 0.26.0 | violated (5) | violated (2) | holds | ")
    found = json.loads((tmp_path / "m.json").read_text())
    assert set(found) == {"format", "scope", "discipline", "releases"}
    assert found["format"] == "evictcheck-matrix/1"
    assert [one["release"] for one in found["releases"]] == ["0.26.0", "0.28.0", "0.33.0"]
    assert found["releases"][1]["verdicts"][:2] == [
        {"property": "freed-disjoint-cached", "verdict": "holds", "length": None},
        {"property": "evictable-unreferenced", "verdict": "violated", "length": 2},
    ]


def test_neighbours_with_equal_verdicts_share_a_row(run: Run) -> None:
    ended = run("matrix", "--releases", "0.29.0,0.32.0,0.33.0", *SMALL)
    assert "0.29.0 - 0.33.0 (3)" in ended.out


@pytest.mark.parametrize(
    ("releases", "reason"),
    [("0.9.0", "vLLM 0.9.0 is older than 0.10.2"), ("0.33.0,99.0.0", "vLLM 99.0.0 is not published")],
)
def test_2_for_a_release_that_cannot_be_had(run: Run, releases: str, reason: str) -> None:
    ended = run("matrix", "--releases", releases, *SMALL)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"evictcheck: {reason}")


def test_3_when_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "evictcheck.matrix.matrix", lambda releases, *rest, **named: matrix(releases[:1], *rest, **named)
    )
    ended = run("matrix", *ALL_THREE, *SMALL)
    assert ended.code == 3
    assert ended.out.endswith("stopped early: 2 releases were not reached\n")
