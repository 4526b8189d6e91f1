"""The engine, rule by rule, around the reference model."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from model.eras import Refusal, Rules, rules_of
from model.operations import Call, CanAllocate, Check, Result
from model.scheduling import (
    Abort,
    Arrive,
    ChangeWeights,
    Engine,
    EngineState,
    EngineTrace,
    KnownEngineFault,
    Move,
    Note,
    Pass,
    Phase,
    Placement,
    Policy,
    Prompt,
    ReferenceManager,
    Scene,
    SceneError,
    Setup,
    Taken,
    What,
    WorkerOrder,
    decode_engine_trace,
    encode_engine_trace,
)

P = Placement


class Recorder(ReferenceManager):
    """The reference, and the calls that were made of it."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.workload)
        self.calls: list[Call] = []

    def call(self, call: Call) -> Result:
        self.calls.append(call)
        return super().call(call)


class Ride:
    """A scene taken through moves, with what each did."""

    def __init__(self, setup: Setup, *requests: Prompt) -> None:
        self.scene = Scene(requests, setup)
        self.engine = Engine(self.scene)
        self.manager = Recorder(self.scene)
        self.state: EngineState = self.engine.start()
        self.last: Taken | None = None

    def take(self, *moves: Move) -> "Ride":
        for move in moves:
            self.manager.calls.clear()
            self.last = self.engine.take(self.state, move, self.manager)
            self.state = self.last.state
        return self

    def notes(self, what: What) -> list[Note]:
        assert self.last is not None
        return [note for note in self.last.notes if note.what is what]

    def scheduled(self) -> dict[str, tuple[int, int]]:
        return {note.request_id: (note.start, note.end) for note in self.notes(What.SCHEDULED)}

    def hashes(self, what: What) -> list[str]:
        return [mm_hash for note in self.notes(what) for mm_hash in note.hashes]

    def computed(self, request_id: str) -> int:
        return self.state.standings[self.scene.place(request_id)].computed

    def phase(self, request_id: str) -> Phase:
        return self.state.standings[self.scene.place(request_id)].phase


def r(name: str, *items: Placement, tokens: int = 0, outputs: int = 1, priority: int = 0) -> Prompt:
    return Prompt(name, items, tokens or max((item.end for item in items), default=1), outputs, priority)


def arrive(*names: str) -> Sequence[Move]:
    return [Arrive(name) for name in names]


def ride(setup: Setup, *requests: Prompt) -> Ride:
    return Ride(setup, *requests).take(*arrive(*(request.request_id for request in requests)))


# --- A request's life ---


def test_a_prompt_is_computed_and_the_request_finishes() -> None:
    run = ride(Setup(capacity=2), r("r1", P("a", 0, 2), tokens=3)).take(Pass(8))
    assert run.scheduled() == {"r1": (0, 3)}
    assert run.hashes(What.ENCODED) == run.hashes(What.GATHERED) == run.hashes(What.FREED) == ["a"]
    assert run.phase("r1") is Phase.ABSENT
    assert run.state.tensors == {"a"}
    assert run.manager.state.evictable == ("a",)


def test_outputs_take_a_pass_each() -> None:
    run = ride(Setup(capacity=1), r("r1", tokens=2, outputs=3)).take(Pass(8))
    assert (run.computed("r1"), run.phase("r1")) == (2, Phase.RUNNING)
    assert run.take(Pass(8)).scheduled() == {"r1": (2, 3)}
    assert run.take(Pass(8)).phase("r1") is Phase.ABSENT


def test_a_prompt_is_chunked_by_the_tokens_of_a_pass() -> None:
    run = ride(Setup(capacity=2), r("r1", P("a", 0, 2), tokens=3)).take(Pass(1))
    assert (run.computed("r1"), run.hashes(What.FREED)) == (1, [])
    assert run.state.standings[0].touched == {0}
    assert run.take(Pass(1)).hashes(What.FREED) == ["a"]
    assert run.hashes(What.HIT) == ["a"], "the second chunk finds its item cached"


def test_a_chunk_limit_spares_a_lone_request() -> None:
    setup = Setup(capacity=1, chunk_limit=1)
    assert ride(setup, r("r1", tokens=3)).take(Pass(8)).scheduled() == {"r1": (0, 3)}
    both = ride(setup, r("r1", tokens=3), r("r2", tokens=3)).take(Pass(8))
    assert both.scheduled() == {"r1": (0, 1), "r2": (0, 1)}
    earlier = replace(setup, rules=rules_of("0.28"))
    assert ride(earlier, r("r1", tokens=3)).take(Pass(8)).scheduled() == {"r1": (0, 1)}


