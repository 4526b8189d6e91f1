"""The properties of the engine level: each once, with its sentence and the symptom that a user sees.

A predicate is asked about one move of an engine: what it did, and what the manager shows after it. `progress`
is none of one move: it is decided on the explored graph (`properties.engine_exploration`).
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from model.scheduling import Entries, Move, Pass, Scene, Taken, What
from properties.invariants import listed


class EngineMoment(Struct, frozen=True):
    """One move of an engine, seen from outside.

    Attributes:
        scene: The requests and the setup.
        move: What was decided.
        taken: What it did.
        entries: What the manager shows after it; None if it shows nothing.
    """

    scene: Scene
    move: Move
    taken: Taken
    entries: Entries | None


class Breach(Struct, frozen=True):
    """A property broken by a move.

    Attributes:
        property: Its name.
        observed: What was seen, as a clause in words.
    """

    property: str
    observed: str


class EngineProperty(Struct, frozen=True):
    """A named statement about an engine.

    Attributes:
        name: Its name, part of the API.
        sentence: What it says, as a main clause.
        symptom: What a user sees where it is broken.
        needs_entries: Whether the manager must show its entries for it to be decided.
        predicate: What breaks it at a moment, in words, or None; no predicate for `progress`.
    """

    name: str
    sentence: str
    symptom: str
    needs_entries: bool
    predicate: Callable[[EngineMoment], str | None] | None


def _gather_hits(moment: EngineMoment) -> str | None:
    for note in moment.taken.notes:
        if note.what is What.MISSING:
            where = f"input {note.input_id} of {note.request_id}"
            return f"the worker gathers {where} and has no tensor of {note.hashes[0]}"
    return None


def _worker_coherent(moment: EngineMoment) -> str | None:
    """A step that crashed has no after."""
    entries = moment.entries
    if entries is None or not isinstance(moment.move, Pass) or moment.taken.crashed:
        return None
    cached, tensors = entries.references.keys(), moment.taken.state.tensors
    if cached == tensors:
        return None
    parts = []
    if cached - tensors:
        parts.append(f"the manager calls {listed(cached - tensors)} cached and the worker has no tensor of it")
    if tensors - cached:
        parts.append(f"the worker keeps {listed(tensors - cached)}, which the manager does not call cached")
    return "; ".join(parts)


def _no_redundant_encode(moment: EngineMoment) -> str | None:
    for note in moment.taken.notes:
        if note.what is What.ENCODED_AGAIN:
            return (
                f"input {note.input_id} of {note.request_id} encodes {note.hashes[0]} again, which was encoded "
                f"before and has been needed ever since"
            )
    return None


def _no_idle_reference(moment: EngineMoment) -> str | None:
    """Running and finished requests are exempt, and one that has never arrived cannot hold anything."""
    entries = moment.entries
    if entries is None or moment.taken.crashed:
        return None
    for waiting in moment.taken.state.waiting:
        request_id = moment.scene.requests[waiting].request_id
        held = [mm_hash for mm_hash, holders in entries.references.items() if request_id in holders]
        if held:
            return f"{request_id} is waiting and still refers to {listed(held)}"
    return None


GATHER_HITS = "gather-hits"
PROGRESS = "progress"

ENGINE_PROPERTIES: tuple[EngineProperty, ...] = (
    EngineProperty(
        GATHER_HITS,
        "a worker gathering an item for a scheduled token finds its tensor",
        "the engine dies with `Encoder cache miss`, and with it every request that it was serving",
        False,
        _gather_hits,
    ),
    EngineProperty(
        "worker-coherent",
        "after each pass the worker holds exactly the hashes that the manager calls cached",
        "a tensor that the manager believes in is missing (a crash at the next hit), or one is never dropped "
        "(a leak)",
        True,
        _worker_coherent,
    ),
    EngineProperty(
        "no-redundant-encode",
        "an item that stays needed is encoded once",
        "the encoder runs again for an item in the middle of its own request: time to first token grows",
        False,
        _no_redundant_encode,
    ),
    EngineProperty(
        "no-idle-reference",
        "between passes only running requests hold references",
        "a request that is not running keeps cache space from those that are",
        True,
        _no_idle_reference,
    ),
    EngineProperty(
        PROGRESS,
        "a request that fits is eventually finished",
        "a request hangs: it is scheduled no tokens, however long one waits",
        False,
        None,
    ),
)
"""The engine level, in the order in which verdicts are listed."""


def breaches(moment: EngineMoment, properties: tuple[EngineProperty, ...] = ENGINE_PROPERTIES) -> Iterator[Breach]:
    """All properties that a move breaks."""
    for candidate in properties:
        if candidate.predicate is not None:
            observed = candidate.predicate(moment)
            if observed is not None:
                yield Breach(candidate.name, observed)
