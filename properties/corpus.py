"""Named traces of faults that were seen once: one file each, in the trace format.

They lie in `tests/corpus/` of the repository, and beside this module in an installed package.
"""

from pathlib import Path

from msgspec import Struct

from model.operations import Discipline, Trace, decode_trace

_HERE = Path(__file__).parent
_PLACES = (_HERE / "corpus", _HERE.parent / "tests" / "corpus")


class KnownFault(Struct, frozen=True):
    """A trace with a name, and a note on what it shows and where it was seen."""

    name: str
    trace: Trace
    note: str

    @property
    def mixed(self) -> bool:
        """Whether one hash has several sizes in it: a story only for those who ask about such workloads."""
        items = {item for request in self.trace.workload.requests for item in request.items}
        return len({item.mm_hash for item in items}) < len(items)


def known_faults(discipline: Discipline) -> tuple[KnownFault, ...]:
    """The traces of a discipline, by name.

    Raises:
        TraceError: A file of the corpus is not a trace.
    """
    folder = next((place for place in _PLACES if place.is_dir()), None)
    if folder is None:
        return ()
    found = []
    for path in sorted(folder.glob("*.json")):
        trace, note = decode_trace(path.read_bytes(), path.name)
        if trace.discipline is discipline:
            found.append(KnownFault(path.stem, trace, note))
    return tuple(found)