def test_an_aborted_request_is_freed_and_may_arrive_again() -> None:
    run = ride(Setup(capacity=2), r("r1", P("a", 0, 2), tokens=3)).take(Pass(1), Abort("r1"))
    assert run.manager.state.held == frozenset()
    assert run.state.needed == frozenset()
    assert run.take(Arrive("r1")).phase("r1") is Phase.WAITING


def test_a_change_of_weights_clears_cache_and_tensors() -> None:
    run = ride(Setup(capacity=2), r("r1", P("a", 0, 2), tokens=3)).take(Pass(1), ChangeWeights())
    assert run.state.tensors == run.state.needed == frozenset()
    assert run.manager.state.cached == ()
    assert run.take(Pass(1)).hashes(What.ENCODED) == ["a"], "needed again, and not redundant"


# --- The visit, step by step ---


def test_items_outside_of_the_window_are_not_visited() -> None:
    run = ride(Setup(capacity=2), r("r1", P("a", 0, 1), P("b", 1, 1))).take(Pass(1))
    assert [call.input_id for call in run.manager.calls if isinstance(call, Check)] == [0]


def test_the_look_ahead_widens_the_window_by_one() -> None:
    run = ride(Setup(capacity=2, look_ahead=1), r("r1", P("a", 0, 1), P("b", 1, 1))).take(Pass(1))
    assert run.hashes(What.PICKED) == ["a", "b"]


@pytest.mark.parametrize(
    ("rules", "tokens", "look_ahead", "scheduled"),
    [
        (Rules(), 2, 0, (0, 1)),
        (Rules(), 2, 1, None),
        (rules_of("0.14"), 2, 1, (0, 1)),
        (Rules(), 3, 0, (0, 3)),
    ],
)
def test_step_1_an_item_that_may_not_be_split_ends_the_window(
    rules: Rules, tokens: int, look_ahead: int, scheduled: tuple[int, int] | None
) -> None:
    setup = Setup(capacity=2, split_items=False, look_ahead=look_ahead, rules=rules)
    run = ride(setup, r("r1", P("a", 1, 2), tokens=4)).take(Pass(tokens))
    assert run.scheduled().get("r1") == scheduled


def test_step_1_applies_at_the_item_itself_from_0_33_on() -> None:
    request = r("r1", P("a", 0, 2), tokens=3)
    assert ride(Setup(capacity=2, split_items=False), request).take(Pass(1)).scheduled() == {}
    earlier = Setup(capacity=2, split_items=False, rules=rules_of("0.32"))
    assert ride(earlier, request).take(Pass(1)).scheduled() == {"r1": (0, 1)}


def test_step_1_stood_after_the_hits_up_to_0_31() -> None:
    requests = r("r1", P("a", 0, 2)), r("r2", P("a", 1, 2), tokens=4)
    for release, scheduled in (("0.31", (0, 2)), ("0.32", (0, 1))):
        run = Ride(Setup(capacity=2, split_items=False, rules=rules_of(release)), *requests)
        run.take(Arrive("r1"), Pass(8), Arrive("r2"), Pass(2))
        assert run.scheduled() == {"r2": scheduled}, release


def test_step_2_a_duplicate_is_registered_from_0_32_on() -> None:
    for release, held in (("0.31", frozenset()), ("0.32", frozenset({("r1", 1)}))):
        run = ride(Setup(capacity=2, rules=rules_of(release)), r("r1", P("a", 0, 2), P("a", 2, 2))).take(Pass(3))
        assert run.hashes(What.DUPLICATE) == ["a"]
        assert run.manager.state.held == held, release


def test_step_3_another_size_rejects_the_request_from_0_31_on() -> None:
    requests = r("r1", P("a", 0, 1)), r("r2", P("a", 0, 2))
    run = Ride(Setup(capacity=3), *requests).take(Arrive("r1"), Pass(8), Arrive("r2"), Pass(8))
    assert (run.hashes(What.REJECTED), run.phase("r2")) == (["a"], Phase.ABSENT)
    earlier = Ride(Setup(capacity=3, rules=rules_of("0.30")), *requests)
    assert earlier.take(Arrive("r1"), Pass(8), Arrive("r2"), Pass(8)).hashes(What.REJECTED) == []


