"""What all commands share on a terminal: where they print, how they show progress, how they use the cores."""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from evictcheck.files import write_whole
from properties.exploration import LocalProcesses


def stdout_console() -> Console:
    """Where results go; in a pipe they are as wide as on a wide terminal.

    Names, paths and what a target says are printed as they are: a bracket in them is no markup.
    """
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False, emoji=False)


def processes(jobs: int | None) -> AbstractContextManager[Executor | None]:
    """As many processes as were asked for, or one a core; a single one is this one."""
    count = jobs if jobs is not None else _cores()
    return LocalProcesses(count) if count > 1 else nullcontext()


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Writes a JSON document, indented.

    Raises:
        OutputError: It cannot be written.
    """
    write_whole(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


@contextmanager
def progress(name: str) -> Iterator[Callable[[str, int, int], None]]:
    """A progress line on a terminal; silence in a pipe."""
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as line:
        task = line.add_task(name, total=None)

        def announce(doing: str, done: int, total: int) -> None:
            line.update(task, description=f"{name}: {doing}", completed=done, total=total or None)

        yield announce
