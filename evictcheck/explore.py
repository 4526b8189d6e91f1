"""`evictcheck explore`: exhaustive exploration by itself, at any scope, on any number of processes or machines."""

import resource
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import time
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from evictcheck.console import processes, progress, stdout_console, write_json
from evictcheck.files import refuse_unusable_folder, refuse_unwritable
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
from evictcheck.report import counterexamples_json, exploration_json, present, show
from impl.drivers.client import TIMEOUT
from impl.target import Target
from impl.targets import resolve
from impl.watchdog import WATCHDOG
from model.errors import EvictcheckError
from model.operations import Discipline
from properties.checkpoint import Checkpoint
from properties.exploration import Exploration, cover, explore, positions_that_fit
from properties.minimize import minimize
from properties.scopes import DEFAULT_SCOPE, Scope, parse_scope, workload_classes

EXPLORE_FORMAT = "evictcheck-explore/1"

_PILOTS = 5
_PILOT_SECONDS = 2.0
_LONGEST_SECONDS = 3600.0
_CONNECT_SECONDS = 5


def explore_command(
    target_name: Annotated[
        str, typer.Argument(metavar="TARGET", help="What to explore; see `evictcheck targets`.")
    ],
    scope: ScopeOption = str(DEFAULT_SCOPE),
    discipline: DisciplineOption = Discipline.CALLER,
    seconds: SecondsOption = None,
    jobs: JobsOption = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Explore on a Dask cluster instead: its scheduler's address."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep what is covered here, and go on from it in another run."),
    ] = None,
    json_file: JsonOption = None,
    out: OutOption = DEFAULT_OUT,
    python: PythonOption = "",
    timeout: TimeoutOption = TIMEOUT,
    sanitize: SanitizeOption = "",
    driver: DriverOption = None,
    include: IncludeOption = None,
    source: SourceOption = None,
) -> None:
    """Explore every workload of a scope exhaustively, and count what was covered."""
    bounds = parse_scope(scope)
    refuse_unusable_folder(out)
    for path in (json_file, checkpoint):
        if path is not None:
            refuse_unwritable(path)
    WATCHDOG.start(timeout)
    target = resolve(target_name, target_options(python, timeout, sanitize, driver, include, source))
    if seconds is None:
        _refuse_endless(target, bounds, discipline)
    record = None if checkpoint is None else Checkpoint(checkpoint, target, bounds, discipline)
    console = stdout_console()
    if record is not None and record.resumed:
        console.print(f"{record.resumed} workloads were covered by an earlier run ({checkpoint}) and are skipped")
    try:
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
    finally:
        if record is not None:
            record.write()
    minimal = tuple(minimize(one, target) for one in result.counterexamples)
    show(console, _table(target, result))
    files = present(console, minimal, target, out)
    if json_file is not None:
        document = _document(target, result)
        document["counterexamples"] = counterexamples_json(minimal, files)
        write_json(json_file, document)
    if result.too_large:
        console.print(
            f"{result.too_large} workloads have more than the {positions_that_fit():,} positions that a process "
            f"of this machine may hold, and were given up half way"
        )
    if result.trouble:
        console.print(f"stopped: {result.trouble}")
    if not result.complete:
        console.print("partial: what was not covered is unknown")
    raise typer.Exit(1 if minimal else 0 if result.complete else 3)


def _refuse_endless(target: Target, scope: Scope, discipline: Discipline) -> None:
    """Refuses a scope that would take hours, with an estimate from a few of its workloads.

    Raises:
        EvictcheckError: It would, and no time limit was given.
    """
    classes = workload_classes(scope, discipline)
    sample = classes[:: max(1, len(classes) // _PILOTS)]
    began = time()
    pilots = [cover(target, one.workload, discipline, time() + _PILOT_SECONDS / len(sample)) for one in sample]
    each = (time() - began) / len(sample)
    complete = all(pilot.complete for pilot in pilots)
    hours = each * len(classes) / _LONGEST_SECONDS
    if hours < 1 and (complete or len(classes) < 100):
        return
    more = "" if complete else "more than "
    raise EvictcheckError(
        f"{scope} has {len(classes):,} workloads, and of {len(sample)} of them each took {more}{each:.1f} s: "
        f"{more}{hours:.1f} hours of one core in all. Narrow the scope (sizes=1, capacity=2), or say how "
        f"long to go on with --seconds; what is covered by then is reported as partial"
    )


def _executor(jobs: int | None, cluster: str | None) -> AbstractContextManager[Executor | None]:
    return processes(jobs) if cluster is None else _cluster(cluster)


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    """The executor of a Dask cluster, which has the interface of the local one."""
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise EvictcheckError("--cluster needs Dask: install evictcheck[cluster]") from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise EvictcheckError(f"there is no Dask scheduler at {address}: {error}") from error
    with client:
        try:
            yield client.get_executor()  # type: ignore[no-untyped-call]
        except (KilledWorker, CancelledError) as error:
            raise EvictcheckError(
                f"the cluster at {address} lost its scheduler, or one workload its workers again and again "
                f"({error}); with --checkpoint another run goes on from what was covered"
            ) from error


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
    table.add_row("positions that fit in one", f"{positions_that_fit():,}", "")
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
