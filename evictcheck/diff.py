"""`evictcheck diff`: what an upgrade, a refactoring or a port changed."""

from time import time
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evictcheck.console import processes, progress, stdout_console, write_json
from evictcheck.files import refuse_unusable_folder, refuse_unwritable, write_trace
from evictcheck.options import (
    DEFAULT_OUT,
    DisciplineOption,
    DriverOption,
    IncludeOption,
    JobsOption,
    JsonOption,
    OutOption,
    PythonOption,
    SanitizeOption,
    ScopeOption,
    SecondsOption,
    SourceOption,
    TimeoutOption,
    target_options,
)
from evictcheck.report import counterexamples_json, exploration_json, show
from evictcheck.story import call_in_words, step_in_words, subject_in_words, workload_in_words
from impl.drivers.client import TIMEOUT
from impl.target import Shows
from impl.targets import resolve
from impl.watchdog import WATCHDOG
from model.operations import Discipline, Trace
from properties.counterexample import Counterexample
from properties.difference import Pair
from properties.exploration import Exploration, explore
from properties.minimize import minimize
from properties.scopes import DEFAULT_SCOPE, parse_scope
from properties.verdicts import property_named

DIFF_FORMAT = "evictcheck-diff/1"


def diff_command(
    first: Annotated[str, typer.Argument(metavar="A", help="One target; see `evictcheck targets`.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other.")],
    up_to: Annotated[
        str,
        typer.Option(
            metavar="P,...",
            help="Properties whose differences are known: not reported, so that the rest is still compared.",
        ),
    ] = "",
    scope: ScopeOption = str(DEFAULT_SCOPE),
    discipline: DisciplineOption = Discipline.CALLER,
    seconds: SecondsOption = None,
    jobs: JobsOption = None,
    json_file: JsonOption = None,
    out: OutOption = DEFAULT_OUT,
    python: PythonOption = "",
    timeout: TimeoutOption = TIMEOUT,
    sanitize: SanitizeOption = "",
    driver: DriverOption = None,
    include: IncludeOption = None,
    source: SourceOption = None,
) -> None:
    """Compare two implementations with each other, over everything that both show."""
    bounds = parse_scope(scope)
    masked = frozenset(property_named(name).name for name in up_to.split(",") if name)
    refuse_unusable_folder(out)
    if json_file is not None:
        refuse_unwritable(json_file)
    WATCHDOG.start(timeout)
    options = target_options(python, timeout, sanitize, driver, include, source)
    pair = Pair(resolve(first, options), resolve(second, options), masked)
    console = stdout_console()
    with processes(jobs) as executor, progress(pair.name) as announce:
        result = explore(
            pair,
            bounds,
            discipline,
            deadline=None if seconds is None else time() + seconds,
            progress=lambda done, total: announce(f"exploring {bounds}", done, total),
            executor=executor,
        )
    found = tuple(minimize(one, pair) for one in result.counterexamples)
    console.print(f"A is {first}, B is {second}; compared: {_compared(pair)}")
    files: dict[str, list[str]] = {}
    for number, one in enumerate(found, start=1):
        show(console, _difference(number, one))
        path = write_trace(out, one, number)
        files.setdefault(one.violation.property, []).append(str(path))
        console.print(f"  written: {path}", soft_wrap=True)
    console.print(_summary(pair, result, found))
    if json_file is not None:
        document: dict[str, Any] = {
            "format": DIFF_FORMAT,
            "first": first,
            "second": second,
            "up_to": sorted(masked),
        }
        document |= exploration_json(result)
        document["differences"] = counterexamples_json(found, files)
        write_json(json_file, document)
    raise typer.Exit(1 if found else 0 if result.complete else 3)


def _compared(pair: Pair) -> str:
    parts = ["answers", "counters", "entries, queue and pending reports"]
    return ", ".join(parts[: {Shows.RESULTS: 1, Shows.COUNTERS: 2, Shows.INTERNALS: 3}[pair.shows]])


def _summary(pair: Pair, result: Exploration, found: tuple[Counterexample, ...]) -> str:
    covered = f"{result.transitions:,} transitions of {result.scope}, {result.discipline} discipline"
    masked = f", up to {', '.join(sorted(pair.up_to))}" if pair.up_to else ""
    if found:
        kinds = "one kind" if len(found) == 1 else f"{len(found)} kinds"
        return f"{kinds} of difference in {covered}{masked}; a branch ends where the two part"
    if not result.complete:
        return f"no difference in {covered}{masked}; stopped early, so what was not compared is unknown"
    return f"equivalent{masked}: no difference in all {covered}"


def _difference(number: int, one: Counterexample) -> RenderableType:
    """A distinguishing trace: the calls that both answer alike, then the one that they do not."""
    violation, trace = one.violation, one.trace
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("step")
    table.add_column("call", no_wrap=True)
    table.add_column("on", no_wrap=True)
    for row in _rows(trace):
        table.add_row(*row)
    unit = "steps" if trace.discipline is Discipline.CALLER else "calls"
    return Group(
        Text(f"{number}. {violation.property}: {violation.expected}, {violation.observed}", "bold red"),
        Text(f"after {len(trace)} {unit}; {workload_in_words(trace.workload)}"),
        table,
    )


def _rows(trace: Trace) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for step in trace.steps:
        for place, call in enumerate(step.calls):
            words = step_in_words(step.taken) if step.taken is not None and place == 0 else ""
            number = f"{len(rows) + 1}"
            rows.append((number, words, call_in_words(call), subject_in_words(call, trace.workload)))
    return rows
