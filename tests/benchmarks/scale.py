"""How far exhaustive exploration reaches: `python tests/benchmarks/scale.py [--long]`, from the repository's root.

One run, one table for each question, so that their figures can be compared. Every figure is of a whole process,
its start included, and a median where it says so; CPU seconds are those of the process and its children.

1. Exhaustive on the real module and on the port, open discipline, and SPIN on a model of the same calls
   (`spin/cache.pml`): states and transitions must be equal without renaming, which checks both.
2. One process against two.
3. Time to the shortest traces of both faults of vLLM 0.26.0, against plain Hypothesis: uniform rules over the
   calls, default settings, 20 seeds; a miss counts with its time limit.
4. Growth with each parameter of a scope.

`--long` adds three requests with three inputs each at capacity 2: minutes here, and for SPIN many minutes and
gigabytes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from properties.scopes import parse_scope

MODEL = Path(__file__).parent / "spin" / "cache.pml"
SEEDS = 20
LIMIT = 30.0
FAULTS = ("freed-disjoint-cached", "evictable-unreferenced")

EXPLORE = """
import sys
from model.operations import Discipline
from impl.targets import resolve
from properties.exploration import LocalProcesses, explore
from properties.scopes import parse_scope
target, scope, jobs = resolve(sys.argv[1]), parse_scope(sys.argv[2]), int(sys.argv[3])
if jobs > 1:
    with LocalProcesses(jobs) as executor:
        found = explore(target, scope, Discipline.OPEN, executor=executor)
else:
    found = explore(target, scope, Discipline.OPEN)
assert found.complete and not found.counterexamples
print(found.workloads, found.states, found.transitions, *found.unreduced)
"""

SHORTEST = """
from model.operations import Discipline
from impl.targets import resolve
from properties.exploration import explore_classes
from properties.scopes import parse_scope, workload_classes
target = resolve("vllm:0.26.0")
classes = workload_classes(parse_scope("2r2i3h/sizes=1/capacity=2"), Discipline.OPEN)
found, depth = {}, 0
while len(found) < 2:
    depth += 1
    result = explore_classes(target, classes, Discipline.OPEN, name="", deepest=depth)
    for one in result.counterexamples:
        found.setdefault(one.violation.property, len(one.trace))
print(*sorted(found.values()))
"""

PLAIN = """
import sys
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from impl.targets import resolve
from model.contract import moves, start
from model.operations import Discipline
from properties.lockstep import Lockstep
from properties.scopes import parse_scope, workload_classes
from msgspec.structs import replace
target = resolve("vllm:0.26.0")
worlds = [one.workload for one in workload_classes(parse_scope("2r2i3h/sizes=1/capacity=2"), Discipline.OPEN)]
wanted = sys.argv[1]

class Machine(RuleBasedStateMachine):
    @initialize(world=st.sampled_from(worlds))
    def begin(self, world):
        self.judge, self.position = Lockstep(target, world), start(world, Discipline.OPEN)
        self.parted = False

    @precondition(lambda self: not self.parted)
    @rule(data=st.data())
    def call(self, data):
        call = data.draw(st.sampled_from(moves(replace(self.position, state=self.judge.state))))
        violation = self.judge.apply(call)
        self.parted = violation is not None
        assert violation is None or violation.property != wanted

    @precondition(lambda self: self.parted)
    @rule()
    def wait(self):
        pass

try:
    seed(int(sys.argv[2]))(run_state_machine_as_test)(Machine, settings=settings(
        database=None, deadline=None, suppress_health_check=list(HealthCheck)))
except AssertionError:
    print("found")
else:
    print("missed")
