"""What the properties say in logic: formulas over the relation of `model.relation`, for z3.

A formula has a part about every state, a part about every step, or both. The other properties are about
answers; the relation's answers are compared with the reference model's (`properties.comparison`) instead.

Supporting facts are what upstream's bookkeeping rests on. They are no properties of their own: a proof by
induction needs them, and a search uses them once it has ruled out their contrary.
"""

from collections.abc import Callable
from itertools import permutations

import z3
from msgspec import Struct

from model.operations import Discipline
from model.relation import Bool, Relation, State, Step


class Formula(Struct, frozen=True):
    """A statement about every state and every step.

    Attributes:
        of_state: Whether it holds in a state; None if it says nothing about states.
        of_step: Whether it holds of a step; None if it says nothing about steps.
        about: The operations that it says something about; empty for all of them.
    """

    of_state: Callable[[Relation, State], Bool] | None = None
    of_step: Callable[[Relation, Step], Bool] | None = None
    about: tuple[str, ...] = ()

    def holds_in(self, relation: Relation, state: State) -> Bool:
        """Its part about states."""
        return z3.BoolVal(True) if self.of_state is None else self.of_state(relation, state)

    def holds_after(self, relation: Relation, step: Step) -> Bool:
        """That it holds of a step and in the state after it."""
        of_step = z3.BoolVal(True) if self.of_step is None else self.of_step(relation, step)
        return z3.And(of_step, self.holds_in(relation, step.after))


class Fact(Struct, frozen=True):
    """A supporting fact: its name, its sentence, and what it says in logic."""

    name: str
    sentence: str
    formula: Formula


def _hashes(relation: Relation) -> range:
    return range(relation.bounds.hashes)


def _requests(relation: Relation) -> range:
    return range(relation.bounds.requests)


def _inputs(relation: Relation) -> range:
    return range(relation.bounds.inputs)


def _occurrences(relation: Relation) -> list[tuple[int, int]]:
    return [(r, i) for r in _requests(relation) for i in _inputs(relation)]


_DRAINS = ("drain", "end-pass")
_EVICTS = ("can_allocate", "admit")
_RESETS = ("reset", "reset-cache")


def _is_one_of(step: Step, names: tuple[str, ...]) -> Bool:
    return z3.Or([literal for name, literal in step.operations.items() if name in names])


# --- Properties --------------------------------------------------------------------------------------------


def _freed_disjoint_cached(relation: Relation, step: Step) -> Bool:
    return z3.And([z3.Not(z3.And(step.report[h], step.after["cached", h])) for h in _hashes(relation)])


def _evictable_unreferenced(relation: Relation, state: State) -> Bool:
    return z3.And(
        [
            z3.Not(z3.And(state["evictable", h], state["held", r, i], relation.is_hash(r, i, h)))
            for r, i in _occurrences(relation)
            for h in _hashes(relation)
        ]
    )


def _embeds(relation: Relation, state: State, what: str) -> z3.BitVecRef:
    return relation.total([(state[what, h], relation.embeds(state, h)) for h in _hashes(relation)])


def _slots_conserved(relation: Relation, state: State) -> Bool:
    return z3.And(
        state["free",] + _embeds(relation, state, "cached") == relation.capacity,
        state["freeable",] == state["free",] + _embeds(relation, state, "evictable"),
    )


def _capacity_respected(relation: Relation, state: State) -> Bool:
    return z3.ULE(_embeds(relation, state, "cached"), relation.capacity)


def _promises_respected(relation: Relation, step: Step) -> Bool:
    """A promise counts: where can-allocate answers True there must be room."""
    return z3.And(
        [
            z3.Implies(one.granted, z3.ULE(_embeds(relation, one.after, "cached") + one.needed, relation.capacity))
            for one in step.evictions
        ]
    )


def _eviction_order(relation: Relation, step: Step) -> Bool:
    """Only evictable entries go, none that is younger than one that stays, and none that could have stayed."""
    parts = []
    for one in step.evictions:
        for h in _hashes(relation):
            parts.append(z3.Implies(one.evicted[h], one.state["evictable", h]))
            stays = z3.And(one.state["evictable", h], z3.Not(one.evicted[h]))
            others = [g for g in _hashes(relation) if g != h]
            parts += [z3.Implies(z3.And(one.evicted[g], stays), relation.before(one.state, g, h)) for g in others]
            youngest = z3.And(
                one.evicted[h],
                *[z3.Implies(one.evicted[g], relation.before(one.state, g, h)) for g in others],
            )
            without = relation.total([(one.evicted[g], relation.embeds(one.state, g)) for g in others])
            parts.append(z3.Implies(youngest, z3.ULT(one.state["free",] + without, one.needed)))
        parts.append(z3.Implies(z3.Or(one.evicted), one.granted))
    return z3.And(parts)


def _report_complete(relation: Relation, step: Step) -> Bool:
    drains = _is_one_of(step, _DRAINS)
    return z3.And(
        [
            z3.And(
                z3.Implies(
                    z3.And(drains, step.before["evicted", h], z3.Not(step.after["cached", h])), step.report[h]
                ),
                z3.Implies(step.report[h], z3.And(drains, step.before["evicted", h])),
            )
            for h in _hashes(relation)
        ]
    )


