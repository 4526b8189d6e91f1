"""`evictcheck explore`: exhaustive exploration by itself, at any scope, on any number of processes or machines."""

import resource
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import time
from typing import Annotated, Any

import typer
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.table import Table

from evictcheck.console import processes, progress, stdout_console, write_json
from evictcheck.files import refuse_unusable_folder, refuse_unwritable
from evictcheck.report import counterexamples_json, exploration_json, present, show
from impl.target import Target
from impl.targets import resolve
from model.errors import EvictcheckError
from model.operations import Discipline
from properties.checkpoint import Checkpoint
from properties.exploration import Exploration, cover, explore
from properties.minimize import minimize
from properties.scopes import DEFAULT_SCOPE, Scope, parse_scope, workload_classes

EXPLORE_FORMAT = "evictcheck-explore/1"

_PILOT_SECONDS = 2.0
_LONGEST_SECONDS = 3600.0


def explore_command(
    target_name: Annotated[
        str, typer.Argument(metavar="TARGET", help="What to explore; see `evictcheck targets`.")
    ],
    scope: Annotated[
        str, typer.Option(help="How far: 3r2i3h/sizes=1/capacity=2; see `evictcheck check --help`.")
    ] = str(DEFAULT_SCOPE),
    discipline: Annotated[
        Discipline,
        typer.Option(help="Who makes the calls: a scheduler in whole steps, or anybody one legal call at a time."),
    ] = Discipline.CALLER,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so long; what was covered by then is reported.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes that explore side by side. Default: one a core.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Explore on a Dask cluster instead: its scheduler's address."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep what is covered here, and go on from it in another run."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the results as JSON.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where counterexamples go: trace, pytest file, ITF.")
    ] = Path("evictcheck-out"),
) -> None:
    """Explore every workload of a scope exhaustively, and count what was covered."""
    bounds = parse_scope(scope)
    refuse_unusable_folder(out)
    for path in (json_file, checkpoint):
        if path is not None:
            refuse_unwritable(path)
    target = resolve(target_name)
    if seconds is None:
        _refuse_endless(target, bounds, discipline)
    record = None if checkpoint is None else Checkpoint(checkpoint, target, str(bounds), discipline)
    console = stdout_console()
    if record is not None and record.resumed:
        console.print(f"{record.resumed} workloads were covered by an earlier run ({checkpoint}) and are skipped")
    with _executor(jobs, cluster) as executor, progress(target.name) as announce:
        result = explore(
            target,
            bounds,
            discipline,
            deadline=None if seconds is None else time() + seconds,
            progress=lambda done, total: announce(f"exploring {bounds}", done, total),
            executor=executor,
            record=record,
        )
    if record is not None:
        record.write()
    minimal = tuple(minimize(one, target) for one in result.counterexamples)
    show(console, _table(target, result))
    files = present(console, minimal, target, out)
    if json_file is not None:
        document = _document(target, result)
        document["counterexamples"] = counterexamples_json(minimal, files)
        write_json(json_file, document)
    if not result.complete:
        console.print("partial: what was not covered is unknown")
    raise typer.Exit(1 if minimal else 0 if result.complete else 3)


class _Estimate(Struct, frozen=True):
    """How long a scope may take on one core, in seconds; `least` if it may be much more."""

    seconds: float
    least: bool


def _refuse_endless(target: Target, scope: Scope, discipline: Discipline) -> None:
    """Refuses a scope that would take hours, with an estimate from its largest workload.

    Raises:
        EvictcheckError: It would, and no time limit was given.
    """
    classes = workload_classes(scope, discipline)
    largest = classes[-1].workload
    began = time()
    pilot = cover(target, largest, discipline, began + _PILOT_SECONDS)
    hours = (time() - began) * len(classes) / _LONGEST_SECONDS
    if hours < 1 and (pilot.complete or len(classes) < 100):
        return
    at_least = "" if pilot.complete else "more than "
    raise EvictcheckError(
        f"{scope} has {len(classes):,} workloads, and the largest took {at_least}{time() - began:.1f} s: "
        f"{at_least}{hours:.1f} hours of one core in all. Narrow the scope (sizes=1, capacity=2), or say how "
        f"long to go on with --seconds; what is covered by then is reported as partial"
    )


def _executor(jobs: int | None, cluster: str | None) -> AbstractContextManager[Executor | None]:
    return processes(jobs) if cluster is None else _cluster(cluster)


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    """The executor of a Dask cluster, which has the interface of the local one."""
    try:
        from distributed import Client
    except ImportError as error:
        raise EvictcheckError("--cluster needs Dask: install evictcheck[cluster]") from error
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise EvictcheckError(f"there is no Dask scheduler at {address}: {error}") from error
    with client:
        yield client.get_executor()


def _table(target: Target, result: Exploration) -> Table:
    workloads, states, transitions = result.unreduced
    whole = "" if result.complete else " (partial)"
    table = Table(
        title=f"{target.name}, {result.discipline} discipline, {result.scope}{whole}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("")
    table.add_column("up to renaming", justify="right")
    table.add_column("without renaming", justify="right")
    table.add_row("workloads", f"{result.workloads:,}", f"{workloads:,}")
    table.add_row("states", f"{result.states:,}", f"{states:,}")
    table.add_row("transitions", f"{result.transitions:,}", f"{transitions:,}")
    table.add_row("calls judged", f"{result.calls:,}", "")
    for name, count in result.situations.items():
        table.add_row(f"reached: {name}", f"{count:,}", "")
    rate = result.transitions / result.seconds if result.seconds else 0
    table.add_row("seconds", f"{result.seconds:.1f}", "")
    table.add_row("transitions a second", f"{rate:,.0f}", "")
    table.add_row("peak memory of a process", f"{_peak_mebibytes():,.0f} MiB", "")
    return table


def _peak_mebibytes() -> float:
    """The largest of this process and its finished children."""
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def _document(target: Target, result: Exploration) -> dict[str, Any]:
    return {
        "format": EXPLORE_FORMAT,
        "target": target.name,
        "discipline": str(result.discipline),
        **exploration_json(result),
    }
