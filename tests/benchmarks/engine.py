"""How fast engines are searched, and how long each finding takes: exhaustively, and by random walks.

    python tests/benchmarks/engine.py

Prints passes a second (exhaustive exploration of the default scope, on the port), and for each known engine
fault the seconds until exhaustive exploration and random walks first break its property in its configuration.
"""

from time import perf_counter

from hypothesis import settings
from msgspec.structs import replace

from impl.targets import resolve
from model.eras import rules_of
from properties.engine_corpus import known_engine_faults
from properties.engine_exploration import EngineSearch, explore_scenes
from properties.engine_scopes import DEFAULT_ENGINE_SCOPE, scenes
from properties.engine_verdicts import default_setup, release_of
from properties.engine_walks import hunt_engine

LIMIT = 60.0


def main() -> None:
    """Measures, and prints a table."""
    port = resolve("port")
    one = explore_scenes(port, scenes(DEFAULT_ENGINE_SCOPE, default_setup("port")), name="")
    print(
        f"port, {DEFAULT_ENGINE_SCOPE}: {one.passes:,} passes in {one.seconds:.1f} s, "
        f"{one.passes / one.seconds:,.0f} a second; {one.calls:,} calls of the real code"
    )
    print(f"{'fault':32} {'target':14} {'property':20} {'exhaustive':>12} {'random':>12}")
    for named in known_engine_faults():
        fault = named.fault
        target_name = fault.targets[-1]
        target = resolve(target_name)
        setup = replace(
            fault.trace.scene.setup, kv_capacity=None, token_budget=8, rules=rules_of(release_of(target_name))
        )
        scope = replace(DEFAULT_ENGINE_SCOPE, capacity=setup.capacity)
        began = perf_counter()
        search = EngineSearch(target)
        exhaustive = "-"
        for scene in scenes(scope, setup):
            search.explore(scene)
            if search.length_of(fault.property) is not None:
                exhaustive = f"{perf_counter() - began:.2f} s"
                break
            if perf_counter() - began > LIMIT:
                break
        search.close()
        began = perf_counter()
        walks = settings(max_examples=3_000, stateful_step_count=30, derandomize=True)
        found = hunt_engine(target, setup, frozenset({fault.property}), walks).counterexamples
        took = perf_counter() - began
        random = f"{took:.2f} s" if found else f"none in {took:.0f} s"
        print(f"{named.name:32} {target_name:14} {fault.property:20} {exhaustive:>12} {random:>12}", flush=True)


if __name__ == "__main__":
    main()