def _report_cleared(relation: Relation, step: Step) -> Bool:
    return z3.Implies(
        _is_one_of(step, _DRAINS), z3.Not(z3.Or([step.after["evicted", h] for h in _hashes(relation)]))
    )


def _reset_initial(relation: Relation, step: Step) -> Bool:
    resets = _is_one_of(step, _RESETS)
    after = step.after
    left = [after[what, h] for what in ("cached", "evictable", "evicted") for h in _hashes(relation)]
    left += [after["held", r, i] for r, i in _occurrences(relation)]
    left += [after["refers", r, h] for r in _requests(relation) for h in _hashes(relation)]
    full = [after[what,] == relation.capacity for what in ("free", "freeable")]
    return z3.Implies(resets, z3.And(z3.Not(z3.Or(left)), *full))


def _nothing_stale(relation: Relation, state: State) -> Bool:
    return z3.And(
        [
            z3.Implies(
                state["refers", r, h],
                z3.Or([z3.And(state["held", r, i], relation.is_hash(r, i, h)) for i in _inputs(relation)]),
            )
            for r in _requests(relation)
            for h in _hashes(relation)
        ]
    )


PROPERTY_FORMULAS: dict[str, Formula] = {
    "freed-disjoint-cached": Formula(of_step=_freed_disjoint_cached, about=_DRAINS),
    "evictable-unreferenced": Formula(of_state=_evictable_unreferenced),
    "slots-conserved": Formula(of_state=_slots_conserved),
    "capacity-respected": Formula(of_state=_capacity_respected, of_step=_promises_respected),
    "eviction-order": Formula(of_step=_eviction_order, about=_EVICTS),
    "report-complete": Formula(of_step=_report_complete, about=_DRAINS),
    "report-cleared": Formula(of_step=_report_cleared, about=_DRAINS),
    "reset-initial": Formula(of_step=_reset_initial, about=_RESETS),
    "nothing-stale": Formula(of_state=_nothing_stale),
}
"""By the property's name, in the order in which a broken call is named."""


# --- Supporting facts --------------------------------------------------------------------------------------


def _held_refers(relation: Relation, state: State) -> Bool:
    return z3.And(
        [
            z3.Implies(z3.And(state["held", r, i], relation.is_hash(r, i, h)), state["refers", r, h])
            for r, i in _occurrences(relation)
            for h in _hashes(relation)
        ]
    )


def _referred_cached(relation: Relation, state: State) -> Bool:
    return z3.And(
        [
            z3.Implies(state["refers", r, h], state["cached", h])
            for r in _requests(relation)
            for h in _hashes(relation)
        ]
    )


def _evictable_idle(relation: Relation, state: State) -> Bool:
    return z3.And(
        [
            state["evictable", h]
            == z3.And(state["cached", h], z3.Not(z3.Or([state["refers", r, h] for r in _requests(relation)])))
            for h in _hashes(relation)
        ]
    )


def _queue_ordered(relation: Relation, state: State) -> Bool:
    parts = [
        z3.Implies(part, z3.And(state["evictable", key[1]], state["evictable", key[2]]))
        for key, part in state.items()
        if key[0] == "older"
    ]
    parts += [
        z3.Implies(
            z3.And(
                *[state["evictable", each] for each in (f, g, h)],
                relation.before(state, f, g),
                relation.before(state, g, h),
            ),
            relation.before(state, f, h),
        )
        for f, g, h in permutations(_hashes(relation), 3)
    ]
    return z3.And(parts)


def _sizes_kept(relation: Relation, state: State) -> Bool:
    """Says something only where one hash may have several sizes."""
    if not relation.bounds.mixed:
        return z3.BoolVal(True)
    return z3.And(
        [
            z3.If(
                state["cached", h],
                z3.Or([state["embeds", h] == size for size in relation.bounds.sizes]),
                state["embeds", h] == 0,
            )
            for h in _hashes(relation)
        ]
    )


def _seats_sound(relation: Relation, state: State) -> Bool:
    """Says something only under the caller discipline."""
    if relation.discipline is not Discipline.CALLER:
        return z3.BoolVal(True)
    parts = []
    for r, i in _occurrences(relation):
        parts.append(z3.Implies(state["processed", r, i], state["granted", r, i]))
        parts.append(z3.Implies(state["granted", r, i], state["running", r]))
        if i:
            parts += [z3.Implies(state[what, r, i], state[what, r, i - 1]) for what in ("processed", "granted")]
    spent = [state["spent", r] for r in _requests(relation)]
    parts += [z3.Or(state["admitted", r], spent[r] == 0) for r in _requests(relation)]
    # One by one first: a sum of arbitrary numbers may wrap around.
    total = relation.number(0)
    for one in spent:
        parts.append(z3.ULE(one, relation.budget))
        total = total + one
        parts.append(z3.ULE(total, relation.budget))
    return z3.And(parts)


