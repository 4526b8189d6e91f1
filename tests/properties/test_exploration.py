from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from itertools import product
from time import time

import pytest

from impl.errors import TargetError
from impl.inprocess import PythonSession, PythonTarget, RequestView, python_target
from impl.port import PortManager
from impl.target import Shows
from model.contract import Position, carry_out, moves, refuse_illegal, start
from model.manager import ManagedRequest
from model.operations import CachedIds, Call, CanAllocate, Discipline, Drain, Move, Reset, ResetCache
from model.reference import State, apply
from model.workload import Item, Request, Workload
from properties.exploration import Exploration, explore, explore_classes
from properties.scopes import Scope, hash_name, parse_scope, workload_classes
from properties.situations import SITUATIONS, situations_of

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN
Release = Callable[[str], PythonTarget]

PORT = python_target("port", PortManager)


@cache
def of_port(text: str, discipline: Discipline) -> Exploration:
    return explore(PORT, parse_scope(text), discipline)


# --- Against a plain search, without any reduction --------------------------------------------------------


def all_workloads(scope: Scope) -> Iterator[Workload]:
    """Every workload of a scope, by brute force."""
    places = scope.requests * scope.inputs
    for capacity, hashes in product(scope.capacities, product(range(scope.hashes), repeat=places)):
        used = sorted(set(hashes))
        for sizes in product(scope.sizes, repeat=len(used)):
            size = dict(zip(used, sizes, strict=True))
            items = [Item(hash_name(mm_hash), size[mm_hash]) for mm_hash in hashes]
            requests = tuple(
                Request(f"r{at}", tuple(items[at * scope.inputs : (at + 1) * scope.inputs]))
                for at in range(scope.requests)
            )
            for budget in scope.budgets or (capacity,):
                yield Workload(capacity, requests, budget)


def evicted_again(before: State, call: Call, after: State, repeated: bool) -> bool:
    """Whether a list of evictions would name a hash twice: part of a state, like the evictions themselves."""
    if isinstance(call, Drain | Reset):
        return False
    if isinstance(call, CanAllocate):
        gone = {mm_hash for mm_hash, _ in before.cached} - {mm_hash for mm_hash, _ in after.cached}
        return repeated or bool(gone & before.evicted)
    return repeated


def plain_search(workload: Workload, discipline: Discipline) -> tuple[int, int]:
    """States and transitions of the reference alone, found breadth first."""
    first = (start(workload, discipline), False)
    seen, queue, transitions = {first}, deque([first]), 0
    while queue:
        position, repeated = queue.popleft()
        for move in moves(position):
            transitions += 1
            calls, following = carry_out(position, move)
            state, again = position.state, repeated
            for call in calls:
                after, _ = apply(state, call)
                again = evicted_again(state, call, after, again)
                state = after
            if (following, again) not in seen:
                seen.add((following, again))
                queue.append((following, again))
    return len(seen), transitions


@pytest.mark.parametrize(
    ("text", "discipline"),
    [
        ("1r2i2h/sizes=1..2/capacity=1..2", OPEN),
        ("2r1i2h/sizes=1..2/capacity=1..2", OPEN),
        ("2r2i2h/sizes=1/capacity=1", OPEN),
        ("3r1i3h/sizes=1/capacity=1", OPEN),
        ("1r2i2h/sizes=1..2/capacity=1..2/budget=1..2", CALLER),
        ("2r1i2h/sizes=1/capacity=1", CALLER),
        ("2r2i1h/sizes=1/capacity=1", CALLER),
    ],
)
def test_unreduced_counts_are_those_of_a_plain_search(text: str, discipline: Discipline) -> None:
    workloads = list(all_workloads(parse_scope(text)))
    counts = [plain_search(workload, discipline) for workload in workloads]
    states, transitions = (sum(column) for column in zip(*counts, strict=True))
    found = of_port(text, discipline)
    assert found.unreduced == (len(workloads), states, transitions)
    assert found.states <= states
    assert found.transitions <= transitions
    assert found.complete


