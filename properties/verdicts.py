"""The order of attack, and what may be said after it.

Known traces first, then exhaustive exploration at growing scopes, then random walks beyond them. A verdict is
`violated` with a counterexample, `holds` with its evidence, or `unknown`; what a target cannot show is `not
observable`, and a documented difference of its time is `era`. Unknown is never shown as holds.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from enum import StrEnum
from time import time

from hypothesis import settings
from msgspec import Struct

from impl.drivers.client import DriverTarget
from impl.target import Shows, Target
from model.errors import EvictcheckError
from model.operations import Discipline, Reset
from properties.corpus import known_faults
from properties.counterexample import Counterexample, replay
from properties.exploration import HANGS, Exploration
from properties.invariants import MANAGER_PROPERTIES, NO_CRASH, Property
from properties.machines import Hunt, hunt
from properties.minimize import minimize, shortest
from properties.scopes import Scope, growing
from properties.tours import explore_target

RANDOM_RUNS = settings(max_examples=100, stateful_step_count=30, derandomize=True)
"""How far the walks beyond the scopes go; the same walks every time."""


CORPUS = "corpus"


class Outcome(StrEnum):
    """What is said of a property."""

    HOLDS = "holds"
    VIOLATED = "violated"
    UNKNOWN = "unknown"
    ERA = "era"
    NOT_OBSERVABLE = "not observable"


class Verdict(Struct, frozen=True):
    """What is said of one property of one target.

    Attributes:
        property: Its name.
        outcome: The verdict.
        evidence: What it rests on, in words and numbers.
        engine: What found the violation, or "".
        length: Length of the shortest counterexample in steps (calls under the open discipline), or None.
        hint: What else to know about a violation of this property in this kind of target, or "".
    """

    property: str
    outcome: Outcome
    evidence: str
    engine: str = ""
    length: int | None = None
    hint: str = ""


class Question(Struct, frozen=True):
    """What is asked of each target.

    Attributes:
        scope: How far to explore.
        discipline: Who makes the calls.
        properties: Names of the properties asked about.
        seconds: When to stop; None to finish.
    """

    scope: Scope
    discipline: Discipline
    properties: tuple[str, ...]
    seconds: float | None = None


class Report(Struct, frozen=True):
    """Everything found out about one target.

    Attributes:
        target: Its name.
        question: What was asked.
        verdicts: One for each property asked about, in their order.
        counterexamples: Minimal ones, shortest first, for the properties violated.
        explorations: What exhaustive exploration covered, at each scope.
        corpus: Names of the known traces that were replayed.
        hunt: What random walks did; None if there was no time or nothing left to look for.
        complete: Whether everything that was asked was done.
        seconds: Time taken.
    """

    target: str
    question: Question
    verdicts: tuple[Verdict, ...]
    counterexamples: tuple[Counterexample, ...]
    explorations: tuple[Exploration, ...]
    corpus: tuple[str, ...]
    hunt: Hunt | None
    complete: bool
    seconds: float

    def verdict(self, name: str) -> Verdict:
        """The verdict on a property."""
        return next(verdict for verdict in self.verdicts if verdict.property == name)


def property_named(name: str) -> Property:
    """The property of a name.

    Raises:
        EvictcheckError: There is none.
    """
    for candidate in MANAGER_PROPERTIES:
        if candidate.name == name:
            return candidate
    names = ", ".join(candidate.name for candidate in MANAGER_PROPERTIES)
    raise EvictcheckError(f"there is no property {name!r}; the properties are {names}")


Announce = Callable[[str, int, int], None]
"""Told what is going on, how much of it is done, and of how much."""


class _Attack:
    """One target under attack; keeps what is known so far, so that an interrupt loses nothing."""

    def __init__(self, target: Target, question: Question, announce: Announce, executor: Executor | None) -> None:
        self._target = target
        self._executor = executor
        self._question = question
        self._announce = announce
        self._began = time()
        self._deadline = None if question.seconds is None else self._began + question.seconds
        self._found: dict[tuple[str, ...], Counterexample] = {}
        self._explorations: list[Exploration] = []
        self._corpus: list[str] = []
        self._hunt: Hunt | None = None
        self._complete = False

    def run(self) -> None:
        hung = self._replay_corpus()
        explored = all(self._explore(scope) for scope in growing(self._question.scope))
        if hung is not None and all(one.violation.property != NO_CRASH.name for one in self._found.values()):
            self._offer(hung)
        if not explored:
            return
        if self._deadline is None or time() < self._deadline:
            self._walk()
            self._complete = True

    def _replay_corpus(self) -> Counterexample | None:
        """Replays known traces; one that hung, which is kept back since exploration finds shorter ones sooner."""
        for fault in known_faults(self._question.discipline):
            if fault.mixed and not self._question.scope.mixed:
                continue
            calls = tuple(fault.trace.calls)
            if not self._target.has_reset and any(isinstance(call, Reset) for call in calls):
                continue
            self._announce(f"known trace {fault.name}", len(self._corpus), 0)
            began = time()
            violation = replay(fault.trace, self._target)
            self._corpus.append(fault.name)
            if violation is not None:
                found = Counterexample(fault.trace, violation, self._target.name, f"{CORPUS} {fault.name}")
                if time() - began > HANGS:
                    return found
                self._offer(found)
        return None

    def _explore(self, scope: Scope) -> bool:
        exploration = explore_target(
            self._target,
            scope,
            self._question.discipline,
            deadline=self._deadline,
            progress=lambda done, total: self._announce(f"exploring {scope}", done, total),
            executor=self._executor,
        )
        self._explorations.append(exploration)
        for counterexample in exploration.counterexamples:
            self._offer(counterexample)
        return exploration.complete

    def _walk(self) -> None:
        left = frozenset(self._question.properties) - {one.violation.property for one in self._found.values()}
        if not left:
            return
        self._announce("random walks", 0, 0)
        mixed = self._question.scope.mixed
        self._hunt = hunt(self._target, self._question.discipline, left, RANDOM_RUNS, mixed=mixed)
        for counterexample in self._hunt.counterexamples:
            self._offer(shortest(counterexample, self._target))

    def _offer(self, counterexample: Counterexample) -> None:
        """Keeps the shortest for each property, one of each shape."""
        name = counterexample.violation.property
        if name not in self._question.properties:
            return
        lengths = {len(one.trace) for one in self._found.values() if one.violation.property == name}
        if lengths and len(counterexample.trace) > min(lengths):
            return
        minimal = minimize(counterexample, self._target)
        if not lengths or len(minimal.trace) < min(lengths):
            self._found = {key: one for key, one in self._found.items() if one.violation.property != name}
        known = self._found.get(minimal.shape)
        if known is None or known.engine.startswith(CORPUS):
            # A known trace is a find of its own only where nothing else leads there.
            self._found[minimal.shape] = minimal

    def report(self) -> Report:
        question = self._question
        return Report(
            self._target.name,
            question,
            tuple(self._verdict(property_named(name)) for name in question.properties),
            tuple(sorted(self._found.values(), key=lambda one: (one.size, one.violation.property))),
            tuple(self._explorations),
            tuple(self._corpus),
            self._hunt,
            self._complete,
            time() - self._began,
        )

    def _verdict(self, asked: Property) -> Verdict:
        return verdict_on(
            asked, self._target, tuple(self._found.values()), self._evidence(), complete=self._complete
        )

    def _evidence(self) -> str:
        done = [one for one in self._explorations if one.complete]
        parts = []
        if done:
            parts.append(f"{done[-1].transitions:,} transitions, all of {done[-1].scope}")
        if self._explorations and not self._explorations[-1].complete:
            partial = self._explorations[-1]
            parts.append(f"{partial.transitions:,} transitions of {partial.scope}")
        if self._hunt is not None:
            parts.append(f"{self._hunt.examples} random walks")
        return ", ".join(parts)


def verdict_on(
    asked: Property,
    target: Target,
    found: tuple[Counterexample, ...],
    evidence: str,
    *,
    complete: bool,
) -> Verdict:
    """What may be said of a property of a target.

    Args:
        asked: The property.
        target: What was attacked.
        found: The counterexamples found, to any property.
        evidence: What was run, in words and numbers; "" if nothing was.
        complete: Whether everything that was asked was run.
    """
    own = [one for one in found if one.violation.property == asked.name]
    if own:
        best = min(own, key=lambda one: one.size)
        unit = "step" if best.trace.discipline is Discipline.CALLER else "call"
        broken = f"broken in {len(best.trace)} {unit}{'' if len(best.trace) == 1 else 's'}"
        hint = target.hints.get(asked.name, "") if isinstance(target, DriverTarget) else ""
        return Verdict(asked.name, Outcome.VIOLATED, broken, best.engine, len(best.trace), hint)
    if asked.needs > target.shows:
        what = "counters" if asked.needs is Shows.COUNTERS else "internals"
        return Verdict(asked.name, Outcome.NOT_OBSERVABLE, f"the target does not show its {what}")
    if asked.name == "cached-ids-exact" and isinstance(target, DriverTarget) and not target.lists_inputs:
        return Verdict(asked.name, Outcome.NOT_OBSERVABLE, "the target does not list a request's inputs")
    if asked.name == "reset-initial" and not target.has_reset:
        return Verdict(asked.name, Outcome.NOT_OBSERVABLE, "the target has no reset")
    if not complete:
        covered = f"; nothing broke it in {evidence}" if evidence else ", before anything was explored"
        return Verdict(asked.name, Outcome.UNKNOWN, f"stopped early{covered}")
    if asked.name in target.era:
        return Verdict(asked.name, Outcome.ERA, f"by the rule of its time, not today's; {evidence}")
    return Verdict(asked.name, Outcome.HOLDS, evidence)


def judge(target: Target, question: Question, announce: Announce, executor: Executor | None = None) -> Report:
    """Attacks a target in order. An interrupt (Ctrl-C) ends it early, with what was found until then.

    Args:
        target: What to judge.
        question: What is asked of it.
        announce: Told what is going on.
        executor: Where to explore workloads side by side; None explores them here.
    """
    attack = _Attack(target, question, announce, executor)
    with suppress(KeyboardInterrupt):
        attack.run()
    return attack.report()
