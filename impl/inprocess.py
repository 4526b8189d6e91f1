"""Targets that are Python classes of this process, with upstream's method names."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import deepcopy
from functools import lru_cache
from types import FunctionType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from impl.errors import NoAnswerError, TargetError
from impl.target import CannotForkError, Internals, Observation, Session, Shows
from impl.watchdog import WATCHDOG, Hang
from model.errors import in_words
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
from model.workload import Item, Request, Workload

METHODS = (
    "check_and_update_cache",
    "can_allocate",
    "allocate",
    "get_cached_input_ids",
    "free_encoder_input",
    "free",
    "get_freed_mm_hashes",
)
"""What a class must offer to be judged; `reset` and the two counters are optional."""

_COUNTERS = ("num_free_slots", "num_freeable_slots")
_SAMPLE_EMBEDS = 4


class FeatureView:
    """One item as managers ask for it."""

    __slots__ = ("identifier",)

    def __init__(self, identifier: str) -> None:
        self.identifier = identifier

    def __deepcopy__(self, memo: object) -> "FeatureView":
        return self


class RequestView:
    """A request that answers what any supported release asks of one.

    `mm_hashes` is asked up to 0.10.2, `get_num_encoder_tokens` up to 0.12.0, the rest by later releases. A
    manager may keep the object, and a copy of the manager must know it again: nobody changes it, so it is its
    own copy.
    """

    __slots__ = ("_embeds", "mm_features", "mm_hashes", "request_id")

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.mm_hashes = [item.mm_hash for item in request.items]
        self.mm_features = [FeatureView(item.mm_hash) for item in request.items]
        self._embeds = [item.embeds for item in request.items]

    def __deepcopy__(self, memo: object) -> "RequestView":
        return self

    def get_num_encoder_embeds(self, input_id: int) -> int:
        """Size of an input's encoder output, in embeds (0.13.0 on)."""
        return self._embeds[input_id]

    def get_num_encoder_tokens(self, input_id: int) -> int:
        """The same number under its earlier name (up to 0.12.0)."""
        return self._embeds[input_id]


class PythonTarget(Struct, frozen=True):
    """A class that offers upstream's methods, judged inside this process."""

    name: str
    manager_class: type[Any]
    shows: Shows
    has_reset: bool
    era: frozenset[str] = frozenset()

    def __reduce__(self) -> tuple[Any, ...]:
        """Goes to another process by its name: classes that were loaded from a file cannot be pickled."""
        return _found_again, (self.name, self.shows)

    def start(self, workload: Workload) -> Session:
        """A fresh manager of the workload's capacity.

        Raises:
            TargetError: Its constructor raised.
        """
        WATCHDOG.start()
        views = {request.request_id: RequestView(request) for request in workload.requests}
        return PythonSession(_constructed(self.name, self.manager_class, workload.capacity), views, self.shows)


def _found_again(name: str, shows: Shows) -> "PythonTarget":
    # Names are resolved one floor up; only this way back leads there.
    from impl.targets import resolve

    found = resolve(name)
    assert isinstance(found, PythonTarget)
    return replace(found, shows=shows)


def python_target(name: str, manager_class: type[Any], era: frozenset[str] = frozenset()) -> PythonTarget:
    """Makes a target of a class, and finds out how much it shows.

    Raises:
        TargetError: The class lacks a method, or cannot be constructed from a capacity.
    """
    missing = [method for method in METHODS if not callable(getattr(manager_class, method, None))]
    if missing:
        raise TargetError(
            f"{name}: class {manager_class.__name__} has no {', '.join(missing)}; "
            f"a manager must offer {', '.join(METHODS)}"
        )
    sample = _constructed(name, manager_class, _SAMPLE_EMBEDS)
    shows = Shows.RESULTS
    if all(type(getattr(sample, counter, None)) is int for counter in _COUNTERS):
        shows = Shows.INTERNALS if _keeps_upstreams_bookkeeping(sample) else Shows.COUNTERS
    return PythonTarget(name, manager_class, shows, callable(getattr(manager_class, "reset", None)), era)