def test_step_5_the_embeds_promised_and_the_budget_left_are_handed_over() -> None:
    run = ride(Setup(capacity=3), r("r1", P("a", 0, 1), P("b", 1, 2))).take(Pass(8))
    asked = [
        (call.compute_budget, call.embeds_to_schedule) for call in run.manager.calls if type(call) is CanAllocate
    ]
    assert asked == [(3, 0), (2, 1)]


@pytest.mark.parametrize(
    ("refusal", "look_ahead", "scheduled"),
    [
        (Refusal.AT_MOST_UP_TO_ITEM, 0, (0, 1)),
        (Refusal.AT_MOST_UP_TO_ITEM, 1, (0, 1)),
        (Refusal.UP_TO_LOOK_AHEAD, 0, (0, 1)),
        (Refusal.UP_TO_LOOK_AHEAD, 1, None),
        (Refusal.UP_TO_ITEM, 1, (0, 1)),
    ],
)
def test_step_5_a_refusal_leaves_the_tokens_before_the_item(
    refusal: Refusal, look_ahead: int, scheduled: tuple[int, int] | None
) -> None:
    setup = Setup(capacity=1, look_ahead=look_ahead, rules=Rules(refusal=refusal))
    run = ride(setup, r("r1", P("a", 0, 1), P("b", 1, 1), tokens=3)).take(Pass(8))
    assert run.scheduled().get("r1") == scheduled
    assert run.hashes(What.REFUSED) == ["b"]


def test_step_6_an_item_whose_embeds_lie_beyond_the_window_is_not_picked() -> None:
    request = r("r1", P("a", 0, 3, (1,)))
    run = ride(Setup(capacity=1), request).take(Pass(1))
    assert (run.hashes(What.NOT_COVERED), run.hashes(What.PICKED)) == (["a"], [])
    assert run.take(Pass(1)).hashes(What.GATHERED) == ["a"]
    assert run.take(Pass(1)).hashes(What.GATHERED) == [], "the end marker needs no tensor"


@pytest.mark.parametrize(("release", "picked"), [("0.27", []), ("0.28", ["a"])])
def test_step_6_the_look_ahead_covers_from_0_28_on(release: str, picked: list[str]) -> None:
    run = ride(Setup(capacity=1, look_ahead=1, rules=rules_of(release)), r("r1", P("a", 1, 1), tokens=3))
    assert run.take(Pass(1)).hashes(What.PICKED) == picked


# --- KV blocks, preemption ---


def test_a_waiting_request_without_blocks_gives_up() -> None:
    requests = r("r1", P("a", 0, 1)), r("r2", P("a", 0, 1), P("b", 1, 1)), r("r3")
    for release, held in (("0.11", {("r2", 0)}), ("0.14", frozenset())):
        run = Ride(Setup(capacity=2, rules=rules_of(release)), *requests).take(Arrive("r1"), Pass(8))
        run.take(*arrive("r2", "r3"), Pass(8, (False,)))
        assert run.hashes(What.GAVE_UP) == ["b"]
        assert (run.scheduled(), run.manager.state.held) == ({}, held), release


def test_first_come_preempts_the_last_running_request() -> None:
    run = ride(Setup(capacity=1), r("r1", tokens=2, outputs=3), r("r2", tokens=2, outputs=3), r("r3"))
    run.take(Pass(4)).take(Pass(8, (False, True)))
    assert [note.request_id for note in run.notes(What.PREEMPTED)] == ["r2"]
    assert run.scheduled() == {"r1": (2, 3)}, "and nobody waiting is tried after a preemption"
    assert run.state.waiting == (1, 2), "at the front of the queue"
    assert run.state.standings[1].outputs == 1


def test_a_request_that_is_its_own_victim_ends_the_running_part_under_first_come() -> None:
    run = ride(Setup(capacity=1), r("r1", tokens=2, outputs=3)).take(Pass(2), Pass(8, (False,)))
    assert (run.scheduled(), run.phase("r1")) == ({}, Phase.WAITING)


def priority_ride(rules: Rules) -> Ride:
    """r1, less urgent, runs before r2 and picks b; then r2 gets no blocks and r1 is the victim."""
    setup = Setup(capacity=1, policy=Policy.PRIORITY, rules=rules)
    run = Ride(setup, r("r1", P("a", 1, 1), P("b", 2, 1), priority=1), r("r2", tokens=3))
    return run.take(Arrive("r1"), Pass(1), Arrive("r2"), Pass(2), Pass(2, (True, False)))


