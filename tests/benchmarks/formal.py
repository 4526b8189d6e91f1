"""How far z3 gets: `python tests/benchmarks/formal.py [--limit S]`.

Four tables, made in one run so that their figures can be compared:

1. From a warm start (the solver's process is running) to the shortest trace of each of the two faults.
2. Bounded search for the two headline properties with both mends, seconds up to a depth, as scope and depth
   grow: every question asked of whole traces, and with what was ruled out at the depth before as lemmas.
3. Proofs: seconds of all obligations of a level, and the slowest one.
4. The comparison of relation and reference: states and steps a second.

A search that passes the limit for one question (default 60 s) is marked with the depth that it still decided.
"""

import argparse
from time import perf_counter

from rich.console import Console
from rich.table import Table

from impl.targets import resolve
from model.operations import Discipline
from model.relation import Switches
from properties.bounded_search import default_target, search
from properties.comparison import compare
from properties.formulas import PROPERTY_FORMULAS
from properties.induction import Level, prove
from properties.scopes import DEFAULT_SCOPE, parse_scope
from properties.solving import SolverProcess

HEADLINES = tuple(PROPERTY_FORMULAS)[:2]
FAULTS = (
    (Switches(hold_until_last_occurrence=False), "evictable-unreferenced"),
    (Switches(report_only_absent=False), "freed-disjoint-cached"),
)


def warm_start(console: Console, limit: float) -> None:
    """Table 1."""
    table = Table(title=f"shortest trace from a warm start, {DEFAULT_SCOPE}")
    for heading in ("property", "discipline", "length", "seconds"):
        table.add_column(heading)
    for discipline in Discipline:
        for switches, broken in FAULTS:
            target = resolve(default_target(switches))
            with SolverProcess() as process:
                process.start()
                began = perf_counter()
                result = search(
                    DEFAULT_SCOPE, discipline, switches, [broken], 8, target, seconds=limit, process=process
                )
                seconds = perf_counter() - began
            table.add_row(broken, discipline, str(result.verdicts[0].depth), f"{seconds:.2f}")
    console.print(table)


SCOPES = ("2r2i2h", "2r2i3h", "3r2i3h", "3r3i3h", "3r2i4h", "4r2i4h")
DEPTHS = (2, 4, 6, 8, 10, 12)


def growth(console: Console, limit: float) -> None:
    """Table 2."""
    table = Table(title=f"seconds until {' and '.join(HEADLINES)} are ruled out, both mends")
    for heading in ("scope", "discipline", "asked of", *(f"depth {depth}" for depth in DEPTHS)):
        table.add_column(heading)
    for unaided in (True, False):
        # Whole traces alone get no further than these.
        for scope in SCOPES[:3] if unaided else SCOPES:
            for discipline in Discipline:
                result = search(
                    parse_scope(scope),
                    discipline,
                    Switches(),
                    HEADLINES,
                    DEPTHS[-1],
                    resolve("port"),
                    seconds=limit,
                    unaided=unaided,
                )
                taken = {
                    one.steps: sum(each.seconds for each in result.depths[: one.steps]) for one in result.depths
                }
                cells = [f"{taken[depth]:.1f}" if depth in taken else "-" for depth in DEPTHS]
                table.add_row(scope, discipline, "whole traces" if unaided else "one step first", *cells)
    console.print(table)


def proofs(console: Console) -> None:
    """Table 3."""
    table = Table(title="proofs, both mends")
    for heading in ("level", "scope", "obligations", "proved", "seconds", "slowest", "its seconds"):
        table.add_column(heading)
    for level, scope in (
        (Level.UNBOUNDED, "any"),
        (Level.SCOPE, "2r2i3h"),
        (Level.SCOPE, "2r2i3h/mixed"),
        (Level.SCOPE, "3r2i3h"),
        (Level.SCOPE, "3r3i3h"),
        (Level.SCOPE, "4r2i4h"),
    ):
        bounds = DEFAULT_SCOPE if scope == "any" else parse_scope(scope)
        found = prove(level, bounds, Switches(), depth=1)
        slowest = max(found, key=lambda one: one.seconds)
        table.add_row(
            level,
            scope,
            str(len(found)),
            str(sum(one.outcome == "proved" for one in found)),
            f"{sum(one.seconds for one in found):.2f}",
            f"{slowest.obligation.claim}, {slowest.obligation.operation}",
            f"{slowest.seconds:.2f}",
        )
    console.print(table)


def comparisons(console: Console) -> None:
    """Table 4."""
    table = Table(title="relation and reference compared, both mends")
    for heading in ("scope", "discipline", "workloads", "states", "steps", "seconds"):
        table.add_column(heading)
    for scope in ("1r2i2h/capacity=2", "1r2i2h", "2r1i2h"):
        for discipline in Discipline:
            found = compare(parse_scope(scope), discipline, Switches())
            table.add_row(
                scope,
                discipline,
                *map(str, (found.workloads, found.states, found.transitions)),
                f"{found.seconds:.1f}",
            )
    console.print(table)


def main() -> None:
    """Prints the four tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one question to the solver")
    limit = parser.parse_args().limit
    console = Console(width=120)
    warm_start(console, limit)
    growth(console, limit)
    proofs(console)
    comparisons(console)


if __name__ == "__main__":
    main()
