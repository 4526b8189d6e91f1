"""An engine around the cache: scheduler passes, and a worker that keeps tensors by the manager's word.

The scheduler calls a manager as vLLM's does (0.33's `Scheduler.schedule`, and what earlier releases did
otherwise: `model.eras`), through the manager's own answers. The worker drops, encodes and gathers. What the
outside world decides is the explorer's: who arrives, how many tokens a pass has, whether there are KV blocks,
who is aborted, when the weights change.

Nothing is judged here. A `Taken` says what happened; `properties.engine_invariants` says what must not.

Left out, because the cache does not see it: prefix caching (a request starts at its first token), drafts that
are accepted or rejected (look-ahead only widens windows), connectors, encoder-decoder models, and limits on
the number of running requests. One request that decodes is one token a pass.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from model.eras import Refusal, Rules
from model.errors import EvictcheckError
from model.operations import (
    Allocate,
    CachedIds,
    Call,
    CanAllocate,
    Check,
    Drain,
    FreeInput,
    FreeRequest,
    Reset,
    Result,
)
from model.reference import State as CacheState
from model.reference import apply, initial
from model.workload import Item, Request, Workload


class SceneError(EvictcheckError):
    """An engine, a request or a move that cannot exist."""


# --- The scene: who may come, and how the engine is set up -------------------------------------------------


class Policy(StrEnum):
    """Who is served first, and who is preempted."""

    FIRST_COME = "first-come"
    """In order of arrival; the victim is the last running request."""
    PRIORITY = "priority"
    """Small priority values first, then arrival; the victim has the largest (priority, arrival)."""


class WorkerOrder(StrEnum):
    """What a worker does first in a step."""

    DROP_FIRST = "drop-encode-gather"
    """As vLLM's runners do: the freed hashes are dropped when the step's states are updated."""
    ENCODE_FIRST = "encode-drop-gather"
    """As a hook of some platforms allows: the freed hashes are dropped between encoder and gathering."""


class Placement(Struct, frozen=True, forbid_unknown_fields=True):
    """An item in a prompt.

    Attributes:
        mm_hash: Identity of the content.
        offset: Position of its first placeholder token.
        length: Placeholder tokens; at least 1.
        embeds_at: Which of its placeholders (from 0) an embed stands for; None for all of them. The rest are
            markers such as start and end tokens, which need no encoder output.
    """

    mm_hash: str
    offset: int
    length: int
    embeds_at: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        """Position after its last placeholder."""
        return self.offset + self.length

    @property
    def embeds(self) -> int:
        """Size of its encoder output, in embeds."""
        return self.length if self.embeds_at is None else len(self.embeds_at)

    def has_embeds_in(self, start: int, end: int) -> bool:
        """Whether an embed stands in the positions from `start` to before `end` of the prompt."""
        first, last = max(start - self.offset, 0), min(end - self.offset, self.length)
        if self.embeds_at is None:
            return first < last
        return any(first <= place < last for place in self.embeds_at)


class Prompt(Struct, frozen=True, forbid_unknown_fields=True):
    """A request with positions.

    Attributes:
        request_id: Its name.
        items: Its items in order of position, without overlap; the index of one is its input id.
        tokens: Length of the prompt, placeholders included.
        outputs: Tokens that it generates before it finishes; at least 1.
        priority: Smaller is served first; only the priority policy looks at it.
    """

    request_id: str
    items: tuple[Placement, ...]
    tokens: int
    outputs: int = 1
    priority: int = 0


class Setup(Struct, frozen=True, forbid_unknown_fields=True):
    """How the engine is configured; defaults are those of vLLM 0.33, its sizes scaled down.

    Attributes:
        capacity: Of the cache, in embeds.
        compute_budget: Embeds that the encoder may compute in a pass; None for the capacity, as upstream's
            defaults have it.
        token_budget: Tokens of a pass (`max_num_batched_tokens`).
        chunk_limit: Tokens of one request in a pass (`long_prefill_token_threshold`); None for no limit.
        kv_capacity: Tokens that the KV cache holds; None if the outside world decides, as it does when other
            requests, without items, share it.
        policy: Who is served first, and who is preempted.
        split_items: Whether an item may be divided between passes (`disable_chunked_mm_input` is the opposite).
        look_ahead: Tokens that a drafter reads beyond a request's window: 0 without speculative decoding, or 1.
        placeholders: Output tokens outstanding, under asynchronous scheduling, once a prompt is computed.
        worker_order: What the worker does first.
        skips_present: Whether the worker does not encode what it still has.
        rules: The release's rules.
    """

    capacity: int
    compute_budget: int | None = None
    token_budget: int = 8
    chunk_limit: int | None = None
    kv_capacity: int | None = None
    policy: Policy = Policy.FIRST_COME
    split_items: bool = True
    look_ahead: int = 0
    placeholders: int = 0
    worker_order: WorkerOrder = WorkerOrder.DROP_FIRST
    skips_present: bool = False
    rules: Rules = Rules()


class Scene(Struct, frozen=True, cache_hash=True, forbid_unknown_fields=True):
    """The requests that may arrive, and the engine that serves them.

    Only requests that fit are served, as upstream sees to before it admits one: each item fits the cache and the
    compute budget, all tokens fit the KV capacity, and where items may not be split each fits the token budget.

    Raises:
        SceneError: A number out of its range, items that overlap, or a request that does not fit.
    """

    requests: tuple[Prompt, ...]
    setup: Setup

    def __post_init__(self) -> None:
        setup = self.setup
        for name, least in (("capacity", 1), ("compute_budget", 1), ("token_budget", 1), ("chunk_limit", 1)):
            number = getattr(setup, name)
            if number is not None and number < least:
                raise SceneError(f"{name.replace('_', ' ')} is {number}; it must be at least {least}")
        if setup.look_ahead not in (0, 1):
            raise SceneError(f"look-ahead is {setup.look_ahead}; a drafter looks 0 or 1 tokens ahead")
        if setup.placeholders < 0:
            raise SceneError(f"placeholders is {setup.placeholders}; it must be at least 0")
        for request in self.requests:
            _refuse_impossible(request)
            _refuse_unfitting(request, setup)

    @property
    def compute_budget(self) -> int:
        """Embeds that the encoder may compute in a pass."""
        setup = self.setup
        return setup.capacity if setup.compute_budget is None else setup.compute_budget

    @property
    def workload(self) -> Workload:
        """What a manager is told: items without positions.

        Raises:
            WorkloadError: Two requests with one id, or an empty name.
        """
        return Workload(
            self.setup.capacity,
            tuple(
                Request(one.request_id, tuple(Item(item.mm_hash, item.embeds) for item in one.items))
                for one in self.requests
            ),
            self.compute_budget,
        )

    def place(self, request_id: str) -> int:
        """Where a request stands among the requests.

        Raises:
            SceneError: There is no such request.
        """
        for place, request in enumerate(self.requests):
            if request.request_id == request_id:
                return place
        known = ", ".join(request.request_id for request in self.requests)
        raise SceneError(f"there is no request {request_id!r} in the scene (it has: {known})")


def _refuse_impossible(request: Prompt) -> None:
    end = 0
    for input_id, item in enumerate(request.items):
        where = f"input {input_id} of {request.request_id}"
        if item.embeds < 1 or item.length < 1:
            raise SceneError(f"{where} has no embeds; it must have at least one")
        if item.embeds_at is not None and not set(item.embeds_at) <= set(range(item.length)):
            raise SceneError(f"{where} has embeds outside of its {item.length} placeholders")
        if item.offset < end:
            raise SceneError(f"{where} starts at {item.offset}, before the end of what comes before it ({end})")
        end = item.end
    if request.tokens < max(end, 1):
        raise SceneError(f"{request.request_id} has {request.tokens} tokens; its items end at {end}")
    if request.outputs < 1:
        raise SceneError(f"{request.request_id} generates {request.outputs} tokens; it must generate at least 1")


def _refuse_unfitting(request: Prompt, setup: Setup) -> None:
    most = setup.capacity if setup.compute_budget is None else min(setup.capacity, setup.compute_budget)
    for input_id, item in enumerate(request.items):
        where = f"input {input_id} of {request.request_id}"
        if item.embeds > most:
            raise SceneError(f"{where} has {item.embeds} embeds; cache and compute budget allow {most}")
        if not setup.split_items and item.length > setup.token_budget:
            raise SceneError(
                f"{where} has {item.length} tokens and may not be split; the token budget of "
                f"{setup.token_budget} must be at least as large"
            )
    longest = request.tokens + request.outputs - 1
    if setup.kv_capacity is not None and longest > setup.kv_capacity:
        raise SceneError(
            f"{request.request_id} comes to {longest} tokens; the KV capacity of {setup.kv_capacity} "
            f"must hold them"
        )


# --- Moves -------------------------------------------------------------------------------------------------


class Arrive(Struct, frozen=True, forbid_unknown_fields=True, tag="arrive", tag_field="move"):
    """Between passes, a request joins the waiting queue."""

    request_id: str


class Pass(Struct, frozen=True, forbid_unknown_fields=True, tag="pass", tag_field="move"):
    """One engine step: scheduling, the worker's step, and what follows from its results.

    Attributes:
        tokens: Tokens left to these requests of the token budget; the rest went to others, without items.
        kv: Answers to the requests for KV blocks, in order; those after the last one are granted. Empty where
            the KV capacity decides.
    """

    tokens: int
    kv: tuple[bool, ...] = ()


class Abort(Struct, frozen=True, forbid_unknown_fields=True, tag="abort", tag_field="move"):
    """Between passes, a request is aborted, or stops before its last token."""

    request_id: str


class ChangeWeights(Struct, frozen=True, forbid_unknown_fields=True, tag="change-weights", tag_field="move"):
    """Between passes the model's weights change: cache and tensors are cleared (0.16.0 on)."""


