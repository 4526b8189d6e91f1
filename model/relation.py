"""The transition relation for z3: the same cache and the same two disciplines, with everything left open.

Written from upstream's code and `model.contract`'s rules, independently of `model.reference`: it keeps what
upstream keeps (who refers to a hash, an evictable queue, two counters) instead of deriving it, so that an error
in one of the two models is a difference between them (`properties.comparison` looks for one exhaustively).

A `Relation` is made for bounds: requests, inputs, hashes, sizes and capacities at most. Which hash and size each
input has, the capacity and the budget are constants left to the solver. A step from one state to another has
one literal for each operation, so that a model names the operation taken, and literals for its arguments.
Under the caller discipline a whole step of the caller is one step here: its calls are unrolled inside.

The encoding is made for a SAT solver: booleans, bit-vectors of a few bits for embeds, no quantifier. The
evictable queue is a matrix that says which of two entries is older. An entry is evicted exactly if evicting all
that are older does not make enough room, which needs no loop.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import z3
from msgspec import Struct

from model.contract import Caller, Seat
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
    ResetCache,
)
from model.workload import Item, Request, Workload

Bool: TypeAlias = z3.BoolRef
Number: TypeAlias = z3.BitVecRef
Key: TypeAlias = tuple[str | int, ...]
State: TypeAlias = Mapping[Key, Any]
"""A symbolic state: an expression for each of its parts, for example `("held", request, input)`.

The parts are `cached`, `evictable` and `evicted` of a hash; `held` of a request and input; `refers` of a request
and hash; `older` of two hashes in ascending order (False unless both are evictable); `free` and `freeable`,
in embeds. Where one hash may have several sizes also `embeds` of a hash (0 unless cached). Under the caller
discipline also `running`, `admitted` and `spent` (embeds picked in this pass) of a request; `processed` and
`granted` of a request and input; `closed`.
"""

Reading: TypeAlias = Callable[[Any], int]
"""The value of an expression in a model, in embeds or as 0 or 1."""

OPEN_OPERATIONS = ("check", "can_allocate", "allocate", "free_encoder_input", "free", "drain", "reset")
CALLER_OPERATIONS = ("admit", "preempt", "end-pass", "processed", "finish", "reset-cache")

_WITH_REQUEST = {
    *("check", "can_allocate", "allocate", "free_encoder_input", "free"),
    *("admit", "preempt", "processed", "finish"),
}
_WITH_INPUT = {"check", "can_allocate", "allocate", "free_encoder_input", "admit", "processed"}


class Bounds(Struct, frozen=True):
    """How large the world may be; the same numbers as a scope's.

    Attributes:
        requests: How many requests.
        inputs: Inputs of each request.
        hashes: Distinct hashes at most.
        sizes: Sizes that an item may have, in embeds.
        capacities: Capacities of the cache, in embeds.
        mixed: Whether inputs with one hash may differ in size.
        budgets: Compute budgets of a pass, in embeds; empty if the budget is the capacity.
    """

    requests: int
    inputs: int
    hashes: int
    sizes: tuple[int, ...]
    capacities: tuple[int, ...]
    mixed: bool = False
    budgets: tuple[int, ...] = ()


class Switches(Struct, frozen=True):
    """The two mends of upstream; with both on it is upstream from 0.29.0 on.

    Attributes:
        hold_until_last_occurrence: A request refers to a hash until its last held occurrence of it is freed
            (0.29.0); off, until the first one is.
        report_only_absent: A report leaves out hashes that are cached again (0.28.0); off, it names them.
    """

    hold_until_last_occurrence: bool = True
    report_only_absent: bool = True


class Eviction(Struct, frozen=True):
    """One question of room inside a step.

    Attributes:
        state: The state in which it is asked.
        asked: Whether it is asked at all, and the compute budget suffices.
        granted: Whether the answer is True.
        needed: Embeds for which room is wanted.
        evicted: For each hash whether it is evicted.
        after: The state in which it is answered.
    """

    state: State
    asked: Bool
    granted: Bool
    needed: Number
    evicted: tuple[Bool, ...]
    after: State


Answer: TypeAlias = bool | frozenset[str] | tuple[str, ...] | None
"""A call's answer: a bool, a report, or, of an admission, one word for each input (see `Visit`)."""


class Visit(Struct, frozen=True):
    """What becomes of one input in an admission; at most one is true, none if it is not visited.

    As a word: the field's name, or `unvisited`.
    """

    hit: Bool
    duplicate: Bool
    picked: Bool
    refused: Bool


class Step(Struct, frozen=True):
    """One step between two states.

    Attributes:
        before: The state before.
        after: The state after.
        operations: The literal of each operation; exactly one is true.
        request: A literal for each request that the operation may be about.
        input: A literal for each input that it may be about.
        short: Whether the compute budget is one embed too small (can-allocate).
        promised: Embeds promised so far to the request (can-allocate).
        outcomes: A literal for each outcome of an admission.
        answer: What check or can-allocate answers.
        report: For each hash whether the drain names it.
        allocated: For each hash whether its entry comes into being.
        joined_together: Whether one free of a request makes several hashes evictable.
        evictions: The questions of room inside the step, in order.
        visits: What becomes of each input in an admission.
        constraint: That the step is a legal one.
        ascending: That a free of a request gives up its inputs in ascending order (otherwise in any).
    """

    before: State
    after: State
    operations: dict[str, Bool]
    request: tuple[Bool, ...]
    input: tuple[Bool, ...]
    short: Bool
    promised: Number
    outcomes: dict[Outcome, Bool]
    answer: Bool
    report: tuple[Bool, ...]
    allocated: tuple[Bool, ...]
    joined_together: Bool
    evictions: tuple[Eviction, ...]
    visits: tuple[Visit, ...]
    constraint: Bool
    ascending: Bool

    @property
    def arguments(self) -> list[Any]:
        """The constants that say which step it is."""
        return [
            *self.operations.values(),
            *self.request,
            *self.input,
            self.short,
            self.promised,
            *self.outcomes.values(),
        ]


