"""Seeded engine faults: small subclasses of the engine, each wrong in one way.

A property that cannot fail proves nothing. Each fault names the property that must catch it and the manager under
which it shows; the tests hold both against it.
"""

from msgspec import Struct

from model.operations import Allocate, FreeInput
from model.scheduling import Engine, Placement, Stage, Turn


class EngineFault(Struct, frozen=True):
    """A named way of being wrong.

    Attributes:
        name: Its name.
        sentence: What the engine does wrong.
        engine_class: The engine with the fault.
        property: The property that catches it.
        target: The manager that it needs: the correct one unless the fault is harmless with that.
    """

    name: str
    sentence: str
    engine_class: type[Engine]
    property: str
    target: str = "port"


class _KeepsOnPreemption(Engine):
    def _free_preempted(self, stage: Stage, victim: int) -> None:
        pass


class _KeepsOnGiveUp(Engine):
    def _give_up(self, stage: Stage, turn: Turn) -> None:
        pass


class _AllocatesDuplicates(Engine):
    def _allocate(self, stage: Stage, turn: Turn) -> None:
        request_id = self.requests[turn.request].request_id
        for input_id in (*turn.picks, *turn.duplicates):
            stage.manager.call(Allocate(request_id, input_id))


class _EncodesDuplicates(Engine):
    def _allocate(self, stage: Stage, turn: Turn) -> None:
        super()._allocate(stage, turn)
        turn.picks += turn.duplicates


class _EncodesOnePick(Engine):
    def _encode(self, stage: Stage) -> None:
        picks = {request: list(turn.picks) for request, turn in stage.scheduled.items()}
        for turn in stage.scheduled.values():
            del turn.picks[1:]
        super()._encode(stage)
        for request, turn in stage.scheduled.items():
            turn.picks = picks[request]


class _DropsAfterGathering(Engine):
    def _work(self, stage: Stage, freed: frozenset[str]) -> None:
        self._encode(stage)
        self._gather(stage)
        self._drop(stage, freed)


class _NeverDrops(Engine):
    def _drop(self, stage: Stage, freed: frozenset[str]) -> None:
        pass


class _FreesAtFirstToken(Engine):
    def _free_processed(self, stage: Stage, request: int) -> None:
        prompt, computed = self.requests[request], stage.standings[request].computed
        for input_id, item in enumerate(prompt.items):
            if item.offset < computed:
                stage.manager.call(FreeInput(prompt.request_id, input_id))


class _RefusesWhole(Engine):
    def _tokens_before(self, turn: Turn, item: Placement) -> int:
        return 0


ENGINE_FAULTS: tuple[EngineFault, ...] = (
    EngineFault(
        "keeps-on-preemption",
        "a preempted request keeps its references",
        _KeepsOnPreemption,
        "no-idle-reference",
    ),
    EngineFault(
        "keeps-on-give-up",
        "a waiting request that gets no KV blocks keeps its references",
        _KeepsOnGiveUp,
        "no-idle-reference",
    ),
    EngineFault(
        "allocates-duplicates",
        "a second occurrence within a pass is allocated instead of checked, so that its slots are taken twice",
        _AllocatesDuplicates,
        "progress",
    ),
    EngineFault(
        "encodes-duplicates",
        "a second occurrence within a pass is sent to the encoder as well",
        _EncodesDuplicates,
        "no-redundant-encode",
    ),
    EngineFault(
        "encodes-one-pick",
        "the worker encodes only the first item picked for a request",
        _EncodesOnePick,
        "gather-hits",
    ),
    EngineFault(
        "drops-after-gathering",
        "the worker drops the freed hashes at the end of the step; harmless as long as no report names a live one",
        _DropsAfterGathering,
        "worker-coherent",
        "port:unfiltered-freed",
    ),
    EngineFault("never-drops", "the worker never drops a tensor", _NeverDrops, "worker-coherent"),
    EngineFault(
        "frees-at-first-token",
        "an input is freed once its first token is computed",
        _FreesAtFirstToken,
        "no-redundant-encode",
    ),
    EngineFault(
        "refuses-whole",
        "a request whose item is refused gets no tokens at all, not even those before the item",
        _RefusesWhole,
        "progress",
    ),
)
"""All of them."""
