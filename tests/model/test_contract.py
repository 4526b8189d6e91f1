import re
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.contract import (
    Caller,
    Position,
    Seat,
    carry_out,
    freedom,
    moves,
    moves_of,
    objection,
    refuse_illegal,
    start,
    trace_of,
)
from model.operations import (
    Admit,
    Allocate,
    CachedIds,
    Call,
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
    Step,
    Trace,
    TraceError,
)
from model.reference import State, apply, initial
from model.workload import Item, Request, Workload, WorkloadError

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN
COMMIT, GIVE_UP, SKIP = Outcome.COMMIT, Outcome.GIVE_UP, Outcome.SKIP


def workload(*contents: str, capacity: int = 9, budget: int = 9, sizes: dict[str, int] | None = None) -> Workload:
    """Requests r1, r2, ... with an input for each letter; a letter is a hash."""
    sizes = sizes or {}
    return Workload(
        capacity,
        tuple(
            Request(f"r{number}", tuple(Item(letter, sizes.get(letter, 1)) for letter in letters))
            for number, letters in enumerate(contents, start=1)
        ),
        budget,
    )


def after(world: Workload, discipline: Discipline, *choices: Move) -> Position:
    position = start(world, discipline)
    for move in choices:
        assert objection(position, move) is None, move
        _, position = carry_out(position, move)
    return position


def calls_of(position: Position, move: Move) -> list[Call]:
    assert objection(position, move) is None
    return list(carry_out(position, move)[0])


def seat(position: Position, request_id: str) -> Seat:
    assert position.caller is not None
    return position.caller.seat(position.state.workload, request_id)


def closed(position: Position) -> bool:
    assert position.caller is not None
    return position.caller.waiting_closed


# --- Open discipline: preconditions -----------------------------------------------------------------------

FULL = (Allocate("r1", 0), Allocate("r1", 1))
PAIR = workload("ab", "ac", capacity=2)


@pytest.mark.parametrize(
    ("before", "move", "sentence"),
    [
        (FULL, CanAllocate("r2", 0, 1, 0), "can_allocate is asked only of a hash that is absent, and a is cached"),
        (
            (),
            CanAllocate("r1", 0, -1, 0),
            "can_allocate takes a compute budget and promised embeds of at least 0",
        ),
        (
            (),
            CanAllocate("r1", 0, 1, -1),
            "can_allocate takes a compute budget and promised embeds of at least 0",
        ),
        (FULL, Allocate("r2", 0), "allocate is for a hash that is absent, and a is cached"),
        (FULL, Allocate("r2", 1), "allocate needs 1 free slots, and 0 are free"),
        ((), EndPass(), "the open discipline makes single calls, not steps of a caller"),
        ((), Admit("r1", 0, COMMIT), "the open discipline makes single calls, not steps of a caller"),
        ((), Finish("r1"), "the open discipline makes single calls, not steps of a caller"),
    ],
)
def test_the_open_discipline_objects(before: tuple[Move, ...], move: Move, sentence: str) -> None:
    assert objection(after(PAIR, OPEN, *before), move) == sentence


@pytest.mark.parametrize(
    "move",
    [
        Check("r1", 0),
        Check("r2", 1),
        FreeInput("r1", 0),
        FreeInput("r2", 1),
        FreeRequest("r1"),
        FreeRequest("r2"),
        CachedIds("r1"),
        Drain(),
        Reset(),
        CanAllocate("r2", 1, 0, 0),
        CanAllocate("r2", 1, 99, 99),
    ],
)
@pytest.mark.parametrize("before", [(), FULL], ids=["empty", "full"])
def test_any_other_call_is_legal_at_any_time_under_the_open_discipline(
    before: tuple[Move, ...], move: Move
) -> None:
    assert objection(after(PAIR, OPEN, *before), move) is None