class Snapshot(Struct, frozen=True):
    """A state as plain values, in the workload's own names.

    Attributes:
        cached: Entries as (mm_hash, embeds), ascending by hash.
        held: Occurrences held, as (request id, input id).
        refers: Who refers to what, as (request id, mm_hash).
        evictable: The evictable hashes, oldest first.
        evicted: Hashes evicted since the last drain.
        free_slots: The counter of free slots, in embeds.
        freeable_slots: The counter of freeable slots, in embeds.
        caller: The caller's state; None under the open discipline.
    """

    cached: tuple[tuple[str, int], ...]
    held: frozenset[tuple[str, int]]
    refers: frozenset[tuple[str, str]]
    evictable: tuple[str, ...]
    evicted: frozenset[str]
    free_slots: int
    freeable_slots: int
    caller: Caller | None


class _Ties:
    """The order among hashes that one free makes evictable, and the order that ascending inputs would give."""

    def __init__(self, name: str, hashes: int) -> None:
        pairs = list(combinations(range(hashes), 2))
        self.chosen = {(g, h): z3.Bool(f"{name}.tie[{g},{h}]") for g, h in pairs}
        self.used: dict[tuple[int, int], list[Bool]] = {pair: [] for pair in pairs}
        self.ascending: list[Bool] = []

    def first(self, g: int, h: int) -> Bool:
        return self.chosen[g, h] if g < h else z3.Not(self.chosen[h, g])


