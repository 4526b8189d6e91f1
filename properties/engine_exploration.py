"""Exhaustive exploration of an engine: every decision of the outside world, carried out on the real manager.

Breadth first, so that the first counterexample to a property is its shortest. A broken property does not end a
branch unless the step crashed: what follows from an incoherent worker is what a user sees.

Two graphs are explored. In scenes without a KV capacity the outside world decides how many tokens a pass has and
whether there are KV blocks, as other requests of the same engine do. In scenes with one, passes are deterministic,
and `progress` is decided: from every state reached, passes alone must finish every request that has arrived.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from time import monotonic
from typing import TypeAlias

from msgspec import Struct

from impl.errors import TargetError
from impl.target import Shows, Target
from model.scheduling import (
    Abort,
    Arrive,
    ChangeWeights,
    Engine,
    EngineState,
    EngineTrace,
    Entries,
    Move,
    Pass,
    Phase,
    Scene,
    Taken,
)
from properties.engine_invariants import (
    ENGINE_PROPERTIES,
    PROGRESS,
    Breach,
    EngineMoment,
    EngineProperty,
    breaches,
)
from properties.engine_managers import ManagerFailureError, ManagerGraph, SessionManager
from properties.engine_situations import ENGINE_SITUATIONS, situations_in
from properties.invariants import NO_CRASH

ENGINE = "exhaustive"


class EngineCounterexample(Struct, frozen=True):
    """An engine trace whose last move breaks a property.

    Attributes:
        trace: The scene and the moves.
        breach: The property and what was seen.
        target: Name of the target.
        found_by: Which search found it.
    """

    trace: EngineTrace
    breach: Breach
    target: str
    found_by: str

    @property
    def size(self) -> tuple[int, ...]:
        """For ordering: moves first, then the extent of the scene."""
        scene = self.trace.scene
        items = [item for request in scene.requests for item in request.items]
        refusals = sum(
            1 for move in self.trace.moves if isinstance(move, Pass) for answer in move.kv if not answer
        )
        return (
            len(self.trace),
            refusals,
            len(scene.requests),
            len(items),
            sum(item.length for item in items),
            sum(request.tokens + request.outputs for request in scene.requests),
            scene.setup.capacity,
        )


class EngineExploration(Struct, frozen=True):
    """What a run covered and found.

    Attributes:
        scope: Its name.
        complete: Whether everything in the scope was covered; False if time ran out.
        scenes: Scenes covered.
        states: States reached, of engine and manager together.
        moves: Moves taken from them.
        passes: How many of them were passes.
        calls: Calls made of the real code.
        situations: How often each situation was reached.
        counterexamples: The shortest for each broken property.
        progress_decided: Whether a scene with a KV capacity was among them.
        seconds: Time taken.
    """

    scope: str
    complete: bool
    scenes: int
    states: int
    moves: int
    passes: int
    calls: int
    situations: dict[str, int]
    counterexamples: tuple[EngineCounterexample, ...]
    progress_decided: bool
    seconds: float


class _Tally:
    def __init__(self) -> None:
        self.scenes = self.states = self.moves = self.passes = self.calls = 0
        self.situations = Counter({one.name: 0 for one in ENGINE_SITUATIONS})
        self.progress_decided = False


class EngineSearch:
    """A search of many scenes for the shortest counterexample to each property.

    Args:
        target: Whose manager the engine drives.
        engine_class: The engine; another one has a seeded fault.
        properties: What is asked.
        besides: A target whose own violations do not count: what breaks with it too on the same trace is ignored.
    """

    def __init__(
        self,
        target: Target,
        engine_class: type[Engine] = Engine,
        properties: tuple[EngineProperty, ...] = ENGINE_PROPERTIES,
        besides: Target | None = None,
    ) -> None:
        self._target = target
        self._engine_class = engine_class
        self._besides = besides
        self.properties = properties
        self._best: dict[str, EngineCounterexample] = {}
        self._graph: ManagerGraph | None = None
        self.tally = _Tally()

    @property
    def found(self) -> tuple[EngineCounterexample, ...]:
        """The shortest counterexample to each broken property, in the order of the properties."""
        names = (*(one.name for one in self.properties), NO_CRASH.name)
        return tuple(sorted(self._best.values(), key=lambda one: names.index(one.breach.property)))

    def length_of(self, name: str) -> int | None:
        """Length of the shortest counterexample to a property so far."""
        best = self._best.get(name)
        return None if best is None else len(best.trace)

    def explore(self, scene: Scene, deadline: float | None = None) -> bool:
        """Adds a scene; False if time ran out on the way."""
        graph = self._graph_of(scene)
        before = graph.calls
        try:
            return _SceneSearch(self, scene, self._engine_class(scene), graph, self._target).run(deadline)
        finally:
            self.tally.calls += graph.calls - before

    def _graph_of(self, scene: Scene) -> ManagerGraph:
        """What the manager did in one scene it does in the next with the same workload."""
        workload = scene.workload
        if self._graph is None or self._graph.workload != workload:
            self.close()
            self._graph = ManagerGraph(self._target, workload)
        return self._graph

    def close(self) -> None:
        """Gives back what sessions occupy."""
        if self._graph is not None:
            self._graph.close()

    def offer(self, scene: Scene, moves: tuple[Move, ...], breach: Breach) -> None:
        """Keeps a counterexample if it is the smallest of its property."""
        known = self._best.get(breach.property)
        trace = EngineTrace(scene, moves)
        offered = EngineCounterexample(trace, breach, self._target.name, ENGINE)
        if known is not None and known.size <= offered.size:
            return
        if self._besides is not None and self._breaks(trace, self._besides, breach.property):
            return
        if not self._breaks(trace, self._target, breach.property):
            if self._target.shows is not Shows.INTERNALS:
                return  # what it hides made two states look like one
            raise TargetError(
                f"{self._target.name} does not do the same thing twice: {breach.property} broke on a copy of its "
                f"manager and not on a fresh one; it is random, or keeps state outside of the manager object"
            )
        self._best[breach.property] = offered

    def _breaks(self, trace: EngineTrace, target: Target, name: str) -> bool:
        return first_breach(trace, target, name, self._engine_class, self.properties) is not None


_Key: TypeAlias = tuple[EngineState, int]
"""Where an engine stands: its own state, and the manager's node in the graph."""