def test_an_evictable_entry_is_no_room_for_an_allocate() -> None:
    position = after(PAIR, OPEN, *FULL, FreeRequest("r1"))
    assert objection(position, Allocate("r2", 1)) == "allocate needs 1 free slots, and 0 are free"
    position = after(PAIR, OPEN, *FULL, FreeRequest("r1"), CanAllocate("r2", 1, 1, 0))
    assert objection(position, Allocate("r2", 1)) is None


# --- Caller discipline: preconditions ---------------------------------------------------------------------

SHARED = workload("ab", "ac")
IN_PASS = (Admit("r1", 1, COMMIT),)
RUNNING = (*IN_PASS, EndPass())


@pytest.mark.parametrize(
    ("before", "move", "sentence"),
    [
        (IN_PASS, Admit("r1", 1, COMMIT), "r1 was admitted in this pass already"),
        ((Admit("r1", 1, SKIP),), Admit("r1", 1, COMMIT), "r1 was admitted in this pass already"),
        (
            (Admit("r1", 1, GIVE_UP),),
            Admit("r2", 0, COMMIT),
            "r2 is idle, and after a give-up or a preemption no idle request is admitted in a pass",
        ),
        (
            (Admit("r1", 1, GIVE_UP),),
            Admit("r1", 0, COMMIT),
            "r1 is idle, and after a give-up or a preemption no idle request is admitted in a pass",
        ),
        (
            (*RUNNING, Preempt("r1")),
            Admit("r2", 0, SKIP),
            "r2 is idle, and after a give-up or a preemption no idle request is admitted in a pass",
        ),
        (
            (*RUNNING, Processed("r1", 0), Processed("r1", 1)),
            Admit("r1", 1, COMMIT),
            "input 1 of r1 is processed; its window starts at 2",
        ),
        (RUNNING, Admit("r1", 0, COMMIT), "a window of r1 has reached input 1; windows do not shrink"),
        ((), Preempt("r1"), "r1 is not running, so it cannot be preempted"),
        ((Admit("r1", 1, SKIP),), Preempt("r1"), "r1 is not running, so it cannot be preempted"),
        (IN_PASS, Processed("r1", 0), "inputs are processed between passes, and this pass has not ended"),
        (
            (Admit("r1", 1, SKIP), EndPass()),
            Processed("r1", 0),
            "r1 is not running, so none of its inputs is processed",
        ),
        (RUNNING, Processed("r1", 1), "inputs are processed in ascending order, and r1 is at input 0"),
        (
            (Admit("r1", 0, COMMIT), EndPass(), Processed("r1", 0)),
            Processed("r1", 1),
            "no window of r1 has reached its input 1 yet",
        ),
        (
            IN_PASS,
            Finish("r2"),
            "requests finish and caches are reset between passes, and this pass has not ended",
        ),
        (
            IN_PASS,
            ResetCache(),
            "requests finish and caches are reset between passes, and this pass has not ended",
        ),
        (
            (*RUNNING, Preempt("r1")),
            Finish("r1"),
            "requests finish and caches are reset between passes, and this pass has not ended",
        ),
        ((), Check("r1", 0), "the caller discipline takes whole steps, not single calls"),
        ((), Drain(), "the caller discipline takes whole steps, not single calls"),
    ],
)
def test_the_caller_discipline_objects(before: tuple[Move, ...], move: Move, sentence: str) -> None:
    assert objection(after(SHARED, CALLER, *before), move) == sentence