Move: TypeAlias = Arrive | Pass | Abort | ChangeWeights


# --- What the engine knows ---------------------------------------------------------------------------------


class Phase(StrEnum):
    """Where a request is in its life."""

    ABSENT = "absent"
    """Not there yet, or finished: it may arrive, again under the same id."""
    WAITING = "waiting"
    RUNNING = "running"


class Standing(Struct, frozen=True):
    """One request's progress.

    Attributes:
        phase: Where it is in its life.
        computed: Tokens whose KV is computed.
        outputs: Tokens generated.
        touched: Inputs that its scheduled windows have reached and obtained, and that are not wholly computed.
    """

    phase: Phase = Phase.ABSENT
    computed: int = 0
    outputs: int = 0
    touched: frozenset[int] = frozenset()


class EngineState(Struct, frozen=True, cache_hash=True):
    """Scheduler and worker between two moves; requests are numbered as in the scene.

    Attributes:
        standings: Of each request.
        waiting: In the order in which they will be tried.
        running: In the order in which they are scheduled.
        arrivals: Unfinished requests by arrival; empty under first-come, where queues say it all.
        tensors: Hashes whose tensors the worker has.
        needed: Hashes encoded and needed since: a running request has touched and not wholly computed them.
        sizes: Of hashes that requests name with different sizes: what was allocated last, in embeds.
    """

    standings: tuple[Standing, ...]
    waiting: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    arrivals: tuple[int, ...] = ()
    tensors: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    sizes: tuple[tuple[str, int], ...] = ()


