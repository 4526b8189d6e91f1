"""Proof by induction: true for traces of every length, and, on the second level, for every size.

Every obligation is one property and one operation: from any state in which all properties and supporting facts
hold, whatever that operation does, the property holds of it and after it. With the initial state that makes it
hold always. Two levels:

- in a scope, on `model.relation`: slot arithmetic, the order of the queue and the capacity included;
- without a scope, on a relation of its own below: requests, occurrences and hashes are sets of any size, and an
  eviction takes any subset of the evictable entries, so every order, size and capacity is covered.

An obligation that fails comes with a state, an operation and the state after it. Such a state need not be
reachable; `properties.bounded_search.trace_to` looks for a trace that does the same.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache
from time import monotonic
from typing import Any, TypeAlias

import z3
from msgspec import Struct

from model.operations import Discipline, Trace
from model.relation import (
    CALLER_OPERATIONS,
    OPEN_OPERATIONS,
    Bounds,
    Reading,
    Relation,
    State,
    Switches,
    reading,
)
from properties.bounded_search import borrowed, bounds_of, trace_to
from properties.formulas import FACTS, PROPERTY_FORMULAS, Formula
from properties.invariants import MANAGER_PROPERTIES
from properties.scopes import Scope, hash_name
from properties.solving import SolverProcess, Unknown, decided

INITIAL = "initial"
"""The obligation that a property holds of a new manager."""


INTERRUPTED = "interrupted"
"""Why an obligation is unknown if a person stopped the run."""


class Level(StrEnum):
    """How far a proof reaches."""

    SCOPE = "scope"
    UNBOUNDED = "unbounded"


class Outcome(StrEnum):
    """What became of an obligation."""

    PROVED = "proved"
    FAILED = "failed"
    VACUOUS = "vacuous"
    """No state meets the premises, so that anything would follow."""
    UNKNOWN = "unknown"


class Obligation(Struct, frozen=True):
    """One property or supporting fact, and one operation that must keep it.

    Attributes:
        level: How far the proof reaches.
        discipline: Whose operations; without a scope the open discipline's, of which every caller's step is made.
        claim: Name of the property or of the supporting fact.
        operation: Name of the operation, or `initial`.
    """

    level: Level
    discipline: Discipline
    claim: str
    operation: str

    @property
    def name(self) -> str:
        """As one word, for a file."""
        return f"{self.level}-{self.discipline}-{self.claim}-{self.operation}"

    @property
    def sentence(self) -> str:
        """What is to be shown, in words."""
        says = SENTENCES[self.claim]
        if self.operation == INITIAL:
            return f"A new manager: {says}."
        return f"After any {self.operation} from a state in which all properties and facts hold: {says}."


class Picture(Struct, frozen=True):
    """A state, as far as a person needs it.

    Attributes:
        cached: Cached hashes; with a scope each with its embeds.
        held: Held occurrences as (request, occurrence, hash).
        refers: Who refers to what, as (request, hash).
        evictable: Evictable hashes; with a scope oldest first.
        evicted: Hashes evicted since the last drain.
        slots: Capacity and counters, in embeds; empty without a scope.
    """

    cached: tuple[str, ...]
    held: tuple[tuple[str, str, str], ...]
    refers: tuple[tuple[str, str], ...]
    evictable: tuple[str, ...]
    evicted: tuple[str, ...]
    slots: str = ""

    def lines(self) -> list[str]:
        """One line for each part."""
        parts = {
            "cached": ", ".join(self.cached),
            "held": ", ".join(f"{occurrence} of {request} ({h})" for request, occurrence, h in self.held),
            "refers": ", ".join(f"{request} to {h}" for request, h in self.refers),
            "evictable": ", ".join(self.evictable),
            "evicted since the drain": ", ".join(self.evicted),
            "slots": self.slots,
        }
        return [f"{name}: {text or 'nothing'}" for name, text in parts.items() if text or name != "slots"]


class Failure(Struct, frozen=True):
    """A counterexample to induction.

    Attributes:
        before: A state in which everything holds.
        operation: The operation with its arguments.
        after: The state after it.
        report: What a drain reports.
        words: What goes wrong.
    """

    before: Picture
    operation: str
    after: Picture
    report: tuple[str, ...]
    words: str


class Proof(Struct, frozen=True):
    """What became of one obligation.

    Attributes:
        obligation: The obligation.
        outcome: Whether it is proved.
        seconds: Time taken.
        failure: The counterexample to induction; None unless it failed.
        reason: Why it is unknown; None unless it is.
        trace: A real trace whose last step breaks the property by that operation; None if none was looked for
            or found.
        not_reached_within: Steps up to which there is no such trace; None if one was found or none looked for.
        trace_unknown: Why it is not known whether there is such a trace; None if it is.
    """

    obligation: Obligation
    outcome: Outcome
    seconds: float
    failure: Failure | None = None
    reason: str | None = None
    trace: Trace | None = None
    not_reached_within: int | None = None
    trace_unknown: str | None = None


_FORMULAS: dict[str, Formula] = {**PROPERTY_FORMULAS, **{fact.name: fact.formula for fact in FACTS}}

SENTENCES: dict[str, str] = {
    **{one.name: one.sentence for one in MANAGER_PROPERTIES if one.name in PROPERTY_FORMULAS},
    **{fact.name: fact.sentence for fact in FACTS},
}
"""What each property and supporting fact says."""

_SUPPORTS_ANY_SIZE = ("held-refers", "referred-cached", "evictable-idle")
_ANY_SIZE = ("freed-disjoint-cached", "evictable-unreferenced", *_SUPPORTS_ANY_SIZE)


def obligations(level: Level) -> tuple[Obligation, ...]:
    """All obligations of a level, properties first."""
    if level is Level.UNBOUNDED:
        return tuple(_of_discipline(level, Discipline.OPEN, _ANY_SIZE, OPEN_OPERATIONS))
    return tuple(
        obligation
        for discipline, operations in (
            (Discipline.OPEN, OPEN_OPERATIONS),
            (Discipline.CALLER, CALLER_OPERATIONS),
        )
        for obligation in _of_discipline(level, discipline, tuple(_FORMULAS), operations)
    )


def _of_discipline(
    level: Level, discipline: Discipline, names: Iterable[str], operations: tuple[str, ...]
) -> Iterable[Obligation]:
    for name in names:
        formula = _FORMULAS[name]
        if formula.of_state is not None:
            yield Obligation(level, discipline, name, INITIAL)
        for operation in operations:
            if not formula.about or operation in formula.about:
                yield Obligation(level, discipline, name, operation)


# --- In a scope --------------------------------------------------------------------------------------------


class _InScope:
    """One step of the relation from any state, for one discipline."""

    def __init__(self, bounds: Bounds, switches: Switches, discipline: Discipline) -> None:
        # As many embeds promised as there can be room for: a larger promise is refused like the largest.
        self.relation = Relation(bounds, switches, discipline, most_promised=max(bounds.capacities))
        self.names = [hash_name(number) for number in range(bounds.hashes)]
        self.before, after = self.relation.state("before"), self.relation.state("after")
        self.step = self.relation.step(self.before, after, "step")
        self.solver = z3.SolverFor("QF_FD")
        self.solver.add(self.relation.world)
        self._one_step = z3.Bool("one step")
        self.solver.add(z3.Implies(self._one_step, z3.And(self._sound(), self.step.constraint)))

    def _sound(self) -> z3.BoolRef:
        return z3.And([formula.holds_in(self.relation, self.before) for formula in _FORMULAS.values()])

    def premises(self, operation: str) -> list[z3.BoolRef]:
        if operation == INITIAL:
            return [self.relation.initial(self.before)]
        return [self._sound(), self.step.constraint, self.step.operations[operation]]

    def goal(self, obligation: Obligation) -> z3.BoolRef:
        formula = _FORMULAS[obligation.claim]
        if obligation.operation == INITIAL:
            return formula.holds_in(self.relation, self.before)
        return formula.holds_after(self.relation, self.step)

    def can_be(self, operation: str, goal: z3.BoolRef) -> bool | Unknown:
        literals = [z3.FreshBool("goal"), z3.FreshBool("initial")]
        self.solver.add(z3.Implies(literals[0], goal))
        assumed = [literals[0]]
        if operation == INITIAL:
            self.solver.add(z3.Implies(literals[1], self.relation.initial(self.before)))
            assumed.append(literals[1])
        else:
            assumed += [self._one_step, self.step.operations[operation]]
        answer = decided(self.solver.check(assumed), self.solver)
        self.read = reading(self.solver.model()) if answer is True else None
        self.solver.add(*[z3.Not(literal) for literal in literals])
        return answer

    def failure(self, obligation: Obligation) -> Failure:
        assert self.read is not None
        workload = self.relation.workload(self.read, self.names)
        before = self._picture(self.read, self.before)
        if obligation.operation == INITIAL:
            return Failure(before, INITIAL, before, (), f"{obligation.sentence} It is not so.")
        after = self._picture(self.read, self.step.after)
        report = tuple(name for name, part in zip(self.names, self.step.report, strict=True) if self.read(part))
        move = self.relation.move(self.read, self.step, workload)
        arguments = ", ".join(str(getattr(move, field)) for field in move.__struct_fields__)
        operation = f"{obligation.operation}({arguments})"
        return Failure(before, operation, after, report, _in_words(obligation, operation, after, report))

    def _picture(self, read: Reading, state: State) -> Picture:
        workload = self.relation.workload(read, self.names)
        snapshot = self.relation.snapshot(read, state, workload, self.names)
        return Picture(
            tuple(f"{mm_hash} ({embeds} embed{'s' * (embeds > 1)})" for mm_hash, embeds in snapshot.cached),
            tuple(
                (request_id, f"input {input_id}", workload.item(request_id, input_id).mm_hash)
                for request_id, input_id in sorted(snapshot.held)
            ),
            tuple(sorted(snapshot.refers)),
            snapshot.evictable,
            tuple(sorted(snapshot.evicted)),
            f"capacity {workload.capacity}, free {snapshot.free_slots}, freeable {snapshot.freeable_slots}",
        )


def _in_words(obligation: Obligation, operation: str, after: Picture, report: tuple[str, ...]) -> str:
    """What goes wrong, where the picture shows it."""
    cached = {text.split(" ")[0] for text in after.cached}
    match obligation.claim:
        case "freed-disjoint-cached":
            live = sorted(set(report) & cached)
            return (
                f"{operation} reports {', '.join(live)}, which is cached: its tensor would be dropped while in use"
            )
        case "evictable-unreferenced":
            needed = [held for held in after.held if held[2] in after.evictable]
            request, occurrence, mm_hash = needed[0]
            return (
                f"after {operation} the entry {mm_hash} is evictable, and {request} still holds {occurrence} of it"
            )
        case "held-refers":
            lost = [held for held in after.held if (held[0], held[2]) not in after.refers]
            request, occurrence, mm_hash = lost[0]
            return (
                f"after {operation} {request} still holds {occurrence}, and no longer refers to its hash {mm_hash}"
            )
        case _:
            return f"after {operation} this is no longer so: {SENTENCES[obligation.claim]}"


# --- Without a scope ---------------------------------------------------------------------------------------


class _Sets(Struct, frozen=True):
    """A state over sets of any size: each part is a predicate."""

    cached: Callable[[Any], Any]
    held: Callable[[Any], Any]
    refers: Callable[[Any, Any], Any]
    evictable: Callable[[Any], Any]
    evicted: Callable[[Any], Any]


_REQUEST, _OCCURRENCE, _HASH = range(3)


class _AnySize:
    """The relation without a scope: for each operation when it is legal, and the state after it."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches
        request, occurrence, mm_hash = (z3.DeclareSort(name) for name in ("Request", "Occurrence", "Hash"))
        self.sorts = (request, occurrence, mm_hash)
        truth = z3.BoolSort()
        self.request_of = z3.Function("request_of", occurrence, request)
        self.hash_of = z3.Function("hash_of", occurrence, mm_hash)
        self.before = _Sets(
            z3.Function("cached", mm_hash, truth),
            z3.Function("held", occurrence, truth),
            z3.Function("refers", request, mm_hash, truth),
            z3.Function("evictable", mm_hash, truth),
            z3.Function("evicted", mm_hash, truth),
        )
        self.victim = z3.Function("victim", mm_hash, truth)
        self.o = z3.Const("the_occurrence", occurrence)
        self.r = z3.Const("the_request", request)
        self._universes: list[list[Any]] | None = None

    def _every(self, sort: int, holds: Callable[[Any], Any]) -> z3.BoolRef:
        """For all of a sort; in the finite world of a model, one by one.

        The bound constant is a fresh one: the same name twice, one inside the other, would be one variable.
        """
        if self._universes is not None:
            return z3.And([holds(one) for one in self._universes[sort]])
        bound = z3.FreshConst(self.sorts[sort], "rxh"[sort])
        return z3.ForAll([bound], holds(bound))

    def _some(self, sort: int, holds: Callable[[Any], Any]) -> z3.BoolRef:
        if self._universes is not None:
            return z3.Or([holds(one) for one in self._universes[sort]])
        bound = z3.FreshConst(self.sorts[sort], "rxh"[sort])
        return z3.Exists([bound], holds(bound))

    def premises(self, operation: str) -> list[z3.BoolRef]:
        """What may be assumed before an operation."""
        if operation == INITIAL:
            return []
        sound = [self.holds(name, self.before) for name in _ANY_SIZE if name != "freed-disjoint-cached"]
        return [*sound, self.legal(operation)]

    def goal(self, obligation: Obligation) -> z3.BoolRef:
        """What must be true after it."""
        after = self.after(obligation.operation)
        if obligation.claim == "freed-disjoint-cached":
            return self._every(_HASH, lambda h: z3.Not(z3.And(self.reported(h), after.cached(h))))
        return self.holds(obligation.claim, after)

    def holds(self, name: str, state: _Sets) -> z3.BoolRef:
        """A property or supporting fact of a state."""
        match name:
            case "evictable-unreferenced":
                return self._every(
                    _OCCURRENCE, lambda x: z3.Not(z3.And(state.held(x), state.evictable(self.hash_of(x))))
                )
            case "held-refers":
                return self._every(
                    _OCCURRENCE,
                    lambda x: z3.Implies(state.held(x), state.refers(self.request_of(x), self.hash_of(x))),
                )
            case "referred-cached":
                return self._every(
                    _REQUEST,
                    lambda r: self._every(_HASH, lambda h: z3.Implies(state.refers(r, h), state.cached(h))),
                )
            case _:
                assert name == "evictable-idle"
                return self._every(
                    _HASH,
                    lambda h: state.evictable(h) == z3.And(state.cached(h), self._unreferred(state.refers, h)),
                )

    def _unreferred(self, refers: Callable[[Any, Any], Any], h: Any) -> z3.BoolRef:
        return self._every(_REQUEST, lambda r: z3.Not(refers(r, h)))

    def reported(self, h: Any) -> z3.BoolRef:
        """Whether the drain names a hash."""
        if self._switches.report_only_absent:
            return z3.And(self.before.evicted(h), z3.Not(self.before.cached(h)))
        return self.before.evicted(h)

    def legal(self, operation: str) -> z3.BoolRef:
        """When the operation may be carried out."""
        absent = z3.Not(self.before.cached(self.hash_of(self.o)))
        match operation:
            case "can_allocate":
                some = self._every(_HASH, lambda h: z3.Implies(self.victim(h), self.before.evictable(h)))
                return z3.And(absent, some)
            case "allocate":
                return absent
            case _:
                return z3.BoolVal(True)

    def after(self, operation: str) -> _Sets:
        """The state after the operation."""
        was, o, hash_o, request_o = self.before, self.o, self.hash_of(self.o), self.request_of(self.o)
        match operation:
            case "check":
                hit = was.cached(hash_o)
                return _Sets(
                    was.cached,
                    lambda x: z3.Or(was.held(x), z3.And(hit, x == o)),
                    lambda r, h: z3.Or(was.refers(r, h), z3.And(hit, r == request_o, h == hash_o)),
                    lambda h: z3.And(was.evictable(h), z3.Not(z3.And(hit, h == hash_o))),
                    was.evicted,
                )
            case "can_allocate":
                return _Sets(
                    lambda h: z3.And(was.cached(h), z3.Not(self.victim(h))),
                    was.held,
                    was.refers,
                    lambda h: z3.And(was.evictable(h), z3.Not(self.victim(h))),
                    lambda h: z3.Or(was.evicted(h), self.victim(h)),
                )
            case "allocate":
                return _Sets(
                    lambda h: z3.Or(was.cached(h), h == hash_o),
                    lambda x: z3.Or(was.held(x), x == o),
                    lambda r, h: z3.Or(was.refers(r, h), z3.And(r == request_o, h == hash_o)),
                    was.evictable,
                    was.evicted,
                )
            case "free_encoder_input":
                return self._after_free_of_input()
            case "free":
                return self._after_free()
            case "drain":
                return _Sets(was.cached, was.held, was.refers, was.evictable, lambda h: z3.BoolVal(False))
            case _:
                nothing = z3.BoolVal(False)
                return _Sets(
                    lambda h: nothing,
                    lambda x: nothing,
                    lambda r, h: nothing,
                    lambda h: nothing,
                    lambda h: nothing,
                )

    def _after_free_of_input(self) -> _Sets:
        was, o, hash_o, request_o = self.before, self.o, self.hash_of(self.o), self.request_of(self.o)

        def held(x: Any) -> Any:
            return z3.And(was.held(x), x != o)

        def same(x: Any) -> Any:
            return z3.And(held(x), self.request_of(x) == request_o, self.hash_of(x) == hash_o)

        drops = z3.And(was.held(o), was.refers(request_o, hash_o))
        if self._switches.hold_until_last_occurrence:
            drops = z3.And(drops, z3.Not(self._some(_OCCURRENCE, same)))
        return self._given_up(held, request_o, lambda h: z3.And(drops, h == hash_o))

    def _after_free(self) -> _Sets:
        was, r = self.before, self.r

        def drops(h: Any) -> Any:
            uses = self._some(
                _OCCURRENCE, lambda x: z3.And(was.held(x), self.request_of(x) == r, self.hash_of(x) == h)
            )
            return z3.And(was.refers(r, h), uses)

        return self._given_up(lambda x: z3.And(was.held(x), self.request_of(x) != r), r, drops)

    def _given_up(self, held: Callable[[Any], Any], request: Any, drops: Callable[[Any], Any]) -> _Sets:
        """A request no longer refers to some hashes; those that nobody refers to become evictable."""
        was = self.before

        def refers(r: Any, h: Any) -> Any:
            return z3.And(was.refers(r, h), z3.Not(z3.And(r == request, drops(h))))

        def evictable(h: Any) -> Any:
            return z3.Or(was.evictable(h), z3.And(drops(h), self._unreferred(refers, h)))

        return _Sets(was.cached, held, refers, evictable, was.evicted)

    def failure(self, obligation: Obligation, model: z3.ModelRef) -> Failure:
        """The counterexample that a model is."""
        some = (self.r, self.o, self.hash_of(self.o))
        self._universes = [
            # A sort that the model says nothing about has one element.
            list(model.get_universe(sort) or (model.eval(one, model_completion=True),))
            for sort, one in zip(self.sorts, some, strict=True)
        ]
        try:
            return self._shown(obligation, model, self._universes)
        finally:
            self._universes = None

    def _shown(self, obligation: Obligation, model: z3.ModelRef, universes: list[list[Any]]) -> Failure:
        requests, occurrences, hashes = universes
        names = {str(r): f"r{number}" for number, r in enumerate(requests, start=1)}
        names |= {str(x): f"occurrence {number}" for number, x in enumerate(occurrences)}
        names |= {str(h): hash_name(number) for number, h in enumerate(hashes)}

        def name_of(part: Any) -> str:
            return names[str(model.eval(part, model_completion=True))]

        def true(part: Any) -> bool:
            return bool(z3.is_true(model.eval(part, model_completion=True)))

        def picture(state: _Sets) -> Picture:
            return Picture(
                tuple(name_of(h) for h in hashes if true(state.cached(h))),
                tuple(
                    (name_of(self.request_of(x)), name_of(x), name_of(self.hash_of(x)))
                    for x in occurrences
                    if true(state.held(x))
                ),
                tuple((name_of(r), name_of(h)) for r in requests for h in hashes if true(state.refers(r, h))),
                tuple(name_of(h) for h in hashes if true(state.evictable(h))),
                tuple(name_of(h) for h in hashes if true(state.evicted(h))),
            )

        # What is shown is what was found: premises and goal once more, without quantifiers.
        assert all(true(premise) for premise in self.premises(obligation.operation))
        assert not true(self.goal(obligation))
        drains = obligation.operation == "drain"
        report = tuple(name_of(h) for h in hashes if drains and true(self.reported(h)))
        if drains or obligation.operation in ("reset", INITIAL):
            arguments = ""
        elif obligation.operation == "free":
            arguments = name_of(self.r)
        else:
            arguments = f"{name_of(self.request_of(self.o))}, {name_of(self.o)} of {name_of(self.hash_of(self.o))}"
        operation = f"{obligation.operation}({arguments})"
        after = picture(self.after(obligation.operation))
        return Failure(
            picture(self.before), operation, after, report, _in_words(obligation, operation, after, report)
        )


