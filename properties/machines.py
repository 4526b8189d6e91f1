"""Hypothesis state machines over the judge, for workloads larger than exhaustive exploration reaches.

One rule makes one move of the discipline, and every move is legal. Which one is a weighted draw: rules chosen
uniformly rarely evict an entry, admit it again and drain, in that order and before anything else happens. The
weights (`weight`) favour what leads from where the cache stands towards the situations that must be reached;
nothing is excluded by them. Each example draws its choices from a generator of its own, seeded by Hypothesis:
Hypothesis likes to repeat parts of earlier examples, which helps to shrink but makes walks alike, and shrinking
is `properties.minimize`'s part here.

A machine hunts for some properties. Where another one breaks first, model and implementation have parted, so
the example ends there and counts for nothing.
"""

from collections.abc import Iterator
from random import Random
from typing import ClassVar

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec import Struct

from impl.target import Target
from model.contract import Position, moves, start
from model.operations import (
    Admit,
    Allocate,
    CanAllocate,
    Check,
    Discipline,
    Drain,
    EndPass,
    Finish,
    FreeInput,
    FreeRequest,
    Move,
    Outcome,
    Preempt,
    Processed,
    Reset,
    Step,
    Trace,
)
from model.reference import State
from model.workload import Item, Request, Workload
from properties.counterexample import Counterexample
from properties.lockstep import Lockstep, Violation, legal_in_all, take
from properties.scopes import hash_name

ENGINE = "hypothesis"


class BrokenError(AssertionError):
    """A property that the machine hunts for broke; `counterexample` has the trace, not yet minimised."""

    def __init__(self, counterexample: Counterexample) -> None:
        violation = counterexample.violation
        super().__init__(f"{violation.property}: expected {violation.expected}; observed {violation.observed}")
        self.counterexample = counterexample


def draw_workload(random: Random, *, mixed: bool) -> Workload:
    """A workload in which entries compete: few hashes, repeated in and across requests, and little room.

    Args:
        random: Where the choices come from.
        mixed: Whether inputs with one hash may differ in size.
    """
    hashes = [hash_name(number) for number in range(random.randint(2, 5))]
    most = random.choice((1, 1, 2, 3))
    sizes = {mm_hash: random.randint(1, most) for mm_hash in hashes}
    requests = []
    for number in range(random.randint(1, 4)):
        contents = random.choices(hashes, k=random.randint(1, 4))
        items = [Item(mm_hash, random.randint(1, 3) if mixed else sizes[mm_hash]) for mm_hash in contents]
        requests.append(Request(f"r{number + 1}", tuple(items)))
    capacity = random.randint(1, 5)
    return Workload(capacity, tuple(requests), random.choice((capacity, capacity, capacity, 1, 2)))


def weight(position: Position, move: Move, last: Move | None) -> int:
    """How often a move is drawn where the cache stands, after the last one; at least 1."""
    if isinstance(move, Drain | EndPass) and isinstance(last, Drain | EndPass):
        # Only a drain right after another one shows that the first one cleared the report.
        return 25
    if position.caller is None:
        return _weight_of_call(position.state, move)
    return _weight_of_step(position, move)


def _weight_of_call(state: State, move: Move) -> int:
    readmitted = any(state.embeds_of(mm_hash) for mm_hash in state.evicted)
    match move:
        case Drain():
            # A report is interesting while something evicted is back, or absent; else only its emptiness.
            return 16 if readmitted else 8 if state.evicted else 2
        case Allocate(request_id, input_id):
            mm_hash = state.workload.item(request_id, input_id).mm_hash
            return 40 if mm_hash in state.evicted else 12
        case CanAllocate(request_id, input_id, compute_budget):
            embeds = state.workload.item(request_id, input_id).embeds
            evicts = embeds <= compute_budget and state.free_slots < embeds <= state.freeable_slots
            return 1 if not evicts else 24 if state.evictable[0] in state.evicted else 12
        case Check(request_id, input_id):
            mm_hash = state.workload.item(request_id, input_id).mm_hash
            held = (request_id, input_id) in state.held
            return 10 if state.embeds_of(mm_hash) and not held else 1
        case FreeInput(request_id, input_id):
            if (request_id, input_id) not in state.held:
                return 2
            # An entry that came back and lets go again can be evicted twice before the drain.
            return 20 if state.workload.item(request_id, input_id).mm_hash in state.evicted else 10
        case FreeRequest(request_id):
            return 4 if any(holder == request_id for holder, _ in state.held) else 1
        case Reset():
            # What it has to withdraw is there for a short time only.
            return 2 if state.evicted else 1
        case _:
            return 1