class _SceneSearch:
    """Breadth first through one scene."""

    def __init__(
        self, search: EngineSearch, scene: Scene, engine: Engine, graph: ManagerGraph, target: Target
    ) -> None:
        self._search = search
        self._scene = scene
        self._engine = engine
        self._graph = graph
        self._resets = target.has_reset
        self._by_choice = scene.setup.kv_capacity is None
        self._twins = _earlier_twins(scene)
        self._keys: list[_Key] = [(engine.start(), 0)]
        self._index: dict[_Key, int] = {self._keys[0]: 0}
        self._path: list[tuple[int, Move] | None] = [None]
        self._after_pass: dict[int, int] = {}

    def run(self, deadline: float | None) -> bool:
        tally = self._search.tally
        number = 0
        while number < len(self._keys):  # the list of states is the queue
            tally.states += 1
            state, node = self._keys[number]
            for move in self._moves(state):
                if isinstance(move, Pass) and self._by_choice:
                    self._take_every_way(number, state, node, move)
                else:
                    self._take(number, state, node, move)
            if deadline is not None and monotonic() > deadline:
                return False
            number += 1
        tally.scenes += 1
        if not self._by_choice:
            tally.progress_decided = True
            self._decide_progress()
        return True

    def _moves(self, state: EngineState) -> Iterator[Move]:
        """What the outside world may decide next."""
        setup, requests = self._scene.setup, self._scene.requests
        unfinished = (*state.running, *state.waiting)
        if unfinished:
            left = sum(
                requests[one].tokens + state.standings[one].outputs - state.standings[one].computed
                for one in unfinished
            )
            most = min(setup.token_budget, left)
            for tokens in range(1, most + 1) if self._by_choice else (setup.token_budget,):
                yield Pass(tokens)
        for place, standing in enumerate(state.standings):
            if standing.phase is Phase.ABSENT:
                twin = self._twins[place]
                if twin is None or state.standings[twin].phase is not Phase.ABSENT:
                    yield Arrive(requests[place].request_id)
        for one in unfinished:
            yield Abort(requests[one].request_id)
        if self._resets and state.tensors:
            yield ChangeWeights()

    def _take_every_way(self, number: int, state: EngineState, node: int, move: Pass) -> None:
        """A pass with every sequence of answers to its requests for KV blocks."""
        todo: list[tuple[bool, ...]] = [()]
        while todo:
            answers = todo.pop()
            given = self._take(number, state, node, Pass(move.tokens, answers))
            todo += [(*given[:place], False) for place in range(len(answers), len(given))]

    def _take(self, number: int, state: EngineState, node: int, move: Move) -> tuple[bool, ...]:
        """Takes a move, judges it and queues where it led; the answers about KV that it was given."""
        tally = self._search.tally
        tally.moves += 1
        tally.passes += isinstance(move, Pass)
        cursor = self._graph.cursor(node)
        try:
            taken = self._engine.take(state, move, cursor)
        except ManagerFailureError as failure:
            self._offer(number, move, Breach(NO_CRASH.name, str(failure)))
            return ()
        tally.situations.update(situations_in(self._scene, state, taken))
        moment = EngineMoment(self._scene, move, taken, cursor.entries())
        for breach in breaches(moment, self._search.properties):
            self._offer(number, move, breach)
        if not taken.crashed:
            reached = self._reach((taken.state, cursor.node), number, move)
            if isinstance(move, Pass):
                self._after_pass[number] = reached
        return taken.kv

    def _reach(self, key: _Key, number: int, move: Move) -> int:
        reached = self._index.setdefault(key, len(self._keys))
        if reached == len(self._keys):
            self._keys.append(key)
            self._path.append((number, move))
        return reached

    def _offer(self, number: int, move: Move, breach: Breach) -> None:
        length = self._search.length_of(breach.property)
        moves = (*self._moves_to(number), move)
        if length is None or len(moves) <= length:
            self._search.offer(self._scene, moves, breach)

    def _moves_to(self, number: int) -> tuple[Move, ...]:
        taken: list[Move] = []
        step = self._path[number]
        while step is not None:
            number, move = step
            taken.append(move)
            step = self._path[number]
        return tuple(reversed(taken))

    def _decide_progress(self) -> None:
        """Passes alone: every state's chain must end where nobody is unfinished, or in a crash."""
        ends = [False] * len(self._keys)
        for number in range(len(self._keys)):  # in breadth-first order, so that the first one is the shortest
            chain: list[int] = []
            on_chain: set[int] = set()
            here: int | None = number
            while here is not None and not ends[here] and here not in on_chain:
                chain.append(here)
                on_chain.add(here)
                here = self._after_pass.get(here)
            if here is not None and here in on_chain:
                lap = tuple(chain[chain.index(here) :])
                first = min(lap)  # where the search came to it first
                self._offer_stall(first, lap)
                return
            for one in chain:
                ends[one] = True

    def _offer_stall(self, first: int, lap: tuple[int, ...]) -> None:
        moves = (*self._moves_to(first), *(Pass(self._scene.setup.token_budget),) * len(lap))
        breach = Breach(PROGRESS, stall_in_words(self._scene, self._keys[first][0], len(lap)))
        length = self._search.length_of(PROGRESS)
        if length is None or len(moves) <= length:
            self._search.offer(self._scene, moves, breach)