"""


class Cost(Struct, frozen=True):
    """What a process cost, children included, and what it said; a limit that it hit is its time."""

    wall: float
    cpu: float
    mebibytes: float
    said: str


def measured(command: Sequence[str | Path], folder: Path, limit: float | None = None) -> Cost:
    """Runs a program to its end in a process whose only child it is."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    # A process in between, since only the peak memory of all children together is known.
    script = (
        "import resource, subprocess, sys; "
        "run = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True); "
        "usage = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss); sys.stdout.flush(); "
        "sys.stdout.buffer.write(run.stdout)"
    )
    began = perf_counter()
    try:
        run = subprocess.run(
            [sys.executable, "-c", script, *map(str, command)],
            cwd=folder,
            env=environment,
            capture_output=True,
            check=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return Cost(limit or 0.0, 0.0, 0.0, "missed")
    wall = perf_counter() - began
    head, _, said = run.stdout.partition("\n")
    cpu, peak = head.split()
    return Cost(wall, float(cpu), int(peak) / 1024, said.strip())


def python(code: str, folder: Path, *arguments: object, limit: float | None = None) -> Cost:
    return measured([sys.executable, "-c", code, *map(str, arguments)], folder, limit)


class Spin(Struct, frozen=True):
    """SPIN's build and run, and what it counted of the cache alone."""

    build: Cost
    run: Cost
    states: int
    transitions: int


def spin(text: str, folder: Path) -> Spin:
    """Builds and runs the model at a scope of unit sizes and one capacity."""
    scope = parse_scope(text)
    (capacity,) = scope.capacities
    bounds = {"REQUESTS": scope.requests, "INPUTS": scope.inputs, "HASHES": scope.hashes, "CAPACITY": capacity}
    flags = " ".join(f"-D{name}={value}" for name, value in bounds.items())
    build = measured(
        ["sh", "-c", f"spin {flags} -a {MODEL} && gcc -O2 -w -DSAFETY -DNOREDUCE -DMEMLIM=20000 -o pan pan.c"],
        folder,
    )
    run = measured([folder / "pan", "-n", "-m10000000", "-w24"], folder)
    assert "errors: 0" in run.said, run.said
    assert "max search depth too small" not in run.said, run.said
    lines = [line.split() for line in run.said.splitlines()]
    stored = next(int(words[0]) for words in lines if words[1:3] == ["states,", "stored"])
    transitions = next(int(words[0]) for words in lines if words[1:2] == ["transitions"])
    occurrences = scope.requests * scope.inputs
    choosing = sum(scope.hashes**chosen for chosen in range(occurrences + 1))
    # The choice of a mapping, and the step out of it, are no calls of a cache.
    return Spin(build, run, stored - choosing, transitions - (choosing - 1) - scope.hashes**occurrences - 1)


def against_spin(console: Console, scopes: list[str], folder: Path) -> None:
    """Table 1."""
    table = Table(title="exhaustive, open discipline; one core each; states and transitions without renaming")
    for heading in ("scope", "what", "states", "transitions", "build s", "wall s", "CPU s", "MiB", "CPU / SPIN's"):
        table.add_column(heading, justify="left" if heading in ("scope", "what") else "right")
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        console.print(
            f"no comparison with SPIN: {' and '.join(missing)} missing (Debian: apt-get install spin gcc)"
        )
    for text in scopes:
        rival = None if missing else spin(text, folder)
        for name in ("vllm:0.33.0", "port"):
            cost = python(EXPLORE, folder, name, text, 1)
            *_, states, transitions = map(int, cost.said.split())
            ratio = "-"
            if rival is not None:
                assert (rival.states, rival.transitions) == (states, transitions), (text, rival, cost)
                ratio = f"{cost.cpu / (rival.build.cpu + rival.run.cpu):.2f}"
            row = (
                f"{states:,}",
                f"{transitions:,}",
                "",
                f"{cost.wall:.1f}",
                f"{cost.cpu:.1f}",
                f"{cost.mebibytes:.0f}",
            )
            table.add_row(text, name, *row, ratio)
        if rival is not None:
            table.add_row(
                text,
                "SPIN",
                f"{rival.states:,}",
                f"{rival.transitions:,}",
                f"{rival.build.cpu:.1f}",
                f"{rival.run.wall:.1f}",
                f"{rival.run.cpu:.1f}",
                f"{rival.run.mebibytes:.0f}",
                "1",
            )
    console.print(table)


def two_processes(console: Console, text: str, folder: Path) -> None:
    """Table 2."""
    table = Table(title=f"vllm:0.33.0, {text}: medians of three, in turn")
    for heading in ("processes", "wall s", "CPU s", "times one"):
        table.add_column(heading, justify="right")
    walls: dict[int, list[Cost]] = {1: [], 2: []}
    for _ in range(3):
        for jobs, costs in walls.items():
            costs.append(python(EXPLORE, folder, "vllm:0.33.0", text, jobs))
    alone = median(cost.wall for cost in walls[1])
    for jobs, costs in walls.items():
        wall, cpu = median(cost.wall for cost in costs), median(cost.cpu for cost in costs)
        table.add_row(str(jobs), f"{wall:.1f}", f"{cpu:.1f}", f"{alone / wall:.2f}")
    console.print(table)


def shortest_traces(console: Console, folder: Path) -> None:
    """Table 3."""
    table = Table(
        title=f"vllm:0.26.0, 2r2i3h/sizes=1/capacity=2, open: to the faults; {SEEDS} seeds, {LIMIT:g} s each"
    )
    for heading in ("what", "found", "median s", "shortest"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    ours = [python(SHORTEST, folder) for _ in range(5)]
    own = median(cost.wall for cost in ours)
    table.add_row("exhaustive, both", "5 of 5", f"{own:.2f}", " and ".join(ours[0].said.split()))
    total = 0.0
    for fault in FAULTS:
        runs = [python(PLAIN, folder, fault, seed, limit=LIMIT) for seed in range(SEEDS)]
        found = sum("found" in cost.said for cost in runs)
        # A run that ends without finding it would have to be begun again: it counts with the limit.
        middle = median(cost.wall if "found" in cost.said else LIMIT for cost in runs)
        total += middle
        table.add_row(f"plain Hypothesis, {fault}", f"{found} of {SEEDS}", f"{middle:.2f}", "not asked")
    table.add_row("plain Hypothesis, both / exhaustive", "", f"{total / own:.1f}x", "")
    console.print(table)


def growth(console: Console, folder: Path) -> None:
    """Table 4."""
    table = Table(title="vllm:0.33.0, open discipline, sizes=1: growth with one parameter at a time")
    for heading in (
        "scope",
        "workloads",
        "states",
        "transitions",
        "all workloads",
        "all states",
        "all transitions",
        "CPU s",
    ):
        table.add_column(heading, justify="left" if heading == "scope" else "right")
    for head in ("2r2i3h", "3r2i3h", "2r3i3h", "2r2i4h"):
        for capacity in (1, 2, 3) if head == "2r2i3h" else (2,):
            text = f"{head}/sizes=1/capacity={capacity}"
            cost = python(EXPLORE, folder, "vllm:0.33.0", text, 1)
            table.add_row(text, *(f"{int(word):,}" for word in cost.said.split()), f"{cost.cpu:.1f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="also three requests with three inputs each")
    asked = parser.parse_args()
    console = Console(width=140)
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, load {load:.1f} when it began")
    scopes = [f"3r2i3h/sizes=1/capacity={capacity}" for capacity in (1, 2, 3)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        against_spin(console, scopes + (["3r3i3h/sizes=1/capacity=2"] if asked.long else []), folder)
        shortest_traces(console, folder)
        growth(console, folder)
        two_processes(console, "3r2i3h/sizes=1..2/capacity=3", folder)
    console.print(f"load {os.getloadavg()[0]:.1f} when it ended")


if __name__ == "__main__":
    main()