# --- Pinned counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "discipline", "reduced", "unreduced"),
    [
        ("1r1i1h/sizes=1/capacity=1", OPEN, (1, 3, 20), (1, 3, 20)),
        ("1r1i1h/sizes=1/capacity=1", CALLER, (1, 14, 52), (1, 14, 52)),
        ("1r2i2h/sizes=1/capacity=2", OPEN, (2, 42, 424), (4, 150, 1490)),
        ("1r2i2h/sizes=1/capacity=2", CALLER, (2, 88, 413), (4, 176, 826)),
        ("2r1i2h/sizes=1/capacity=1", OPEN, (2, 23, 300), (4, 80, 1024)),
        ("2r1i2h/sizes=1/capacity=1", CALLER, (2, 184, 895), (4, 698, 3350)),
        ("2r2i2h/sizes=1/capacity=1", OPEN, (4, 122, 2496), (16, 1028, 20160)),
        ("2r2i2h/sizes=1/capacity=1", CALLER, (6, 3171, 20920), (16, 12506, 82362)),
        ("2r2i3h/sizes=1/capacity=2", OPEN, (6, 768, 14072), (81, 25311, 456792)),
        ("2r2i3h/sizes=1/capacity=2", CALLER, (10, 12995, 86785), (81, 152688, 1016202)),
        ("3r1i3h/sizes=1/capacity=2", OPEN, (3, 166, 2680), (27, 4023, 63378)),
        ("3r1i3h/sizes=1/capacity=2", CALLER, (3, 1904, 11886), (27, 57873, 353067)),
        ("2r1i1h/capacity=2/mixed", OPEN, (3, 17, 166), (4, 28, 264)),
        ("2r1i1h/capacity=2/mixed", CALLER, (3, 290, 1567), (4, 554, 2974)),
    ],
)
def test_pinned_counts(
    text: str,
    discipline: Discipline,
    reduced: tuple[int, int, int],
    unreduced: tuple[int, int, int],
) -> None:
    found = of_port(text, discipline)
    assert (found.workloads, found.states, found.transitions) == reduced
    assert found.unreduced == unreduced
    assert found.counterexamples == ()
    assert found.complete


def test_under_the_open_discipline_every_transition_is_a_call_of_the_real_code() -> None:
    found = of_port("2r2i2h/sizes=1/capacity=1", OPEN)
    assert found.calls == found.transitions


def test_under_the_caller_discipline_a_call_is_made_once_from_each_state() -> None:
    found = of_port("2r1i2h/sizes=1/capacity=1", CALLER)
    assert 0 < found.calls < found.transitions


# --- Situations -------------------------------------------------------------------------------------------

# Scopes that reach them, small enough for every run; the default one is for the nightly run.
REACHING = {
    CALLER: ("2r2i3h/sizes=1/capacity=2", "3r1i3h/sizes=1/capacity=1", "1r3i3h/capacity=2"),
    OPEN: ("2r2i3h/sizes=1..2/capacity=2",),
}


@pytest.mark.parametrize("discipline", Discipline)
def test_every_situation_is_reached(discipline: Discipline) -> None:
    reached = {one.name: 0 for one in situations_of(discipline)}
    for text in REACHING[discipline]:
        for name, times in of_port(text, discipline).situations.items():
            reached[name] += times
    assert [name for name, times in reached.items() if not times] == []


@pytest.mark.nightly
@pytest.mark.parametrize("discipline", Discipline)
def test_every_situation_is_reached_at_the_default_scope(discipline: Discipline) -> None:
    found = of_port("2r2i3h", discipline)
    unreached = {name for name, times in found.situations.items() if not times}
    # Evicted, admitted, freed and evicted again within a pass takes a request more.
    assert unreached == ({"evicted-twice"} if discipline is CALLER else set())


def test_every_situation_is_reported_under_the_disciplines_that_it_names() -> None:
    for discipline in Discipline:
        expected = {one.name for one in SITUATIONS if discipline in one.disciplines}
        assert set(of_port("1r1i1h/sizes=1/capacity=1", discipline).situations) == expected


# --- Shortest counterexamples -----------------------------------------------------------------------------