# --- In the solver's process -------------------------------------------------------------------------------

_in_scope = cache(_InScope)
_any_size = cache(_AnySize)

_Decision: TypeAlias = tuple[Outcome, Failure | None]


def _decide(obligation: Obligation, bounds: Bounds, switches: Switches) -> _Decision | Unknown:
    """Decides one obligation: first that its premises can be met, then whether its contrary can be, too."""
    if obligation.level is Level.UNBOUNDED:
        return _decide_any_size(obligation, _any_size(switches))
    world = _in_scope(bounds, switches, obligation.discipline)
    met = _premises_met(bounds, switches, obligation.discipline, obligation.operation)
    if met is not True:
        return met or (Outcome.VACUOUS, None)
    broken = world.can_be(obligation.operation, z3.Not(world.goal(obligation)))
    if isinstance(broken, Unknown):
        return broken
    return (Outcome.FAILED, world.failure(obligation)) if broken else (Outcome.PROVED, None)


@cache
def _premises_met(bounds: Bounds, switches: Switches, discipline: Discipline, operation: str) -> bool | Unknown:
    return _in_scope(bounds, switches, discipline).can_be(operation, z3.BoolVal(True))


def _decide_any_size(obligation: Obligation, world: _AnySize) -> _Decision | Unknown:
    solver = z3.Solver()
    solver.add(world.premises(obligation.operation))
    met = decided(solver.check(), solver)
    if met is not True:
        return met or (Outcome.VACUOUS, None)
    solver.add(z3.Not(world.goal(obligation)))
    broken = decided(solver.check(), solver)
    if isinstance(broken, Unknown):
        return broken
    return (Outcome.FAILED, world.failure(obligation, solver.model())) if broken else (Outcome.PROVED, None)


