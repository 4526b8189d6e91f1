"""`evictcheck matrix`: which release breaks which property."""

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from evictcheck.console import processes, progress, stdout_console, write_json
from evictcheck.files import refuse_unusable_folder, refuse_unwritable, write_counterexample, write_whole
from evictcheck.options import DEFAULT_OUT, DisciplineOption, JobsOption, JsonOption, OutOption, ScopeOption
from evictcheck.report import STYLES, show
from impl import upstream
from impl.targets import resolve
from model.operations import Discipline
from properties.invariants import MANAGER_PROPERTIES
from properties.matrix import Row, matrix
from properties.scopes import DEFAULT_SCOPE, parse_scope
from properties.verdicts import Outcome, Verdict

MATRIX_FORMAT = "evictcheck-matrix/1"


def matrix_command(
    releases: Annotated[
        str,
        typer.Option(metavar="R,...|all", help="Releases of vLLM, with commas between, or all published ones."),
    ] = "all",
    scope: ScopeOption = str(DEFAULT_SCOPE),
    discipline: DisciplineOption = Discipline.CALLER,
    jobs: JobsOption = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the table as Markdown.")
    ] = None,
    json_file: JsonOption = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Explore releases of vLLM exhaustively: releases down, properties across."""
    bounds = parse_scope(scope)
    refuse_unusable_folder(out)
    for path in (markdown, json_file):
        if path is not None:
            refuse_unwritable(path)
    wanted = upstream.published() if releases == "all" else tuple(releases.split(","))
    console = stdout_console()
    with processes(jobs) as executor, progress("matrix") as announce:
        rows = matrix(wanted, bounds, discipline, executor=executor, progress=announce)
    show(console, _table(rows, f"vLLM, {discipline} discipline, {bounds}"), _legend())
    for name, text in _written(rows, out).items():
        console.print(f"  {name}: {text}", soft_wrap=True)
    if markdown is not None:
        write_whole(markdown, _markdown(rows).encode())
    if json_file is not None:
        write_json(json_file, _document(rows, str(bounds), discipline))
    if len(rows) < len(wanted):
        console.print(f"stopped early: {len(wanted) - len(rows)} releases were not reached")
        raise typer.Exit(3)


def _cell(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.VIOLATED:
        return f"violated ({verdict.length})"
    return str(verdict.outcome)


def _table(rows: tuple[Row, ...], title: str) -> Table:
    """Neighbours with equal verdicts share a row; the columns are numbered, for twelve names are too wide."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("releases", no_wrap=True)
    for number in range(1, len(MANAGER_PROPERTIES) + 1):
        table.add_column(str(number), no_wrap=True, justify="center")
    for _, alike in groupby(rows, key=lambda row: [_short(verdict) for verdict in row.verdicts]):
        first, *others = alike
        releases = f"{first.release} - {others[-1].release} ({len(others) + 1})" if others else first.release
        cells = [Text(_short(verdict), STYLES[verdict.outcome]) for verdict in first.verdicts]
        table.add_row(releases, *cells)
    return table


def _legend() -> str:
    names = ", ".join(f"{number} {one.name}" for number, one in enumerate(MANAGER_PROPERTIES, start=1))
    return (
        f"{names}. X n: violated, shortest trace n long; +: holds; era: by a rule of its time; -: not observable."
    )


def _short(verdict: Verdict) -> str:
    short = {Outcome.HOLDS: "+", Outcome.ERA: "era", Outcome.NOT_OBSERVABLE: "-", Outcome.UNKNOWN: "?"}
    return short.get(verdict.outcome, f"X {verdict.length}")


def _written(rows: tuple[Row, ...], out: Path) -> dict[str, str]:
    """Writes each violated cell's counterexamples, once for the releases that share a manager."""
    written: dict[str, str] = {}
    for row in rows:
        target = resolve(f"vllm:{row.release}")
        for counterexample in row.counterexamples:
            name = f"{counterexample.target} {counterexample.violation.property}"
            if name not in written:
                files = write_counterexample(out, counterexample, 1, target)
                written[name] = str(next(path for path in files if path.name.endswith(".trace.json")))
    return written


def _markdown(rows: tuple[Row, ...]) -> str:
    head = ["release", *(f"`{one.name}`" for one in MANAGER_PROPERTIES)]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join([row.release, *map(_cell, row.verdicts)]) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _document(rows: tuple[Row, ...], scope: str, discipline: Discipline) -> dict[str, object]:
    return {
        "format": MATRIX_FORMAT,
        "scope": scope,
        "discipline": str(discipline),
        "releases": [
            {
                "release": row.release,
                "verdicts": [
                    {"property": one.property, "verdict": str(one.outcome), "length": one.length}
                    for one in row.verdicts
                ],
            }
            for row in rows
        ],
    }