def _constructed(name: str, manager_class: type[Any], capacity: int) -> Any:
    try:
        return manager_class(capacity)
    except (Exception, SystemExit) as error:
        raise TargetError(
            f"{name}: {manager_class.__name__}({capacity}) raised {in_words(error)}; "
            f"a manager is constructed from its capacity alone"
        ) from error


def _keeps_upstreams_bookkeeping(sample: Any) -> bool:
    """Whether the attributes that show the bookkeeping are there, in upstream's shapes.

    What they hold shows only when something is cached, evictable and evicted in turn. Should the manager not
    get that far, the judge will say so.
    """
    if not _has_upstreams_shapes(sample):
        return False
    view = RequestView(Request("request", (Item("first", _SAMPLE_EMBEDS), Item("second", _SAMPLE_EMBEDS))))
    session = PythonSession(sample, {view.request_id: view}, Shows.RESULTS)
    try:
        for call in (
            Allocate(view.request_id, 0),
            FreeInput(view.request_id, 0),
            CanAllocate(view.request_id, 1, _SAMPLE_EMBEDS, 0),
        ):
            session.call(call)
            if not _has_upstreams_shapes(sample):
                return False
    except (Exception, SystemExit):  # noqa: BLE001 - a fault of the implementation, and not to be judged here
        return True
    return True


def _has_upstreams_shapes(manager: Any) -> bool:
    cached, freeable = getattr(manager, "cached", None), getattr(manager, "freeable", None)
    freed, listed = getattr(manager, "freed", None), getattr(manager, "request_cached_ids", {})
    return (
        isinstance(cached, Mapping)
        and isinstance(freeable, Mapping)
        and isinstance(freed, Sequence | Set)
        and isinstance(listed, Mapping)
        and all(isinstance(holders, Sequence | Set) for holders in cached.values())
        and all(isinstance(name, str) for names in (cached, freeable, freed, listed) for name in names)
        and all(isinstance(name, str) for holders in cached.values() for name in holders)
    )


class PythonSession:
    """A manager object and the requests that it is called with."""

    __slots__ = ("_shows", "_views", "manager")

    def __init__(self, manager: Any, views: dict[str, RequestView], shows: Shows) -> None:
        self.manager = manager
        self._views = views
        self._shows = shows

    def call(self, call: Call) -> Result:
        """Carries out a call and answers; whatever the manager raises comes through.

        Raises:
            NoAnswerError: The call was interrupted, since it hung.
        """
        manager = self.manager
        try:
            match call:
                case Check(request_id, input_id):
                    return bool(manager.check_and_update_cache(self._views[request_id], input_id))
                case CanAllocate(request_id, input_id, compute_budget, promised):
                    view = self._views[request_id]
                    return bool(manager.can_allocate(view, input_id, compute_budget, promised))
                case Allocate(request_id, input_id):
                    manager.allocate(self._views[request_id], input_id)
                case FreeInput(request_id, input_id):
                    manager.free_encoder_input(self._views[request_id], input_id)
                case FreeRequest(request_id):
                    manager.free(self._views[request_id])
                case CachedIds(request_id):
                    return frozenset(manager.get_cached_input_ids(self._views[request_id]))
                case Drain():
                    return frozenset(manager.get_freed_mm_hashes())
                case Reset():
                    manager.reset()
            return None
        except Hang as hang:
            raise NoAnswerError(str(hang)) from None

    def observe(self) -> Observation:
        """What the manager shows now."""
        try:
            manager = self.manager
            inputs = tuple([frozenset(manager.get_cached_input_ids(view)) for view in self._views.values()])
            if self._shows is Shows.RESULTS:
                return Observation(inputs)
            if self._shows is Shows.COUNTERS:
                return Observation(inputs, manager.num_free_slots, manager.num_freeable_slots)
            listed = getattr(manager, "request_cached_ids", None)
            freed = manager.freed
            pending = frozenset(freed)
            internals = Internals(
                {mm_hash: frozenset(holders) for mm_hash, holders in manager.cached.items()},
                tuple(manager.freeable),
                pending,
                None if listed is None else frozenset(listed),
                len(freed) > len(pending),
            )
            return Observation(inputs, manager.num_free_slots, manager.num_freeable_slots, internals)
        except Hang as hang:
            raise NoAnswerError(str(hang)) from None

    def fork(self) -> "PythonSession":
        """An independent copy of the manager, sharing only the requests, which nobody changes.

        Raises:
            CannotForkError: The manager holds something that cannot be copied.
        """
        return PythonSession(_copied(self.manager), self._views, self._shows)

    def close(self) -> None:
        """Nothing is occupied."""