class Relation:
    """The transition relation of one discipline within bounds.

    Attributes:
        bounds: The bounds.
        switches: Which mends are in.
        discipline: Who makes the calls.
        most_promised: Embeds that the open discipline promises at most in a can-allocate.
        operations: Names of the operations.
        capacity: Embeds that the cache holds.
        budget: Embeds that the encoder may compute in a pass.
        world: That the workload lies within the bounds.
    """

    def __init__(
        self, bounds: Bounds, switches: Switches, discipline: Discipline, *, most_promised: int = 1
    ) -> None:
        """The symbolic workload.

        Args:
            bounds: The bounds.
            switches: Which mends are in.
            discipline: Who makes the calls.
            most_promised: Embeds promised at most under the open discipline; `model.contract` offers 0 and 1,
                a proof takes as many as there are.
        """
        self.bounds = bounds
        self.switches = switches
        self.discipline = discipline
        self.most_promised = most_promised
        self._requests = range(bounds.requests)
        self._inputs = range(bounds.inputs)
        self._hashes = range(bounds.hashes)
        self._pairs = tuple(combinations(self._hashes, 2))
        self._caller = discipline is Discipline.CALLER
        self.operations = CALLER_OPERATIONS if self._caller else OPEN_OPERATIONS
        budgets = bounds.budgets or bounds.capacities
        # No sum of embeds in a state that respects the capacity may wrap around.
        largest = bounds.hashes * max(bounds.sizes) + max((*bounds.capacities, most_promised)) + max(bounds.sizes)
        self._bits = max(largest, max(budgets) * 2 + max(bounds.sizes)).bit_length()
        self._is = [
            [[z3.Bool(f"is[{r},{i},{h}]") for h in self._hashes] for i in self._inputs] for r in self._requests
        ]
        self._hash_size = [z3.BitVec(f"size[{h}]", self._bits) for h in self._hashes]
        self._item_size = [[z3.BitVec(f"size[{r},{i}]", self._bits) for i in self._inputs] for r in self._requests]
        self.capacity: Number = z3.BitVec("capacity", self._bits)
        self.budget: Number = z3.BitVec("budget", self._bits) if bounds.budgets else self.capacity
        self.world: Bool = self._within_bounds()

    # --- The workload --------------------------------------------------------------------------------------

    def _within_bounds(self) -> Bool:
        parts = [_one_of(self._is[r][i]) for r in self._requests for i in self._inputs]
        sizes = self._item_size if self.bounds.mixed else [self._hash_size]
        parts += [_among(size, self.bounds.sizes) for row in sizes for size in row]
        parts.append(_among(self.capacity, self.bounds.capacities))
        if self.bounds.budgets:
            parts.append(_among(self.budget, self.bounds.budgets))
        return z3.And(parts)

    @property
    def canonical_world(self) -> Bool:
        """That hashes are named in the order of their first occurrence: one workload of each renaming."""
        places = [row for rows in self._is for row in rows]
        return z3.And(
            [
                z3.Implies(row[h], z3.Or([earlier[h - 1] for earlier in places[:place]]))
                for place, row in enumerate(places)
                for h in self._hashes[1:]
            ]
        )

    def number(self, value: int) -> Number:
        """An amount of embeds."""
        return z3.BitVecVal(value, self._bits)

    @property
    def sizes(self) -> list[Number]:
        """The sizes that are the same in every state: none if one hash may have several."""
        return [] if self.bounds.mixed else list(self._hash_size)

    def is_hash(self, request: int, input_id: int, mm_hash: int) -> Bool:
        """Whether an input's item has that hash."""
        return self._is[request][input_id][mm_hash]

    def total(self, amounts: Sequence[tuple[Bool, Number]]) -> Number:
        """The sum of those amounts whose condition holds, in embeds."""
        parts = [z3.If(condition, amount, self.number(0)) for condition, amount in amounts]
        return _sum(parts) if parts else self.number(0)

    # --- States --------------------------------------------------------------------------------------------

    def state(self, name: str) -> State:
        """A state of constants of that name."""
        parts: dict[Key, Any] = {}
        for key, is_number in self._keys():
            label = f"{name}.{key[0]}" + (f"[{','.join(map(str, key[1:]))}]" if key[1:] else "")
            parts[key] = z3.BitVec(label, self._bits) if is_number else z3.Bool(label)
        return parts

    def _keys(self) -> list[tuple[Key, bool]]:
        flags: list[Key] = [(what, h) for what in ("cached", "evictable", "evicted") for h in self._hashes]
        flags += [("held", r, i) for r in self._requests for i in self._inputs]
        flags += [("refers", r, h) for r in self._requests for h in self._hashes]
        flags += [("older", g, h) for g, h in self._pairs]
        numbers: list[Key] = [("free",), ("freeable",)]
        if self.bounds.mixed:
            numbers += [("embeds", h) for h in self._hashes]
        if self._caller:
            flags += [(what, r) for what in ("running", "admitted") for r in self._requests]
            flags += [
                (what, r, i) for what in ("processed", "granted") for r in self._requests for i in self._inputs
            ]
            flags.append(("closed",))
            numbers += [("spent", r) for r in self._requests]
        return [(key, False) for key in flags] + [(key, True) for key in numbers]

    def initial(self, state: State) -> Bool:
        """That a state is the one of a new manager, with every request idle."""
        return _equal(state, self._new())

    def _new(self) -> State:
        full = {("free",), ("freeable",)}
        return {
            key: (self.capacity if key in full else self.number(0)) if is_number else z3.BoolVal(False)
            for key, is_number in self._keys()
        }

    def embeds(self, state: State, mm_hash: int) -> Number:
        """The size with which a cached entry was allocated."""
        return state["embeds", mm_hash] if self.bounds.mixed else self._hash_size[mm_hash]

    def before(self, state: State, g: int, h: int) -> Bool:
        """Whether g is older than h in the queue; both must be evictable."""
        return state["older", g, h] if g < h else z3.Not(state["older", h, g])

    def in_pass(self, state: State) -> Bool:
        """Whether the caller is within a pass."""
        return z3.Or(state["closed",], *[state["admitted", r] for r in self._requests])

    # --- Steps ---------------------------------------------------------------------------------------------

    def step(self, before: State, after: State, name: str) -> Step:
        """A step of any operation between two states; its literals are called after `name`."""
        maker = _StepMaker(self, before, name)
        return maker.made(after)

    # --- From and to plain values --------------------------------------------------------------------------

    def workload(self, read: Reading, names: Sequence[str]) -> Workload:
        """The workload that was read, with requests r1, r2, ... and the given names of hashes."""
        requests = []
        for r in self._requests:
            items = []
            for i in self._inputs:
                h = _chosen(read, self._is[r][i])
                size = self._item_size[r][i] if self.bounds.mixed else self._hash_size[h]
                items.append(Item(names[h], read(size)))
            requests.append(Request(f"r{r + 1}", tuple(items)))
        return Workload(read(self.capacity), tuple(requests), read(self.budget))

    def move(self, read: Reading, step: Step, workload: Workload) -> Move:
        """The step that was read."""
        operation = next(name for name, literal in step.operations.items() if read(literal))
        request = workload.requests[_chosen(read, step.request)]
        request_id, input_id = request.request_id, _chosen(read, step.input)
        match operation:
            case "check":
                return Check(request_id, input_id)
            case "can_allocate":
                budget = request.items[input_id].embeds - read(step.short)
                return CanAllocate(request_id, input_id, budget, read(step.promised))
            case "allocate":
                return Allocate(request_id, input_id)
            case "free_encoder_input":
                return FreeInput(request_id, input_id)
            case "free":
                return FreeRequest(request_id)
            case "drain":
                return Drain()
            case "reset":
                return Reset()
            case "admit":
                outcome = next(one for one, literal in step.outcomes.items() if read(literal))
                return Admit(request_id, input_id, outcome)
            case "preempt":
                return Preempt(request_id)
            case "end-pass":
                return EndPass()
            case "processed":
                return Processed(request_id, input_id)
            case "finish":
                return Finish(request_id)
            case _:
                return ResetCache()

    def answer(self, read: Reading, step: Step, names: Sequence[str]) -> Answer:
        """What the call of a step answers; of an admission the fates of its inputs."""
        operation = next(name for name, literal in step.operations.items() if read(literal))
        match operation:
            case "check" | "can_allocate":
                return bool(read(step.answer))
            case "drain" | "end-pass":
                return frozenset(names[h] for h in self._hashes if read(step.report[h]))
            case "admit":
                return tuple(_fate(read, visit) for visit in step.visits)
            case _:
                return None

    def snapshot(self, read: Reading, state: State, workload: Workload, names: Sequence[str]) -> Snapshot:
        """The state that was read."""
        truth = {key for key, part in state.items() if z3.is_bool(part) and read(part)}
        ids = [request.request_id for request in workload.requests]
        cached = [h for h in self._hashes if ("cached", h) in truth]
        waiting = [h for h in self._hashes if ("evictable", h) in truth]
        # The number of older entries is a place in the queue, if the order is one.
        queue = sorted(waiting, key=lambda h: sum(_older(read, state, g, h) for g in waiting if g != h))
        return Snapshot(
            tuple(sorted((names[h], read(self.embeds(state, h))) for h in cached)),
            frozenset((ids[r], i) for r in self._requests for i in self._inputs if ("held", r, i) in truth),
            frozenset(
                (ids[r], names[h]) for r in self._requests for h in self._hashes if ("refers", r, h) in truth
            ),
            tuple(names[h] for h in queue),
            frozenset(names[h] for h in self._hashes if ("evicted", h) in truth),
            read(state["free",]),
            read(state["freeable",]),
            self._caller_of(read, state, truth) if self._caller else None,
        )

    def _caller_of(self, read: Reading, state: State, truth: set[Key]) -> Caller:
        seats = tuple(
            Seat(
                ("running", r) in truth,
                sum(("processed", r, i) in truth for i in self._inputs),
                sum(("granted", r, i) in truth for i in self._inputs),
                read(state["spent", r]) if ("admitted", r) in truth else None,
            )
            for r in self._requests
        )
        return Caller(seats, ("closed",) in truth)

    def pin_workload(self, workload: Workload, names: Sequence[str]) -> list[Bool]:
        """Literals and equations that hold of that workload only."""
        pins = [self.capacity == workload.capacity]
        if self.bounds.budgets:
            pins.append(self.budget == workload.compute_budget)
        for r, request in enumerate(workload.requests):
            for i, item in enumerate(request.items):
                h = names.index(item.mm_hash)
                pins.append(self._is[r][i][h])
                pins.append((self._item_size[r][i] if self.bounds.mixed else self._hash_size[h]) == item.embeds)
        used = {item.mm_hash for request in workload.requests for item in request.items}
        if not self.bounds.mixed:
            # A hash that nobody names has a size too; any will do.
            pins += [self._hash_size[h] == self.bounds.sizes[0] for h in self._hashes if names[h] not in used]
        return pins