# --- Proving -----------------------------------------------------------------------------------------------

Progress: TypeAlias = Callable[[Proof], None]
"""Told after each obligation."""


def prove(
    level: Level,
    scope: Scope,
    switches: Switches,
    *,
    depth: int,
    seconds: float | None = None,
    progress: Progress | None = None,
    process: SolverProcess | None = None,
) -> tuple[Proof, ...]:
    """Decides every obligation of a level; for one that fails, looks for a real trace that does the same.

    An interrupt leaves the rest unknown.

    Args:
        level: How far the proof reaches.
        scope: The bounds, of a proof in a scope and of the search for traces.
        switches: Which mends are in.
        depth: Steps of the longest trace that is looked for; at least 1.
        seconds: A limit for each question to the solver; one that needs longer is unknown.
        progress: Told after each obligation.
        process: A solver process to use; one that has been started answers at once.
    """
    proofs: list[Proof] = []
    with borrowed(process) as solver:
        solver.start()
        try:
            for obligation in obligations(level):
                proof = _proof(solver, obligation, scope, switches, seconds)
                if proof.outcome is Outcome.FAILED:
                    proof = _with_trace(solver, proof, scope, switches, depth, seconds)
                proofs.append(proof)
                if progress is not None:
                    progress(proof)
        except KeyboardInterrupt:
            left = obligations(level)[len(proofs) :]
            proofs += [Proof(one, Outcome.UNKNOWN, 0.0, reason=INTERRUPTED) for one in left]
    return tuple(proofs)