@pytest.mark.parametrize(
    ("before", "move"),
    [
        ((), EndPass()),
        ((), ResetCache()),
        ((), Finish("r1")),
        (IN_PASS, Preempt("r1")),
        (RUNNING, Preempt("r1")),
        (RUNNING, Processed("r1", 0)),
        ((*RUNNING, Processed("r1", 0)), Processed("r1", 1)),
        (RUNNING, Finish("r1")),
        (RUNNING, Admit("r1", 1, COMMIT)),
        ((Admit("r1", 0, COMMIT), EndPass()), Admit("r1", 1, COMMIT)),
        (IN_PASS, Admit("r2", 0, COMMIT)),
        # A running request may be admitted after a preemption or a give-up, an idle one in the next pass.
        ((*IN_PASS, Admit("r2", 0, COMMIT), EndPass(), Preempt("r1")), Admit("r2", 0, COMMIT)),
        ((*RUNNING, Admit("r2", 1, GIVE_UP)), Admit("r1", 1, COMMIT)),
        ((Admit("r1", 1, GIVE_UP), EndPass()), Admit("r1", 0, COMMIT)),
        # It arrives again under the same id, and starts anew.
        ((*RUNNING, Processed("r1", 0), Finish("r1")), Admit("r1", 0, COMMIT)),
        ((*RUNNING, Preempt("r1"), EndPass()), Admit("r1", 0, COMMIT)),
    ],
)
def test_the_caller_discipline_allows(before: tuple[Move, ...], move: Move) -> None:
    assert objection(after(SHARED, CALLER, *before), move) is None


def test_an_unknown_request_is_an_error_and_no_objection() -> None:
    for move in (Admit("r9", 0, COMMIT), Preempt("r9"), Processed("r9", 0)):
        with pytest.raises(WorkloadError, match="there is no request 'r9'"):
            objection(start(SHARED, CALLER), move)
    with pytest.raises(WorkloadError, match="there is no request 'r9'"):
        objection(start(SHARED, OPEN), Allocate("r9", 0))


# --- Caller discipline: the calls of each step ------------------------------------------------------------


def test_a_commit_visits_in_order_then_allocates_the_picks() -> None:
    world = workload("abc", sizes={"b": 2, "c": 3}, budget=7)
    assert calls_of(start(world, CALLER), Admit("r1", 2, COMMIT)) == [
        Check("r1", 0),
        CanAllocate("r1", 0, 7, 0),
        Check("r1", 1),
        CanAllocate("r1", 1, 6, 1),
        Check("r1", 2),
        CanAllocate("r1", 2, 4, 3),
        Allocate("r1", 0),
        Allocate("r1", 1),
        Allocate("r1", 2),
    ]
    assert seat(after(world, CALLER, Admit("r1", 2, COMMIT)), "r1") == Seat(True, 0, 3, 6)


def test_a_window_ends_at_its_last_input() -> None:
    assert calls_of(start(workload("ab"), CALLER), Admit("r1", 0, COMMIT)) == [
        Check("r1", 0),
        CanAllocate("r1", 0, 9, 0),
        Allocate("r1", 0),
    ]


def test_a_hit_is_not_picked_and_promises_nothing() -> None:
    position = after(SHARED, CALLER, Admit("r1", 0, COMMIT))
    assert calls_of(position, Admit("r2", 1, COMMIT)) == [
        Check("r2", 0),
        Check("r2", 1),
        CanAllocate("r2", 1, 8, 0),
        Allocate("r2", 1),
    ]


def test_duplicates_of_a_pick_are_checked_after_the_allocations_in_order() -> None:
    world = workload("aabab")
    assert calls_of(start(world, CALLER), Admit("r1", 4, COMMIT)) == [
        Check("r1", 0),
        CanAllocate("r1", 0, 9, 0),
        Check("r1", 2),
        CanAllocate("r1", 2, 8, 1),
        Allocate("r1", 0),
        Allocate("r1", 2),
        Check("r1", 1),
        Check("r1", 3),
        Check("r1", 4),
    ]
    assert after(world, CALLER, Admit("r1", 4, COMMIT)).state.held == {("r1", place) for place in range(5)}


def test_a_second_occurrence_of_a_hit_is_a_hit_and_no_duplicate() -> None:
    position = after(workload("a", "aa"), CALLER, Admit("r1", 0, COMMIT))
    assert calls_of(position, Admit("r2", 1, COMMIT)) == [Check("r2", 0), Check("r2", 1)]