def brute_force_lengths(
    manager_class: type, workloads: list[Workload], discipline: Discipline, longest: int
) -> dict[str, int]:
    """The least number of moves after which each of the two seeded properties is broken, without the judge."""
    found: dict[str, int] = {}
    for workload in workloads:
        views = {request.request_id: RequestView(request) for request in workload.requests}
        first = start(workload, discipline)
        level = {first: manager_class(workload.capacity)}
        seen = {first}
        for length in range(1, longest + 1):
            following: dict[Position, object] = {}
            for position, manager in level.items():
                for move in moves(position):
                    session = PythonSession(deepcopy(manager), views, Shows.RESULTS)
                    broken = carried_out(session, position, move)
                    if broken is not None:
                        found[broken] = min(length, found.get(broken, length))
                        continue
                    after = carry_out(position, move)[1]
                    if after not in seen:
                        seen.add(after)
                        following[after] = session.manager
            level = following
    return found


def carried_out(session: PythonSession, position: Position, move: Move) -> str | None:
    """Makes a move on a real manager; the seeded property that it breaks, read off the manager itself."""
    state = position.state
    for call in carry_out(position, move)[0]:
        state, _ = apply(state, call)
        answer = session.call(call)
        held = {state.workload.item(*place).mm_hash for place in state.held}
        if isinstance(call, Drain) and isinstance(answer, frozenset) and answer & set(session.manager.cached):
            return "freed-disjoint-cached"
        if held & set(session.manager.freeable):
            return "evictable-unreferenced"
    return None


@pytest.mark.parametrize(
    ("discipline", "lengths"),
    [
        (OPEN, {"evictable-unreferenced": 2, "freed-disjoint-cached": 5}),
        (CALLER, {"evictable-unreferenced": 3, "freed-disjoint-cached": 5}),
    ],
)
def test_shortest_counterexamples_are_as_short_as_any(
    release: Release, discipline: Discipline, lengths: dict[str, int]
) -> None:
    target = release("0.26.0")
    scope = parse_scope("2r2i3h/sizes=1/capacity=2")
    workloads = [one.workload for one in workload_classes(scope, discipline)]
    found = explore(target, scope, discipline)
    assert {one.violation.property: len(one.trace) for one in found.counterexamples} == lengths
    assert brute_force_lengths(target.manager_class, workloads, discipline, 5) == lengths
    for one in found.counterexamples:
        refuse_illegal(one.trace)
        assert one.target == target.name
        assert one.engine == "exhaustive"


def test_a_counterexample_is_the_smallest_of_its_shape() -> None:
    class Refusing(PortManager):
        def can_allocate(self, request: ManagedRequest, input_id: int, budget: int, promised: int) -> bool:
            return False

    found = explore(python_target("refusing", Refusing), parse_scope("2r2i3h"), OPEN)
    (only,) = found.counterexamples
    assert only.trace.workload == Workload(
        1, (Request("r1", (Item("a", 1),) * 2), Request("r2", (Item("a", 1),) * 2)), 1
    )
    assert list(only.trace.calls) == [CanAllocate("r1", 0, 1, 0)]


# --- Any order of a free ----------------------------------------------------------------------------------


class DescendingFree(PortManager):
    def free(self, request: ManagedRequest) -> None:
        for input_id in sorted(self.get_cached_input_ids(request), reverse=True):
            self.free_encoder_input(request, input_id)


class DescendingUnfiltered(DescendingFree):
    def _is_reported(self, mm_hash: str) -> bool:
        return True


@pytest.mark.parametrize("discipline", Discipline)
def test_a_manager_that_frees_in_descending_order_is_accepted(discipline: Discipline) -> None:
    found = explore(
        python_target("descending", DescendingFree), parse_scope("2r2i3h/sizes=1/capacity=2"), discipline
    )
    assert found.complete
    assert found.counterexamples == ()


