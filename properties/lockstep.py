"""The judge: one implementation, one reference state, one call at a time.

Everything that runs an implementation goes through `Lockstep`; no engine compares anything of its own. The
judge keeps ghost state: the reference states that remain possible (usually one, whose `held` and `evicted` say
which occurrences are held and what was evicted), whether the last call was a drain, and which pending reports
a reset withdrew. Where an implementation answers and shows exactly what the reference does, every property
holds, because every property holds of the reference (the tests explore that); only a difference is looked at.

A difference need not break a property. An implementation that keeps a queue in another order, say, is judged
when it evicts. Such a deviation is remembered, since two states that differ in it are not the same state.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from impl.errors import NoAnswerError
from impl.target import CannotForkError, Described, Internals, Observation, Session, Shows, Target
from model.contract import Caller, Position, objection, script, step_of
from model.errors import EvictcheckError, in_words
from model.operations import CachedIds, Call, Drain, FreeRequest, Move, Reset, Result, Step
from model.reference import State, apply, held_inputs, initial, outcomes
from model.workload import Workload
from properties.invariants import NO_CRASH, Moment, first_broken

MEMBERSHIP_ERA = "cached-ids-exact"
"""The property whose era answers by membership: every input whose hash is cached for anyone."""


class Violation(Struct, frozen=True):
    """A property broken by one call.

    Attributes:
        property: Its name.
        call_index: Which call of the trace broke it, from 0.
        call: The call.
        expected: What the property wants, in words.
        observed: What was seen instead, in words.
    """

    property: str
    call_index: int
    call: Call
    expected: str
    observed: str


class Answer(Struct, frozen=True):
    """The answers to one call that broke nothing, for whoever shows a run."""

    expected: Result
    observed: Result
    shown: Observation


class Judge(Protocol):
    """What an engine asks of a judge: `Lockstep`, or one that compares two implementations."""

    last: Answer | None

    @property
    def state(self) -> State:
        """The reference state; of several that remain possible, the first."""

    @property
    def possible(self) -> tuple[State, ...]:
        """The reference states that remain possible."""

    @property
    def in_accord(self) -> bool:
        """Whether one reference state is possible and is exactly what is shown."""

    @property
    def repeated(self) -> bool:
        """Whether a hash is listed more than once as evicted and not yet reported."""

    @property
    def key(self) -> Hashable:
        """Equal for two judges that the same future calls cannot tell apart."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls made so far."""

    def fork(self) -> "Judge":
        """An independent judge in the same situation."""

    def apply(self, call: Call) -> Violation | None:
        """Makes one legal call; what it broke, if it did."""

    def close(self) -> None:
        """Gives back what is occupied."""


@runtime_checkable
class Pairing(Described, Protocol):
    """A subject that brings a judge of its own: two targets to compare (`properties.difference`)."""

    def judge(self, workload: Workload) -> Judge:
        """A fresh judge."""


Subject: TypeAlias = Target | Pairing
"""What engines explore."""

ENDS_BRANCH = ""
"""The property of a violation that nobody asked about, and after which nothing more can be said."""


def stand(subject: Subject, workload: Workload) -> Judge:
    """A fresh judge of a subject; whatever its target raises on starting comes through."""
    return subject.judge(workload) if isinstance(subject, Pairing) else Lockstep(subject, workload)


_OPEN_CALLS = (FreeRequest, CachedIds)
"""Calls whose answer or effect is not the reference's alone: it may choose, or follow the rule of an era."""


class _Past(Struct, frozen=True):
    """The calls made so far, youngest first: forks share it, and a long run adds to it in constant time."""

    call: Call
    earlier: "_Past | None"


