"""Every property, once: its name, its sentence, what it needs to be seen, and its predicate.

A predicate is asked about one `Moment`: a call that was just made, what the reference says of it, and what the
implementation answered and shows. It returns None where the property holds, or a `Difference` in words.

The names are API: command line, JSON, tests and documents use them. Their order is the order in which a broken
call is named: if several properties break at one call, the first of `MANAGER_PROPERTIES` names it.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from msgspec import Struct

from impl.target import Internals, Observation, Shows
from model.operations import CachedIds, Call, CanAllocate, Check, Drain, FreeInput, FreeRequest, Reset, Result
from model.reference import State, held_inputs
from model.workload import Workload


class Difference(Struct, frozen=True):
    """What a property wants, and what was seen instead; both are clauses in words."""

    expected: str
    observed: str


class Moment(Struct, frozen=True):
    """One call, seen from all sides.

    Attributes:
        before: Reference state before the call.
        after: Reference state after it.
        call: The call.
        expected: The reference's answer, adapted to the target's era.
        observed: The implementation's answer.
        shown: What the implementation shows after the call.
        inputs: What it should list for each request, adapted to its era; None if it lists nothing.
        after_drain: Whether the call before this one was a drain.
        forgotten: Hashes whose pending report a reset withdrew, up to the next drain.
    """

    before: State
    after: State
    call: Call
    expected: Result
    observed: Result
    shown: Observation
    inputs: tuple[frozenset[int], ...] | None
    after_drain: bool
    forgotten: frozenset[str]


Predicate: TypeAlias = Callable[[Moment], Difference | None]


class Property(Struct, frozen=True):
    """A named statement about every call of every trace.

    Attributes:
        name: Its name, part of the API.
        sentence: What it says, as a main clause.
        needs: The least that a target must show for it to be decided.
        predicate: Whether it holds at a moment. None for a property that is decided by the call itself.
    """

    name: str
    sentence: str
    needs: Shows
    predicate: Predicate | None


def listed(names: Iterable[object]) -> str:
    """A set in words: `a, b`, or `nothing`."""
    return ", ".join(map(str, sorted(names, key=str))) or "nothing"


# --- What a target shows, in embeds ------------------------------------------------------------------------


def _size(moment: Moment, mm_hash: str) -> int:
    """Embeds of an entry that the target shows.

    The size is the one that it was allocated with. A target can show an entry that the reference does not
    have (it should have been evicted, or was never made); then it is the size before the call, or the first
    that the workload has for the hash.
    """
    embeds = moment.after.embeds_of(mm_hash) or moment.before.embeds_of(mm_hash)
    return embeds or _first_size(moment.after.workload, mm_hash)


def _first_size(workload: Workload, mm_hash: str) -> int:
    sizes = (item.embeds for request in workload.requests for item in request.items if item.mm_hash == mm_hash)
    return next(sizes, 0)


def _embeds(moment: Moment, hashes: Iterable[str]) -> int:
    return sum(_size(moment, mm_hash) for mm_hash in hashes)


def _held_hashes(state: State) -> frozenset[str]:
    return frozenset(state.workload.item(*occurrence).mm_hash for occurrence in state.held)


def _holders(state: State, mm_hash: str) -> str:
    held = [place for place in state.held if state.workload.item(*place).mm_hash == mm_hash]
    return " and ".join(f"input {input_id} of {request_id}" for request_id, input_id in sorted(held))


# --- Predicates --------------------------------------------------------------------------------------------


def _freed_disjoint_cached(moment: Moment) -> Difference | None:
    """Only a drain reports; without internals a hash that was never evicted is `eviction-order`'s."""
    if not isinstance(moment.call, Drain):
        return None
    reported = _hashes(moment.observed)
    internals = moment.shown.internals
    could_be_live = moment.before.evicted if internals is None else frozenset(internals.references)
    live = {mm_hash for mm_hash in reported & could_be_live if moment.after.embeds_of(mm_hash)}
    if not live:
        return None
    return Difference(
        f"a report without {listed(live)}, which is cached again",
        f"the report names {listed(reported)}",
    )


def _evictable_unreferenced(moment: Moment) -> Difference | None:
    """With counters only, more freeable slots than unheld space gives an entry away."""
    held = _held_hashes(moment.after)
    internals = moment.shown.internals
    if internals is not None:
        early = [mm_hash for mm_hash in internals.evictable if mm_hash in held]
        if not early:
            return None
        return Difference(
            f"{early[0]} not evictable: {_holders(moment.after, early[0])} still needs it",
            f"{early[0]} is in the evictable queue",
        )
    freeable = moment.shown.freeable_slots
    most = moment.after.workload.capacity - _embeds(moment, held)
    if freeable is None or freeable <= most:
        return None
    return Difference(
        f"at most {most} freeable slots: held occurrences need the rest",
        f"{freeable} freeable slots",
    )


