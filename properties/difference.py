"""Two implementations in lockstep with each other, over everything that both show.

A `Pair` is explored like a target; its judge makes each call of both, and a difference is a violation named by
the property under which it falls. Legal is what the contract allows in the state that both agree on: where they
show their internals that is what they show, so two implementations with the same fault go on together.
"""

from collections.abc import Callable, Hashable
from typing import Any

from msgspec import Struct

from impl.errors import NoAnswerError
from impl.target import CannotForkError, Internals, Observation, Session, Shows, Target
from model.errors import EvictcheckError, in_words
from model.operations import CachedIds, Call, Drain, Reset, Result
from model.reference import State, apply, initial
from model.workload import Workload
from properties.invariants import listed
from properties.lockstep import ENDS_BRANCH, MEMBERSHIP_ERA, Answer, Judge, Violation


class Pair(Struct, frozen=True):
    """Two targets to compare.

    Attributes:
        first: One of them; "A" in words.
        second: The other; "B" in words.
        up_to: Properties whose differences are not reported. Where such a difference lies in an answer alone,
            the comparison goes on; where the two have parted, the branch ends.
    """

    first: Target
    second: Target
    up_to: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.first.name} and {self.second.name}"

    @property
    def shows(self) -> Shows:
        """What both show."""
        return min(self.first.shows, self.second.shows)

    @property
    def has_reset(self) -> bool:
        """Whether both offer it."""
        return self.first.has_reset and self.second.has_reset

    def judge(self, workload: Workload) -> Judge:
        """Starts both."""
        return PairJudge(self, workload)


class _Said(Struct, frozen=True):
    """What one side answered and shows, or why it did neither."""

    answer: Result = None
    shown: Observation | None = None
    trouble: str = ""


class PairJudge:
    """Two sessions and the state that they agree on."""

    def __init__(self, pair: Pair, workload: Workload) -> None:
        self._pair = pair
        self._workload = workload
        self._sessions = (pair.first.start(workload), pair.second.start(workload))
        self._shown: tuple[Observation, ...] = tuple(session.observe() for session in self._sessions)
        self._past: tuple[Call, ...] = ()
        self._after_drain = False
        self.state = initial(workload)
        self.last: Answer | None = None

    @property
    def possible(self) -> tuple[State, ...]:
        """The state that both agree on."""
        return (self.state,)

    @property
    def in_accord(self) -> bool:
        """Never taken for granted: two states are the same if both sides show the same."""
        return False

    @property
    def repeated(self) -> bool:
        """Part of what is shown, and so of the key."""
        return False

    @property
    def key(self) -> Hashable:
        """Equal for two judges that the same future calls cannot tell apart, as far as both sides show."""
        hidden = () if self._pair.shows is Shows.INTERNALS else self._past[-1:]
        return (self.state, tuple(_frozen(shown) for shown in self._shown), self._after_drain, hidden)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls made so far."""
        return self._past

    def fork(self) -> "PairJudge":
        """An independent judge in the same situation."""
        twin = object.__new__(PairJudge)
        twin.__dict__.update(self.__dict__)
        first, second = self._pair.first, self._pair.second
        twin._sessions = (self._copy(first, self._sessions[0]), self._copy(second, self._sessions[1]))
        return twin

    def _copy(self, target: Target, session: Session) -> Session:
        try:
            return session.fork()
        except CannotForkError:
            again = target.start(self._workload)
            for call in self._past:
                again.call(call)
            return again

    def close(self) -> None:
        """Gives back what the sessions occupy."""
        for session in self._sessions:
            session.close()

    def apply(self, call: Call) -> Violation | None:
        """Makes one call of both sides; a difference, if they differ."""
        self._past = (*self._past, call)
        first, second = (_said(session, call) for session in self._sessions)
        if first.trouble and second.trouble:
            return self._violation(ENDS_BRANCH, call, first.trouble, second.trouble)
        if first.trouble or second.trouble:
            return self._named("no-crash", call, first.trouble or "answers", second.trouble or "answers")
        assert first.shown is not None
        assert second.shown is not None
        parted = self._parted(call, first.shown, second.shown)
        if parted is not None:
            name, a, b = parted
            return self._named(name, call, a, b)
        spoken = self._spoken(call, first.answer, second.answer)
        if spoken is not None and spoken[0] not in self._pair.up_to:
            return self._violation(spoken[0], call, f"A {spoken[1]}", f"B {spoken[2]}")
        return self._go_on(call, first, second)

    def _go_on(self, call: Call, first: _Said, second: _Said) -> Violation | None:
        after, expected = apply(self.state, call)
        for target, said in ((self._pair.first, first), (self._pair.second, second)):
            assert said.shown is not None
            if said.shown.internals is not None:
                after = _adopted(after, said.shown, said.shown.internals, target)
                break
        else:
            if isinstance(expected, bool) and expected != first.answer:
                # Both left the reference in the same way, and neither shows where it is now.
                return self._violation(ENDS_BRANCH, call, "", "")
        self.state = after
        self._shown = tuple(said.shown for said in (first, second) if said.shown is not None)
        self._after_drain = isinstance(call, Drain)
        self.last = Answer(first.answer, second.answer, self._shown[0])
        return None

    def _parted(self, call: Call, a: Observation, b: Observation) -> tuple[str, str, str] | None:
        """The first component in which the states shown differ: its property and both sides in words."""
        if a.internals is not None and b.internals is not None:
            for name, words, part in _COMPONENTS:
                left, right = part(a.internals), part(b.internals)
                if left is not None and right is not None and left != right:
                    return name, words.format(_words(left)), words.format(_words(right))
        counters = (a.free_slots, a.freeable_slots, b.free_slots, b.freeable_slots)
        if None not in counters and counters[:2] != counters[2:]:
            words = "has {} free slots and {} freeable"
            name = self._slots_named(call, a, b)
            return name, words.format(*counters[:2]), words.format(*counters[2:])
        if a.inputs is not None and b.inputs is not None and "cached-ids-exact" not in self._pair.up_to:
            for request, lists, other in zip(self._workload.requests, a.inputs, b.inputs, strict=True):
                if lists != other:
                    words = f"lists inputs {{}} of {request.request_id}"
                    return "cached-ids-exact", words.format(_words(lists)), words.format(_words(other))
        return None

    def _slots_named(self, call: Call, a: Observation, b: Observation) -> str:
        """Under which property a difference in counters falls, by the design's rule for them."""
        after, _ = apply(self.state, call)
        held = {after.workload.item(*place).mm_hash for place in after.held}
        most = after.workload.capacity - sum(after.embeds_of(mm_hash) for mm_hash in held)
        freeable = max(a.freeable_slots or 0, b.freeable_slots or 0)
        return "evictable-unreferenced" if freeable > most else "slots-conserved"

    def _spoken(self, call: Call, a: Result, b: Result) -> tuple[str, str, str] | None:
        """A difference in the answers alone: its property and both answers."""
        if a == b or (isinstance(call, CachedIds) and (a is None or b is None)):
            return None
        if isinstance(call, CachedIds):
            return "cached-ids-exact", f"lists {_words(a)}", f"lists {_words(b)}"
        if isinstance(call, Drain):
            return self._reported(a, b), f"reports {_words(a)}", f"reports {_words(b)}"
        return "results-agree", f"answers {_words(a)}", f"answers {_words(b)}"

    def _reported(self, a: Result, b: Result) -> str:
        """Under which property a difference between two reports falls."""
        assert isinstance(a, frozenset)
        assert isinstance(b, frozenset)
        if all(self.state.embeds_of(str(mm_hash)) for mm_hash in a ^ b):
            return "freed-disjoint-cached"
        return "report-cleared" if self._after_drain else "report-complete"

    def _named(self, name: str, call: Call, a: str, b: str) -> Violation:
        """A difference after which the two cannot be compared any further."""
        if isinstance(call, Reset) and name != "no-crash":
            name = "reset-initial"
        return self._violation(ENDS_BRANCH if name in self._pair.up_to else name, call, f"A {a}", f"B {b}")

    def _violation(self, name: str, call: Call, expected: str, observed: str) -> Violation:
        return Violation(name, len(self._past) - 1, call, expected, observed)