def _weight_of_step(position: Position, move: Move) -> int:
    state, caller = position.state, position.caller
    assert caller is not None
    match move:
        case EndPass():
            readmitted = any(state.embeds_of(mm_hash) for mm_hash in state.evicted)
            return 30 if readmitted else 6 if caller.in_pass else 1
        case Admit(request_id, last_input_id, outcome):
            items = state.workload.request(request_id).items[: last_input_id + 1]
            if outcome is not Outcome.COMMIT:
                return 2
            returns = any(item.mm_hash in state.evicted for item in items)
            return 12 if returns else 4 + 4 * len(items)
        case Processed():
            return 16
        case Finish(request_id) | Preempt(request_id):
            # A request that holds nothing loses nothing.
            return 4 if any(holder == request_id for holder, _ in state.held) else 1
        case _:
            return 1


class CacheMachine(RuleBasedStateMachine):
    """One example: a workload, a fresh judge, and moves of one discipline.

    Attributes:
        target: What is judged.
        discipline: Who makes the calls.
        wanted: Properties whose violation fails the example; another one ends it quietly.
        mixed: Whether inputs with one hash may differ in size.
        salt: Tells runs apart whose first, simplest example would otherwise be the same.
    """

    target: ClassVar[Target]
    discipline: ClassVar[Discipline]
    wanted: ClassVar[frozenset[str]]
    mixed: ClassVar[bool] = False
    salt: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self._judge: Lockstep | None = None
        self._position: Position | None = None
        self._steps: list[Step] = []
        self._last: Move | None = None
        self._random = Random(0)

    @initialize(number=st.integers(0, 2**64 - 1))
    def begin(self, number: int) -> None:
        """Starts a fresh manager for a drawn workload."""
        self._random = Random(f"{self.salt} {number}")
        workload = draw_workload(self._random, mixed=self.mixed)
        self._judge = Lockstep(self.target, workload)
        self._position = start(workload, self.discipline)

    @rule()
    def move(self) -> None:
        """Makes one legal move: a whole step of the caller, or a single call."""
        if self._judge is None or self._position is None:
            return
        allowed = moves(self._position, resets=self.target.has_reset)
        offered = legal_in_all(allowed, self._judge.possible, self._position.caller)
        weights = [weight(self._position, move, self._last) for move in offered]
        (chosen,) = self._random.choices(offered, weights)
        taken = take(self._judge, self._position, chosen)
        self._steps.append(taken.step)
        self._last = chosen
        if taken.violation is None:
            self._position = taken.position
        else:
            self._part(taken.violation)

    def _part(self, violation: Violation) -> None:
        """Model and implementation have parted: fails, or idles to the end of the example."""
        assert self._position is not None
        trace = Trace(self._position.state.workload, self.discipline, tuple(self._steps))
        self.teardown()
        if violation.property in self.wanted:
            raise BrokenError(Counterexample(trace, violation, self.target.name, ENGINE))

    def teardown(self) -> None:
        """Ends the session."""
        if self._judge is not None:
            self._judge.close()
        self._judge = self._position = None


def machine_for(
    target: Target, discipline: Discipline, wanted: frozenset[str], *, mixed: bool = False, salt: int = 0
) -> type[CacheMachine]:
    """A state machine class that hunts for properties in a target; its `TestCase` runs under any test runner."""
    return type(
        "CacheMachine",
        (CacheMachine,),
        {"target": target, "discipline": discipline, "wanted": wanted, "mixed": mixed, "salt": salt},
    )


class Hunt(Struct, frozen=True):
    """What random testing did.

    Attributes:
        examples: Examples run in the last round, in which nothing more was found.
        steps: Moves an example makes at most.
        counterexamples: One for each property that broke, as found.
    """

    examples: int
    steps: int
    counterexamples: tuple[Counterexample, ...]


def hunt(
    target: Target,
    discipline: Discipline,
    wanted: frozenset[str],
    profile: settings,
    *,
    mixed: bool = False,
    seed: int | None = None,
) -> Hunt:
    """Runs machines until nothing more breaks: each round hunts for what has not been found before it.

    Args:
        target: What to judge.
        discipline: Who makes the calls.
        wanted: Names of the properties to hunt for.
        profile: How many examples of how many steps, and whether they are deterministic. Shrinking is left
            to `properties.minimize`, which knows the trace and ends at the shortest.
        mixed: Whether inputs with one hash may differ in size.
        seed: Where to start from; None leaves it to the profile.
    """
    quick = settings(
        profile,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    found = tuple(_rounds(target, discipline, wanted, quick, mixed, seed))
    return Hunt(quick.max_examples, quick.stateful_step_count, found)


def _rounds(
    target: Target,
    discipline: Discipline,
    wanted: frozenset[str],
    profile: settings,
    mixed: bool,
    seed: int | None,
) -> Iterator[Counterexample]:
    while wanted:
        machine = machine_for(target, discipline, wanted, mixed=mixed, salt=seed or 0)
        factory = machine if seed is None else hypothesis.seed(seed)(machine)
        try:
            run_state_machine_as_test(factory, settings=profile)
        except BrokenError as broken:
            yield broken.counterexample
            wanted -= {broken.counterexample.violation.property}
        else:
            return