def _slots_conserved(moment: Moment) -> Difference | None:
    """With internals, against the entries that the target shows; with counters only, against the reference.

    An entry that the target has and nobody holds counts as evictable even if the target forgot to queue it:
    its embeds must be freeable.
    """
    free, freeable = moment.shown.free_slots, moment.shown.freeable_slots
    if free is None or freeable is None:
        return None
    internals = moment.shown.internals
    if internals is None:
        right_free, right_freeable = moment.after.free_slots, moment.after.freeable_slots
    else:
        held = _held_hashes(moment.after)
        evictable = {mm_hash for mm_hash in internals.references if mm_hash not in held}
        evictable.update(internals.evictable)
        right_free = moment.after.workload.capacity - _embeds(moment, internals.references)
        right_freeable = right_free + _embeds(moment, evictable)
    if (free, freeable) == (right_free, right_freeable):
        return None
    return Difference(
        f"{right_free} free slots and {right_freeable} freeable",
        f"{free} free slots and {freeable} freeable",
    )


def _capacity_respected(moment: Moment) -> Difference | None:
    """A promise counts: a True of can-allocate for which there is no room overcommits already."""
    internals, free = moment.shown.internals, moment.shown.free_slots
    capacity = moment.after.workload.capacity
    if internals is not None:
        embeds = _embeds(moment, internals.references)
    elif free is not None:
        embeds = capacity - free
    else:
        return None
    promise = ""
    if isinstance(moment.call, CanAllocate) and moment.observed is True:
        item = moment.after.workload.item(moment.call.request_id, moment.call.input_id)
        promised = item.embeds + moment.call.embeds_to_schedule
        embeds += promised
        promise = f", {promised} of them just promised"
    if embeds <= capacity:
        return None
    return Difference(f"at most {capacity} embeds cached", f"{embeds} embeds{promise}")


def _eviction_order(moment: Moment) -> Difference | None:
    """Which entries left the cache, where the target shows them; otherwise whom the report names."""
    internals = moment.shown.internals
    if internals is None:
        return _another_was_evicted(moment)
    if isinstance(moment.call, Reset):
        return None
    gone = {mm_hash for mm_hash, _ in moment.before.cached if mm_hash not in internals.references}
    evicted = {mm_hash for mm_hash, _ in moment.before.cached if not moment.after.embeds_of(mm_hash)}
    queue = moment.before.evictable
    if gone == set(queue[: len(gone)]) and gone <= evicted:
        return None
    return Difference(f"{listed(evicted)} evicted, the oldest", f"{listed(gone)} evicted")


def _another_was_evicted(moment: Moment) -> Difference | None:
    if not isinstance(moment.call, Drain):
        return None
    reported, expected = _hashes(moment.observed), _hashes(moment.expected)
    untouched = {mm_hash for mm_hash in reported - moment.before.evicted if moment.after.embeds_of(mm_hash)}
    if not untouched or expected <= reported:
        return None
    return Difference(
        f"{listed(expected)} evicted, the oldest, and so reported",
        f"the report names {listed(reported)}",
    )


def _report_complete(moment: Moment) -> Difference | None:
    """A drain right after another one is `report-cleared`'s."""
    if not isinstance(moment.call, Drain) or moment.after_drain:
        return None
    reported = _hashes(moment.observed)
    missing = _hashes(moment.expected) - reported
    if missing:
        return Difference(
            f"{listed(missing)} in the report: evicted since the last drain, and absent",
            f"the report names {listed(reported)}",
        )
    strangers = reported - moment.before.evicted - moment.forgotten
    if strangers:
        return Difference(
            f"a report without {listed(strangers)}: not evicted since the last drain",
            f"the report names {listed(reported)}",
        )
    return None


def _report_cleared(moment: Moment) -> Difference | None:
    if not isinstance(moment.call, Drain) or not moment.after_drain or not moment.observed:
        return None
    return Difference(
        "an empty report: the drain before this one cleared it",
        f"the report names {listed(_hashes(moment.observed))}",
    )


def _results_agree(moment: Moment) -> Difference | None:
    if not isinstance(moment.call, Check | CanAllocate) or moment.observed == moment.expected:
        return None
    return Difference(f"{moment.expected}", f"{moment.observed}")


def _cached_ids_exact(moment: Moment) -> Difference | None:
    """Judged on what a call answered and on what is listed for every request after any call."""
    if isinstance(moment.call, CachedIds) and moment.observed != moment.expected:
        return Difference(
            f"inputs {listed(_inputs(moment.expected))}", f"inputs {listed(_inputs(moment.observed))}"
        )
    for request, right, seen in zip(
        moment.after.workload.requests, moment.inputs or (), moment.shown.inputs or (), strict=False
    ):
        if right != seen:
            return Difference(
                f"{request.request_id} lists inputs {listed(right)}",
                f"it lists inputs {listed(seen)}",
            )
    return None