def _said(session: Session, call: Call) -> _Said:
    try:
        return _Said(session.call(call), session.observe())
    except EvictcheckError:
        raise
    except NoAnswerError as trouble:
        return _Said(trouble=str(trouble))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an implementation raises is its answer
        return _Said(trouble=f"raised {in_words(error)}")


_COMPONENTS: tuple[tuple[str, str, Callable[[Internals], Any]], ...] = (
    ("eviction-order", "has cached {}", lambda internals: frozenset(internals.references)),
    ("evictable-unreferenced", "has evictable {}", lambda internals: frozenset(internals.evictable)),
    ("report-complete", "is to report {}", lambda internals: internals.pending),
    ("nothing-stale", "tracks {}", lambda internals: internals.listed),
)
"""What parts two implementations: the property it falls under, words for it, and where it is shown.

References are left out: where they matter, what is evictable differs. So is the order of the evictable queue:
where it matters, what is evicted differs, and a free of a request may choose its own.
"""


def _adopted(after: State, shown: Observation, internals: Internals, target: Target) -> State:
    """The state that both agree on, as far as one shows it."""
    sizes = dict(after.cached)
    workload = after.workload
    firsts = {
        item.mm_hash: item.embeds for request in reversed(workload.requests) for item in reversed(request.items)
    }
    held = after.held
    if shown.inputs is not None and MEMBERSHIP_ERA not in target.era:
        held = frozenset(
            (request.request_id, input_id)
            for request, inputs in zip(workload.requests, shown.inputs, strict=True)
            for input_id in inputs
        )
    return State(
        workload,
        tuple(sorted((mm_hash, sizes.get(mm_hash, firsts[mm_hash])) for mm_hash in internals.references)),
        held,
        internals.evictable,
        internals.pending,
    )


def _words(value: Any) -> str:
    if isinstance(value, frozenset):
        return "[" + (listed(value) if value else "") + "]"
    return str(value)


def _frozen(shown: Observation) -> Hashable:
    internals = shown.internals
    if internals is None:
        return (shown.inputs, shown.free_slots, shown.freeable_slots)
    return (
        shown.inputs,
        shown.free_slots,
        shown.freeable_slots,
        frozenset(internals.references.items()),
        internals.evictable,
        internals.pending,
        internals.listed,
        internals.repeated,
    )
