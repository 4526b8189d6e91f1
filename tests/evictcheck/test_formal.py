"""`evictcheck search` and `evictcheck prove` as a person meets them: exit codes, sentences, files."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from evictcheck import formal
from evictcheck.formal import prove_command, search_command
from model.errors import EvictcheckError
from model.operations import decode_trace
from properties.induction import Level, Outcome, Proof, obligations

app = typer.Typer()
app.command(name="search")(search_command)
app.command(name="prove")(prove_command)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_search_shows_a_trace_writes_its_files_and_exits_with_1(tmp_path: Path) -> None:
    json_file, out = tmp_path / "search.json", tmp_path / "out"
    result = run(
        *("search", "--without", "report-only-absent", "--property", "freed-disjoint-cached"),
        *("--discipline", "open", "--out", str(out), "--json", str(json_file)),
    )
    assert result.exit_code == 1, result.output
    assert "violated in 5 calls, the fewest; replayed on port:unfiltered-freed" in result.output
    assert "lemmas, decided anew at each depth" in result.output
    document = json.loads(json_file.read_text())
    assert document["format"] == "evictcheck-search/1"
    assert document["without"] == ["report-only-absent"]
    assert [one["length"] for one in document["verdicts"]] == [5]
    written = [path for one in document["counterexamples"] for path in one["files"]]
    trace_file = next(path for path in written if path.endswith(".trace.json"))
    assert len(decode_trace(Path(trace_file).read_bytes(), trace_file)[0]) == 5


def test_search_with_both_mends_says_how_far_and_exits_with_0(tmp_path: Path) -> None:
    result = run("search", "--depth", "3", "--scope", "1r2i2h", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "none up to depth 3 at scope 1r2i2h" in result.output


def test_search_out_of_time_exits_with_3(tmp_path: Path) -> None:
    result = run("search", "--depth", "3", "--seconds", "0", "--out", str(tmp_path))
    assert result.exit_code == 3, result.output
    assert "unknown: no answer within 0 s; none up to depth 0" in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("search", "--property", "no-such"), "'no-such' is not a property that z3 decides"),
        (("search", "--scope", "0r1i1h"), "has no requests"),
        (("search", "--depth", "0"), "a depth of 0 steps searches nothing"),
        (("search", "--without", "luck"), "--without luck: there is no such mend"),
        (("search", "--replay", "nonsense"), "names no target"),
        (("prove", "--depth", "0"), "a depth of 0 steps searches nothing"),
        (("prove", "--without", "luck"), "the mends are hold-until-last-occurrence, report-only-absent"),
        (("prove", "--scope", "1r0i1h"), "has no inputs"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, EvictcheckError)
    assert sentence in str(result.exception)


def test_prove_shows_a_line_an_obligation_and_writes_each_one(tmp_path: Path) -> None:
    smt2, json_file = tmp_path / "smt2", tmp_path / "prove.json"
    result = run("prove", "--scope", "1r2i2h", "--depth", "2", "--smt2", str(smt2), "--json", str(json_file))
    assert result.exit_code == 0, result.output
    everything = [*obligations(Level.UNBOUNDED), *obligations(Level.SCOPE)]
    assert sum(line.startswith("proved ") for line in result.output.splitlines()) == len(everything)
    assert {path.stem for path in smt2.iterdir()} == {one.name for one in everything}
    document = json.loads(json_file.read_text())
    assert {one["verdict"] for one in document["obligations"]} == {"proved"}
    assert document["situations"]["open"]["refused-by-budget"]["length"] == 1


def test_prove_without_a_mend_says_what_goes_wrong_and_exits_with_1(tmp_path: Path) -> None:
    result = run("prove", "--without", "hold-until-last-occurrence", "--scope", "1r2i2h", "--out", str(tmp_path))
    assert result.exit_code == 1, result.output
    assert "still holds" in result.output
    assert "reached, by a trace of length 3" in result.output
    failed = [line.split() for line in result.output.splitlines() if line.startswith("failed")]
    assert {words[3] for words in failed} == {"free_encoder_input", "processed"}


def test_prove_undecided_exits_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Out of time for every question would start a process for every question: one is enough.
    obligation = obligations(Level.UNBOUNDED)[0]
    undecided = Proof(obligation, Outcome.UNKNOWN, 0.0, reason="no answer within 1 s")
    monkeypatch.setattr(formal, "prove", lambda *_, **__: (undecided,))
    result = run("prove", "--scope", "1r1i1h", "--depth", "1", "--out", str(tmp_path))
    assert result.exit_code == 3, result.output
    assert "0 of 1 obligations proved" in result.output


def test_more_seconds_than_a_clock_can_take_are_refused() -> None:
    for command in ("search", "prove"):
        result = run(command, "--seconds", "1e300")
        assert result.exit_code == 2
        assert "--seconds" in result.stderr