def test_priority_withdraws_a_victim_that_is_scheduled_already() -> None:
    run = priority_ride(Rules())
    assert run.hashes(What.WITHDRAWN) == ["b"]
    assert run.scheduled()["r2"] == (1, 2)
    assert run.hashes(What.ENCODED) == []
    assert run.state.tensors == frozenset()
    assert dict(run.manager.state.cached) == {"b": 1}, "which the worker never encodes"


def test_up_to_0_11_such_a_victim_stays_in_the_step() -> None:
    run = priority_ride(replace(rules_of("0.11"), passes_over_waiting=True))
    assert (run.hashes(What.WITHDRAWN), run.hashes(What.ENCODED)) == ([], ["b"])


@pytest.mark.parametrize(("release", "scheduled"), [("0.32", []), ("0.33", ["r2"])])
def test_after_its_own_preemption_the_next_running_request_is_tried(release: str, scheduled: list[str]) -> None:
    setup = Setup(capacity=1, policy=Policy.PRIORITY, rules=rules_of(release))
    run = Ride(setup, r("r1", tokens=2, outputs=3, priority=1), r("r2", tokens=2, outputs=3))
    run.take(Arrive("r1"), Pass(2), Arrive("r2"), Pass(3), Pass(8, (False, True)))
    assert list(run.scheduled()) == scheduled


def test_under_priority_the_more_urgent_waits_in_front() -> None:
    run = ride(Setup(capacity=1, policy=Policy.PRIORITY), r("r1", priority=1), r("r2"))
    assert run.state.waiting == (1, 0)


@pytest.mark.parametrize(("release", "scheduled"), [("0.32", []), ("0.33", ["r3"])])
def test_a_waiting_request_without_tokens_is_passed_over_from_0_33_on(release: str, scheduled: list[str]) -> None:
    requests = r("r1", P("a", 0, 2), tokens=3), r("r2", P("b", 0, 1)), r("r3")
    run = Ride(Setup(capacity=2, rules=rules_of(release)), *requests).take(Arrive("r1"), Pass(1))
    run.take(*arrive("r2", "r3"), Pass(3))
    assert [name for name in run.scheduled() if name != "r1"] == scheduled
    assert run.state.waiting[0] == 1


def test_a_kv_capacity_decides_by_tokens() -> None:
    setup = Setup(capacity=1, kv_capacity=3)
    run = ride(setup, r("r1", tokens=2, outputs=2), r("r2", tokens=2)).take(Pass(8))
    assert (list(run.scheduled()), [note.request_id for note in run.notes(What.GAVE_UP)]) == (["r1"], ["r2"])


# --- The worker ---


def evict_and_readmit(order: WorkerOrder, *, skips: bool = False) -> Ride:
    setup = Setup(capacity=2, worker_order=order, skips_present=skips)
    run = Ride(setup, r("r1", P("a", 0, 1), P("b", 1, 1)), r("r2", P("c", 0, 1), P("a", 1, 1)))
    return run.take(Arrive("r1"), Pass(8), Arrive("r2"), Pass(8))


def test_an_entry_evicted_and_readmitted_is_encoded_and_not_reported() -> None:
    run = evict_and_readmit(WorkerOrder.DROP_FIRST)
    assert (run.hashes(What.EVICTED), run.hashes(What.REPORTED)) == (["a", "b"], ["b"])
    assert run.hashes(What.ENCODED) == ["c", "a"]
    assert run.state.tensors == {"a", "c"}


def test_a_worker_may_skip_what_it_still_has() -> None:
    run = evict_and_readmit(WorkerOrder.ENCODE_FIRST, skips=True)
    assert (run.hashes(What.STILL_THERE), run.hashes(What.ENCODED)) == (["a"], ["c"])


@pytest.mark.parametrize("release", ["0.23", "0.24"])
def test_the_drafter_does_without_an_item_that_is_not_there_from_0_24_on(release: str) -> None:
    run = ride(Setup(capacity=1, look_ahead=1, rules=rules_of(release)), r("r1", P("a", 1, 1), tokens=3))
    assert run.take(Pass(1)).last is not None
    assert bool(run.notes(What.MISSING)) == (release == "0.23")
    assert bool(run.notes(What.DRAFTER_DID_WITHOUT)) == (release == "0.24")


# --- Frees ---