FACTS: tuple[Fact, ...] = (
    Fact(
        "held-refers",
        "a request that holds an occurrence refers to its hash",
        Formula(of_state=_held_refers),
    ),
    Fact("referred-cached", "a hash that a request refers to is cached", Formula(of_state=_referred_cached)),
    Fact(
        "evictable-idle",
        "the evictable hashes are exactly those cached that no request refers to",
        Formula(of_state=_evictable_idle),
    ),
    Fact("queue-ordered", "of two evictable entries one is older", Formula(of_state=_queue_ordered)),
    Fact("sizes-kept", "an entry has a size that an item may have", Formula(of_state=_sizes_kept)),
    Fact(
        "seats-sound",
        "inputs are granted and processed in order, and a pass spends no more than its budget",
        Formula(of_state=_seats_sound),
    ),
)
"""The supporting facts, in the order in which they are listed."""


# --- Situations --------------------------------------------------------------------------------------------


def _any_hash(relation: Relation, holds: Callable[[int], Bool]) -> Bool:
    return z3.Or([holds(h) for h in _hashes(relation)])


def _readmitted(relation: Relation, step: Step) -> Bool:
    # An admission may evict what it picks a moment later: what counts is that it is pending when allocated.
    return _any_hash(relation, lambda h: z3.And(step.allocated[h], step.after["evicted", h]))


def _first_freed(relation: Relation, step: Step) -> Bool:
    frees = _is_one_of(step, ("free_encoder_input", "processed"))
    freed_first = [
        z3.And(
            step.before["held", r, i],
            z3.Not(step.after["held", r, i]),
            step.after["held", r, j],
            relation.is_hash(r, i, h),
            relation.is_hash(r, j, h),
        )
        for r in _requests(relation)
        for i, j in permutations(_inputs(relation), 2)
        for h in _hashes(relation)
    ]
    return z3.And(frees, z3.Or(freed_first))


def _hit_on_evictable(relation: Relation, step: Step) -> Bool:
    if "check" in step.operations:
        leaves = _any_hash(
            relation, lambda h: z3.And(step.before["evictable", h], z3.Not(step.after["evictable", h]))
        )
        return z3.And(step.operations["check"], leaves)
    return z3.Or(
        [
            z3.And(visit.hit, step.request[r], relation.is_hash(r, i, h), step.before["evictable", h])
            for i, visit in enumerate(step.visits)
            for r in _requests(relation)
            for h in _hashes(relation)
        ]
    )


def _two_for_one(relation: Relation, step: Step) -> Bool:
    return z3.Or(
        [
            z3.And(one.evicted[g], one.evicted[h])
            for one in step.evictions
            for g, h in permutations(_hashes(relation), 2)
        ]
    )


def _evicted_twice(relation: Relation, step: Step) -> Bool:
    return z3.Or(
        [z3.And(one.evicted[h], one.state["evicted", h]) for one in step.evictions for h in _hashes(relation)]
    )


def _refused_by_budget(relation: Relation, step: Step) -> Bool:
    if "can_allocate" in step.operations:
        return z3.And(step.operations["can_allocate"], step.short)
    return z3.Or(
        [z3.And(visit.refused, z3.Not(one.asked)) for visit, one in zip(step.visits, step.evictions, strict=True)]
    )


def _refused_by_capacity(relation: Relation, step: Step) -> Bool:
    return z3.Or([z3.And(one.asked, z3.Not(one.granted)) for one in step.evictions])


def _several_freed_at_once(relation: Relation, step: Step) -> Bool:
    return step.joined_together


def _reset_with_pending(relation: Relation, step: Step) -> Bool:
    pending = _any_hash(relation, lambda h: z3.And(step.before["evicted", h], z3.Not(step.before["cached", h])))
    return z3.And(step.operations["reset"], pending)


def _duplicate_in_pass(relation: Relation, step: Step) -> Bool:
    commit = next(literal for outcome, literal in step.outcomes.items() if outcome == "commit")
    return z3.And(step.operations["admit"], commit, z3.Or([visit.duplicate for visit in step.visits]))


def _scheduled_victim(relation: Relation, step: Step) -> Bool:
    picked = [z3.And(step.request[r], step.before["spent", r] != 0) for r in _requests(relation)]
    return z3.And(step.operations["preempt"], z3.Or(picked))


SITUATION_FORMULAS: dict[str, Callable[[Relation, Step], Bool]] = {
    "readmitted-before-drain": _readmitted,
    "first-occurrence-freed": _first_freed,
    "hit-on-evictable": _hit_on_evictable,
    "two-evicted-for-one": _two_for_one,
    "evicted-twice": _evicted_twice,
    "refused-by-budget": _refused_by_budget,
    "refused-by-capacity": _refused_by_capacity,
    "several-freed-at-once": _several_freed_at_once,
    "reset-with-pending": _reset_with_pending,
    "duplicate-in-pass": _duplicate_in_pass,
    "scheduled-victim": _scheduled_victim,
}
"""When a step is one of `properties.situations`, by its name."""
