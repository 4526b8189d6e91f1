"""Real managers under an engine: a session as the engine calls it, and a graph of what a session did.

An engine takes its manager through the same calls again and again. `ManagerGraph` makes each call once in each
state of the real code, on a copy, and remembers where it led.
"""

from collections.abc import Hashable, Mapping

from msgspec import Struct

from impl.target import CannotForkError, Observation, Session, Shows, Target
from model.errors import EvictcheckError
from model.operations import Allocate, Call, Check, FreeInput, FreeRequest, Reset, Result
from model.reference import Occurrence, State, apply, initial
from model.scheduling import Entries
from model.workload import Workload


class ManagerFailureError(Exception):
    """The manager raised, hung or died at a call that its engine made."""

    def __init__(self, call: Call, error: Exception) -> None:
        super().__init__(f"{call.__struct_config__.tag} raised {type(error).__name__}: {error}")
        self.call = call


def entries_of(shown: Observation) -> Entries | None:
    """What the engine may know of a manager's entries."""
    if shown.internals is None:
        return None
    return Entries(shown.internals.references, shown.internals.evictable)


class _Node(Struct):
    """One state of the real code.

    Attributes:
        session: A session that stands there; never called, only copied.
        entries: What it shows to the engine.
        held: The occurrences acquired and not given up.
        reference: The reference's state after the same calls; None where it is not needed, or has none because a
            call was illegal.
        calls: How to get there, where sessions cannot be copied.
        edges: What each call did: the node it led to and the answer, or what it raised.
    """

    session: Session
    entries: Entries | None
    held: frozenset[Occurrence]
    reference: State | None
    calls: tuple[Call, ...]
    edges: dict[Call, tuple[int, Result] | ManagerFailureError]


class ManagerGraph:
    """The states of one target for one workload, as far as an engine has brought it.

    Two states are the same if the target shows the same and the same occurrences are held. For a target without
    internals the reference's state stands for what it hides, and the last call is told apart too.
    """

    def __init__(self, target: Target, workload: Workload) -> None:
        self._target = target
        self.workload = workload
        self._index: dict[Hashable, int] = {}
        self._nodes: list[_Node] = []
        self.calls = 0
        opaque = target.shows is not Shows.INTERNALS
        self._node(target.start(workload), frozenset(), initial(workload) if opaque else None, ())

    def cursor(self, node: int = 0) -> "Cursor":
        """A manager for an engine, standing at a node; the first one is a fresh manager."""
        return Cursor(self, node)

    def entries(self, node: int) -> Entries | None:
        """What the target shows at a node."""
        return self._nodes[node].entries

    def follow(self, node: int, call: Call) -> tuple[int, Result]:
        """Where a call leads, and its answer.

        Raises:
            ManagerFailureError: The real code raised.
        """
        known = self._nodes[node].edges.get(call)
        if known is None:
            known = self._nodes[node].edges[call] = self._make(node, call)
        if isinstance(known, ManagerFailureError):
            raise known
        return known

    def _make(self, number: int, call: Call) -> tuple[int, Result] | ManagerFailureError:
        node = self._nodes[number]
        self.calls += 1
        session = self._copy(node)
        try:
            answer = session.call(call)
        except EvictcheckError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is its failure
            session.close()
            return ManagerFailureError(call, error)
        held, reference = _held_after(node.held, call, answer), _reference_after(node.reference, call)
        return self._node(session, held, reference, (*node.calls, call)), answer

    def _copy(self, node: _Node) -> Session:
        try:
            return node.session.fork()
        except CannotForkError:
            session = self._target.start(self.workload)
            for call in node.calls:
                session.call(call)
            return session

    def _node(
        self, session: Session, held: frozenset[Occurrence], reference: State | None, calls: tuple[Call, ...]
    ) -> int:
        shown = session.observe()
        last = None if self._target.shows is Shows.INTERNALS else calls[-1:]
        key = (_frozen(shown), held, reference, last)
        number = self._index.setdefault(key, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(_Node(session, entries_of(shown), held, reference, calls, {}))
        else:
            session.close()
        return number

    def close(self) -> None:
        """Gives back what the sessions occupy."""
        for node in self._nodes:
            node.session.close()


class Cursor:
    """A place in a graph that moves with the calls made of it."""

    __slots__ = ("_graph", "node")

    def __init__(self, graph: ManagerGraph, node: int) -> None:
        self._graph = graph
        self.node = node

    def call(self, call: Call) -> Result:
        """Moves on, and answers as the real code did."""
        self.node, answer = self._graph.follow(self.node, call)
        return answer

    def entries(self) -> Entries | None:
        """What the target shows here."""
        return self._graph.entries(self.node)


class SessionManager:
    """One session, called directly: for replaying what a graph has found."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def call(self, call: Call) -> Result:
        """Makes the call.

        Raises:
            ManagerFailureError: The real code raised.
        """
        try:
            return self._session.call(call)
        except EvictcheckError:
            raise
        except Exception as error:
            raise ManagerFailureError(call, error) from error

    def entries(self) -> Entries | None:
        """What the session shows of its entries."""
        return entries_of(self._session.observe())

    def shown(self) -> Hashable:
        """All that the session shows, to be compared."""
        return _frozen(self._session.observe())


def _held_after(held: frozenset[Occurrence], call: Call, answer: Result) -> frozenset[Occurrence]:
    match call:
        case Check(request_id, input_id) if answer:
            return held | {(request_id, input_id)}
        case Allocate(request_id, input_id):
            return held | {(request_id, input_id)}
        case FreeInput(request_id, input_id):
            return held - {(request_id, input_id)}
        case FreeRequest(request_id):
            return frozenset(occurrence for occurrence in held if occurrence[0] != request_id)
        case Reset():
            return frozenset()
        case _:
            return held


def _reference_after(reference: State | None, call: Call) -> State | None:
    if reference is None:
        return None
    try:
        return apply(reference, call)[0]
    except ValueError:
        return None  # an engine with a seeded fault has made an illegal call, and the reference is at an end


def _frozen(shown: Observation) -> Hashable:
    internals = shown.internals
    counters = (shown.inputs, shown.free_slots, shown.freeable_slots)
    if internals is None:
        return counters
    references: Mapping[str, frozenset[str]] = internals.references
    return (*counters, frozenset(references.items()), internals.evictable, internals.pending, internals.listed)