class Entries(Struct, frozen=True):
    """What a manager shows of its entries.

    Attributes:
        references: For each cached hash the ids of the requests that refer to it.
        evictable: The evictable hashes, oldest first.
    """

    references: Mapping[str, frozenset[str]]
    evictable: tuple[str, ...]


class CacheManager(Protocol):
    """A manager as the engine needs it."""

    def call(self, call: Call) -> Result:
        """Carries out a call and answers; whatever the implementation raises comes through."""

    def entries(self) -> Entries | None:
        """What it shows of its entries; None if it shows nothing."""


class ReferenceManager:
    """The specification as a manager."""

    def __init__(self, workload: Workload) -> None:
        self.state: CacheState = initial(workload)

    def call(self, call: Call) -> Result:
        """Carries out a call by the reference model."""
        self.state, answer = apply(self.state, call)
        return answer

    def entries(self) -> Entries:
        """The reference's entries."""
        state = self.state
        return Entries(
            {
                mm_hash: frozenset(
                    request_id
                    for request_id, input_id in state.held
                    if state.workload.item(request_id, input_id).mm_hash == mm_hash
                )
                for mm_hash, _ in state.cached
            },
            state.evictable,
        )


# --- What a move did ---------------------------------------------------------------------------------------


class What(StrEnum):
    """The kinds of things that happen."""

    ARRIVED = "arrived"
    ABORTED = "aborted"
    WEIGHTS_CHANGED = "weights-changed"
    HIT = "hit"
    HIT_EVICTABLE = "hit-evictable"
    PICKED = "picked"
    DUPLICATE = "duplicate"
    EVICTED = "evicted"
    REFUSED = "refused"
    ROLLED_BACK = "rolled-back"
    NOT_COVERED = "not-covered"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    GAVE_UP = "gave-up"
    PREEMPTED = "preempted"
    WITHDRAWN = "withdrawn"
    SCHEDULED = "scheduled"
    REPORTED = "reported"
    DROPPED = "dropped"
    ENCODED = "encoded"
    ENCODED_AGAIN = "encoded-again"
    STILL_THERE = "still-there"
    GATHERED = "gathered"
    DRAFTER_DID_WITHOUT = "drafter-did-without"
    MISSING = "missing"
    FREED = "freed"
    FINISHED = "finished"


class Note(Struct, frozen=True):
    """One thing that happened.

    Attributes:
        what: Its kind.
        request_id: Whom it happened to, or "".
        input_id: Which of its inputs, or None.
        hashes: What it was about; for a change of weights, the entries that somebody referred to.
        start: First token, for what concerns a range of tokens.
        end: Position after the last token.
        waiting: Whether the request was waiting.
    """

    what: What
    request_id: str = ""
    input_id: int | None = None
    hashes: tuple[str, ...] = ()
    start: int = 0
    end: int = 0
    waiting: bool = False


class Taken(Struct, frozen=True):
    """What a move did.

    Attributes:
        state: The state after it; meaningless after a crash.
        notes: What happened, in order.
        kv: The answers given to requests for KV blocks.
        crashed: Whether the worker missed a tensor.
    """

    state: EngineState
    notes: tuple[Note, ...]
    kv: tuple[bool, ...] = ()
    crashed: bool = False


# --- The engine --------------------------------------------------------------------------------------------


class Turn:
    """One request's turn in a pass: the tokens it is given, and what its items came to."""

    __slots__ = ("budget", "duplicates", "obtained", "picks", "request", "start", "tokens")

    def __init__(self, request: int, start: int, tokens: int, budget: int) -> None:
        self.request = request
        self.start = start
        self.tokens = tokens
        self.budget = budget
        self.picks: list[int] = []
        self.duplicates: list[int] = []
        self.obtained: list[int] = []


