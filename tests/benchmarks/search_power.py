"""How well the engines search: `python tests/benchmarks/search_power.py [--seeds N]`.

Three tables, made in one run so that their figures can be compared:

1. Random walks alone, exploration switched off: in how many seeds the Hypothesis machine finds each fault at 100
   examples (the two of vLLM 0.26.0, then every seeded defect), and how long a failure takes to its shortest trace.
2. Exhaustive exploration of vLLM 0.26.0 at two requests, two inputs, three hashes, capacity 2: time until both
   faults are found with their shortest traces, one step deeper at a time, and time for all of it.
3. The judge's own cost: calls a second of the manager alone, the reference model alone, and the judge, for the
   same calls.
"""

import argparse
from random import Random
from statistics import median
from time import perf_counter

from hypothesis import settings
from rich.console import Console
from rich.table import Table

from impl.defects import DEFECTS, Defect
from impl.target import Target
from impl.targets import resolve
from model.contract import moves, start
from model.operations import Call, Discipline
from model.reference import apply, initial
from model.workload import Workload
from properties.exploration import explore, explore_classes
from properties.lockstep import Lockstep, take
from properties.machines import draw_workload, hunt
from properties.minimize import shortest
from properties.scopes import Scope, parse_scope, workload_classes

BUDGET = settings(max_examples=100, stateful_step_count=30)
FAULTS = ("freed-disjoint-cached", "evictable-unreferenced")


def random_walks(console: Console, seeds: int) -> None:
    """Table 1."""
    table = Table(title=f"found of {seeds} seeds, 100 examples of 30 moves")
    for heading in ("target", "property", "discipline", "found", "steps", "to shortest: median s", "max s"):
        table.add_column(heading)
    hunts: list[tuple[str, str, Discipline, bool]] = [
        ("vllm:0.26.0", fault, discipline, False) for discipline in Discipline for fault in FAULTS
    ]
    hunts += [
        (f"port:{defect.name}", defect.property, discipline, _mixed(defect))
        for defect in DEFECTS
        for discipline in defect.disciplines
    ]
    for name, broken, discipline, mixed in hunts:
        target = resolve(name)
        lengths, times = [], []
        for seed in range(seeds):
            found = hunt(target, discipline, frozenset({broken}), BUDGET, mixed=mixed, seed=seed)
            for counterexample in found.counterexamples:
                began = perf_counter()
                lengths.append(len(shortest(counterexample, target).trace))
                times.append(perf_counter() - began)
        spread = ", ".join(map(str, sorted(set(lengths)))) or "-"
        shrink = (f"{median(times):.2f}", f"{max(times):.2f}") if times else ("-", "-")
        table.add_row(name, broken, str(discipline), f"{len(lengths)}", spread, *shrink)
    console.print(table)


def _mixed(defect: Defect) -> bool:
    return parse_scope(defect.scope).mixed


def exhaustive(console: Console) -> None:
    """Table 2."""
    table = Table(title="exhaustive, vllm:0.26.0, 2r2i3h/sizes=1/capacity=2")
    for heading in ("discipline", "found", "seconds to both", "transitions in all", "seconds in all"):
        table.add_column(heading)
    target = resolve("vllm:0.26.0")
    scope = parse_scope("2r2i3h/sizes=1/capacity=2")
    for discipline in Discipline:
        found, seconds = _deepening(target, scope, discipline)
        whole = explore(target, scope, discipline)
        table.add_row(str(discipline), found, f"{seconds:.2f}", f"{whole.transitions:,}", f"{whole.seconds:.2f}")
    console.print(table)


def _deepening(target: Target, scope: Scope, discipline: Discipline) -> tuple[str, float]:
    """Both faults with their shortest traces, and the time to them; nothing shorter can exist in the scope."""
    began = perf_counter()
    classes = workload_classes(scope, discipline)
    for depth in range(1, 20):
        result = explore_classes(target, classes, discipline, name="deepening", deepest=depth)
        found = {one.violation.property: len(one.trace) for one in result.counterexamples}
        if set(FAULTS) <= set(found):
            lengths = ", ".join(f"{fault} ({found[fault]})" for fault in FAULTS)
            return lengths, perf_counter() - began
    raise AssertionError("both faults lie within the scope")


def judges_cost(console: Console) -> None:
    """Table 3."""
    table = Table(title="calls a second, the same calls")
    for heading in ("target", "manager alone", "model alone", "judge", "judge / (manager + model)"):
        table.add_column(heading)
    for name in ("port", "vllm:0.33.0"):
        target = resolve(name)
        walks = [_walk(target, seed) for seed in range(100)]
        calls = sum(len(walk) for _, walk in walks)
        alone = min(_manager_alone(target, walks) for _ in range(3))
        model = min(_model_alone(walks) for _ in range(3))
        judged = min(_judged(target, walks) for _ in range(3))
        rates = (f"{calls / seconds:,.0f}" for seconds in (alone, model, judged))
        table.add_row(name, *rates, f"{judged / (alone + model):.2f}")
    console.print(table)


def _walk(target: Target, seed: int) -> tuple[Workload, list[Call]]:
    random = Random(seed)
    workload = draw_workload(random, mixed=False)
    position = start(workload, Discipline.OPEN)
    judge = Lockstep(target, workload)
    calls: list[Call] = []
    for _ in range(200):
        taken = take(judge, position, random.choice(moves(position)))
        calls.extend(taken.step.calls)
        assert taken.position is not None
        position = taken.position
    return workload, calls


def _manager_alone(target: Target, walks: list[tuple[Workload, list[Call]]]) -> float:
    began = perf_counter()
    for workload, calls in walks:
        session = target.start(workload)
        for call in calls:
            session.call(call)
    return perf_counter() - began


def _model_alone(walks: list[tuple[Workload, list[Call]]]) -> float:
    began = perf_counter()
    for workload, calls in walks:
        state = initial(workload)
        for call in calls:
            state, _ = apply(state, call)
    return perf_counter() - began


def _judged(target: Target, walks: list[tuple[Workload, list[Call]]]) -> float:
    began = perf_counter()
    for workload, calls in walks:
        judge = Lockstep(target, workload)
        for call in calls:
            assert judge.apply(call) is None
    return perf_counter() - began


def main() -> None:
    """Prints the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="seeds for the random walks")
    seeds = parser.parse_args().seeds
    console = Console(width=130)
    judges_cost(console)
    exhaustive(console)
    random_walks(console, seeds)


if __name__ == "__main__":
    main()