class _StepMaker:
    """Builds one step: for each operation when it is legal, and the state after it."""

    def __init__(self, relation: Relation, before: State, name: str) -> None:
        bounds = relation.bounds
        self._relation = relation
        self._before = before
        self._requests = range(bounds.requests)
        self._inputs = range(bounds.inputs)
        self._hashes = range(bounds.hashes)
        self._operations = {operation: z3.Bool(f"{name}.{operation}") for operation in relation.operations}
        self._request = tuple(z3.Bool(f"{name}.request[{r}]") for r in self._requests)
        self._input = tuple(z3.Bool(f"{name}.input[{i}]") for i in self._inputs)
        self._short = z3.Bool(f"{name}.short")
        self._promised = relation.number(0)
        self._outcomes: dict[Outcome, Bool] = {}
        if relation.discipline is Discipline.CALLER:
            self._outcomes = {outcome: z3.Bool(f"{name}.{outcome}") for outcome in Outcome}
        else:
            self._promised = z3.BitVec(f"{name}.promised", self._promised.size())
        self._ties = _Ties(name, bounds.hashes)
        self._answer = z3.BoolVal(False)
        self._report: tuple[Bool, ...] = tuple(z3.BoolVal(False) for _ in self._hashes)
        self._allocated: list[Bool] = [z3.BoolVal(False) for _ in self._hashes]
        self._evictions: list[Eviction] = []
        self._visits: tuple[Visit, ...] = ()
        # What the chosen request's inputs are.
        self._is = [
            [
                z3.Or([z3.And(self._request[r], relation.is_hash(r, i, h)) for r in self._requests])
                for h in self._hashes
            ]
            for i in self._inputs
        ]
        # The hash of the chosen occurrence.
        self._hash = [z3.Or([z3.And(self._input[i], self._is[i][h]) for i in self._inputs]) for h in self._hashes]

    def made(self, after: State) -> Step:
        """The step, once the state after it has names."""
        parts = [_one_of(list(self._operations.values())), _one_of(self._request), _one_of(self._input)]
        if self._outcomes:
            parts.append(_one_of(list(self._outcomes.values())))
        parts += self._unused_arguments()
        drafts: dict[str, State] = {}
        for operation, literal in self._operations.items():
            legal, drafts[operation] = self._carried_out(operation)
            parts.append(z3.Implies(literal, legal))
        parts += self._frames(drafts, after)
        parts += self._tie_rules()
        return Step(
            self._before,
            after,
            self._operations,
            self._request,
            self._input,
            self._short,
            self._promised,
            self._outcomes,
            self._answer,
            self._report,
            tuple(self._allocated),
            z3.Or([both for pair in self._relation._pairs for both in self._ties.used[pair]]),
            tuple(self._evictions),
            self._visits,
            z3.And(parts),
            z3.And(self._ties.ascending),
        )

    def _carried_out(self, operation: str) -> tuple[Bool, State]:
        match operation:
            case "check":
                return self._check()
            case "can_allocate":
                return self._can_allocate()
            case "allocate":
                return self._allocate()
            case "free_encoder_input":
                return self._free_encoder_input()
            case "free":
                return z3.BoolVal(True), self._free(dict(self._before), self._operations["free"])
            case "drain":
                return z3.BoolVal(True), self._drain(self._operations["drain"])
            case "reset":
                return z3.BoolVal(True), self._relation._new()
            case "admit":
                return self._admit()
            case "preempt":
                return self._preempt()
            case "end-pass":
                return self._end_pass()
            case "processed":
                return self._processed()
            case "finish":
                return self._finish()
            case _:
                return self._reset_cache()

    def _frames(self, drafts: dict[str, State], after: State) -> list[Bool]:
        """Each part of the state is what the operation makes of it, and what it does not touch stays."""
        parts = []
        for key, was in self._before.items():
            untouched = [self._operations[name] for name, draft in drafts.items() if draft[key] is was]
            if untouched:
                parts.append(z3.Implies(z3.Or(untouched), after[key] == was))
            for name, draft in drafts.items():
                if draft[key] is not was:
                    parts.append(z3.Implies(self._operations[name], after[key] == draft[key]))
        return parts

    def _unused_arguments(self) -> list[Bool]:
        """Arguments that an operation does not have are fixed, so that a step has one description only."""
        parts = []
        for operation, literal in self._operations.items():
            if operation not in _WITH_REQUEST:
                parts.append(z3.Implies(literal, self._request[0]))
            if operation not in _WITH_INPUT:
                parts.append(z3.Implies(literal, self._input[0]))
        if self._outcomes:
            parts.append(z3.Or(self._operations["admit"], self._outcomes[Outcome.COMMIT]))
        asked = self._operations.get("can_allocate", z3.BoolVal(False))
        parts.append(z3.Or(asked, z3.Not(self._short)))
        if "can_allocate" in self._operations:
            parts.append(z3.Or(asked, self._promised == 0))
        return parts

    # --- Calls ---------------------------------------------------------------------------------------------

    def _at(self, r: int, i: int) -> Bool:
        return z3.And(self._request[r], self._input[i])

    def _size(self, target: Sequence[Bool], inputs: Mapping[int, Bool]) -> Number:
        """The size of the chosen request's chosen input, in embeds."""
        relation = self._relation
        if not relation.bounds.mixed:
            return relation.total([(target[h], relation._hash_size[h]) for h in self._hashes])
        return relation.total(
            [
                (z3.And(self._request[r], chosen), relation._item_size[r][i])
                for r in self._requests
                for i, chosen in inputs.items()
            ]
        )

    def _check(self) -> tuple[Bool, State]:
        draft = dict(self._before)
        inputs = dict(enumerate(self._input))
        hit = self._hit(draft, self._hash, inputs, z3.BoolVal(True))
        self._answer = z3.Or(self._answer, z3.And(self._operations["check"], hit))
        return z3.BoolVal(True), draft

    def _hit(self, draft: dict[Key, Any], target: Sequence[Bool], inputs: Mapping[int, Bool], asked: Bool) -> Bool:
        """A check of an item of that hash: on a hit the occurrence holds it, and it leaves the queue."""
        relation = self._relation
        found = [z3.And(asked, target[h], draft["cached", h]) for h in self._hashes]
        hit = z3.Or(found)
        leaving = [
            z3.And(found[h], z3.Not(z3.Or([draft["refers", r, h] for r in self._requests]))) for h in self._hashes
        ]
        draft["freeable",] -= relation.total([(leaving[h], relation.embeds(draft, h)) for h in self._hashes])
        self._leave_queue(draft, leaving)
        for r in self._requests:
            for i, chosen in inputs.items():
                draft["held", r, i] = z3.Or(draft["held", r, i], z3.And(hit, self._request[r], chosen))
            for h in self._hashes:
                draft["refers", r, h] = z3.Or(draft["refers", r, h], z3.And(found[h], self._request[r]))
        return hit

    def _leave_queue(self, draft: dict[Key, Any], leaving: Sequence[Bool]) -> None:
        for h in self._hashes:
            draft["evictable", h] = z3.And(draft["evictable", h], z3.Not(leaving[h]))
        for g, h in self._relation._pairs:
            draft["older", g, h] = z3.And(draft["older", g, h], z3.Not(leaving[g]), z3.Not(leaving[h]))

    def _can_allocate(self) -> tuple[Bool, State]:
        draft = dict(self._before)
        absent = z3.Not(z3.Or([z3.And(self._hash[h], draft["cached", h]) for h in self._hashes]))
        promisable = z3.ULE(self._promised, self._relation.number(self._relation.most_promised))
        size = self._size(self._hash, dict(enumerate(self._input)))
        asked = self._operations["can_allocate"]
        granted = self._make_room(draft, z3.And(asked, z3.Not(self._short)), size + self._promised)
        self._answer = z3.Or(self._answer, granted)
        return z3.And(absent, promisable), draft

    def _make_room(self, draft: dict[Key, Any], asked: Bool, needed: Number) -> Bool:
        """Room for that many embeds: the oldest evictable entries go, as far as needed."""
        state = dict(draft)
        granted = z3.And(asked, z3.ULE(needed, draft["freeable",]))
        evicted = [z3.And(granted, self._must_go(state, h, needed)) for h in self._hashes]
        for h in self._hashes:
            draft["cached", h] = z3.And(draft["cached", h], z3.Not(evicted[h]))
            draft["evicted", h] = z3.Or(draft["evicted", h], evicted[h])
            if self._relation.bounds.mixed:
                draft["embeds", h] = z3.If(evicted[h], self._relation.number(0), draft["embeds", h])
        draft["free",] += self._returned(state, evicted)
        self._leave_queue(draft, evicted)
        self._evictions.append(Eviction(state, asked, granted, needed, tuple(evicted), dict(draft)))
        return granted

    def _must_go(self, state: State, h: int, needed: Number) -> Bool:
        """Whether h is evictable, and evicting all that are older does not make enough room."""
        older = [
            (z3.And(state["evictable", g], self._relation.before(state, g, h)), self._relation.embeds(state, g))
            for g in self._hashes
            if g != h
        ]
        return z3.And(state["evictable", h], z3.ULT(state["free",] + self._relation.total(older), needed))

    def _returned(self, state: State, evicted: Sequence[Bool]) -> Number:
        """Embeds that evicting returns to the free slots."""
        return self._relation.total([(evicted[h], self._relation.embeds(state, h)) for h in self._hashes])

    def _allocate(self) -> tuple[Bool, State]:
        draft = dict(self._before)
        absent = z3.Not(z3.Or([z3.And(self._hash[h], draft["cached", h]) for h in self._hashes]))
        inputs = dict(enumerate(self._input))
        size = self._size(self._hash, inputs)
        room = z3.ULE(size, draft["free",])
        self._enter(draft, self._hash, inputs, size, z3.BoolVal(True))
        self._allocated = [z3.And(self._operations["allocate"], self._hash[h]) for h in self._hashes]
        return z3.And(absent, room), draft

    def _enter(
        self,
        draft: dict[Key, Any],
        target: Sequence[Bool],
        inputs: Mapping[int, Bool],
        size: Number,
        picked: Bool,
    ) -> None:
        """The entry comes into being, held by the occurrence."""
        relation = self._relation
        taken = z3.If(picked, size, relation.number(0))
        draft["free",] -= taken
        draft["freeable",] -= taken
        for h in self._hashes:
            entering = z3.And(picked, target[h])
            draft["cached", h] = z3.Or(draft["cached", h], entering)
            if relation.bounds.mixed:
                draft["embeds", h] = z3.If(entering, size, draft["embeds", h])
            for r in self._requests:
                draft["refers", r, h] = z3.Or(draft["refers", r, h], z3.And(entering, self._request[r]))
        for r in self._requests:
            for i, chosen in inputs.items():
                draft["held", r, i] = z3.Or(draft["held", r, i], z3.And(picked, self._request[r], chosen))

    def _free_encoder_input(self) -> tuple[Bool, State]:
        draft = dict(self._before)
        self._give_up_input(draft, self._hash, self._input, z3.BoolVal(True))
        return z3.BoolVal(True), draft

    def _give_up_input(
        self, draft: dict[Key, Any], target: Sequence[Bool], inputs: Sequence[Bool], asked: Bool
    ) -> None:
        """A free of one occurrence; one that is not held changes nothing."""
        places = [(r, i) for r in self._requests for i in self._inputs]
        listed = z3.And(
            asked, z3.Or([z3.And(self._request[r], inputs[i], draft["held", r, i]) for r, i in places])
        )
        for r, i in places:
            draft["held", r, i] = z3.And(draft["held", r, i], z3.Not(z3.And(asked, self._request[r], inputs[i])))
        held = self._held_by_request(draft)
        drops = []
        for h in self._hashes:
            still = z3.Or([z3.And(held[i], self._is[i][h]) for i in self._inputs])
            drop = z3.And(listed, target[h], self._refers_by_request(draft, h))
            if self._relation.switches.hold_until_last_occurrence:
                drop = z3.And(drop, z3.Not(still))
            drops.append(drop)
        self._unrefer(draft, drops)

    def _held_by_request(self, draft: State) -> list[Bool]:
        """For each input whether the chosen request holds it."""
        return [
            z3.Or([z3.And(self._request[r], draft["held", r, i]) for r in self._requests]) for i in self._inputs
        ]

    def _refers_by_request(self, draft: State, h: int) -> Bool:
        return z3.Or([z3.And(self._request[r], draft["refers", r, h]) for r in self._requests])

    def _unrefer(self, draft: dict[Key, Any], drops: Sequence[Bool]) -> list[Bool]:
        """The chosen request no longer refers to some hashes; those that nobody refers to join the queue.

        Returns:
            For each hash whether it joins. The order among those that join together is that of the ties.
        """
        relation = self._relation
        joining = []
        for h in self._hashes:
            for r in self._requests:
                draft["refers", r, h] = z3.And(draft["refers", r, h], z3.Not(z3.And(drops[h], self._request[r])))
            joining.append(z3.And(drops[h], z3.Not(z3.Or([draft["refers", r, h] for r in self._requests]))))
        was = dict(draft)
        for h in self._hashes:
            draft["evictable", h] = z3.Or(was["evictable", h], joining[h])
        for g, h in relation._pairs:
            draft["older", g, h] = z3.And(
                draft["evictable", g],
                draft["evictable", h],
                z3.If(
                    joining[g],
                    z3.And(joining[h], self._ties.first(g, h)),
                    z3.Or(joining[h], was["older", g, h]),
                ),
            )
        draft["freeable",] += relation.total([(joining[h], relation.embeds(draft, h)) for h in self._hashes])
        return joining

    def _free(self, draft: dict[Key, Any], literal: Bool) -> State:
        """A free of all that the chosen request holds."""
        held = self._held_by_request(draft)
        uses = [[z3.And(held[i], self._is[i][h]) for i in self._inputs] for h in self._hashes]
        drops = [z3.And(z3.Or(uses[h]), self._refers_by_request(draft, h)) for h in self._hashes]
        for r in self._requests:
            for i in self._inputs:
                draft["held", r, i] = z3.And(draft["held", r, i], z3.Not(self._request[r]))
        joining = self._unrefer(draft, drops)
        for g, h in self._relation._pairs:
            both = z3.And(literal, joining[g], joining[h])
            self._ties.used[g, h].append(both)
            self._ties.ascending.append(
                z3.Implies(both, self._ties.first(g, h) == self._gives_up_first(uses[g], uses[h]))
            )
        return draft

    def _gives_up_first(self, g_uses: Sequence[Bool], h_uses: Sequence[Bool]) -> Bool:
        """Whether g joins the queue before h if inputs are freed in ascending order."""
        if self._relation.switches.hold_until_last_occurrence:
            # The last occurrence counts: some use of h has no use of g after it.
            return z3.Or([z3.And(h_uses[i], *[z3.Not(use) for use in g_uses[i + 1 :]]) for i in self._inputs])
        return z3.Or([z3.And(g_uses[i], *[z3.Not(use) for use in h_uses[:i]]) for i in self._inputs])

    def _tie_rules(self) -> list[Bool]:
        """Ties are false where nothing joins together, and an order where three do."""
        ties = self._ties
        parts = [z3.Implies(ties.chosen[pair], z3.Or(ties.used[pair])) for pair in self._relation._pairs]
        for f, g, h in combinations(self._hashes, 3):
            together = z3.And(z3.Or(ties.used[f, g]), z3.Or(ties.used[g, h]))
            for a, b, c in ((f, g, h), (f, h, g)):
                circle = z3.And(ties.first(a, b), ties.first(b, c), ties.first(c, a))
                parts.append(z3.Implies(together, z3.Not(circle)))
        return parts

    def _drain(self, literal: Bool) -> State:
        draft = dict(self._before)
        self._report = tuple(z3.And(literal, self._is_reported(draft, h)) for h in self._hashes)
        for h in self._hashes:
            draft["evicted", h] = z3.BoolVal(False)
        return draft

    def _is_reported(self, state: State, h: int) -> Bool:
        if self._relation.switches.report_only_absent:
            return z3.And(state["evicted", h], z3.Not(state["cached", h]))
        return state["evicted", h]

    # --- Steps of the caller -------------------------------------------------------------------------------

    def _of(self, what: str) -> Bool:
        """Whether the chosen request is so."""
        return z3.Or([z3.And(self._request[r], self._before[what, r]) for r in self._requests])

    def _inputs_of(self, what: str) -> list[Bool]:
        """For each input whether the chosen request's is so."""
        return [
            z3.Or([z3.And(self._request[r], self._before[what, r, i]) for r in self._requests])
            for i in self._inputs
        ]

    def _admit(self) -> tuple[Bool, State]:
        relation, literal = self._relation, self._operations["admit"]
        processed, granted = self._inputs_of("processed"), self._inputs_of("granted")
        legal = [
            z3.Not(self._of("admitted")),
            z3.Or(self._of("running"), z3.Not(self._before["closed",])),
        ]
        for i in self._inputs:
            legal.append(z3.Implies(self._input[i], z3.Not(processed[i])))
            if i:
                legal.append(z3.Implies(self._input[i - 1], z3.Not(granted[i])))

        draft = dict(self._before)
        spent = relation.total([(z3.BoolVal(True), self._before["spent", r]) for r in self._requests])
        promised, stopped = relation.number(0), z3.BoolVal(False)
        visits: list[Visit] = []
        for i in self._inputs:
            in_window = z3.And(
                literal, z3.Not(processed[i]), z3.Or([self._input[last] for last in self._inputs[i:]])
            )
            visit = z3.And(in_window, z3.Not(stopped))
            duplicate = z3.And(visit, z3.Or([z3.And(visits[j].picked, self._same(i, j)) for j in range(i)]))
            asked = z3.And(visit, z3.Not(duplicate))
            hit = self._hit(draft, self._is[i], {i: z3.BoolVal(True)}, asked)
            missed = z3.And(asked, z3.Not(hit))
            size = self._size(self._is[i], {i: z3.BoolVal(True)})
            affordable = z3.ULE(spent + promised + size, relation.budget)
            picked = self._make_room(draft, z3.And(missed, affordable), size + promised)
            refused = z3.And(missed, z3.Not(picked))
            stopped = z3.Or(stopped, refused)
            promised = promised + z3.If(picked, size, relation.number(0))
            visits.append(Visit(hit, duplicate, picked, refused))
        self._visits = tuple(visits)
        return z3.And(legal), self._admitted(draft, visits, promised)

    def _same(self, i: int, j: int) -> Bool:
        return z3.Or([z3.And(self._is[i][h], self._is[j][h]) for h in self._hashes])

    def _admitted(self, visited: dict[Key, Any], visits: Sequence[Visit], promised: Number) -> State:
        """How the admission ends, once its inputs were visited."""
        commit, skip = self._outcomes[Outcome.COMMIT], self._outcomes[Outcome.SKIP]
        give_up = z3.And(self._operations["admit"], self._outcomes[Outcome.GIVE_UP])
        committed = dict(visited)
        for i, visit in enumerate(visits):
            chosen = {i: z3.BoolVal(True)}
            self._enter(committed, self._is[i], chosen, self._size(self._is[i], chosen), visit.picked)
        for i, visit in enumerate(visits):
            self._hit(committed, self._is[i], {i: z3.BoolVal(True)}, visit.duplicate)
        self._allocated = [
            z3.And(commit, z3.Or([z3.And(visit.picked, self._is[i][h]) for i, visit in enumerate(visits)]))
            for h in self._hashes
        ]
        for r in self._requests:
            mine = self._request[r]
            committed["running", r] = z3.Or(committed["running", r], mine)
            committed["admitted", r] = z3.Or(committed["admitted", r], mine)
            committed["spent", r] = z3.If(mine, promised, committed["spent", r])
            for i, visit in enumerate(visits):
                reached = z3.And(mine, z3.Or(visit.hit, visit.duplicate, visit.picked))
                committed["granted", r, i] = z3.Or(committed["granted", r, i], reached)
        given_up = dict(visited)
        self._free(given_up, give_up)
        self._idle(given_up)
        given_up["closed",] = z3.BoolVal(True)
        skipped = dict(visited)
        for r in self._requests:
            skipped["admitted", r] = z3.Or(skipped["admitted", r], self._request[r])
        return {key: _merged(commit, committed[key], skip, skipped[key], given_up[key]) for key in self._before}

    def _idle(self, draft: dict[Key, Any]) -> None:
        """The chosen request is idle, with nothing processed."""
        for r in self._requests:
            other = z3.Not(self._request[r])
            draft["running", r] = z3.And(draft["running", r], other)
            draft["admitted", r] = z3.And(draft["admitted", r], other)
            draft["spent", r] = z3.If(other, draft["spent", r], self._relation.number(0))
            for i in self._inputs:
                draft["processed", r, i] = z3.And(draft["processed", r, i], other)
                draft["granted", r, i] = z3.And(draft["granted", r, i], other)

    def _preempt(self) -> tuple[Bool, State]:
        draft = dict(self._before)
        self._free(draft, self._operations["preempt"])
        self._idle(draft)
        draft["closed",] = z3.BoolVal(True)
        return self._of("running"), draft

    def _end_pass(self) -> tuple[Bool, State]:
        draft = dict(self._drain(self._operations["end-pass"]))
        for r in self._requests:
            draft["admitted", r] = z3.BoolVal(False)
            draft["spent", r] = self._relation.number(0)
        draft["closed",] = z3.BoolVal(False)
        return z3.BoolVal(True), draft

    def _processed(self) -> tuple[Bool, State]:
        draft = dict(self._before)
        processed, granted = self._inputs_of("processed"), self._inputs_of("granted")
        legal = [z3.Not(self._relation.in_pass(self._before)), self._of("running")]
        for i in self._inputs:
            first = z3.And(z3.Not(processed[i]), *processed[:i])
            legal.append(z3.Implies(self._input[i], z3.And(first, granted[i])))
        self._give_up_input(draft, self._hash, self._input, z3.BoolVal(True))
        for r in self._requests:
            for i in self._inputs:
                draft["processed", r, i] = z3.Or(draft["processed", r, i], self._at(r, i))
        return z3.And(legal), draft

    def _finish(self) -> tuple[Bool, State]:
        draft = dict(self._before)
        self._free(draft, self._operations["finish"])
        self._idle(draft)
        return z3.Not(self._relation.in_pass(self._before)), draft

    def _reset_cache(self) -> tuple[Bool, State]:
        fresh = self._relation._new()
        seats = {"running", "admitted", "spent", "processed", "granted", "closed"}
        draft = {key: was if key[0] in seats else fresh[key] for key, was in self._before.items()}
        return z3.Not(self._relation.in_pass(self._before)), draft


