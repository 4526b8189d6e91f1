"""Command-line options that several commands share."""

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from impl.targets import Options
from model.errors import EvictcheckError
from model.operations import Discipline

DEFAULT_OUT = Path("evictcheck-out")

ScopeOption: TypeAlias = Annotated[
    str,
    typer.Option(
        help="How far exhaustive exploration goes: requests, inputs of each, hashes; further parts after slashes: "
        "sizes=1..2, capacity=1..3, mixed (one hash with several sizes), budget=1."
    ),
]
DisciplineOption: TypeAlias = Annotated[
    Discipline,
    typer.Option(help="Who makes the calls: a scheduler in whole steps, or anybody one legal call at a time."),
]
SecondsOption: TypeAlias = Annotated[
    float | None, typer.Option(min=0.0, help="Stop after so long (each target); the rest is then unknown.")
]
JobsOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Processes that explore side by side. Default: one a core.")
]
JsonOption: TypeAlias = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write the results as JSON.")
]
OutOption: TypeAlias = Annotated[
    Path, typer.Option(metavar="DIR", help="Where counterexamples go: pytest file, trace, ITF.")
]

PythonOption: TypeAlias = Annotated[
    str,
    typer.Option(metavar="PATH", help="Interpreter for py: and vllm:installed targets. Default: this one."),
]
TimeoutOption: TypeAlias = Annotated[
    float,
    typer.Option(
        min=0.01, max=86_400.0, help="Seconds that a target outside of this process may take for one answer."
    ),
]
SanitizeOption: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME,...", help="Compile a cpp: tree with sanitizers: address,undefined.")
]
DriverOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A driver of your own for a cpp: tree of another shape, or with the fix in its callers.",
    ),
]
IncludeOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--include", metavar="DIR", help="Where a cpp: tree's headers are looked for. May be repeated."),
]
SourceOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--source", metavar="FILE", help="A cpp: tree's source, in place of the usual one. May be repeated."
    ),
]


def target_options(
    python: str,
    timeout: float,
    sanitize: str,
    driver: Path | None,
    include: list[Path] | None,
    source: list[Path] | None,
) -> Options:
    """How targets outside of this process are reached.

    Raises:
        EvictcheckError: The driver is not a file.
    """
    if driver is not None and not os.path.isfile(driver):
        raise EvictcheckError(f"--driver {driver} is not a file")
    return Options(
        python,
        timeout,
        tuple(name for name in sanitize.split(",") if name),
        driver,
        tuple(include or ()),
        tuple(source or ()),
    )