class Stage:
    """A state being changed: everything of an `EngineState` in the open, and what one pass needs besides."""

    __slots__ = (
        "alone",
        "arrivals",
        "compute",
        "crashed",
        "granted",
        "hit",
        "kv",
        "manager",
        "needed",
        "notes",
        "preempted",
        "rejected",
        "running",
        "scheduled",
        "sizes",
        "standings",
        "tensors",
        "tokens",
        "waiting",
    )

    def __init__(self, state: EngineState, manager: CacheManager) -> None:
        self.standings = list(state.standings)
        self.waiting = list(state.waiting)
        self.running = list(state.running)
        self.arrivals = list(state.arrivals)
        self.tensors = set(state.tensors)
        self.needed = set(state.needed)
        self.sizes = dict(state.sizes)
        self.manager = manager
        self.notes: list[Note] = []
        self.alone = len(state.running) + len(state.waiting) == 1
        self.tokens = 0
        self.compute = 0
        self.kv: tuple[bool, ...] = ()
        self.granted: list[bool] = []
        self.hit: dict[int, set[int]] = {}
        self.scheduled: dict[int, Turn] = {}
        self.preempted: list[int] = []
        self.rejected: list[int] = []
        self.crashed = False

    def note(
        self,
        what: What,
        request_id: str = "",
        input_id: int | None = None,
        hashes: Iterable[str] = (),
        start: int = 0,
        end: int = 0,
        *,
        waiting: bool = False,
    ) -> None:
        """Writes down what happened."""
        note = Note(what, request_id, input_id, tuple(hashes), start, end, waiting)
        self.notes.append(note)

    def taken(self) -> Taken:
        """The state that it has come to, and how."""
        return Taken(
            EngineState(
                tuple(self.standings),
                tuple(self.waiting),
                tuple(self.running),
                tuple(self.arrivals),
                frozenset(self.tensors),
                frozenset(self.needed),
                tuple(sorted(self.sizes.items())),
            ),
            tuple(self.notes),
            tuple(self.granted),
            self.crashed,
        )


