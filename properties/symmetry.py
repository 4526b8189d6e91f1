"""Which renamings leave a workload as it is, and the one representative of states that differ by one.

Where two requests (or hashes) play the same part in a workload, so do the states that differ by exchanging
them: a manager cannot tell, since it sees names only. Under the open discipline the inputs of one request
with one hash are exchangeable too; under the caller discipline they are not, being processed in order.
"""

from collections.abc import Hashable, Iterator
from itertools import permutations
from math import comb, prod

from msgspec import Struct

from model.contract import Caller, Position
from model.operations import Call, Discipline
from model.reference import Occurrence, State
from model.workload import Workload


class Renaming(Struct, frozen=True):
    """Requests and hashes exchanged, and for each request where its inputs go."""

    requests: dict[str, str]
    hashes: dict[str, str]
    inputs: dict[tuple[str, int], tuple[str, int]]
    seats: tuple[int, ...]


class Symmetry:
    """The renamings of one workload under one discipline."""

    def __init__(self, workload: Workload, discipline: Discipline) -> None:
        self._open = discipline is Discipline.OPEN
        groups = _exchangeable_inputs(workload, discipline)
        self._group_of = {place: number for number, places in enumerate(groups) for place in places}
        self._choose = [[comb(len(places), count) for count in range(len(places) + 1)] for places in groups]
        self._renamings = tuple(
            (renaming, _moved_groups(renaming, groups, self._group_of))
            for renaming in _renamings(workload, discipline)
        )

    def canonical(self, position: Position, repeated: bool = False) -> tuple[Hashable, int]:
        """A value equal for positions that renaming makes equal, and how many such positions there are.

        Args:
            position: Where the cache and its caller stand.
            repeated: What tells positions apart beside it (`Lockstep.repeated`).
        """
        state, caller = position.state, position.caller
        counts = self._counts(state)
        variants = prod([choose[count] for choose, count in zip(self._choose, counts, strict=True)])
        images = {self._image(state, counts, caller, repeated, *one) for one in self._renamings}
        return min(images), variants * len(images)

    def transition(self, state: State, call: Call) -> Hashable:
        """A value equal for a call in a state and for the renamed call in the renamed state."""
        counts = self._counts(state)
        return min(
            (self._image(state, counts, None, False, *one), self._renamed_call(state, call, one[0]))
            for one in self._renamings
        )

    def _renamed_call(self, state: State, call: Call, renaming: "Renaming") -> tuple[object, ...]:
        """A call with its names exchanged; an input counts by its item and by whether it is held."""
        kind = type(call).__name__
        request_id: str | None = getattr(call, "request_id", None)
        if request_id is None:
            return (kind,)
        request = renaming.requests[request_id]
        input_id: int | None = getattr(call, "input_id", None)
        if input_id is None:
            return (kind, request)
        place: object = (
            (
                renaming.hashes[state.workload.item(request_id, input_id).mm_hash],
                (request_id, input_id) in state.held,
            )
            if self._open
            else renaming.inputs[request_id, input_id]
        )
        embeds = state.workload.item(request_id, input_id).embeds
        budget, promised = getattr(call, "compute_budget", 0), getattr(call, "embeds_to_schedule", 0)
        return (kind, request, place, embeds, budget, promised)

    def _counts(self, state: State) -> list[int]:
        """How many inputs are held of each group of exchangeable ones: all that tells held ones apart."""
        counts = [0] * len(self._choose)
        group_of = self._group_of
        for place in state.held:
            counts[group_of[place]] += 1
        return counts

    def _image(
        self,
        state: State,
        counts: list[int],
        caller: Caller | None,
        repeated: bool,
        renaming: Renaming,
        groups: tuple[int, ...],
    ) -> tuple[object, ...]:
        hashes = renaming.hashes
        return (
            tuple(sorted([(hashes[mm_hash], embeds) for mm_hash, embeds in state.cached])),
            tuple([counts[group] for group in groups]),
            tuple([hashes[mm_hash] for mm_hash in state.evictable]),
            tuple(sorted([hashes[mm_hash] for mm_hash in state.evicted])),
            repeated,
            () if caller is None else _seated(caller, renaming.seats),
        )


def _seated(caller: Caller, seats: tuple[int, ...]) -> tuple[object, ...]:
    """The caller's state with seats exchanged, in a form that can be ordered."""
    return (
        caller.waiting_closed,
        *[
            (seat.running, seat.processed, seat.granted, -1 if seat.scheduled is None else seat.scheduled)
            for seat in [caller.seats[place] for place in seats]
        ],
    )


def _exchangeable_inputs(workload: Workload, discipline: Discipline) -> list[list[Occurrence]]:
    """Occurrences in groups: those of the same request, hash and size, or each alone if they keep an order."""
    groups: dict[object, list[Occurrence]] = {}
    for request in workload.requests:
        for input_id, item in enumerate(request.items):
            alike = item if discipline is Discipline.OPEN else input_id
            groups.setdefault((request.request_id, alike), []).append((request.request_id, input_id))
    return list(groups.values())


def _moved_groups(
    renaming: Renaming, groups: list[list[Occurrence]], group_of: dict[Occurrence, int]
) -> tuple[int, ...]:
    """For each group the one that takes its place; inputs that can be exchanged move together."""
    source = {group_of[renaming.inputs[places[0]]]: number for number, places in enumerate(groups)}
    return tuple([source[number] for number in range(len(groups))])


def _renamings(workload: Workload, discipline: Discipline) -> Iterator[Renaming]:
    """All exchanges of requests and hashes that give the workload back; the identity is the first."""
    used = sorted({item.mm_hash for request in workload.requests for item in request.items})
    places = range(len(workload.requests))
    for hash_order in permutations(used):
        hashes = dict(zip(used, hash_order, strict=True))
        for seats in permutations(places):
            inputs = _moved_inputs(workload, hashes, seats, discipline)
            if inputs is not None:
                ids = [request.request_id for request in workload.requests]
                requests = {ids[seats[place]]: ids[place] for place in places}
                yield Renaming(requests, hashes, inputs, seats)


def _moved_inputs(
    workload: Workload, hashes: dict[str, str], seats: tuple[int, ...], discipline: Discipline
) -> dict[tuple[str, int], tuple[str, int]] | None:
    """Where each occurrence goes if request seats[n] takes the place of request n; None if it does not fit."""
    moved: dict[tuple[str, int], tuple[str, int]] = {}
    for place, request in enumerate(workload.requests):
        source = workload.requests[seats[place]]
        free = list(range(len(request.items)))
        if len(source.items) != len(request.items):
            return None
        for input_id, item in enumerate(source.items):
            choices = free if discipline is Discipline.OPEN else free[:1]
            wanted = (hashes[item.mm_hash], item.embeds)
            fitting = [
                choice
                for choice in choices
                if (request.items[choice].mm_hash, request.items[choice].embeds) == wanted
            ]
            if not fitting:
                return None
            free.remove(fitting[0])
            moved[source.request_id, input_id] = (request.request_id, fitting[0])
    return moved
