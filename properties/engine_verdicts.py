"""What may be said of a target at the engine level, and the order in which it is found out.

As at the manager level: known traces, exhaustive exploration of a scope, random walks beyond it.
"""

from collections.abc import Callable
from time import monotonic

from hypothesis import settings
from msgspec import Struct

from impl.target import Shows, Target
from model.eras import NEWEST, rules_of
from model.errors import EvictcheckError
from model.scheduling import EngineTrace, Setup
from properties.engine_corpus import adapted, known_engine_faults
from properties.engine_exploration import (
    EngineCounterexample,
    EngineExploration,
    explore_scenes,
    first_breach,
)
from properties.engine_invariants import ENGINE_PROPERTIES, EngineProperty
from properties.engine_minimize import minimize_engine
from properties.engine_scopes import DEFAULT_ENGINE_SCOPE, EngineScope, scenes
from properties.engine_walks import EngineHunt, hunt_engine
from properties.invariants import NO_CRASH
from properties.verdicts import Outcome, Verdict

ENGINE_WALKS = settings(max_examples=100, stateful_step_count=30, derandomize=True)
"""How far the walks beyond the scope go; the same walks every time."""


def release_of(target: str) -> str:
    """The release in whose era a target is judged: its own for `vllm:X`, the newest for all others."""
    kind, _, argument = target.partition(":")
    if kind == "vllm":
        try:
            rules_of(argument)
        except EvictcheckError:
            return NEWEST
        return argument
    return NEWEST


def default_setup(target: str) -> Setup:
    """Upstream's default configuration in the era of a target; its sizes are the scope's business."""
    return Setup(capacity=DEFAULT_ENGINE_SCOPE.capacity, rules=rules_of(release_of(target)))


class EngineQuestion(Struct, frozen=True):
    """What is asked of a target.

    Attributes:
        setup: The configuration.
        scope: How far to explore.
        seconds: When to stop; None to finish.
    """

    setup: Setup
    scope: EngineScope = DEFAULT_ENGINE_SCOPE
    seconds: float | None = None


class EngineReport(Struct, frozen=True):
    """Everything found out about one target at the engine level.

    Attributes:
        target: Its name.
        question: What was asked.
        verdicts: One for each property, in their order; `no-crash` only where a manager raised.
        counterexamples: Minimal ones for the properties violated, in their order.
        exploration: What exhaustive exploration covered.
        corpus: Names of the known traces that were replayed.
        hunt: What random walks did; None if there was no time.
        complete: Whether everything that was asked was done.
        seconds: Time taken.
    """

    target: str
    question: EngineQuestion
    verdicts: tuple[Verdict, ...]
    counterexamples: tuple[EngineCounterexample, ...]
    exploration: EngineExploration
    corpus: tuple[str, ...]
    hunt: EngineHunt | None
    complete: bool
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 if everything holds, 1 if something is violated, 3 if something that could be seen is unknown."""
        if self.counterexamples:
            return 1
        return 0 if self.complete else 3


def judge_engine(
    target: Target, question: EngineQuestion, announce: Callable[[str, int, int], None] = lambda *_: None
) -> EngineReport:
    """Attacks a target's manager through an engine. An interrupt (Ctrl-C) ends it early.

    Args:
        target: Whose manager the engine drives.
        question: The configuration, and how far to look.
        announce: Told what is going on, how much of it is done, and of how much (0 if that is not known).
    """
    began = monotonic()
    deadline = None if question.seconds is None else began + question.seconds
    found: dict[str, EngineCounterexample] = {}

    def offer(counterexample: EngineCounterexample) -> None:
        minimal = minimize_engine(counterexample, target)
        known = found.get(minimal.breach.property)
        if known is None or minimal.size < known.size:
            found[minimal.breach.property] = minimal

    corpus: list[str] = []
    for one in known_engine_faults():
        announce(f"known engine trace {one.name}", len(corpus), 0)
        known = _known(one.name, one.fault.property, target, question, one.fault.trace)
        corpus.append(one.name)
        if known is not None:
            offer(known)
    exploration = explore_scenes(
        target,
        scenes(question.scope, question.setup),
        name=str(question.scope),
        deadline=deadline,
        announce=lambda done: announce(f"engine scenes of {question.scope}", done, 0),
    )
    for counterexample in exploration.counterexamples:
        offer(counterexample)
    hunt = None
    complete = exploration.complete
    if complete and (deadline is None or monotonic() < deadline):
        announce("engine walks", 0, 0)
        names = {one.name for one in ENGINE_PROPERTIES} | {NO_CRASH.name}
        try:
            hunt = hunt_engine(target, question.setup, frozenset(names - found.keys()), ENGINE_WALKS)
        except KeyboardInterrupt:
            complete = False
        else:
            for counterexample in hunt.counterexamples:
                offer(counterexample)
    complete = complete and hunt is not None
    evidence = _evidence(exploration, hunt)
    asked = [_verdict(one, target, found.get(one.name), evidence, complete=complete) for one in ENGINE_PROPERTIES]
    if NO_CRASH.name in found:
        asked.append(_violated(found[NO_CRASH.name]))
    return EngineReport(
        target.name,
        question,
        tuple(asked),
        tuple(found[one.property] for one in asked if one.property in found),
        exploration,
        tuple(corpus),
        hunt,
        complete,
        monotonic() - began,
    )


def _known(
    name: str, broken: str, target: Target, question: EngineQuestion, trace: EngineTrace
) -> EngineCounterexample | None:
    try:
        here = adapted(trace, question.setup)
        breach = first_breach(here, target, broken)
    except EvictcheckError:
        return None  # in this configuration the engine takes another course, or does not admit the requests
    if breach is None:
        return None
    length, seen = breach
    return EngineCounterexample(EngineTrace(here.scene, here.moves[:length]), seen, target.name, f"corpus {name}")


def _verdict(
    asked: EngineProperty,
    target: Target,
    counterexample: EngineCounterexample | None,
    evidence: str,
    *,
    complete: bool,
) -> Verdict:
    if counterexample is not None:
        return _violated(counterexample)
    if asked.needs_entries and target.shows is not Shows.INTERNALS:
        return Verdict(asked.name, Outcome.NOT_OBSERVABLE, "the target does not show its internals")
    if not complete:
        return Verdict(asked.name, Outcome.UNKNOWN, f"stopped early; nothing broke it in {evidence}")
    return Verdict(asked.name, Outcome.HOLDS, evidence)


def _violated(counterexample: EngineCounterexample) -> Verdict:
    length = len(counterexample.trace)
    return Verdict(
        counterexample.breach.property,
        Outcome.VIOLATED,
        f"broken in {length} moves: {counterexample.breach.observed}",
        counterexample.found_by,
        length,
    )


def _evidence(exploration: EngineExploration, hunt: EngineHunt | None) -> str:
    whole = f"all of {exploration.scope}" if exploration.complete else f"part of {exploration.scope}"
    parts = [f"{exploration.passes:,} engine passes, {whole}"]
    if hunt is not None:
        parts.append(f"{hunt.examples} random walks")
    return ", ".join(parts)
