"""Situations that an engine must have been in: a green run that never preempted anybody proves nothing."""

from collections.abc import Callable, Iterator

from msgspec import Struct

from model.scheduling import EngineState, Note, Scene, Taken, What


class EngineSituation(Struct, frozen=True):
    """Something that must happen at least once in a run that claims anything.

    Attributes:
        name: Its name in reports.
        sentence: What happens.
        mark: The kind of note without which a move is not it.
        of_note: Whether such a note is it.
        of_move: Whether a move with such a note is it: (scene, state before, what it did). One of the two.
    """

    name: str
    sentence: str
    mark: What
    of_note: Callable[[Note], bool] | None = None
    of_move: Callable[[Scene, EngineState, Taken], bool] | None = None


def _readmitted(scene: Scene, before: EngineState, taken: Taken) -> bool:
    """Evicted, and encoded in the same pass: for a request that stays in the step."""
    gone: set[str] = set()
    for note in taken.notes:
        if note.what is What.EVICTED:
            gone.update(note.hashes)
        elif note.what in (What.ENCODED, What.ENCODED_AGAIN, What.STILL_THERE) and gone.intersection(note.hashes):
            return True
    return False


def _split(scene: Scene, before: EngineState, taken: Taken) -> bool:
    for request in taken.state.running:
        computed = taken.state.standings[request].computed
        if computed != before.standings[request].computed and any(
            item.offset < computed < item.end for item in scene.requests[request].items
        ):
            return True
    return False


def _names_hashes(note: Note) -> bool:
    return bool(note.hashes)


def _always(note: Note) -> bool:
    return True


ENGINE_SITUATIONS: tuple[EngineSituation, ...] = (
    EngineSituation(
        "two-evicted-for-one",
        "two entries are evicted to make room for one item",
        What.EVICTED,
        of_note=lambda note: len(note.hashes) > 1,
    ),
    EngineSituation(
        "readmitted-in-pass",
        "an entry is evicted and encoded again within one pass",
        What.EVICTED,
        of_move=_readmitted,
    ),
    EngineSituation(
        "duplicate-in-pass",
        "a request needs an item twice within one pass that is not cached yet",
        What.DUPLICATE,
        of_note=_always,
    ),
    EngineSituation(
        "waiting-hits-evictable",
        "a waiting request hits an entry that was evictable",
        What.HIT_EVICTABLE,
        of_note=lambda note: note.waiting,
    ),
    EngineSituation(
        "scheduled-victim",
        "a victim is preempted that this pass had scheduled already, with picked items",
        What.WITHDRAWN,
        of_note=_names_hashes,
    ),
    EngineSituation(
        "picks-given-up",
        "a waiting request gives up its picks for lack of KV blocks",
        What.GAVE_UP,
        of_note=_names_hashes,
    ),
    EngineSituation("item-split", "a pass ends in the middle of an item", What.SCHEDULED, of_move=_split),
    EngineSituation(
        "reset-with-frees-pending",
        "the weights change while a running request holds references, which it frees later",
        What.WEIGHTS_CHANGED,
        of_note=_names_hashes,
    ),
    EngineSituation(
        "repeated-item-preempted",
        "a request is preempted while it needs one item at two places",
        What.PREEMPTED,
        of_note=_names_hashes,
    ),
    EngineSituation(
        "refused",
        "an item is refused for lack of room or compute budget",
        What.REFUSED,
        of_note=_always,
    ),
)
"""All of them. `scheduled-victim` needs the priority policy, and `item-split` items that may be split."""

_BY_MARK: dict[What, list[EngineSituation]] = {}
for _situation in ENGINE_SITUATIONS:
    _BY_MARK.setdefault(_situation.mark, []).append(_situation)


def situations_in(scene: Scene, before: EngineState, taken: Taken) -> Iterator[str]:
    """The names of the situations that a move is; one that happens twice in a move counts once."""
    met: set[str] = set()
    asked: set[What] = set()
    for note in taken.notes:
        for one in _BY_MARK.get(note.what, ()):
            if one.name in met:
                continue
            if one.of_note is not None:
                is_it = one.of_note(note)
            else:
                is_it = note.what not in asked and one.of_move is not None and one.of_move(scene, before, taken)
            if is_it:
                met.add(one.name)
        asked.add(note.what)
    return iter(met)