class Lockstep:
    """An implementation and the reference, started together and kept in step.

    Attributes:
        last: The answers to the last call; None before the first one.
        repeated: Whether the target lists a hash more than once as evicted and not yet reported. No rule asks
            for it or forbids it, but a drain may treat such a list otherwise.
    """

    __slots__ = (
        "_after_drain",
        "_by_membership",
        "_calls_made",
        "_deviation",
        "_forgotten",
        "_lists_inputs",
        "_past",
        "_portrait",
        "_possible",
        "_session",
        "_target",
        "_workload",
        "last",
        "repeated",
    )

    def __init__(self, target: Target, workload: Workload) -> None:
        """Starts a fresh session; whatever the target raises on starting comes through."""
        self._target = target
        self._workload = workload
        self._session: Session = target.start(workload)
        self._by_membership = MEMBERSHIP_ERA in target.era
        shown = self._session.observe()
        self._lists_inputs = shown.inputs is not None
        keeps_listed = shown.internals is not None and shown.internals.listed is not None
        self._portrait = _portraits(target.shows, self._lists_inputs, self._by_membership, keeps_listed)
        self._possible: tuple[State, ...] = (initial(workload),)
        self._deviation: Hashable = None
        self._after_drain = False
        self._forgotten: frozenset[str] = frozenset()
        self._past: _Past | None = None
        self._calls_made = 0
        self.last: Answer | None = None
        self.repeated = False

    @property
    def state(self) -> State:
        """The reference state; of several that remain possible, the first."""
        return self._possible[0]

    @property
    def possible(self) -> tuple[State, ...]:
        """The reference states that remain possible; only a free of a request makes more than one."""
        return self._possible

    @property
    def in_accord(self) -> bool:
        """Whether one reference state is possible and the target shows exactly that."""
        return self._deviation is None and len(self._possible) == 1

    @property
    def key(self) -> Hashable:
        """Equal for two judges that the same future calls cannot tell apart.

        As far as the target shows: a target without internals may hide a difference, so there the last call
        is part of the key, and every pair of consecutive calls is told apart. Where something differs from
        the reference, or may, what the judge remembers of drains and resets decides how that will be named.
        """
        if self._target.shows is not Shows.INTERNALS:
            last = self._past and self._past.call
            return (self._possible, self._deviation, last, self._forgotten)
        if self._deviation is None:
            return (self._possible, self.repeated)
        return (self._possible, self.repeated, self._deviation, self._after_drain, self._forgotten)

    def fork(self) -> "Lockstep":
        """An independent judge in the same situation; copied where possible, else by making the calls again."""
        twin = object.__new__(Lockstep)
        twin._target, twin._workload, twin._portrait = self._target, self._workload, self._portrait
        twin._by_membership, twin._lists_inputs = self._by_membership, self._lists_inputs
        twin._possible, twin._deviation = self._possible, self._deviation
        twin._after_drain, twin._forgotten = self._after_drain, self._forgotten
        twin._past, twin._calls_made, twin.last = self._past, self._calls_made, self.last
        twin.repeated = self.repeated
        try:
            twin._session = self._session.fork()
        except CannotForkError:
            twin._session = self._target.start(self._workload)
            for call in self.calls:
                twin._session.call(call)
        return twin

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls made so far."""
        calls: list[Call] = []
        past = self._past
        while past is not None:
            calls.append(past.call)
            past = past.earlier
        return tuple(reversed(calls))

    def close(self) -> None:
        """Gives back what the session occupies."""
        self._session.close()

    def apply(self, call: Call) -> Violation | None:
        """Makes one legal call on both sides.

        Returns:
            None, or the property that the call broke. After a violation the two sides have parted, and the
            judge has nothing more to say.
        """
        self._past = _Past(call, self._past)
        self._calls_made += 1
        try:
            observed = self._session.call(call)
            shown = self._session.observe()
        except EvictcheckError:
            raise
        except NoAnswerError as trouble:
            return self._violation(NO_CRASH.name, call, "an answer", str(trouble))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an implementation raises is its crash
            return self._violation(NO_CRASH.name, call, "an answer", f"it raised {in_words(error)}")

        internals = shown.internals
        if internals is not None:
            self.repeated = internals.repeated
            if internals.repeated:
                shown = replace(shown, internals=replace(internals, repeated=False))
        if len(self._possible) == 1 and type(call) not in _OPEN_CALLS:
            # Nearly every call ends here.
            after, expected = apply(self._possible[0], call)
            if observed == expected and shown == self._portrait(after):
                self._settle(call, ((after, expected),), observed, shown, None)
                return None

        futures = self._futures(call)
        exact = [
            (after, expected)
            for _, after, expected in futures
            if observed == expected and shown == self._portrait(after)
        ]
        if exact:
            self._settle(call, exact, observed, shown, None)
            return None

        moments = [self._moment(*future, call, observed, shown) for future in futures]
        breaches = [first_broken(moment) for moment in moments]
        unbroken = [
            (moment.after, moment.expected)
            for moment, breach in zip(moments, breaches, strict=True)
            if breach is None
        ]
        if unbroken:
            self._settle(call, unbroken, observed, shown, _frozen(shown))
            return None
        assert breaches[0] is not None
        which, difference = breaches[0]
        return self._violation(which.name, call, difference.expected, difference.observed)

    def _futures(self, call: Call) -> list[tuple[State, State, Result]]:
        """All that the reference allows the call to do: state before, state after, answer."""
        return [
            (before, after, self._listed(after, call.request_id) if isinstance(call, CachedIds) else answer)
            for before in self._possible
            for after, answer in outcomes(before, call)
        ]

    def _listed(self, state: State, request_id: str) -> Result:
        """The reference's answer to a query, by the rule of the target's era; None if it cannot be asked."""
        return _listed(state, request_id, self._by_membership) if self._lists_inputs else None

    def _settle(
        self,
        call: Call,
        unbroken: Sequence[tuple[State, Result]],
        observed: Result,
        shown: Observation,
        deviation: Hashable,
    ) -> None:
        """Goes on from what the call can have been."""
        if isinstance(call, Reset):
            self._forgotten = self._forgotten.union(*(before.evicted for before in self._possible))
        elif isinstance(call, Drain):
            self._forgotten = frozenset()
        self._after_drain = isinstance(call, Drain)
        self._deviation = deviation
        if len(unbroken) == 1:
            self._possible = (unbroken[0][0],)
        else:
            self._possible = tuple(dict.fromkeys([after for after, _ in unbroken]))
        self.last = Answer(unbroken[0][1], observed, shown)

    def _violation(self, name: str, call: Call, expected: str, observed: str) -> Violation:
        return Violation(name, self._calls_made - 1, call, expected, observed)

    def _moment(
        self,
        before: State,
        after: State,
        expected: Result,
        call: Call,
        observed: Result,
        shown: Observation,
    ) -> Moment:
        inputs = self._portrait(after).inputs
        return Moment(before, after, call, expected, observed, shown, inputs, self._after_drain, self._forgotten)


def _listed(state: State, request_id: str, by_membership: bool) -> frozenset[int]:
    if not by_membership:
        return held_inputs(state, request_id)
    items = state.workload.request(request_id).items
    return frozenset([input_id for input_id, item in enumerate(items) if state.embeds_of(item.mm_hash)])


@cache
def _portraits(
    shows: Shows, lists_inputs: bool, by_membership: bool, keeps_listed: bool
) -> Callable[[State], Observation]:
    """What such a target would show if it were exactly in a reference state, as a function of the state."""
    of_state = partial(
        _portrait,
        shows=shows,
        lists_inputs=lists_inputs,
        by_membership=by_membership,
        keeps_listed=keeps_listed,
    )
    return lru_cache(maxsize=1 << 14)(of_state)


def _portrait(
    state: State, *, shows: Shows, lists_inputs: bool, by_membership: bool, keeps_listed: bool
) -> Observation:
    inputs = None
    if lists_inputs:
        ids = [request.request_id for request in state.workload.requests]
        inputs = tuple([_listed(state, request_id, by_membership) for request_id in ids])
    if shows is Shows.RESULTS:
        return Observation(inputs)
    if shows is Shows.COUNTERS:
        return Observation(inputs, state.free_slots, state.freeable_slots)
    references: Mapping[str, set[str]] = {mm_hash: set() for mm_hash, _ in state.cached}
    for request_id, input_id in state.held:
        references[state.workload.item(request_id, input_id).mm_hash].add(request_id)
    internals = Internals(
        {mm_hash: frozenset(holders) for mm_hash, holders in references.items()},
        state.evictable,
        state.evicted,
        frozenset([request_id for request_id, _ in state.held]) if keeps_listed else None,
    )
    return Observation(inputs, state.free_slots, state.freeable_slots, internals)


def _frozen(shown: Observation) -> Hashable:
    internals = shown.internals
    bookkeeping = None
    if internals is not None:
        references = frozenset(internals.references.items())
        bookkeeping = (references, internals.evictable, internals.pending, internals.listed)
    return (shown.inputs, shown.free_slots, shown.freeable_slots, bookkeeping)


def legal_in_all(choices: list[Move], possible: tuple[State, ...], caller: Caller | None) -> list[Move]:
    """Those moves that are legal whichever of the possible states is the real one.

    Where it is unknown which entry was evicted, an allocate of it may be the caller's error.
    """
    if len(possible) == 1:
        return choices
    positions = [Position(state, caller) for state in possible]
    return [move for move in choices if all(objection(position, move) is None for position in positions)]


class Taken(Struct, frozen=True):
    """A move carried out on both sides.

    Attributes:
        step: The calls that were made; after a violation, up to the one that broke a property.
        position: Where both stand afterwards; None after a violation.
        violation: What the last call broke, if it did.
    """

    step: Step
    position: Position | None
    violation: Violation | None


def take(judge: Judge, position: Position, move: Move) -> Taken:
    """Carries out a legal move, call by call, each chosen by the answers before it."""
    running = script(position, move)
    calls: list[Call] = []
    answer: Result = None
    while True:
        try:
            call = running.send(answer) if calls else next(running)
        except StopIteration as stop:
            return Taken(step_of(move, tuple(calls)), Position(judge.state, stop.value), None)
        calls.append(call)
        violation = judge.apply(call)
        if violation is not None:
            return Taken(step_of(move, tuple(calls)), None, violation)
        assert judge.last is not None
        answer = judge.last.expected