def stall_in_words(scene: Scene, state: EngineState, passes: int) -> str:
    """Who hangs, and where."""
    hanging = [
        f"{scene.requests[one].request_id} ({state.standings[one].phase}, "
        f"{state.standings[one].computed} of {scene.requests[one].tokens} tokens computed)"
        for one in (*state.running, *state.waiting)
    ]
    lap = "a pass leads" if passes == 1 else f"{passes} passes lead"
    return f"{lap} back to the same state, and {', '.join(hanging)} never finish"


def _earlier_twins(scene: Scene) -> list[int | None]:
    """For each request the one before it that is the same but for its name: they arrive in this order."""
    twins: list[int | None] = []
    for place, request in enumerate(scene.requests):
        same = [
            earlier
            for earlier in range(place)
            if (other := scene.requests[earlier]).items == request.items
            and (other.tokens, other.outputs, other.priority)
            == (request.tokens, request.outputs, request.priority)
        ]
        twins.append(same[-1] if same else None)
    return twins


class EngineRun:
    """One engine on a fresh session: takes moves, and says what each one breaks.

    `progress` is broken where passes alone lead back to a state in which somebody is unfinished. With tokens and
    KV blocks decided by the outside world that proves nothing: it is asked only where a KV capacity decides.
    """

    def __init__(
        self,
        scene: Scene,
        target: Target,
        engine_class: type[Engine] = Engine,
        properties: tuple[EngineProperty, ...] = ENGINE_PROPERTIES,
    ) -> None:
        self.scene = scene
        self._properties = properties
        self.engine = engine_class(scene)
        self.state = self.engine.start()
        self.over = False
        self._session = target.start(scene.workload)
        self._manager = SessionManager(self._session)
        self._passed: list[tuple[EngineState, Hashable]] = []

    def take(self, move: Move) -> tuple[Taken | None, tuple[Breach, ...]]:
        """Takes a move; nothing can be taken after a crash.

        Returns:
            What it did (None if the manager raised), and what it broke.

        Raises:
            SceneError: The move is not possible here.
        """
        if not isinstance(move, Pass):
            self._passed = []
        elif not self._passed:
            self._passed = [(self.state, self._manager.shown())]
        try:
            taken = self.engine.take(self.state, move, self._manager)
        except ManagerFailureError as failure:
            self.over = True
            return None, (Breach(NO_CRASH.name, str(failure)),)
        moment = EngineMoment(self.scene, move, taken, self._manager.entries())
        found = tuple(breaches(moment, self._properties))
        self.over = taken.crashed
        if not taken.crashed:
            self.state = taken.state
            found += tuple(self._stalls(move))
        return taken, found

    def _stalls(self, move: Move) -> Iterator[Breach]:
        if not isinstance(move, Pass) or self.scene.setup.kv_capacity is None:
            return
        here = (self.state, self._manager.shown())
        if here in self._passed and (self.state.running or self.state.waiting):
            passes = len(self._passed) - self._passed.index(here)
            yield Breach(PROGRESS, stall_in_words(self.scene, self.state, passes))
        self._passed.append(here)

    def entries(self) -> Entries | None:
        """What the manager shows of its entries now."""
        return self._manager.entries()

    def close(self) -> None:
        """Ends the session."""
        self._session.close()


