"""Hypothesis machines over an engine, for scenes larger than exhaustive exploration reaches.

More requests with more items, larger ones, items with markers that need no embed, more outputs, several sizes of
one hash. Each example draws from a generator of its own, seeded by Hypothesis, for the reason that
`properties.machines` gives; shrinking is `properties.engine_minimize`'s part.
"""

from collections import Counter
from random import Random
from typing import ClassVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec import Struct
from msgspec.structs import replace

from impl.target import Target
from model.scheduling import (
    Abort,
    Arrive,
    ChangeWeights,
    Engine,
    EngineTrace,
    Move,
    Pass,
    Phase,
    Placement,
    Policy,
    Prompt,
    Scene,
    Setup,
)
from properties.engine_exploration import EngineCounterexample, EngineRun
from properties.engine_situations import ENGINE_SITUATIONS, situations_in
from properties.scopes import hash_name

ENGINE = "hypothesis"


class EngineBrokenError(AssertionError):
    """A property that the machine hunts for broke; `counterexample` has the trace, not yet minimised."""

    def __init__(self, counterexample: EngineCounterexample) -> None:
        super().__init__(f"{counterexample.breach.property}: {counterexample.breach.observed}")
        self.counterexample = counterexample


def draw_scene(random: Random, setup: Setup) -> Scene:
    """A scene in which requests compete for the cache; every request fits.

    Args:
        random: Where the choices come from.
        setup: The configuration; capacity, token budget and KV capacity are drawn.
    """
    hashes = [hash_name(number) for number in range(random.randint(1, 4))]
    sizes = {mm_hash: random.choice((1, 1, 2, 3)) for mm_hash in hashes}
    mixed = random.random() < 0.1
    requests = tuple(
        _draw_prompt(random, f"r{number + 1}", hashes, sizes, setup.policy, mixed=mixed)
        for number in range(random.randint(1, 4))
    )
    items = [item for request in requests for item in request.items]
    largest = max((item.embeds for item in items), default=1)
    longest = max((item.length for item in items), default=1)
    lengths = [request.tokens + request.outputs - 1 for request in requests]
    return Scene(
        requests,
        replace(
            setup,
            capacity=largest + random.choice((0, 0, 1, 2)),
            token_budget=longest + random.choice((0, 1, 1, 2, 4)),
            kv_capacity=random.choice((None, None, max(lengths), max(lengths) + 1, sum(lengths))),
            compute_budget=random.choice((None, None, largest)),
        ),
    )


def _draw_prompt(
    random: Random, name: str, hashes: list[str], sizes: dict[str, int], policy: Policy, *, mixed: bool
) -> Prompt:
    items: list[Placement] = []
    place = 0
    for mm_hash in random.choices(hashes, k=random.randint(0, 3)):
        embeds = random.randint(1, 2) if mixed else sizes[mm_hash]
        start = place + random.choice((0, 0, 1, 2))
        if random.random() < 0.2:
            before, after = random.choice(((1, 0), (0, 1), (1, 1)))
            embeds_at = tuple(range(before, before + embeds))
            items.append(Placement(mm_hash, start, before + embeds + after, embeds_at))
        else:
            items.append(Placement(mm_hash, start, embeds))
        place = items[-1].end
    tokens = max(place + random.choice((0, 0, 1, 2)), 1)
    priority = random.randint(0, 2) if policy is Policy.PRIORITY else 0
    return Prompt(name, tuple(items), tokens, random.randint(1, 3), priority)


def draw_move(random: Random, run: EngineRun, *, resets: bool) -> Move | None:
    """What the outside world does next; passes most of the time. None if nobody is left."""
    state, scene = run.state, run.scene
    unfinished = (*state.running, *state.waiting)
    offered: list[tuple[Move, int]] = [
        (Arrive(request.request_id), 6)
        for request, standing in zip(scene.requests, state.standings, strict=True)
        if standing.phase is Phase.ABSENT
    ]
    offered += [(Abort(scene.requests[one].request_id), 1) for one in unfinished]
    if resets and state.tensors:
        offered.append((ChangeWeights(), 1))
    if unfinished:
        offered.append((_draw_pass(random, scene), 24))
    if not offered:
        return None
    (chosen,) = random.choices([move for move, _ in offered], [weight for _, weight in offered])
    return chosen