def _merged(commit: Bool, committed: Any, skip: Bool, skipped: Any, given_up: Any) -> Any:
    """One expression for the three outcomes of an admission; unchanged where all agree."""
    if committed is skipped and skipped is given_up:
        return committed
    return z3.If(commit, committed, z3.If(skip, skipped, given_up))


# --- Small formulas ----------------------------------------------------------------------------------------


def _one_of(literals: Sequence[Bool]) -> Bool:
    """Exactly one is true."""
    parts = [z3.Or(list(literals))]
    parts += [z3.Or(z3.Not(one), z3.Not(other)) for one, other in combinations(literals, 2)]
    return z3.And(parts)


def _among(number: Number, values: Sequence[int]) -> Bool:
    return z3.Or([number == value for value in values])


def _sum(parts: Sequence[Number]) -> Number:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _equal(one: State, other: State) -> Bool:
    return z3.And([one[key] == other[key] for key in one])


# --- Reading models ----------------------------------------------------------------------------------------


def reading(model: z3.ModelRef) -> Reading:
    """The values of a model; what it leaves open is False or 0."""

    def read(part: Any) -> int:
        value = model.eval(part, model_completion=True)
        return int(z3.is_true(value)) if z3.is_bool(value) else int(value.as_long())

    return read


def _older(read: Reading, state: State, g: int, h: int) -> bool:
    return bool(read(state["older", g, h])) if g < h else not read(state["older", h, g])


def _fate(read: Reading, visit: Visit) -> str:
    fates = [name for name in Visit.__struct_fields__ if read(getattr(visit, name))]
    return fates[0] if fates else "unvisited"


def _chosen(read: Reading, literals: Sequence[Bool]) -> int:
    return next(place for place, literal in enumerate(literals) if read(literal))