@pytest.mark.parametrize(("placeholders", "freed"), [(0, ["a"]), (1, [])])
def test_frees_wait_for_outstanding_placeholders(placeholders: int, freed: list[str]) -> None:
    run = ride(Setup(capacity=1, placeholders=placeholders), r("r1", P("a", 0, 1), outputs=3)).take(Pass(8))
    assert run.hashes(What.FREED) == freed
    assert run.take(Pass(8)).manager.state.held == frozenset()


@pytest.mark.parametrize(("release", "freed"), [("0.23", ["a"]), ("0.24", []), ("0.32", []), ("0.33", ["a"])])
def test_frees_waited_for_the_look_ahead_from_0_24_to_0_32(release: str, freed: list[str]) -> None:
    run = ride(Setup(capacity=1, look_ahead=1, rules=rules_of(release)), r("r1", P("a", 0, 1), tokens=3))
    assert run.take(Pass(1)).hashes(What.FREED) == freed


def test_a_second_encode_of_what_is_needed_is_noted() -> None:
    run = ride(Setup(capacity=2), r("r1", P("a", 0, 2), tokens=3)).take(Pass(1))
    run.manager.state = ReferenceManager(run.scene.workload).state  # the manager forgets, wrongly
    assert run.take(Pass(1)).hashes(What.ENCODED_AGAIN) == ["a"]


# --- What cannot be ---


@pytest.mark.parametrize(
    ("setup", "request_", "reason"),
    [
        (Setup(capacity=0), r("r1"), "capacity is 0"),
        (Setup(capacity=1, look_ahead=2), r("r1"), "look-ahead is 2"),
        (Setup(capacity=1, placeholders=-1), r("r1"), "placeholders is -1"),
        (Setup(capacity=1), r("r1", P("a", 0, 2)), "cache and compute budget allow 1"),
        (Setup(capacity=2, compute_budget=1), r("r1", P("a", 0, 2)), "cache and compute budget allow 1"),
        (Setup(capacity=2, split_items=False, token_budget=1), r("r1", P("a", 0, 2)), "may not be split"),
        (Setup(capacity=2, kv_capacity=2), r("r1", tokens=2, outputs=2), "comes to 3 tokens"),
        (Setup(capacity=2), r("r1", P("a", 0, 2), P("b", 1, 1)), "before the end of what comes before it"),
        (Setup(capacity=2), r("r1", P("a", 0, 2, ())), "no embeds"),
        (Setup(capacity=2), r("r1", P("a", 0, 2, (2,))), "outside of its 2 placeholders"),
        (Setup(capacity=2), r("r1", P("a", 0, 2), tokens=1), "its items end at 2"),
        (Setup(capacity=2), r("r1", outputs=0), "generates 0 tokens"),
    ],
)
def test_an_impossible_scene_is_refused(setup: Setup, request_: Prompt, reason: str) -> None:
    with pytest.raises(SceneError, match=reason):
        Scene((request_,), setup)


@pytest.mark.parametrize(
    ("move", "reason"),
    [
        (Arrive("r9"), "no request 'r9'"),
        (Abort("r1"), "r1 is absent"),
        (Pass(9), "a pass of 9 tokens"),
        (Pass(0), "a pass of 0 tokens"),
    ],
)
def test_an_impossible_move_is_refused(move: Move, reason: str) -> None:
    with pytest.raises(SceneError, match=reason):
        Ride(Setup(capacity=1), r("r1")).take(move)


# --- The trace format ---

TRACE = EngineTrace(
    Scene((r("r1", P("a", 0, 2, (1,))),), Setup(capacity=2, policy=Policy.PRIORITY)),
    (Arrive("r1"), Pass(2, (True, False)), Abort("r1"), ChangeWeights()),
)
FAULT = KnownEngineFault(TRACE, "gather-hits", "a note", ("port",))


def test_an_engine_trace_is_read_as_it_was_written() -> None:
    assert decode_engine_trace(encode_engine_trace(FAULT), "x") == FAULT


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((b"evictcheck-engine/1", b"evictcheck-engine/2"), "reads 'evictcheck-engine/1'"),
        ((b'"capacity": 2', b'"capacity": 0'), "capacity is 0"),
        ((b'"capacity"', b'"kapacity"'), "x is not an engine trace"),
        ((b"{", b"["), "x is not an engine trace"),
    ],
)
def test_what_is_no_engine_trace_is_refused(change: tuple[bytes, bytes], reason: str) -> None:
    with pytest.raises(SceneError, match=reason):
        decode_engine_trace(encode_engine_trace(FAULT).replace(*change, 1), "x")
