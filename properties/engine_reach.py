"""Are the two seeded problems reachable by an ordinary engine, and what do they cost?

The two properties of the manager level that they break are asked here of an engine, at the moment at which the
engine meets them: a report that names a live entry, and an evictable entry that its own running request needs.
"""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from impl.target import Target
from impl.targets import resolve
from model.scheduling import Policy, Setup, What, WorkerOrder
from properties.engine_exploration import EngineCounterexample, EngineExploration, explore_scenes
from properties.engine_invariants import ENGINE_PROPERTIES, EngineMoment, EngineProperty
from properties.engine_scopes import EngineScope, scenes
from properties.invariants import listed

REACH_SCOPE = EngineScope(text=0)
"""Prompts without text suffice to reach both, and make room for both policies and every worker."""


def _report_names_live_entry(moment: EngineMoment) -> str | None:
    if moment.entries is None:
        return None
    for note in moment.taken.notes:
        if note.what is What.REPORTED:
            live = moment.entries.references.keys() & set(note.hashes)
            if live:
                return f"the report names {listed(live)}, which is cached again"
    return None


def _needed_entry_is_evictable(moment: EngineMoment) -> str | None:
    if moment.entries is None:
        return None
    evictable = frozenset(moment.entries.evictable)
    for running in moment.taken.state.running:
        request = moment.scene.requests[running]
        for input_id in sorted(moment.taken.state.standings[running].touched):
            mm_hash = request.items[input_id].mm_hash
            if mm_hash in evictable:
                return (
                    f"{mm_hash} is evictable, and {request.request_id} is in the middle of it (input {input_id})"
                )
    return None


class Problem(Struct, frozen=True):
    """A seeded problem.

    Attributes:
        target: The port with this problem alone.
        reached: The property that is broken where an engine meets it.
    """

    target: str
    reached: EngineProperty


PROBLEMS: tuple[Problem, ...] = (
    Problem(
        "port:unfiltered-freed",
        EngineProperty(
            "freed-disjoint-cached",
            "a freed report never names a hash that is cached at that moment",
            "the worker is told to drop a tensor that is live",
            True,
            _report_names_live_entry,
        ),
    ),
    Problem(
        "port:early-evictable",
        EngineProperty(
            "evictable-unreferenced",
            "no evictable entry is one that a running request is in the middle of",
            "the entry may be evicted under a request that needs it",
            True,
            _needed_entry_is_evictable,
        ),
    ),
)
"""The two seeds."""

WORKERS: tuple[tuple[WorkerOrder, bool], ...] = (
    (WorkerOrder.DROP_FIRST, False),
    (WorkerOrder.ENCODE_FIRST, False),
    (WorkerOrder.ENCODE_FIRST, True),
)
"""Workers by order, and whether they skip what they still have; skipping changes nothing after a drop."""


class Reach(Struct, frozen=True):
    """One line of the answer.

    Attributes:
        problem: The seeded problem, as a target.
        setup: The engine.
        reached: The shortest trace to where the engine meets it; None if it does not within the scope.
        consequences: What breaks because of it, the shortest trace of each property.
        exploration: What was covered.
    """

    problem: str
    setup: Setup
    reached: EngineCounterexample | None
    consequences: tuple[EngineCounterexample, ...]
    exploration: EngineExploration


def reach(problem: Problem, setup: Setup, scope: EngineScope = REACH_SCOPE) -> Reach:
    """Explores an engine around a manager with one problem.

    What breaks with the correct port too, on the same trace, is the scheduler's doing and does not count.
    """
    target: Target = resolve(problem.target)
    exploration = explore_scenes(
        target,
        scenes(scope, setup),
        name=str(scope),
        properties=(problem.reached, *ENGINE_PROPERTIES),
        besides=resolve("port"),
    )
    found = {one.breach.property: one for one in exploration.counterexamples}
    reached = found.pop(problem.reached.name, None)
    return Reach(problem.target, setup, reached, tuple(found.values()), exploration)


def consequence_of(line: Reach) -> str:
    """The first property that breaks because of a problem, `harmless`, or `not reached`."""
    if line.reached is None:
        return "not reached"
    return line.consequences[0].breach.property if line.consequences else "harmless"


def reach_table(
    setup: Setup, scope: EngineScope = REACH_SCOPE, announce: Callable[[str, int, int], None] | None = None
) -> tuple[Reach, ...]:
    """Both problems, under both policies, with every worker.

    Args:
        setup: The configuration, of which policy and worker are varied.
        scope: How far to look.
        announce: Told before each line what is asked, how many are done, and of how many.
    """
    asked = [
        (problem, replace(setup, policy=policy, worker_order=order, skips_present=skips))
        for problem in PROBLEMS
        for policy in Policy
        for order, skips in WORKERS
    ]
    lines = []
    for done, (problem, varied) in enumerate(asked):
        if announce is not None:
            announce(f"{problem.target}, {varied.policy}, {varied.worker_order}", done, len(asked))
        lines.append(reach(problem, varied, scope))
    return tuple(lines)