class Engine:
    """The engine of a scene, made of small methods so that a seeded fault is one of them replaced."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.setup = scene.setup
        self.rules = scene.setup.rules
        self.requests = scene.requests
        self._window_look_ahead = scene.setup.look_ahead if self.rules.looks_ahead else 0
        self._of_several_sizes = _of_several_sizes(scene)

    def start(self) -> EngineState:
        """Nobody is there yet."""
        return EngineState((Standing(),) * len(self.requests))

    def take(self, state: EngineState, move: Move, manager: CacheManager) -> Taken:
        """Carries out a move; the manager changes with it.

        Raises:
            SceneError: The move is not possible here. What the manager raises comes through.
        """
        stage = Stage(state, manager)
        match move:
            case Pass(tokens, kv):
                self._refuse_pass(tokens)
                stage.tokens, stage.kv, stage.compute = tokens, kv, self.scene.compute_budget
                self._pass(stage)
            case Arrive(request_id):
                self._arrive(stage, self._place(state, request_id, Phase.ABSENT))
            case Abort(request_id):
                self._abort(stage, self._place(state, request_id, Phase.WAITING, Phase.RUNNING))
            case ChangeWeights():
                self._change_weights(stage)
        return stage.taken()

    def _refuse_pass(self, tokens: int) -> None:
        if not 1 <= tokens <= self.setup.token_budget:
            raise SceneError(f"a pass of {tokens} tokens; the token budget is {self.setup.token_budget}")

    def _place(self, state: EngineState, request_id: str, *phases: Phase) -> int:
        place = self.scene.place(request_id)
        phase = state.standings[place].phase
        if phase not in phases:
            raise SceneError(f"{request_id} is {phase}; here it must be {' or '.join(phases)}")
        return place

    # Between passes.

    def _arrive(self, stage: Stage, request: int) -> None:
        stage.standings[request] = Standing(Phase.WAITING)
        stage.waiting.append(request)
        if self.setup.policy is Policy.PRIORITY:
            stage.arrivals.append(request)
            self._sort_waiting(stage)
        stage.note(What.ARRIVED, self.requests[request].request_id)

    def _abort(self, stage: Stage, request: int) -> None:
        stage.note(What.ABORTED, self.requests[request].request_id)
        self._leave(stage, request)
        self._forget_needs(stage)

    def _change_weights(self, stage: Stage) -> None:
        entries = stage.manager.entries()
        held = [] if entries is None else [one for one, holders in entries.references.items() if holders]
        stage.manager.call(Reset())
        stage.note(What.WEIGHTS_CHANGED, hashes=sorted(held))
        stage.tensors.clear()
        stage.needed.clear()
        stage.sizes.clear()
        for request in stage.running:
            stage.standings[request] = replace(stage.standings[request], touched=frozenset())

    def _leave(self, stage: Stage, request: int) -> None:
        """A request is over: `free`, whatever it was (upstream: `_free_request`)."""
        stage.manager.call(FreeRequest(self.requests[request].request_id))
        for queue in (stage.running, stage.waiting, stage.arrivals):
            if request in queue:
                queue.remove(request)
        stage.standings[request] = Standing()

    def _sort_waiting(self, stage: Stage) -> None:
        stage.waiting.sort(key=lambda request: self._urgency(stage, request))

    def _urgency(self, stage: Stage, request: int) -> tuple[int, int]:
        """Under the priority policy: served first if small, preempted first if large."""
        return self.requests[request].priority, stage.arrivals.index(request)

    # One pass.

    def _pass(self, stage: Stage) -> None:
        self._schedule_running(stage)
        if not stage.preempted:
            self._schedule_waiting(stage)
        freed = stage.manager.call(Drain())
        assert isinstance(freed, frozenset)
        reported = frozenset(map(str, freed))
        if reported:
            stage.note(What.REPORTED, hashes=sorted(reported))
        self._work(stage, reported)
        if not stage.crashed:
            self._after_step(stage)

    def _schedule_running(self, stage: Stage) -> None:
        place = 0
        while place < len(stage.running) and stage.tokens > 0:
            turn = self._turn(stage, stage.running[place])
            if turn.tokens == 0:
                self._skip(stage, turn, waiting=False)
                place += 1
                continue
            granted, place = self._make_kv_room(stage, turn, place)
            if granted:
                self._commit(stage, turn)
                place += 1
            elif self.setup.policy is Policy.FIRST_COME or not self.rules.goes_on_after_own_preemption:
                return

    def _make_kv_room(self, stage: Stage, turn: Turn, place: int) -> tuple[bool, int]:
        """Preempts until the request has its blocks, or was the victim itself; where it stands now."""
        while not self._grant_kv(stage, turn):
            if self.setup.policy is Policy.PRIORITY:
                victim = max(stage.running, key=lambda request: self._urgency(stage, request))
            else:
                victim = stage.running[-1]
            victim_place = stage.running.index(victim)
            del stage.running[victim_place]
            if victim_place < place:
                place -= 1
            if victim in stage.scheduled and self.rules.withdraws_victim:
                self._withdraw(stage, victim)
            self._preempt(stage, victim)
            if victim == turn.request:
                return False, place
        return True, place

    def _grant_kv(self, stage: Stage, turn: Turn) -> bool:
        """Are there KV blocks? By the capacity, or as the outside world decides."""
        if self.setup.kv_capacity is None:
            asked = len(stage.granted)
            answer = asked >= len(stage.kv) or stage.kv[asked]
            stage.granted.append(answer)
            return answer
        used = turn.start + turn.tokens
        for other in stage.running:
            if other != turn.request:
                scheduled = stage.scheduled.get(other)
                used += stage.standings[other].computed + (scheduled.tokens if scheduled else 0)
        return used <= self.setup.kv_capacity

    def _withdraw(self, stage: Stage, victim: int) -> None:
        """A victim that was scheduled already leaves the step, and the budgets are given back (0.12.0 on)."""
        turn = stage.scheduled.pop(victim)
        stage.tokens += turn.tokens
        request = self.requests[victim]
        stage.compute += sum(request.items[input_id].embeds for input_id in turn.picks)
        stage.note(
            What.WITHDRAWN,
            request.request_id,
            hashes=[request.items[input_id].mm_hash for input_id in turn.picks],
            start=turn.start,
            end=turn.start + turn.tokens,
        )

    def _preempt(self, stage: Stage, victim: int) -> None:
        standing = stage.standings[victim]
        repeated = self._repeated_held(stage, victim)
        self._free_preempted(stage, victim)
        stage.standings[victim] = Standing(Phase.WAITING, outputs=standing.outputs)
        stage.preempted.append(victim)
        stage.waiting.insert(0, victim)
        if self.setup.policy is Policy.PRIORITY:
            self._sort_waiting(stage)
        stage.note(What.PREEMPTED, self.requests[victim].request_id, hashes=repeated)

    def _repeated_held(self, stage: Stage, request: int) -> list[str]:
        """Hashes of which a request needs several occurrences at this moment."""
        items = self.requests[request].items
        inputs = stage.standings[request].touched | stage.hit.get(request, set())
        needed = [items[input_id].mm_hash for input_id in inputs]
        return sorted({mm_hash for mm_hash in needed if needed.count(mm_hash) > 1})

    def _free_preempted(self, stage: Stage, victim: int) -> None:
        stage.manager.call(FreeRequest(self.requests[victim].request_id))

    def _schedule_waiting(self, stage: Stage) -> None:
        passed_over: list[int] = []
        while stage.waiting and stage.tokens > 0:
            turn = self._turn(stage, stage.waiting[0])
            if turn.tokens == 0:
                self._skip(stage, turn, waiting=True)
                if not self.rules.passes_over_waiting:
                    break
                passed_over.append(stage.waiting.pop(0))
            elif self._grant_kv(stage, turn):
                stage.running.append(stage.waiting.pop(0))
                standing = stage.standings[turn.request]
                stage.standings[turn.request] = replace(standing, phase=Phase.RUNNING)
                self._commit(stage, turn)
            else:
                request = self.requests[turn.request]
                stage.note(
                    What.GAVE_UP,
                    request.request_id,
                    hashes=[request.items[input_id].mm_hash for input_id in turn.picks],
                )
                if request.items:
                    self._give_up(stage, turn)
                break
        stage.waiting[:0] = passed_over

    def _give_up(self, stage: Stage, turn: Turn) -> None:
        if self.rules.frees_on_give_up:
            stage.manager.call(FreeRequest(self.requests[turn.request].request_id))

    def _skip(self, stage: Stage, turn: Turn, *, waiting: bool) -> None:
        """No tokens for this request in this pass: its picks are dropped, its hits stay."""
        stage.note(What.SKIPPED, self.requests[turn.request].request_id, waiting=waiting)

    def _turn(self, stage: Stage, request: int) -> Turn:
        """How many tokens a request would get, and which items with them."""
        prompt, standing = self.requests[request], stage.standings[request]
        tokens = min(prompt.tokens + standing.outputs - standing.computed, stage.tokens)
        limit = self.setup.chunk_limit
        if limit is not None and not (self.rules.spares_lone_request and stage.alone):
            tokens = min(tokens, limit)
        turn = Turn(request, standing.computed, tokens, stage.compute)
        self._visit(stage, turn, waiting=standing.phase is Phase.WAITING)
        return turn

    def _visit(self, stage: Stage, turn: Turn, *, waiting: bool) -> None:
        """Visits the items in a request's window (upstream: `_try_schedule_encoder_inputs`)."""
        prompt = self.requests[turn.request]
        request_id, start = prompt.request_id, turn.start
        window_end = start + turn.tokens + self._window_look_ahead
        covered_end = window_end if self.rules.covers_look_ahead else start + turn.tokens
        picked: dict[str, int] = {}
        promised = 0
        for input_id, item in enumerate(prompt.items):
            if item.end <= start:
                continue
            if item.offset >= window_end:
                return
            if self.rules.rollback_comes_first and self._rolls_back(stage, turn, input_id, item):
                return
            if self._is_of_other_size(stage, item, picked):
                self._reject(stage, turn, input_id)
                return
            if item.mm_hash in picked:
                turn.duplicates.append(input_id)
                turn.obtained.append(input_id)
                stage.note(What.DUPLICATE, request_id, input_id, (item.mm_hash,))
                continue
            if self._hits(stage, request_id, input_id, item, waiting=waiting):
                turn.obtained.append(input_id)
                continue
            if not self.rules.rollback_comes_first and self._rolls_back(stage, turn, input_id, item):
                return
            if not self._has_room(stage, request_id, input_id, turn.budget, promised):
                turn.tokens = self._tokens_before(turn, item)
                stage.note(What.REFUSED, request_id, input_id, (item.mm_hash,), start, start + turn.tokens)
                return
            if not item.has_embeds_in(start, covered_end):
                stage.note(What.NOT_COVERED, request_id, input_id, (item.mm_hash,))
                continue
            turn.picks.append(input_id)
            turn.obtained.append(input_id)
            turn.budget -= item.embeds
            picked[item.mm_hash] = item.embeds
            promised += item.embeds
            stage.note(What.PICKED, request_id, input_id, (item.mm_hash,), waiting=waiting)

    def _rolls_back(self, stage: Stage, turn: Turn, input_id: int, item: Placement) -> bool:
        """Before an item that may not be split and is not reached whole, the window ends."""
        ahead = turn.start < item.offset or (self.rules.rollback_at_item and turn.start == item.offset)
        if self.setup.split_items or not ahead or turn.start + turn.tokens >= item.end:
            return False
        look_ahead = self._window_look_ahead if self.rules.rollback_looks_ahead else 0
        turn.tokens = max(0, item.offset - (turn.start + look_ahead))
        request_id = self.requests[turn.request].request_id
        stage.note(What.ROLLED_BACK, request_id, input_id, (item.mm_hash,), turn.start, turn.start + turn.tokens)
        return True

    def _is_of_other_size(self, stage: Stage, item: Placement, picked: dict[str, int]) -> bool:
        if not self.rules.rejects_other_size or item.mm_hash not in self._of_several_sizes:
            return False
        entries = stage.manager.entries()
        is_cached = entries is None or item.mm_hash in entries.references
        known = picked.get(item.mm_hash, stage.sizes.get(item.mm_hash) if is_cached else None)
        return known is not None and known != item.embeds

    def _reject(self, stage: Stage, turn: Turn, input_id: int) -> None:
        """The whole request fails: one identifier was used for two contents (0.31.0 on)."""
        prompt = self.requests[turn.request]
        stage.note(What.REJECTED, prompt.request_id, input_id, (prompt.items[input_id].mm_hash,))
        stage.rejected.append(turn.request)
        turn.tokens = 0

    def _hits(self, stage: Stage, request_id: str, input_id: int, item: Placement, *, waiting: bool) -> bool:
        before = stage.manager.entries()
        if not stage.manager.call(Check(request_id, input_id)):
            return False
        stage.hit.setdefault(self.scene.place(request_id), set()).add(input_id)
        was_evictable = before is not None and item.mm_hash in before.evictable
        what = What.HIT_EVICTABLE if was_evictable else What.HIT
        stage.note(what, request_id, input_id, (item.mm_hash,), waiting=waiting)
        return True

    def _has_room(self, stage: Stage, request_id: str, input_id: int, budget: int, promised: int) -> bool:
        before = stage.manager.entries()
        answer = stage.manager.call(CanAllocate(request_id, input_id, budget, promised))
        after = stage.manager.entries()
        if before is not None and after is not None and len(before.references) > len(after.references):
            gone = sorted(before.references.keys() - after.references.keys())
            stage.note(What.EVICTED, request_id, input_id, gone)
        return bool(answer)

    def _tokens_before(self, turn: Turn, item: Placement) -> int:
        """What is left to a request whose item is refused."""
        distance = item.offset - turn.start
        match self.rules.refusal:
            case Refusal.AT_MOST_UP_TO_ITEM:
                return max(0, min(turn.tokens, distance))
            case Refusal.UP_TO_LOOK_AHEAD:
                return max(0, distance - self._window_look_ahead)
            case Refusal.UP_TO_ITEM:
                return max(0, distance)

    def _commit(self, stage: Stage, turn: Turn) -> None:
        """The request has its blocks: picks are allocated, and it is part of the step."""
        prompt = self.requests[turn.request]
        stage.tokens -= turn.tokens
        if turn.picks:
            # As upstream: what a withdrawal gave back since the visit is overwritten here.
            stage.compute = turn.budget
            self._allocate(stage, turn)
            for input_id in turn.picks:
                item = prompt.items[input_id]
                if item.mm_hash in self._of_several_sizes:
                    stage.sizes[item.mm_hash] = item.embeds
        standing = stage.standings[turn.request]
        stage.standings[turn.request] = replace(standing, touched=standing.touched.union(turn.obtained))
        stage.scheduled[turn.request] = turn
        stage.note(What.SCHEDULED, prompt.request_id, start=turn.start, end=turn.start + turn.tokens)

    def _allocate(self, stage: Stage, turn: Turn) -> None:
        request_id = self.requests[turn.request].request_id
        for input_id in turn.picks:
            stage.manager.call(Allocate(request_id, input_id))
        if self.rules.registers_duplicates:
            for input_id in turn.duplicates:
                stage.manager.call(Check(request_id, input_id))

    # The worker.

    def _work(self, stage: Stage, freed: frozenset[str]) -> None:
        if self.setup.worker_order is WorkerOrder.DROP_FIRST:
            self._drop(stage, freed)
            self._encode(stage)
        else:
            self._encode(stage)
            self._drop(stage, freed)
        self._gather(stage)

    def _drop(self, stage: Stage, freed: frozenset[str]) -> None:
        if freed & stage.tensors:
            stage.note(What.DROPPED, hashes=sorted(freed & stage.tensors))
        stage.tensors -= freed

    def _encode(self, stage: Stage) -> None:
        for turn in stage.scheduled.values():
            prompt = self.requests[turn.request]
            for input_id in turn.picks:
                mm_hash = prompt.items[input_id].mm_hash
                if self.setup.skips_present and mm_hash in stage.tensors:
                    what = What.STILL_THERE
                else:
                    what = What.ENCODED_AGAIN if mm_hash in stage.needed else What.ENCODED
                    stage.needed.add(mm_hash)
                stage.tensors.add(mm_hash)
                stage.note(what, prompt.request_id, input_id, (mm_hash,))

    def _gather(self, stage: Stage) -> None:
        for turn in stage.scheduled.values():
            end = turn.start + turn.tokens
            for input_id, item in enumerate(self.requests[turn.request].items):
                if item.has_embeds_in(turn.start, end):
                    self._look_up(stage, turn, input_id, tolerated=False)
        if self.setup.look_ahead:
            self._gather_for_drafter(stage)

    def _gather_for_drafter(self, stage: Stage) -> None:
        """The drafter reads the same tokens shifted by one."""
        for turn in stage.scheduled.values():
            end = turn.start + turn.tokens
            for input_id, item in enumerate(self.requests[turn.request].items):
                if item.has_embeds_in(turn.start + 1, end + 1):
                    tolerated = self.rules.drafter_tolerates_absence and item.offset >= end
                    self._look_up(stage, turn, input_id, tolerated=tolerated)

    def _look_up(self, stage: Stage, turn: Turn, input_id: int, *, tolerated: bool) -> None:
        prompt = self.requests[turn.request]
        mm_hash = prompt.items[input_id].mm_hash
        if mm_hash in stage.tensors:
            what = What.GATHERED
        elif tolerated:
            what = What.DRAFTER_DID_WITHOUT
        else:
            what = What.MISSING
            stage.crashed = True
        stage.note(what, prompt.request_id, input_id, (mm_hash,))

    # After the step.

    def _after_step(self, stage: Stage) -> None:
        ran = [turn for turn in stage.scheduled.values() if turn.request in stage.running]
        for turn in ran:
            self._advance(stage, turn)
        if not self.rules.frees_after_step:
            for turn in ran:
                self._free_processed(stage, turn.request)
        for turn in ran:
            if self.rules.frees_after_step:
                self._free_processed(stage, turn.request)
            self._generate(stage, turn.request)
        for request in stage.rejected:
            if stage.standings[request].phase is not Phase.ABSENT:
                self._finish(stage, request)
        self._forget_needs(stage)

    def _advance(self, stage: Stage, turn: Turn) -> None:
        standing = stage.standings[turn.request]
        computed = turn.start + turn.tokens
        items = self.requests[turn.request].items
        touched = frozenset(input_id for input_id in standing.touched if items[input_id].end > computed)
        stage.standings[turn.request] = replace(standing, computed=computed, touched=touched)

    def _free_processed(self, stage: Stage, request: int) -> None:
        """Frees the inputs that the manager itself lists and whose tokens are computed."""
        prompt, computed = self.requests[request], stage.standings[request].computed
        if self.rules.frees_less_placeholders and computed >= prompt.tokens:
            computed -= self.setup.placeholders
        if self.rules.frees_wait_for_look_ahead:
            computed -= self.setup.look_ahead
        listed = stage.manager.call(CachedIds(prompt.request_id))
        assert isinstance(listed, frozenset)
        for input_id in sorted(map(int, listed)):
            item = prompt.items[input_id]
            if item.end <= computed:
                stage.manager.call(FreeInput(prompt.request_id, input_id))
                stage.note(What.FREED, prompt.request_id, input_id, (item.mm_hash,))

    def _generate(self, stage: Stage, request: int) -> None:
        prompt, standing = self.requests[request], stage.standings[request]
        if standing.computed < prompt.tokens + standing.outputs:
            return
        standing = replace(standing, outputs=standing.outputs + 1)
        stage.standings[request] = standing
        if standing.outputs == prompt.outputs:
            self._finish(stage, request)

    def _finish(self, stage: Stage, request: int) -> None:
        stage.note(What.FINISHED, self.requests[request].request_id)
        self._leave(stage, request)

    def _forget_needs(self, stage: Stage) -> None:
        stage.needed &= {
            self.requests[request].items[input_id].mm_hash
            for request in stage.running
            for input_id in stage.standings[request].touched
        }