def test_a_refusal_by_capacity_stops_the_visit_and_commits_what_was_picked() -> None:
    world = workload("abc", capacity=1)
    assert calls_of(start(world, CALLER), Admit("r1", 2, COMMIT)) == [
        Check("r1", 0),
        CanAllocate("r1", 0, 9, 0),
        Check("r1", 1),
        CanAllocate("r1", 1, 8, 1),
        Allocate("r1", 0),
    ]
    # Only what was visited may be processed.
    assert seat(after(world, CALLER, Admit("r1", 2, COMMIT)), "r1") == Seat(True, 0, 1, 1)


def test_a_refusal_by_budget_stops_the_visit() -> None:
    assert calls_of(start(workload("abc", budget=1), CALLER), Admit("r1", 2, COMMIT)) == [
        Check("r1", 0),
        CanAllocate("r1", 0, 1, 0),
        Check("r1", 1),
        CanAllocate("r1", 1, 0, 1),
        Allocate("r1", 0),
    ]


def test_duplicates_before_a_refusal_are_still_registered() -> None:
    assert calls_of(start(workload("aab", budget=1), CALLER), Admit("r1", 2, COMMIT)) == [
        Check("r1", 0),
        CanAllocate("r1", 0, 1, 0),
        Check("r1", 2),
        CanAllocate("r1", 2, 0, 1),
        Allocate("r1", 0),
        Check("r1", 1),
    ]


def test_the_budget_is_what_the_pass_has_left_and_promises_are_the_requests_own() -> None:
    world = workload("ab", "c", "de", budget=5)
    position = after(world, CALLER, Admit("r1", 1, COMMIT), Admit("r2", 0, COMMIT))
    assert calls_of(position, Admit("r3", 1, COMMIT)) == [
        Check("r3", 0),
        CanAllocate("r3", 0, 2, 0),
        Check("r3", 1),
        CanAllocate("r3", 1, 1, 1),
        Allocate("r3", 0),
        Allocate("r3", 1),
    ]


def test_the_budget_is_whole_again_in_the_next_pass() -> None:
    position = after(workload("a", "b", budget=5), CALLER, Admit("r1", 0, COMMIT), EndPass())
    assert CanAllocate("r2", 0, 5, 0) in calls_of(position, Admit("r2", 0, COMMIT))


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ((Admit("r1", 0, COMMIT),), 4),
        ((Admit("r1", 0, SKIP),), 5),
        # A give-up or a preemption gives the budget back; r2 runs since an earlier pass.
        ((Admit("r1", 0, GIVE_UP),), 5),
        ((Admit("r1", 0, COMMIT), Preempt("r1")), 5),
    ],
    ids=["commit", "skip", "give-up", "preempted"],
)
def test_only_what_stays_scheduled_takes_budget(before: tuple[Move, ...], left: int) -> None:
    world = workload("a", "bc", budget=5)
    position = after(world, CALLER, Admit("r2", 0, COMMIT), EndPass(), *before)
    assert calls_of(position, Admit("r2", 1, COMMIT)) == [
        Check("r2", 0),
        Check("r2", 1),
        CanAllocate("r2", 1, left, 0),
        Allocate("r2", 1),
    ]


def test_a_give_up_frees_the_request_and_closes_the_waiting_queue() -> None:
    position = after(SHARED, CALLER, Admit("r1", 0, COMMIT))
    assert calls_of(position, Admit("r2", 1, GIVE_UP)) == [
        Check("r2", 0),
        Check("r2", 1),
        CanAllocate("r2", 1, 8, 0),
        FreeRequest("r2"),
    ]
    given_up = after(SHARED, CALLER, Admit("r1", 0, COMMIT), Admit("r2", 1, GIVE_UP))
    assert seat(given_up, "r2") == Seat()
    assert closed(given_up)
    assert given_up.state.held == {("r1", 0)}


def test_a_running_request_that_gives_up_loses_all_it_held() -> None:
    position = after(SHARED, CALLER, *RUNNING, Processed("r1", 0), Admit("r1", 1, GIVE_UP))
    assert seat(position, "r1") == Seat()
    assert position.state.held == frozenset()


