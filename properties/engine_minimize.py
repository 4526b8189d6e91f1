"""Shrinking an engine trace: no move, request, item, token or refusal that could be left out stays in.

Each candidate is run on a fresh session. One that breaks the same property, at its last move or before, takes the
place of the trace, cut where it breaks.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from impl.target import Target
from model.errors import EvictcheckError
from model.scheduling import Abort, Arrive, Engine, EngineTrace, Move, Pass, Prompt, Scene
from properties.engine_exploration import EngineCounterexample, first_breach


def minimize_engine(
    counterexample: EngineCounterexample, target: Target, engine_class: type[Engine] = Engine
) -> EngineCounterexample:
    """The same violation, as small as leaving things out makes it."""
    best = counterexample
    improved = True
    while improved:
        improved = False
        for candidate in _smaller(best.trace):
            try:
                found = first_breach(candidate, target, best.breach.property, engine_class)
            except EvictcheckError:
                continue  # without what was left out, a move or the scene is no longer possible
            if found is not None:
                moves, breach = found
                best = replace(best, trace=EngineTrace(candidate.scene, candidate.moves[:moves]), breach=breach)
                improved = True
                break
    return best


def _smaller(trace: EngineTrace) -> Iterator[EngineTrace]:
    scene, moves = trace.scene, trace.moves
    for request in scene.requests:
        rest = tuple(other for other in scene.requests if other is not request)
        if rest:
            yield EngineTrace(replace(scene, requests=rest), _without(moves, request.request_id))
    for place, move in enumerate(moves):
        before, after = moves[:place], moves[place + 1 :]
        yield EngineTrace(scene, before + after)
        if isinstance(move, Pass):
            for number in range(len(move.kv)):
                yield EngineTrace(scene, (*before, replace(move, kv=move.kv[:number]), *after))
            if scene.setup.kv_capacity is None and move.tokens > 1:
                yield EngineTrace(scene, (*before, replace(move, tokens=move.tokens - 1), *after))
    for place, request in enumerate(scene.requests):
        for smaller in _smaller_requests(request):
            requests = (*scene.requests[:place], smaller, *scene.requests[place + 1 :])
            less = _with_requests(scene, requests)
            yield from _with(trace, less)
            if less is not None and scene.setup.capacity > 1:
                # One item less often needs one place less, or nothing is evicted any more.
                yield from _with(trace, _resized(less, scene.setup.capacity - 1))
    for mm_hash in sorted({item.mm_hash for request in scene.requests for item in request.items}):
        requests = tuple(_one_embed_less(request, mm_hash) for request in scene.requests)
        if requests != scene.requests:
            yield from _with(trace, _with_requests(scene, requests))
    if scene.setup.capacity > 1:
        yield from _with(trace, _resized(scene, scene.setup.capacity - 1))


def _with(trace: EngineTrace, scene: Scene | None) -> Iterator[EngineTrace]:
    if scene is not None:
        yield EngineTrace(scene, trace.moves)


def _with_requests(scene: Scene, requests: tuple[Prompt, ...]) -> Scene | None:
    try:
        return replace(scene, requests=requests)
    except EvictcheckError:
        return None


def _resized(scene: Scene, capacity: int) -> Scene | None:
    try:
        return replace(scene, setup=replace(scene.setup, capacity=capacity))
    except EvictcheckError:
        return None


def _without(moves: tuple[Move, ...], request_id: str) -> tuple[Move, ...]:
    return tuple(
        move for move in moves if not (isinstance(move, Arrive | Abort) and move.request_id == request_id)
    )


def _smaller_requests(request: Prompt) -> Iterator[Prompt]:
    """Without an item, with its placeholders as text or gone; without a token of text; with fewer outputs."""
    items = request.items
    for place, item in enumerate(items):
        rest = (*items[:place], *items[place + 1 :])
        yield replace(request, items=rest)
        yield _closed_up(replace(request, items=rest), item.offset, item.length)
        if item.embeds_at is not None:
            yield replace(request, items=(*items[:place], replace(item, embeds_at=None), *items[place + 1 :]))
    for position in range(request.tokens):
        if not any(item.offset <= position < item.end for item in items):
            yield _closed_up(request, position, 1)
    if request.outputs > 1:
        yield replace(request, outputs=request.outputs - 1)


def _one_embed_less(request: Prompt, mm_hash: str) -> Prompt:
    """Every occurrence of a hash one placeholder shorter; one of a single embed stays as it is."""
    for place in reversed(range(len(request.items))):
        item = request.items[place]
        if item.mm_hash == mm_hash and item.embeds_at is None and item.length > 1:
            shorter = replace(item, length=item.length - 1)
            rest = (*request.items[:place], shorter, *request.items[place + 1 :])
            request = _closed_up(replace(request, items=rest), item.offset, 1)
    return request


def _closed_up(request: Prompt, position: int, tokens: int) -> Prompt:
    items = tuple(
        replace(item, offset=item.offset - tokens) if item.offset > position else item for item in request.items
    )
    return replace(request, items=items, tokens=request.tokens - tokens)