def _reset_initial(moment: Moment) -> Difference | None:
    """A reset is judged by this alone, and so is a report that it should have withdrawn."""
    if isinstance(moment.call, Drain):
        revived = _hashes(moment.observed) & (moment.forgotten - moment.before.evicted)
        if not revived:
            return None
        return Difference(
            f"a report without {listed(revived)}: the reset withdrew it",
            f"the report names {listed(_hashes(moment.observed))}",
        )
    if not isinstance(moment.call, Reset):
        return None
    left = _left_of_a_reset(moment)
    return Difference("a manager like a new one", ", ".join(left)) if left else None


def _left_of_a_reset(moment: Moment) -> list[str]:
    shown, capacity = moment.shown, moment.after.workload.capacity
    left: list[str] = []
    for request, inputs in zip(moment.after.workload.requests, shown.inputs or (), strict=False):
        if inputs:
            left.append(f"{request.request_id} still lists inputs {listed(inputs)}")
    if shown.free_slots is not None and shown.free_slots != capacity:
        left.append(f"{shown.free_slots} free slots of {capacity}")
    if shown.freeable_slots is not None and shown.freeable_slots != capacity:
        left.append(f"{shown.freeable_slots} freeable slots of {capacity}")
    if shown.internals is not None:
        left += _kept(shown.internals)
    return left


def _kept(internals: Internals) -> list[str]:
    parts = {
        "still cached": internals.references,
        "still evictable": internals.evictable,
        "still to be reported": internals.pending,
        "still tracked": internals.listed or (),
    }
    return [f"{listed(names)} {what}" for what, names in parts.items() if names]


def _nothing_stale(moment: Moment) -> Difference | None:
    """Asked at a free after which the request holds nothing."""
    internals = moment.shown.internals
    if internals is None or not isinstance(moment.call, FreeInput | FreeRequest):
        return None
    request_id = moment.call.request_id
    if held_inputs(moment.after, request_id):
        return None
    left = [
        f"{mm_hash} still refers to it"
        for mm_hash, holders in sorted(internals.references.items())
        if request_id in holders
    ]
    if request_id in (internals.listed or ()):
        left.append("the map of held inputs still has a place for it")
    if not left:
        return None
    return Difference(f"nothing left of {request_id}, which holds nothing", ", ".join(left))


def _hashes(result: Result) -> frozenset[str]:
    assert isinstance(result, frozenset)
    return frozenset(str(mm_hash) for mm_hash in result)


def _inputs(result: Result) -> frozenset[int]:
    assert isinstance(result, frozenset)
    return frozenset(int(input_id) for input_id in result)


NO_CRASH = Property("no-crash", "a legal call neither raises, hangs nor dies", Shows.RESULTS, None)

MANAGER_PROPERTIES: tuple[Property, ...] = (
    Property(
        "freed-disjoint-cached",
        "a freed report never names a hash that is cached at that moment",
        Shows.RESULTS,
        _freed_disjoint_cached,
    ),
    Property(
        "evictable-unreferenced",
        "no evictable entry still has an occurrence held by a request",
        Shows.COUNTERS,
        _evictable_unreferenced,
    ),
    Property(
        "slots-conserved",
        "free slots = capacity - embeds cached; freeable slots = free slots + embeds evictable",
        Shows.COUNTERS,
        _slots_conserved,
    ),
    Property(
        "capacity-respected",
        "embeds cached never exceed the capacity",
        Shows.COUNTERS,
        _capacity_respected,
    ),
    Property(
        "eviction-order",
        "evictions take the oldest evictable entries first, and no more of them than needed",
        Shows.RESULTS,
        _eviction_order,
    ),
    Property(
        "report-complete",
        "an evicted hash still absent at the drain is in that report, and the report names nothing that was "
        "not evicted since the last drain",
        Shows.RESULTS,
        _report_complete,
    ),
    Property(
        "report-cleared",
        "a second drain right after the first is empty",
        Shows.RESULTS,
        _report_cleared,
    ),
    Property(
        "results-agree",
        "the booleans of check and can-allocate are the reference's",
        Shows.RESULTS,
        _results_agree,
    ),
    Property(
        "cached-ids-exact",
        "a request's cached input ids are exactly the occurrences it holds",
        Shows.RESULTS,
        _cached_ids_exact,
    ),
    Property(
        "reset-initial",
        "after reset the manager behaves like a new one",
        Shows.RESULTS,
        _reset_initial,
    ),
    Property(
        "nothing-stale",
        "after the last free of a request nothing of it is left",
        Shows.INTERNALS,
        _nothing_stale,
    ),
    NO_CRASH,
)
"""The manager-level properties, in the order in which a broken call is named."""


def first_broken(moment: Moment) -> tuple[Property, Difference] | None:
    """The property that names a broken call, and the difference; None if none is broken."""
    for candidate in MANAGER_PROPERTIES:
        if isinstance(moment.call, Reset) and candidate.name != "reset-initial":
            continue
        if candidate.predicate is not None:
            difference = candidate.predicate(moment)
            if difference is not None:
                return candidate, difference
    return None