def first_breach(
    trace: EngineTrace,
    target: Target,
    name: str,
    engine_class: type[Engine] = Engine,
    properties: tuple[EngineProperty, ...] = ENGINE_PROPERTIES,
) -> tuple[int, Breach] | None:
    """Runs an engine trace on a fresh session until it breaks a property.

    Returns:
        How many of its moves that took, and what was seen; None if it does not break it.

    Raises:
        SceneError: A move is not possible where it stands.
    """
    run = EngineRun(trace.scene, target, engine_class, properties)
    try:
        for number, move in enumerate(trace.moves, start=1):
            _, found = run.take(move)
            for breach in found:
                if breach.property == name:
                    return number, breach
            if run.over:
                return None
        return None
    finally:
        run.close()


def explore_scenes(
    target: Target,
    scenes: Iterable[Scene],
    *,
    name: str,
    engine_class: type[Engine] = Engine,
    properties: tuple[EngineProperty, ...] = ENGINE_PROPERTIES,
    besides: Target | None = None,
    deadline: float | None = None,
    announce: Callable[[int], None] | None = None,
) -> EngineExploration:
    """Explores scenes one after the other.

    Args:
        target: Whose manager the engine drives.
        scenes: The scenes, small ones first.
        name: Of the scope, for reports.
        engine_class: The engine; another one has a seeded fault.
        properties: What is asked.
        besides: A target whose own violations do not count.
        deadline: When to stop, on the clock of `time.monotonic`; what was covered by then is reported.
        announce: Told after each scene how many are done.
    """
    began = monotonic()
    search = EngineSearch(target, engine_class, properties, besides)
    complete = True
    try:
        for scene in scenes:
            complete = search.explore(scene, deadline)
            if not complete:
                break
            if announce is not None:
                announce(search.tally.scenes)
    except KeyboardInterrupt:
        # What was found until now is worth more than the interrupt; the caller sees that it is not all.
        complete = False
    finally:
        search.close()
    tally = search.tally
    return EngineExploration(
        name,
        complete,
        tally.scenes,
        tally.states,
        tally.moves,
        tally.passes,
        tally.calls,
        dict(tally.situations),
        search.found,
        tally.progress_decided,
        monotonic() - began,
    )
