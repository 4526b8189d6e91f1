"""How fast a driver is explored: `taskset -c 0 python tests/benchmarks/drivers.py [--scope S]`.

For each discipline, at one scope (the default one unless told otherwise):

1. the port in this process, as a target that shows what the C++ port shows, and as one that shows everything;
2. the C++ port call by call;
3. the C++ port by tours: the first run records them, the second finds them kept ("warm");
4. the parts of a warm run: reading and unfolding the tours, and the driver's own time for the same lines.

An operation is a call that the target carries out; the state that it is asked for after a call is not counted. A
tour makes some calls more than once, on its way to others; "distinct" counts each call in each situation once.
"""

import argparse
import os
import subprocess
import tempfile
from time import perf_counter

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from impl.drivers.client import look_lines
from impl.drivers.cpp import port_target
from impl.inprocess import PythonTarget
from impl.port import PortManager
from impl.target import Shows
from model.operations import Discipline
from properties.exploration import explore
from properties.scopes import DEFAULT_SCOPE, Scope, parse_scope, workload_classes
from properties.tours import explore_by_tours, recorded, transcripts


def measure(console: Console, scope: Scope, discipline: Discipline) -> None:
    table = Table(title=f"{scope}, {discipline} discipline")
    for heading in ("what", "seconds", "operations", "a second", "distinct", "a second"):
        table.add_column(heading, justify="left" if heading == "what" else "right")

    def row(what: str, seconds: float, operations: int, distinct: int) -> None:
        table.add_row(
            what,
            f"{seconds:.2f}",
            f"{operations:,}",
            f"{operations / seconds:,.0f}",
            f"{distinct:,}",
            f"{distinct / seconds:,.0f}",
        )

    inside = PythonTarget("port", PortManager, Shows.INTERNALS, has_reset=True)
    for target in (inside, replace(inside, shows=Shows.COUNTERS)):
        done = explore(target, scope, discipline)
        row(f"Python, in process, {target.shows.name.lower()}", done.seconds, done.calls, done.calls)

    port = port_target()
    done = explore(port, scope, discipline)
    row("C++, call by call", done.seconds, done.calls, done.calls)
    for what in ("C++, tours, recording them", "C++, tours, warm"):
        toured = explore_by_tours(port, scope, discipline)
        row(what, toured.exploration.seconds, toured.operations, toured.exploration.calls)

    began = perf_counter()
    calls, texts = 0, []
    for one in workload_classes(scope, discipline):
        tour, looks = recorded(one.workload, discipline, port), look_lines(one.workload, port.capabilities)
        texts += port.undeclared(one.workload)
        for text, _, made, _ in transcripts(tour, one.workload, len(looks)):
            texts.append(text)
            calls += made
    row("  of it: reading and unfolding tours", perf_counter() - began, calls, done.calls)
    with tempfile.TemporaryFile() as lines:
        lines.write(b"hello 1\n" + b"".join(texts))
        lines.seek(0)
        began = perf_counter()
        subprocess.run(port.command, stdin=lines, stdout=subprocess.DEVNULL, check=True)
        row("  of it: the driver alone, file to null", perf_counter() - began, calls, done.calls)
    port.close()
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scope", default=str(DEFAULT_SCOPE))
    scope = parse_scope(parser.parse_args().scope)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EVICTCHECK_CACHE"] = folder
        for discipline in Discipline:
            measure(Console(width=130), scope, discipline)


if __name__ == "__main__":
    main()