def test_a_skip_drops_picks_keeps_hits_and_frees_nothing() -> None:
    first = after(SHARED, CALLER, Admit("r1", 0, COMMIT))
    assert calls_of(first, Admit("r2", 1, SKIP)) == [Check("r2", 0), Check("r2", 1), CanAllocate("r2", 1, 8, 0)]
    position = after(SHARED, CALLER, Admit("r1", 0, COMMIT), Admit("r2", 1, SKIP))
    assert position.state.held == {("r1", 0), ("r2", 0)}
    assert seat(position, "r2") == Seat(scheduled=0)
    assert not closed(position)


def test_a_skip_leaves_a_running_request_running_and_its_window_where_it_was() -> None:
    position = after(SHARED, CALLER, Admit("r1", 0, COMMIT), EndPass(), Admit("r1", 1, SKIP))
    assert seat(position, "r1") == Seat(True, 0, 1, 0)


def test_the_next_window_starts_at_the_first_unprocessed_input() -> None:
    position = after(SHARED, CALLER, Admit("r1", 0, COMMIT), EndPass(), Processed("r1", 0))
    assert calls_of(position, Admit("r1", 1, COMMIT)) == [
        Check("r1", 1),
        CanAllocate("r1", 1, 9, 0),
        Allocate("r1", 1),
    ]


def test_a_preemption_frees_and_starts_anew_and_closes_the_waiting_queue() -> None:
    position = after(SHARED, CALLER, *RUNNING, Processed("r1", 0))
    assert calls_of(position, Preempt("r1")) == [FreeRequest("r1")]
    preempted = after(SHARED, CALLER, *RUNNING, Processed("r1", 0), Preempt("r1"))
    assert seat(preempted, "r1") == Seat()
    assert closed(preempted)
    assert not closed(after(SHARED, CALLER, *RUNNING, Preempt("r1"), EndPass()))


def test_a_pass_ends_with_a_drain_and_keeps_who_runs() -> None:
    position = after(SHARED, CALLER, *IN_PASS)
    assert calls_of(position, EndPass()) == [Drain()]
    assert seat(after(SHARED, CALLER, *RUNNING), "r1") == Seat(True, 0, 2, None)


def test_a_processed_input_is_freed_as_it_is_still_listed() -> None:
    position = after(SHARED, CALLER, *RUNNING)
    assert calls_of(position, Processed("r1", 0)) == [CachedIds("r1"), FreeInput("r1", 0)]
    assert seat(after(SHARED, CALLER, *RUNNING, Processed("r1", 0)), "r1") == Seat(True, 1, 2)


def test_a_processed_input_that_a_reset_forgot_is_not_freed() -> None:
    position = after(SHARED, CALLER, *RUNNING, ResetCache())
    assert calls_of(position, Processed("r1", 0)) == [CachedIds("r1")]


def test_a_finish_frees_an_idle_request_too() -> None:
    # r2 holds a hit of an admission that was skipped.
    position = after(SHARED, CALLER, Admit("r1", 0, COMMIT), Admit("r2", 0, SKIP), EndPass())
    assert calls_of(position, Finish("r2")) == [FreeRequest("r2")]
    assert position.state.held == {("r1", 0), ("r2", 0)}
    assert carry_out(position, Finish("r2"))[1].state.held == {("r1", 0)}


def test_a_reset_leaves_every_request_where_it_is() -> None:
    before, position = after(SHARED, CALLER, *RUNNING), after(SHARED, CALLER, *RUNNING, ResetCache())
    assert calls_of(before, ResetCache()) == [Reset()]
    assert position.caller == before.caller
    assert position.state == initial(SHARED)


def test_under_the_open_discipline_a_move_is_its_call() -> None:
    position = start(PAIR, OPEN)
    for move in moves(position):
        assert calls_of(position, move) == [move]


# --- What is offered --------------------------------------------------------------------------------------