def _of_several_sizes(scene: Scene) -> frozenset[str]:
    sizes: dict[str, set[int]] = {}
    for request in scene.requests:
        for item in request.items:
            sizes.setdefault(item.mm_hash, set()).add(item.embeds)
    return frozenset(mm_hash for mm_hash, several in sizes.items() if len(several) > 1)


# --- Traces of an engine -----------------------------------------------------------------------------------

ENGINE_TRACE_FORMAT = "evictcheck-engine/1"


class EngineTrace(Struct, frozen=True, forbid_unknown_fields=True):
    """A scene and what was decided in it; its length is counted in moves."""

    scene: Scene
    moves: tuple[Move, ...]

    def __len__(self) -> int:
        return len(self.moves)


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    trace: EngineTrace
    property: str
    note: str = ""
    targets: tuple[str, ...] = ()


class KnownEngineFault(Struct, frozen=True):
    """An engine trace with what it shows.

    Attributes:
        trace: The scene and the moves.
        property: The property that the last move breaks.
        note: What a user sees, and where it was found.
        targets: Names of the targets on which it holds, each in the trace's own rules.
    """

    trace: EngineTrace
    property: str
    note: str
    targets: tuple[str, ...]


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(_Document)


def encode_engine_trace(fault: KnownEngineFault) -> bytes:
    """The JSON text of an engine trace, indented, ending in a line feed; equal traces give equal bytes."""
    document = _Document(ENGINE_TRACE_FORMAT, fault.trace, fault.property, fault.note, fault.targets)
    return msgspec.json.format(_encoder.encode(document), indent=1) + b"\n"


def decode_engine_trace(data: bytes, name: str) -> KnownEngineFault:
    """Reads an engine trace back.

    Raises:
        SceneError: It is not JSON, not an engine trace, of another version, or of an impossible scene.
    """
    try:
        document = _decoder.decode(data)
    except EvictcheckError as error:
        raise SceneError(f"{name}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SceneError(f"{name} is not an engine trace: {error}") from error
    if document.format != ENGINE_TRACE_FORMAT:
        raise SceneError(f"{name} is of format {document.format!r}; this evictcheck reads {ENGINE_TRACE_FORMAT!r}")
    return KnownEngineFault(document.trace, document.property, document.note, document.targets)
