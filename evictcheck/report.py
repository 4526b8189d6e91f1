"""What a person reads: verdict tables, counterexamples as tables, and the stable JSON form."""

from collections import Counter
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from evictcheck.files import write_counterexample
from evictcheck.story import Row, tell, workload_in_words
from impl.target import Target
from properties.counterexample import Counterexample
from properties.exploration import Exploration
from properties.verdicts import Outcome, Report, Verdict, property_named

REPORT_FORMAT = "evictcheck-check/1"

STYLES = {
    Outcome.HOLDS: "green",
    Outcome.VIOLATED: "bold red",
    Outcome.UNKNOWN: "yellow",
    Outcome.ERA: "cyan",
    Outcome.NOT_OBSERVABLE: "dim",
}


def verdict_table(report: Report) -> RenderableType:
    """The verdicts on one target, what was covered, and which situations were reached how often."""
    question = report.question
    table = Table(
        title=f"{report.target}, {question.discipline} discipline", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("property", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("evidence")
    table.add_column("found by", no_wrap=True)
    for verdict in report.verdicts:
        style = STYLES[verdict.outcome]
        table.add_row(
            verdict.property, Text(verdict.outcome, style), verdict.evidence, verdict.engine.partition(" ")[0]
        )
    return Group(table, *map(Text, _coverage(report)))


def _coverage(report: Report) -> list[str]:
    lines = []
    lines += [f"{one.property}: {one.hint}" for one in report.verdicts if one.hint]
    if report.counterexamples:
        lines.append("A branch ends at a violation: what else holds, holds up to there.")
    for exploration in report.explorations:
        workloads, states, transitions = exploration.unreduced
        whole = "explored" if exploration.complete else "stopped early in"
        lines.append(
            f"{whole} {exploration.scope}: {exploration.workloads:,} workloads, {exploration.states:,} states, "
            f"{exploration.transitions:,} transitions, {exploration.calls:,} calls judged in "
            f"{exploration.seconds:.1f} s (without renaming: {workloads:,}, {states:,}, {transitions:,})"
        )
    if report.explorations:
        reached = report.explorations[-1].situations
        parts = [f"{name} {count:,}" for name, count in reached.items()]
        lines.append(f"situations reached: {', '.join(parts)}")
    return lines


def counterexample_table(number: int, counterexample: Counterexample, target: Target) -> RenderableType:
    """A counterexample, call by call: only what changed, the broken call marked, the property in words."""
    violation, trace = counterexample.violation, counterexample.trace
    title = Text(f"{number}. {violation.property}", "bold red")
    title.append(f": {property_named(violation.property).sentence}", "default")
    rows = tell(trace, target)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    with_steps = any(row.step for row in rows)
    table.add_column("", justify="right")
    if with_steps:
        table.add_column("step")
    for heading in ("call", "on", "answer"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what changed")
    for row in rows:
        table.add_row(*_cells(row, with_steps), style="red" if row.broken else None)
    length = f"{len(trace)} {'step' if with_steps else 'call'}{'' if len(trace) == 1 else 's'}"
    return Group(
        title,
        Text(
            f"{length}, {trace.discipline} discipline, found by {counterexample.engine}; "
            f"{workload_in_words(trace.workload)}"
        ),
        table,
    )


def _cells(row: Row, with_steps: bool) -> list[str]:
    mark = ">" if row.broken else ""
    head = [f"{mark}{row.number}", row.step] if with_steps else [f"{mark}{row.number}"]
    return [*head, row.call, row.item, row.answer, row.changes]


def report_json(report: Report, files: dict[str, list[str]]) -> dict[str, Any]:
    """The JSON form of a report; `files` names what was written for each counterexample's property."""
    question = report.question
    return {
        "target": report.target,
        "discipline": str(question.discipline),
        "scope": str(question.scope),
        "complete": report.complete,
        "verdicts": verdicts_json(report.verdicts),
        "counterexamples": counterexamples_json(report.counterexamples, files),
        "explorations": [exploration_json(one) for one in report.explorations],
        "random_walks": None
        if report.hunt is None
        else {"examples": report.hunt.examples, "steps": report.hunt.steps},
        "corpus": list(report.corpus),
    }


def verdicts_json(verdicts: tuple[Verdict, ...]) -> list[dict[str, Any]]:
    """The JSON form of verdicts, at either level."""
    return [
        {
            "property": verdict.property,
            "verdict": str(verdict.outcome),
            "evidence": verdict.evidence,
            "engine": verdict.engine or None,
            "length": verdict.length,
        }
        for verdict in verdicts
    ]


def counterexamples_json(
    counterexamples: tuple[Counterexample, ...], files: dict[str, list[str]]
) -> list[dict[str, Any]]:
    """The JSON form of counterexamples."""
    return [
        {
            "property": one.violation.property,
            "engine": one.engine,
            "length": len(one.trace),
            "call": one.violation.call_index,
            "expected": one.violation.expected,
            "observed": one.violation.observed,
            "files": files.get(one.violation.property, []),
        }
        for one in counterexamples
    ]


def exploration_json(exploration: Exploration) -> dict[str, Any]:
    """The JSON form of what was covered."""
    return {
        "scope": exploration.scope,
        "complete": exploration.complete,
        "workloads": exploration.workloads,
        "states": exploration.states,
        "transitions": exploration.transitions,
        "calls": exploration.calls,
        "unreduced": dict(zip(("workloads", "states", "transitions"), exploration.unreduced, strict=True)),
        "situations": exploration.situations,
        "too_large": exploration.too_large,
    }


def show(console: Console, *parts: RenderableType) -> None:
    """Prints parts with an empty line after each."""
    for part in parts:
        console.print(part)
        console.print()


def present(
    console: Console, counterexamples: tuple[Counterexample, ...], target: Target, out: Path
) -> dict[str, list[str]]:
    """Prints counterexamples and writes each one's files; the names of the files by property.

    Raises:
        OutputError: A file cannot be written.
    """
    files: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for number, counterexample in enumerate(counterexamples, start=1):
        broken = counterexample.violation.property
        counts[broken] += 1
        show(console, counterexample_table(number, counterexample, target))
        written = write_counterexample(out, counterexample, counts[broken], target)
        files.setdefault(broken, []).extend(map(str, written))
        for path in written:
            console.print(f"  written: {path}", soft_wrap=True)
        console.print()
    return files