def positions(world: Workload, discipline: Discipline) -> list[Position]:
    """All reachable ones, without any reduction."""
    first = start(world, discipline)
    seen, queue = {first: None}, deque([first])
    while queue:
        position = queue.popleft()
        for move in moves(position):
            _, following = carry_out(position, move)
            if following not in seen:
                seen[following] = None
                queue.append(following)
    return list(seen)


def alphabet(world: Workload) -> Iterator[Move]:
    """Every step and every call over a workload, with small budgets and promises."""
    for request in world.requests:
        for place in range(len(request.items)):
            yield from (Admit(request.request_id, place, outcome) for outcome in Outcome)
            yield Processed(request.request_id, place)
            yield Check(request.request_id, place)
            yield Allocate(request.request_id, place)
            yield FreeInput(request.request_id, place)
            yield from (
                CanAllocate(request.request_id, place, budget, promised)
                for budget in range(4)
                for promised in range(3)
            )
        yield from (Preempt(request.request_id), Finish(request.request_id))
        yield from (FreeRequest(request.request_id), CachedIds(request.request_id))
    yield from (EndPass(), ResetCache(), Drain(), Reset())


def is_enumerated(world: Workload, move: Move) -> bool:
    """The open discipline leaves out queries, and takes the two budgets and promises that matter."""
    if isinstance(move, CachedIds):
        return False
    if isinstance(move, CanAllocate):
        embeds = world.item(move.request_id, move.input_id).embeds
        return move.compute_budget in (embeds, embeds - 1) and move.embeds_to_schedule in (0, 1)
    return True


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize(
    "world",
    [workload("ab", "a", capacity=2, budget=2), workload("aa", "b", capacity=2, budget=1, sizes={"b": 2})],
    ids=["shared", "twice"],
)
def test_all_that_is_legal_is_offered_once_and_nothing_else(world: Workload, discipline: Discipline) -> None:
    everything = list(alphabet(world))
    reachable = positions(world, discipline)
    assert len(reachable) > 20
    for position in reachable:
        offered = moves(position)
        assert len(set(offered)) == len(offered)
        legal = {
            move
            for move in everything
            if objection(position, move) is None and (position.caller or is_enumerated(world, move))
        }
        assert set(offered) == legal


@pytest.mark.parametrize("discipline", Discipline)
def test_resets_are_left_out_on_request(discipline: Discipline) -> None:
    position = start(PAIR, discipline)
    assert [move for move in moves(position) if not isinstance(move, Reset | ResetCache)] == moves(
        position, resets=False
    )
    assert len(moves(position)) == len(moves(position, resets=False)) + 1


@pytest.mark.parametrize("discipline", Discipline)
def test_positions_of_equal_freedom_offer_the_same(discipline: Discipline) -> None:
    by_freedom: dict[object, list[Move]] = {}
    reachable = positions(workload("ab", "a", capacity=2, budget=2), discipline)
    for position in reachable:
        assert by_freedom.setdefault(freedom(position), moves(position)) == moves(position)
    assert len(by_freedom) < len(reachable)


# --- The two disciplines together -------------------------------------------------------------------------

WORLDS = {
    "shared": workload("ab", "ac", capacity=2, budget=2),
    "twice": workload("aba", "ca", capacity=2, budget=2),
    "sizes": workload("abc", "ba", capacity=3, budget=2, sizes={"a": 1, "b": 2, "c": 2}),
    "mixed": Workload(
        3, (Request("r1", (Item("a", 1), Item("b", 2))), Request("r2", (Item("a", 2), Item("b", 1)))), 3
    ),
}


@pytest.fixture(scope="module", params=WORLDS)
def caller_positions(request: pytest.FixtureRequest) -> list[Position]:
    return positions(WORLDS[request.param], CALLER)


