"""What a person reads, word for word."""

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from evictcheck.report import counterexample_table, present, report_json, show, verdict_table
from impl.inprocess import PythonTarget
from impl.target import Target
from impl.targets import resolve
from model.operations import Discipline
from properties.corpus import known_faults
from properties.counterexample import Counterexample, replay
from properties.exploration import Exploration
from properties.machines import Hunt
from properties.scopes import parse_scope
from properties.verdicts import Outcome, Question, Report, Verdict

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN

Release = Callable[[str], PythonTarget]


def plain(part: RenderableType) -> str:
    """As it goes into a pipe, without the blanks at the ends of lines."""
    console = Console(file=StringIO(), width=110, highlight=False)
    show(console, part)
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()).strip("\n") + "\n"


def known(name: str, target: Target) -> Counterexample:
    (fault,) = [one for discipline in Discipline for one in known_faults(discipline) if one.name == name]
    violation = replay(fault.trace, target)
    assert violation is not None
    return Counterexample(fault.trace, violation, target.name, "exhaustive")


# --- Counterexamples ----------------------------------------------------------------------------------------

EARLY_CALLER = """\
1. evictable-unreferenced: no evictable entry still has an occurrence held by a request
3 steps, caller discipline, found by exhaustive; capacity 1; r1: a, a

      step                          call                      on        answer   what changed
 ────────────────────────────────────────────────────────────────────────────────────────────────────────────
  1   r1 is admitted up to input    check_and_update_cache    r1[0] a   False
      1 and runs
  2                                 can_allocate (budget 1)   r1[0] a   True
  3                                 allocate                  r1[0] a            a cached (1 embed); r1[0]
                                                                                 holds a; 0 free
  4                                 check_and_update_cache    r1[1] a   True     r1[1] holds a
  5   the pass ends                 get_freed_mm_hashes                 {}
  6   input 0 of r1 is processed    get_cached_input_ids      r1        {0, 1}
 >7                                 free_encoder_input        r1[0] a            expected a not evictable:
                                                                                 input 1 of r1 still needs
                                                                                 it; observed a is in the
                                                                                 evictable queue
"""

UNFILTERED_OPEN = """\
2. freed-disjoint-cached: a freed report never names a hash that is cached at that moment
5 calls, open discipline, found by exhaustive; capacity 1; r1: a; r2: b

      call                      on        answer   what changed
 ────────────────────────────────────────────────────────────────────────────────────────────────────────────
  1   allocate                  r1[0] a            a cached (1 embed); r1[0] holds a; 0 free
  2   free_encoder_input        r1[0] a            r1[0] lets go; a evictable
  3   can_allocate (budget 1)   r2[0] b   True     a evicted; 1 free
  4   allocate                  r1[0] a            a cached (1 embed); r1[0] holds a; 0 free
 >5   get_freed_mm_hashes                          expected a report without a, which is cached again;
                                                   observed the report names a
"""


@pytest.mark.parametrize(
    ("number", "name", "text"),
    [(1, "early-evictable-caller", EARLY_CALLER), (2, "unfiltered-freed-open", UNFILTERED_OPEN)],
)
def test_a_counterexample_is_a_table(release: Release, number: int, name: str, text: str) -> None:
    target = release("0.26.0")
    assert plain(counterexample_table(number, known(name, target), target)) == text


@pytest.mark.parametrize("width", [80, 100, 200])
def test_names_are_never_broken_however_narrow(release: Release, width: int) -> None:
    target = release("0.26.0")
    console = Console(file=StringIO(), width=width, highlight=False)
    console.print(counterexample_table(1, known("unfiltered-freed-caller", target), target))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    if width > 80:
        for name in (
            "check_and_update_cache",
            "can_allocate (budget 1, 1 promised)",
            "get_freed_mm_hashes",
            "r2[1] a",
        ):
            assert name in text


# --- Verdicts -----------------------------------------------------------------------------------------------


@pytest.fixture
def report() -> Report:
    """One of every verdict."""
    target = resolve("port:early-evictable")
    found = replace(known("early-evictable-caller", target), engine="corpus early-evictable-caller")
    question = Question(
        parse_scope("1r2i2h"),
        CALLER,
        ("evictable-unreferenced", "slots-conserved", "cached-ids-exact", "reset-initial", "no-crash"),
    )
    exploration = Exploration(
        scope="1r2i2h",
        discipline=CALLER,
        complete=True,
        workloads=18,
        states=1_234,
        transitions=5_678,
        calls=910,
        unreduced=(36, 2_468, 11_356),
        situations={"readmitted-before-drain": 0, "hit-on-evictable": 1_111},
        counterexamples=(found,),
        seconds=1.26,
    )
    partial = replace(exploration, scope="2r2i2h", complete=False, transitions=42)
    covered = "5,678 transitions, all of 1r2i2h"
    return Report(
        target.name,
        question,
        (
            Verdict("evictable-unreferenced", Outcome.VIOLATED, "broken in 3 steps", found.engine, 3),
            Verdict("slots-conserved", Outcome.HOLDS, covered),
            Verdict("cached-ids-exact", Outcome.ERA, f"by the rule of its time, not today's; {covered}"),
            Verdict("reset-initial", Outcome.NOT_OBSERVABLE, "the target has no reset"),
            Verdict("no-crash", Outcome.UNKNOWN, f"stopped early; nothing broke it in {covered}"),
        ),
        (found,),
        (exploration, partial),
        ("early-evictable-caller", "unfiltered-freed-caller"),
        Hunt(100, 30, ()),
        False,
        2.0,
    )