def _proof(
    solver: SolverProcess, obligation: Obligation, scope: Scope, switches: Switches, seconds: float | None
) -> Proof:
    began = monotonic()
    decision = solver.ask(seconds, _decide, obligation, bounds_of(scope), switches)
    taken = monotonic() - began
    if isinstance(decision, Unknown):
        return Proof(obligation, Outcome.UNKNOWN, taken, reason=decision.reason)
    return Proof(obligation, decision[0], taken, decision[1])


def _with_trace(
    solver: SolverProcess, proof: Proof, scope: Scope, switches: Switches, depth: int, seconds: float | None
) -> Proof:
    one = proof.obligation
    if one.operation == INITIAL:
        return proof
    found = trace_to(
        scope, one.discipline, switches, one.claim, one.operation, depth, seconds=seconds, process=solver
    )
    parts = (one, proof.outcome, proof.seconds, proof.failure)
    if isinstance(found, Unknown):
        return Proof(*parts, trace_unknown=found.reason)
    if found is None:
        return Proof(*parts, not_reached_within=depth)
    return Proof(*parts, trace=found)


# --- For other solvers -------------------------------------------------------------------------------------


def smtlib(obligation: Obligation, scope: Scope, switches: Switches) -> str:
    """An obligation as an SMT-LIB file, with a comment in words; `unsat` means that it is proved."""
    solver = z3.Solver()
    world: _InScope | _AnySize
    if obligation.level is Level.UNBOUNDED:
        world, logic, reach = _any_size(switches), "UF", "for every size"
    else:
        world = _in_scope(bounds_of(scope), switches, obligation.discipline)
        logic, reach = "QF_BV", f"within the scope {scope}"
        solver.add(world.relation.world)
    claims = [*world.premises(obligation.operation), z3.Not(world.goal(obligation))]
    # z3 prints an empty disjunction as a bare `or`, which other solvers do not read.
    solver.add([z3.simplify(claim) for claim in claims])
    left_out = [name.replace("_", "-") for name in Switches.__struct_fields__ if not getattr(switches, name)]
    comment = [
        f"{obligation.claim} and {obligation.operation} ({obligation.discipline} discipline), {reach}.",
        obligation.sentence,
        f"Without the mend {' and '.join(left_out)}." if left_out else "With both of upstream's mends.",
        "The premises are asserted, and the contrary of the claim: unsat means that the claim is proved.",
    ]
    body = [line for line in solver.to_smt2().splitlines() if not line.startswith((";", "(set-info"))]
    return "\n".join([*[f"; {line}" for line in comment], f"(set-logic {logic})", *body]) + "\n"