WATCHDOG.guarded |= {PythonSession.call.__code__, PythonSession.observe.__code__}

_ATOMS = frozenset({int, str, bool, float, bytes, type(None)})


def _copied(manager: Any) -> Any:
    """A copy of a manager: quickly if it consists of plain containers, else by `deepcopy`."""
    if _is_its_dictionary(manager.__class__):
        seen: set[int] = set()
        try:
            copies = {name: _copied_value(value, seen) for name, value in vars(manager).items()}
        except _NotPlainError:
            pass
        else:
            copy = object.__new__(type(manager))
            copy.__dict__.update(copies)
            return copy
    try:
        return deepcopy(manager)
    except Exception as error:
        raise CannotForkError(str(error)) from error


@lru_cache(maxsize=256)
def _is_its_dictionary(kind: Any) -> bool:
    """Whether objects of a class are what their `__dict__` holds, and are copied in no way of their own."""
    own_ways = ("__new__", "__getstate__", "__reduce__", "__reduce_ex__")
    return (
        kind.__dictoffset__ != 0
        and all(getattr(kind, way, None) is getattr(object, way, None) for way in own_ways)
        and not hasattr(kind, "__deepcopy__")
        and not hasattr(kind, "__setstate__")
        and not any(set(vars(base).get("__slots__", ())) - {"__dict__", "__weakref__"} for base in kind.__mro__)
    )


class _NotPlainError(Exception):
    """A value that is no plain container of plain values, or one that is reached in two ways.

    One container that is reached in two ways must stay one; deepcopy keeps it so.
    """


def _copied_value(value: Any, seen: set[int]) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple or kind is frozenset:
        return kind([_copied_value(item, seen) for item in value])
    if id(value) in seen:
        raise _NotPlainError
    seen.add(id(value))
    if kind is dict or kind is OrderedDict or kind is defaultdict:
        if not _are_atoms(value) and not all(type(key) in _ATOMS or _is_plain_key(key) for key in value):
            raise _NotPlainError
        copy = value.copy()
        if not _are_atoms(value.values()):
            for key, item in value.items():
                copy[key] = _copied_value(item, seen)
        return copy
    if kind is set:
        # What is hashable and not a plain value may still be an object with a state of its own.
        if _are_atoms(value):
            return value.copy()
    elif kind is list or kind is deque:
        copy = value.copy()
        if not _are_atoms(value):
            for place, item in enumerate(value):
                copy[place] = _copied_value(item, seen)
        return copy
    raise _NotPlainError


def _are_atoms(values: Iterable[Any]) -> bool:
    # Copying is what exploration does most: no loop of Python's own.
    return _ATOMS.issuperset(map(type, values))


def _is_plain_key(key: Any) -> bool:
    return type(key) is tuple and all(type(part) in _ATOMS for part in key)


def asked_of_requests(manager_class: type[Any]) -> frozenset[str]:
    """Names of attributes that a manager's code uses: tells by which names it asks a request for its items."""
    functions = [vars(base).get(name) for base in manager_class.__mro__ for name in vars(base)]
    return frozenset(
        name for function in functions if isinstance(function, FunctionType) for name in function.__code__.co_names
    )