@pytest.mark.parametrize("discipline", Discipline)
def test_its_faults_are_found_and_told_as_they_happened(discipline: Discipline) -> None:
    target = python_target("descending", DescendingUnfiltered)
    found = explore(target, parse_scope("2r2i3h/sizes=1/capacity=2"), discipline)
    assert {one.violation.property for one in found.counterexamples} == {"freed-disjoint-cached"}
    for one in found.counterexamples:
        refuse_illegal(one.trace)


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("shows", [Shows.RESULTS, Shows.COUNTERS])
@pytest.mark.parametrize("manager_class", [PortManager, DescendingFree])
def test_what_a_target_hides_makes_no_fault_of_a_free_choice(
    manager_class: type[PortManager], shows: Shows, discipline: Discipline
) -> None:
    """The order of a free is unknown until something is evicted: only calls legal in either case are made."""
    target = PythonTarget("hiding", manager_class, shows, True)
    (world,) = [
        one
        for one in workload_classes(parse_scope("2r2i3h/sizes=1/capacity=2"), discipline)
        if [item.mm_hash for request in one.workload.requests for item in request.items] == list("abac")
    ]
    deepest = 8 if discipline is OPEN else None
    found = explore_classes(target, [world], discipline, name="abac", deepest=deepest)
    assert found.counterexamples == ()
    assert found.complete


# --- The edges of a run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", Discipline)
def test_a_run_past_its_deadline_is_incomplete_and_says_so(discipline: Discipline) -> None:
    found = explore(PORT, parse_scope("2r2i3h"), discipline, deadline=time() - 1)
    assert not found.complete
    assert found.workloads == 0
    assert found.states <= 1
    assert found.unreduced[0] == 0


def test_a_run_before_its_deadline_is_complete() -> None:
    found = explore(PORT, parse_scope("1r1i1h/sizes=1/capacity=1"), OPEN, deadline=time() + 600)
    assert found.complete


def test_progress_is_told_after_each_workload() -> None:
    told: list[tuple[int, int]] = []
    explore(PORT, parse_scope("2r1i2h/sizes=1/capacity=1..2"), OPEN, progress=lambda *done: told.append(done))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("discipline", Discipline)
def test_depth_can_be_bounded(discipline: Discipline) -> None:
    classes = workload_classes(parse_scope("2r1i2h/sizes=1/capacity=1"), discipline)
    shallow = explore_classes(PORT, classes, discipline, name="shallow", deepest=0)
    assert (shallow.scope, shallow.states, shallow.transitions) == ("shallow", len(classes), 0)
    one = explore_classes(PORT, classes, discipline, name="one", deepest=1)
    whole = of_port("2r1i2h/sizes=1/capacity=1", discipline)
    assert shallow.states < one.states < whole.states


@pytest.mark.parametrize("discipline", Discipline)
def test_a_manager_without_reset_is_never_reset(release: Release, discipline: Discipline) -> None:
    target = release("0.15.1")
    assert not target.has_reset
    found = explore(target, parse_scope("1r1i1h/sizes=1/capacity=1"), discipline)
    assert "reset-with-pending" not in {name for name, times in found.situations.items() if times}
    with_reset = of_port("1r1i1h/sizes=1/capacity=1", discipline)
    assert found.transitions < with_reset.transitions
    assert not any(
        isinstance(move, Reset | ResetCache) for move in moves(start(*first_world(discipline)), resets=False)
    )


def first_world(discipline: Discipline) -> tuple[Workload, Discipline]:
    return workload_classes(parse_scope("1r1i1h/sizes=1/capacity=1"), discipline)[0].workload, discipline


def test_a_random_manager_is_refused_in_words() -> None:
    class Shared(PortManager):
        """Keeps its count of calls outside of the manager object."""

        calls = 0

        def allocate(self, request: ManagedRequest, input_id: int) -> None:
            type(self).calls += 1
            if type(self).calls == 3:
                raise RuntimeError("third")
            super().allocate(request, input_id)

    with pytest.raises(TargetError, match=r"^shared does not do the same thing twice: no-crash broke on a copy"):
        explore(python_target("shared", Shared), parse_scope("2r2i3h/sizes=1/capacity=2"), OPEN)


def test_a_query_between_calls_changes_no_count() -> None:
    """The judge asks for the listed inputs after every call; as a move of its own a query would lead nowhere."""
    workload, _ = first_world(OPEN)
    assert not any(isinstance(move, CachedIds) for move in moves(start(workload, OPEN)))
