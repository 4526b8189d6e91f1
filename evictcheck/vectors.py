"""`evictcheck vectors`: a conformance suite for a port in any language, made or run."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from evictcheck.console import stdout_console
from evictcheck.files import refuse_unusable_folder, refuse_unwritable, write_whole
from evictcheck.options import (
    DEFAULT_OUT,
    DriverOption,
    IncludeOption,
    OutOption,
    PythonOption,
    SanitizeOption,
    SourceOption,
    TimeoutOption,
    target_options,
)
from evictcheck.report import present
from impl.defects import DEFECTS
from impl.drivers.client import TIMEOUT
from impl.inprocess import python_target
from impl.target import Shows, Target
from impl.targets import resolve
from impl.watchdog import WATCHDOG
from model.errors import EvictcheckError
from properties.minimize import shortest
from properties.scopes import DEFAULT_SCOPE, parse_scope
from properties.vectors import MIXED_SCOPE, Vectors, decode_vectors, encode_vectors, make_vectors, run_vectors


def vectors_command(
    target_name: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="With --run: what to run the file against.")
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            help=f"What it covers; see `evictcheck check --help`. Default: {DEFAULT_SCOPE} and {MIXED_SCOPE}."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where the suite goes.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run this suite against TARGET instead of making one.")
    ] = None,
    out: OutOption = DEFAULT_OUT,
    python: PythonOption = "",
    timeout: TimeoutOption = TIMEOUT,
    sanitize: SanitizeOption = "",
    driver: DriverOption = None,
    include: IncludeOption = None,
    source: SourceOption = None,
) -> None:
    """Make a conformance suite (JSON Lines: traces with every expected answer), or run one against a target.

    The suite is made from the reference model and makes every reachable transition of the scope under the open
    discipline, resets in traces of their own. Its schema is the docstring of properties/vectors.py.
    """
    console = stdout_console()
    if run is not None:
        if target_name is None:
            raise EvictcheckError("--run FILE needs a TARGET to run it against")
        WATCHDOG.start(timeout)
        options = target_options(python, timeout, sanitize, driver, include, source)
        raise typer.Exit(_run(console, run, resolve(target_name, options), out))
    if output is None or target_name is not None:
        raise EvictcheckError("say where the suite goes (-o FILE), or run one (--run FILE TARGET)")
    bounds = (DEFAULT_SCOPE, MIXED_SCOPE) if scope is None else (parse_scope(scope),)
    refuse_unwritable(output)
    vectors = make_vectors(*bounds)
    data = encode_vectors(vectors)
    write_whole(output, data)
    console.print(
        f"{output}: {len(vectors.traces):,} traces, {vectors.calls:,} calls, {vectors.transitions:,} transitions "
        f"({vectors.calls / vectors.transitions:.2f} calls each), {len(data):,} bytes"
    )
    console.print(_strength(vectors))


def _strength(vectors: Vectors) -> Table:
    """Which seeded defects the suite detects in a port that shows results and counters only."""
    table = Table(title="seeded defects, seen by results and counters", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("defect", "breaks", "detected"):
        table.add_column(heading)
    for defect in DEFECTS:
        target = replace(python_target(f"port:{defect.name}", defect.manager_class), shows=Shows.COUNTERS)
        found, _ = run_vectors(vectors, target)
        needs_more = defect.property == "nothing-stale"
        detected = (
            f"in call {len(found.trace)} of a trace"
            if found is not None
            else "no: shows in internals only"
            if needs_more
            else f"no: shows at {defect.scope}"
        )
        table.add_row(defect.name, defect.property, detected)
    return table


def _run(console: Console, path: Path, target: Target, out: Path) -> int:
    refuse_unusable_folder(out)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EvictcheckError(f"{path} cannot be read: {error.strerror}") from error
    vectors = decode_vectors(data, str(path))
    found, skipped = run_vectors(vectors, target)
    if skipped:
        console.print(f"{skipped} of {len(vectors.traces)} traces reset the cache and were left out: no reset")
    if found is None:
        console.print(f"{target.name} passes {path}: {len(vectors.traces) - skipped:,} traces of {vectors.scope}")
        return 0
    console.print(f"{target.name} fails {path} ({found.engine}, call {len(found.trace)}):")
    present(console, (shortest(found, target),), target, out)
    return 1