VERDICTS = """\
port:early-evictable, caller discipline

  property                 verdict          evidence                                                found by
 ────────────────────────────────────────────────────────────────────────────────────────────────────────────
  evictable-unreferenced   violated         broken in 3 steps                                       corpus
  slots-conserved          holds            5,678 transitions, all of 1r2i2h
  cached-ids-exact         era              by the rule of its time, not today's; 5,678
                                            transitions, all of 1r2i2h
  reset-initial            not observable   the target has no reset
  no-crash                 unknown          stopped early; nothing broke it in 5,678 transitions,
                                            all of 1r2i2h

A branch ends at a violation: what else holds, holds up to there.
explored 1r2i2h: 18 workloads, 1,234 states, 5,678 transitions, 910 calls judged in 1.3 s (without renaming:
36, 2,468, 11,356)
stopped early in 2r2i2h: 18 workloads, 1,234 states, 42 transitions, 910 calls judged in 1.3 s (without
renaming: 36, 2,468, 11,356)
situations reached: readmitted-before-drain 0, hit-on-evictable 1,111
"""


def test_verdicts_are_a_table_with_what_was_covered(report: Report) -> None:
    assert plain(verdict_table(report)) == VERDICTS


def test_nothing_is_said_of_branches_where_nothing_broke(report: Report) -> None:
    clean = replace(report, counterexamples=())
    assert "A branch ends" not in plain(verdict_table(clean))


def test_verdicts_are_told_apart_by_colour_on_a_terminal(report: Report) -> None:
    console = Console(
        file=StringIO(), width=120, force_terminal=True, color_system="standard", legacy_windows=False
    )
    console.print(verdict_table(report))
    assert isinstance(console.file, StringIO)
    styles = {
        word: style
        for style, word in re.findall(
            r"\x1b\[([\d;]+)m(violated|holds|era|not observable|unknown)", console.file.getvalue()
        )
    }
    assert styles == {"violated": "1;31", "holds": "32", "era": "36", "not observable": "2", "unknown": "33"}


def test_the_json_form(report: Report) -> None:
    files = {"evictable-unreferenced": ["out/test_a.py"]}
    document = report_json(report, files)
    assert {key: document[key] for key in ("target", "discipline", "scope", "complete")} == {
        "target": "port:early-evictable",
        "discipline": "caller",
        "scope": "1r2i2h",
        "complete": False,
    }
    assert document["verdicts"][0] == {
        "property": "evictable-unreferenced",
        "verdict": "violated",
        "evidence": "broken in 3 steps",
        "engine": "corpus early-evictable-caller",
        "length": 3,
    }
    assert [one["verdict"] for one in document["verdicts"]] == [
        "violated",
        "holds",
        "era",
        "not observable",
        "unknown",
    ]
    assert document["verdicts"][1]["engine"] is None
    assert document["counterexamples"] == [
        {
            "property": "evictable-unreferenced",
            "engine": "corpus early-evictable-caller",
            "length": 3,
            "call": 6,
            "expected": "a not evictable: input 1 of r1 still needs it",
            "observed": "a is in the evictable queue",
            "files": ["out/test_a.py"],
        }
    ]
    assert document["explorations"][0] == {
        "scope": "1r2i2h",
        "complete": True,
        "workloads": 18,
        "states": 1_234,
        "transitions": 5_678,
        "calls": 910,
        "unreduced": {"workloads": 36, "states": 2_468, "transitions": 11_356},
        "situations": {"readmitted-before-drain": 0, "hit-on-evictable": 1_111},
        "too_large": 0,
    }
    assert document["random_walks"] == {"examples": 100, "steps": 30}
    assert document["corpus"] == ["early-evictable-caller", "unfiltered-freed-caller"]
    assert report_json(replace(report, hunt=None), {})["random_walks"] is None


def test_counterexamples_are_presented_with_their_files(report: Report, tmp_path: Path) -> None:
    target = resolve("port:early-evictable")
    console = Console(file=StringIO(), width=120, highlight=False)
    twice = (*report.counterexamples, *report.counterexamples)
    files = present(console, twice, target, tmp_path)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert re.findall(r"^(\d)\. evictable-unreferenced", text, re.MULTILINE) == ["1", "2"]
    (own,) = files.values()
    assert len(set(own)) == 6
    assert sorted(map(Path, own)) == sorted(tmp_path.iterdir())
    # However long the folder's name, a path can be copied in one piece.
    for path in own:
        assert f"  written: {path}\n" in text