def test_every_call_of_a_step_is_one_that_the_open_discipline_allows(caller_positions: list[Position]) -> None:
    judged = 0
    for position in caller_positions:
        for move in moves(position):
            state: State = position.state
            for call in carry_out(position, move)[0]:
                assert objection(Position(state, None), call) is None, (position, move, call)
                state, _ = apply(state, call)
                judged += 1
    assert judged > 1000


def test_freeing_an_input_listed_by_membership_changes_nothing_unless_it_is_held(
    caller_positions: list[Position],
) -> None:
    """Releases up to 0.22.1 list every cached input; their scheduler frees those whose tokens are computed."""
    listed_only = 0
    for position in caller_positions:
        for move in moves(position):
            if not isinstance(move, Processed):
                continue
            state, world = position.state, position.state.workload
            mm_hash = world.item(move.request_id, move.input_id).mm_hash
            if state.embeds_of(mm_hash) and (move.request_id, move.input_id) not in state.held:
                listed_only += 1
                others = {world.item(*place).mm_hash for place in state.held if place[0] == move.request_id}
                assert mm_hash not in others, (position, move)
    assert listed_only > 0


def test_every_position_is_consistent(caller_positions: list[Position]) -> None:
    for position in caller_positions:
        assert position.caller is not None
        world = position.state.workload
        for request, place in zip(world.requests, position.caller.seats, strict=True):
            assert 0 <= place.processed <= place.granted <= len(request.items)
            assert place.running or (place.processed, place.granted) == (0, 0)
        scheduled = sum(place.scheduled or 0 for place in position.caller.seats)
        assert scheduled <= world.compute_budget


def test_a_pass_is_open_from_its_first_admission_or_preemption_to_its_end() -> None:
    def in_pass(*choices: Move) -> bool:
        caller = after(SHARED, CALLER, *choices).caller
        assert isinstance(caller, Caller)
        return caller.in_pass

    assert not in_pass()
    assert in_pass(Admit("r1", 0, SKIP))
    assert in_pass(Admit("r1", 0, GIVE_UP))
    assert in_pass(*IN_PASS)
    assert not in_pass(*RUNNING)
    assert in_pass(*RUNNING, Preempt("r1"))
    assert not in_pass(*RUNNING, Processed("r1", 0), Finish("r1"), ResetCache())


# --- Traces -----------------------------------------------------------------------------------------------

CHOICES: tuple[Move, ...] = (*RUNNING, Processed("r1", 0), Admit("r2", 1, SKIP), EndPass(), Finish("r1"))


def test_moves_spell_out_a_trace_and_come_back() -> None:
    trace = trace_of(SHARED, CALLER, CHOICES)
    assert moves_of(trace) == CHOICES
    assert trace.steps[1] == Step((Drain(),), EndPass())
    refuse_illegal(trace)


@settings(max_examples=50)
@given(st.data(), st.sampled_from(Discipline), st.sampled_from(sorted(WORLDS)))
def test_every_walk_is_a_legal_trace(data: st.DataObject, discipline: Discipline, name: str) -> None:
    position = start(WORLDS[name], discipline)
    choices: list[Move] = []
    for _ in range(data.draw(st.integers(0, 12))):
        choices.append(data.draw(st.sampled_from(moves(position))))
        _, position = carry_out(position, choices[-1])
    trace = trace_of(WORLDS[name], discipline, tuple(choices))
    refuse_illegal(trace)
    assert moves_of(trace) == tuple(choices)
    assert len(trace) == len(choices)


def test_an_illegal_move_is_refused_with_its_step_the_reason_and_what_was_allowed() -> None:
    with pytest.raises(TraceError) as caught:
        trace_of(workload("a"), CALLER, (Admit("r1", 0, COMMIT), Finish("r1")))
    assert str(caught.value) == (
        "step 1 is not legal under the caller discipline: requests finish and caches are reset between passes, "
        "and this pass has not ended; allowed here: end-pass(), preempt(r1)"
    )


