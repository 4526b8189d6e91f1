"""Named engine traces of faults that were seen once: one file each, in the format of `model.scheduling`.

They lie in `tests/corpus/engine/` of the repository, and beside this module in an installed package.
"""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from model.scheduling import EngineTrace, KnownEngineFault, Scene, Setup, decode_engine_trace

_HERE = Path(__file__).parent
_PLACES = (_HERE / "corpus" / "engine", _HERE.parent / "tests" / "corpus" / "engine")


class NamedEngineFault(Struct, frozen=True):
    """A known engine fault with the name of its file."""

    name: str
    fault: KnownEngineFault


def known_engine_faults() -> tuple[NamedEngineFault, ...]:
    """All of them, by name.

    Raises:
        SceneError: A file of the corpus is not an engine trace.
    """
    folder = next((place for place in _PLACES if place.is_dir()), None)
    if folder is None:
        return ()
    return tuple(
        NamedEngineFault(path.stem, decode_engine_trace(path.read_bytes(), path.name))
        for path in sorted(folder.glob("*.json"))
    )


def adapted(trace: EngineTrace, setup: Setup) -> EngineTrace:
    """A known trace in another configuration; it keeps its sizes: capacity, budgets and KV capacity.

    Raises:
        SceneError: Its requests do not fit that configuration.
    """
    own = trace.scene.setup
    sized = replace(
        setup,
        capacity=own.capacity,
        compute_budget=own.compute_budget,
        token_budget=own.token_budget,
        kv_capacity=own.kv_capacity,
    )
    return EngineTrace(Scene(trace.scene.requests, sized), trace.moves)