def _draw_pass(random: Random, scene: Scene) -> Pass:
    budget = scene.setup.token_budget
    if scene.setup.kv_capacity is not None:
        return Pass(budget)
    answers = tuple(random.random() < 0.8 for _ in range(random.choice((0, 1, 2, 3, 4))))
    return Pass(random.choice((budget, random.randint(1, budget))), answers)


class EngineMachine(RuleBasedStateMachine):
    """One example: a scene, a fresh manager, and moves of the outside world.

    Attributes:
        target: Whose manager the engine drives.
        setup: Its configuration.
        engine_class: The engine; another one has a seeded fault.
        wanted: Properties whose violation fails the example.
        situations: Counts what was reached, over all examples.
        moves: Counts the moves.
    """

    target: ClassVar[Target]
    setup_of_engine: ClassVar[Setup]
    engine_class: ClassVar[type[Engine]]
    wanted: ClassVar[frozenset[str]]
    situations: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self._run: EngineRun | None = None
        self._moves: list[Move] = []
        self._random = Random(0)

    @initialize(number=st.integers(0, 2**64 - 1))
    def begin(self, number: int) -> None:
        """Starts a fresh manager for a drawn scene."""
        self._random = Random(number)
        scene = draw_scene(self._random, self.setup_of_engine)
        self._run = EngineRun(scene, self.target, self.engine_class)

    @rule()
    def move(self) -> None:
        """Takes one move."""
        run = self._run
        if run is None or run.over:
            return
        chosen = draw_move(self._random, run, resets=self.target.has_reset)
        if chosen is None:
            return
        before = run.state
        self._moves.append(chosen)
        taken, found = run.take(chosen)
        if taken is not None:
            self.situations.update(situations_in(run.scene, before, taken))
        for breach in found:
            if breach.property in self.wanted:
                trace = EngineTrace(run.scene, tuple(self._moves))
                raise EngineBrokenError(EngineCounterexample(trace, breach, self.target.name, ENGINE))

    def teardown(self) -> None:
        """Ends the session."""
        if self._run is not None:
            self._run.close()
        self._run = None


class EngineHunt(Struct, frozen=True):
    """What random walks did.

    Attributes:
        examples: Walks of the last round, in which nothing more was found.
        steps: Moves of a walk at most.
        situations: How often each situation was reached, over all rounds.
        counterexamples: One for each property that broke, as found.
    """

    examples: int
    steps: int
    situations: dict[str, int]
    counterexamples: tuple[EngineCounterexample, ...]


def hunt_engine(
    target: Target,
    setup: Setup,
    wanted: frozenset[str],
    profile: settings,
    *,
    engine_class: type[Engine] = Engine,
) -> EngineHunt:
    """Walks until nothing more breaks: each round hunts for what has not been found before it.

    Args:
        target: Whose manager the engine drives.
        setup: The configuration.
        wanted: Names of the properties to hunt for.
        profile: How many examples of how many steps, and whether they are deterministic.
        engine_class: The engine; another one has a seeded fault.
    """
    quick = settings(
        profile,
        phases=(HypothesisPhase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    situations = Counter({one.name: 0 for one in ENGINE_SITUATIONS})
    found: list[EngineCounterexample] = []
    while wanted:
        machine = type(
            "EngineMachine",
            (EngineMachine,),
            {
                "target": target,
                "setup_of_engine": setup,
                "engine_class": engine_class,
                "wanted": wanted,
                "situations": situations,
            },
        )
        try:
            run_state_machine_as_test(machine, settings=quick)
        except EngineBrokenError as broken:
            found.append(broken.counterexample)
            wanted -= {broken.counterexample.breach.property}
        else:
            break
    return EngineHunt(quick.max_examples, quick.stateful_step_count, dict(situations), tuple(found))