def test_a_stranger_is_refused_with_its_step() -> None:
    with pytest.raises(
        TraceError, match=re.escape("step 1: there is no request 'r9' in the workload (it has: r1)")
    ):
        trace_of(workload("a"), OPEN, (Drain(), FreeRequest("r9")))


@pytest.mark.parametrize(
    ("discipline", "steps", "sentence"),
    [
        (
            OPEN,
            (Step((Allocate("r1", 0),)), Step((Allocate("r1", 0),))),
            "step 1 is not legal under the open discipline: allocate is for a hash that is absent, "
            "and a is cached; allowed here: allocate(r1, 1), ",
        ),
        (
            OPEN,
            (Step((Drain(), Drain())),),
            "step 0 holds 2 calls and no step of a caller; a step on its own holds one call",
        ),
        (OPEN, (Step(()),), "step 0 holds 0 calls and no step of a caller; a step on its own holds one call"),
        (
            OPEN,
            (Step((Drain(),), EndPass()),),
            "step 0 is not legal under the open discipline: the open discipline makes single calls, "
            "not steps of a caller; allowed here: ",
        ),
        (
            CALLER,
            (Step((Drain(),)),),
            "step 0 is not legal under the caller discipline: the caller discipline takes whole steps, "
            "not single calls; allowed here: ",
        ),
        (
            CALLER,
            (
                Step((Drain(),), EndPass()),
                Step((Check("r1", 0), Allocate("r1", 0)), Admit("r1", 0, COMMIT)),
                Step((Drain(),), EndPass()),
            ),
            "step 1 makes the calls check(r1, 0), allocate(r1, 0); "
            "its caller would make check(r1, 0), can_allocate(r1, 0, 9, 0), allocate(r1, 0)",
        ),
        (
            CALLER,
            (
                Step((Check("r1", 0), CanAllocate("r1", 0, 8, 0)), Admit("r1", 0, SKIP)),
                Step((Drain(),), EndPass()),
            ),
            "step 0 makes the calls check(r1, 0), can_allocate(r1, 0, 8, 0); "
            "its caller would make check(r1, 0), can_allocate(r1, 0, 9, 0)",
        ),
    ],
)
def test_an_edited_trace_is_refused_with_step_and_reason(
    discipline: Discipline, steps: tuple[Step, ...], sentence: str
) -> None:
    with pytest.raises(TraceError) as caught:
        refuse_illegal(Trace(SHARED, discipline, steps))
    assert str(caught.value).startswith(sentence)


def test_a_trace_may_end_within_a_step_but_not_go_on_from_there() -> None:
    cut = Step((Check("r1", 0), CanAllocate("r1", 0, 9, 0)), Admit("r1", 0, COMMIT))
    refuse_illegal(Trace(SHARED, CALLER, (cut,)))
    with pytest.raises(TraceError, match="step 0 makes the calls"):
        refuse_illegal(Trace(SHARED, CALLER, (cut, Step((Drain(),), EndPass()))))


def test_a_trace_may_go_on_from_any_order_of_a_free() -> None:
    """r2 needs one slot: whether a or b was evicted for it shows at the next admission of r1."""
    world = workload("ab", "c", capacity=2, budget=2)
    before = trace_of(
        world, CALLER, (Admit("r1", 1, COMMIT), EndPass(), Finish("r1"), Admit("r2", 0, COMMIT), EndPass())
    )
    evicted_a = (Check("r1", 0), CanAllocate("r1", 0, 2, 0), Allocate("r1", 0))
    evicted_b = (Check("r1", 0),)
    for calls in (evicted_a, evicted_b):
        steps = (*before.steps, Step(calls, Admit("r1", 0, COMMIT)), Step((Drain(),), EndPass()))
        refuse_illegal(Trace(world, CALLER, steps))
    neither = Step((Check("r1", 0), Allocate("r1", 0)), Admit("r1", 0, COMMIT))
    with pytest.raises(TraceError, match="step 5 makes the calls"):
        refuse_illegal(Trace(world, CALLER, (*before.steps, neither, Step((Drain(),), EndPass()))))
