"""`evictcheck vectors`: what it says, what it writes, and how it ends."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impl.defects import DEFECTS
from impl.targets import resolve
from properties.vectors import decode_vectors, run_vectors

Run = Callable[..., Any]

SCOPE = ("--scope", "2r1i2h/sizes=1/capacity=1")


def test_a_suite_is_made_and_its_strength_said(run: Run, tmp_path: Path) -> None:
    ended = run("vectors", *SCOPE, "-o", "suite.jsonl")
    assert (ended.code, ended.err) == (0, "")
    data = (tmp_path / "suite.jsonl").read_bytes()
    suite = decode_vectors(data, "suite.jsonl")
    assert ended.out.startswith(
        f"suite.jsonl: {len(suite.traces)} traces, {suite.calls} calls, {suite.transitions} transitions "
        f"({suite.calls / suite.transitions:.2f} calls each), {len(data):,} bytes\n"
    )
    rows = dict(re.findall(r"^  ([a-z-]+) +[a-z-]+ +(in call|no: shows)", ended.out, re.MULTILINE))
    assert set(rows) == {one.name for one in DEFECTS}
    for defect in DEFECTS:
        found, _ = run_vectors(suite, resolve(f"port:{defect.name}"))
        if rows[defect.name] == "in call":
            assert found is not None


def test_the_same_bytes_again(run: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run("vectors", *SCOPE, "-o", name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.fixture
def suite(run: Run, tmp_path: Path) -> Path:
    assert run("vectors", *SCOPE, "-o", "suite.jsonl").code == 0
    return tmp_path / "suite.jsonl"


def test_0_for_what_is_right(run: Run, suite: Path) -> None:
    for target in ("port", "vllm:0.33.0"):
        ended = run("vectors", "--run", "suite.jsonl", target)
        assert (ended.code, ended.err) == (0, "")
        assert re.fullmatch(rf"{target} passes suite.jsonl: \d+ traces of 2r1i2h/sizes=1/capacity=1\n", ended.out)


def test_1_for_what_is_wrong_with_a_short_counterexample(run: Run, suite: Path, tmp_path: Path) -> None:
    ended = run("vectors", "--run", "suite.jsonl", "port:unfiltered-freed")
    assert ended.code == 1
    assert re.match(r"port:unfiltered-freed fails suite\.jsonl \(vectors, trace \d+, call \d+\):\n", ended.out)
    assert "1. freed-disjoint-cached" in ended.out
    assert "5 calls, open discipline, found by vectors, trace " in ended.out.replace("\n", " ")
    assert list((tmp_path / "evictcheck-out").glob("*freed-disjoint-cached.trace.json"))


def test_a_release_without_reset_is_told_what_was_left_out(run: Run, suite: Path) -> None:
    ended = run("vectors", "--run", "suite.jsonl", "vllm:0.15.1")
    assert re.match(r"1 of \d+ traces reset the cache and were left out: no reset\n", ended.out)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data[:-20], "suite.jsonl is truncated: its line 5 is cut off"),
        (lambda data: b"\n".join(data.splitlines()[:-1]) + b"\n", "suite.jsonl is truncated: its header says "),
        (
            lambda data: data.replace(b"vectors/1", b"vectors/2"),
            "suite.jsonl is of format 'evictcheck-vectors/2'; ",
        ),
        (lambda data: data.replace(b"k10-", b"k10+", 1), "suite.jsonl, line 2: call 1 is 'k10+', and by the "),
        (lambda data: b"\x7fELF", "suite.jsonl is not a vectors file: "),
    ],
)
def test_2_for_a_file_that_is_none(run: Run, suite: Path, change: Callable[[bytes], bytes], sentence: str) -> None:
    suite.write_bytes(change(suite.read_bytes()))
    ended = run("vectors", "--run", "suite.jsonl", "port")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"evictcheck: {sentence}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "say where the suite goes (-o FILE), or run one (--run FILE TARGET)"),
        (("port", "-o", "file"), "say where the suite goes (-o FILE), or run one (--run FILE TARGET)"),
        (("--run", "file"), "--run FILE needs a TARGET to run it against"),
        (("--run", "nowhere", "port"), "nowhere cannot be read: No such file or directory"),
        (("-o", "nowhere/file"), "nowhere/file cannot be written: there is no folder nowhere"),
        (
            ("-o", "file", "--scope", "1r10i1h"),
            "1r10i1h: a vectors file numbers requests and inputs with single digits",
        ),
    ],
)
def test_2_for_a_question_that_is_none(run: Run, arguments: tuple[str, ...], sentence: str) -> None:
    ended = run("vectors", *arguments)
    assert (ended.code, ended.out, ended.err) == (2, "", f"evictcheck: {sentence}\n")
