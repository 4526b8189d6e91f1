import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest

from impl.errors import TargetError
from impl.inprocess import METHODS, PythonSession, PythonTarget, RequestView, python_target
from impl.port import PortManager
from impl.target import CannotForkError, Internals, Observation, Shows
from model.manager import ManagedRequest
from model.operations import (
    Allocate,
    CachedIds,
    CanAllocate,
    Check,
    Discipline,
    Drain,
    FreeInput,
    FreeRequest,
    Reset,
)
from model.workload import Item, Request, Workload
from properties.exploration import explore
from properties.scopes import parse_scope

WORKLOAD = Workload(3, (Request("r1", (Item("a", 1), Item("b", 2))), Request("r2", (Item("c", 3),))), 3)


def fork_of(manager: Any) -> Any:
    return PythonSession(manager, {}, Shows.RESULTS).fork().manager


class Bag:
    """A manager of which only the attributes matter."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def text(value: Any) -> str:
    return repr(vars(value) if isinstance(value, Bag) else value)


# --- Requests ---------------------------------------------------------------------------------------------


def test_a_request_answers_under_every_releases_names() -> None:
    view = RequestView(WORKLOAD.requests[0])
    assert view.request_id == "r1"
    assert [feature.identifier for feature in view.mm_features] == ["a", "b"]
    assert view.mm_hashes == ["a", "b"]
    assert [view.get_num_encoder_embeds(place) for place in (0, 1)] == [1, 2]
    assert [view.get_num_encoder_tokens(place) for place in (0, 1)] == [1, 2]


# --- Calls ------------------------------------------------------------------------------------------------


def test_each_call_reaches_its_method_and_answers_a_plain_value() -> None:
    session = python_target("port", PortManager).start(WORKLOAD)
    assert session.call(Check("r1", 0)) is False
    assert session.call(CanAllocate("r1", 0, 1, 0)) is True
    assert session.call(Allocate("r1", 0)) is None
    assert session.call(Check("r1", 0)) is True
    assert session.call(CachedIds("r1")) == frozenset([0])
    assert session.call(FreeInput("r1", 0)) is None
    assert session.call(FreeRequest("r1")) is None
    assert session.call(CanAllocate("r2", 0, 2, 0)) is False
    assert session.call(CanAllocate("r2", 0, 3, 0)) is True
    assert session.call(Drain()) == frozenset("a")
    assert session.call(Reset()) is None
    session.close()


def test_budget_and_promise_are_handed_over_in_upstreams_order() -> None:
    asked: list[tuple[int, int]] = []

    class Asked(PortManager):
        def can_allocate(
            self,
            request: ManagedRequest,
            input_id: int,
            encoder_compute_budget: int,
            num_embeds_to_schedule: int,
        ) -> bool:
            asked.append((encoder_compute_budget, num_embeds_to_schedule))
            return True

    PythonTarget("asked", Asked, Shows.INTERNALS, True).start(WORKLOAD).call(CanAllocate("r1", 0, 7, 2))
    assert asked == [(7, 2)]


def test_an_answer_that_the_manager_keeps_changing_is_copied() -> None:
    class Live(PortManager):
        def get_cached_input_ids(self, request: ManagedRequest) -> set[int]:
            return self.request_cached_ids.setdefault(request.request_id, set())

        def get_freed_mm_hashes(self) -> list[str]:
            return self.freed

    session = PythonTarget("live", Live, Shows.RESULTS, True).start(WORKLOAD)
    session.call(Allocate("r1", 0))
    answer = session.call(CachedIds("r1"))
    shown = session.observe()
    session.call(Check("r1", 0))
    session.call(FreeRequest("r1"))
    assert answer == frozenset([0])
    assert shown.inputs == (frozenset([0]), frozenset())


def test_what_a_manager_raises_comes_through() -> None:
    session = python_target("port", PortManager).start(WORKLOAD)
    with pytest.raises(KeyError):
        session.call(Check("r9", 0))


# --- What is shown ----------------------------------------------------------------------------------------


def test_bookkeeping_is_shown_as_it_is() -> None:
    session = python_target("port", PortManager).start(WORKLOAD)
    for call in (Allocate("r1", 0), Allocate("r1", 1), FreeInput("r1", 1), CanAllocate("r2", 0, 3, 0)):
        session.call(call)
    assert session.observe() == Observation(
        (frozenset([0]), frozenset()),
        0,
        2,
        Internals({"a": frozenset(["r1"]), "b": frozenset()}, ("b",), frozenset(), frozenset(["r1"])),
    )
    session.call(FreeInput("r1", 0))
    session.call(CanAllocate("r2", 0, 3, 0))
    internals = session.observe().internals
    assert internals is not None
    assert (internals.references, internals.pending) == ({}, frozenset("ab"))


def test_what_was_shown_does_not_change_afterwards() -> None:
    session = python_target("port", PortManager).start(WORKLOAD)
    session.call(Allocate("r1", 0))
    before = session.observe()
    session.call(FreeRequest("r1"))
    session.call(CanAllocate("r2", 0, 3, 0))
    session.call(Reset())
    assert before.internals is not None
    assert before.internals.references == {"a": frozenset(["r1"])}


@pytest.mark.parametrize(
    ("attributes", "shows"),
    [
        (
            {"num_free_slots": 4, "num_freeable_slots": 4, "cached": {}, "freeable": {}, "freed": []},
            Shows.INTERNALS,
        ),
        (
            {"num_free_slots": 4, "num_freeable_slots": 4, "cached": {}, "freeable": {}, "freed": set()},
            Shows.INTERNALS,
        ),
        ({"num_free_slots": 4, "num_freeable_slots": 4}, Shows.COUNTERS),
        (
            {"num_free_slots": 4, "num_freeable_slots": 4, "cached": [], "freeable": {}, "freed": []},
            Shows.COUNTERS,
        ),
        (
            {"num_free_slots": 4, "num_freeable_slots": 4, "cached": {}, "freeable": [], "freed": []},
            Shows.COUNTERS,
        ),
        ({"num_free_slots": 4, "num_freeable_slots": 4, "cached": {}, "freeable": {}}, Shows.COUNTERS),
        (
            {
                "num_free_slots": 4,
                "num_freeable_slots": 4,
                "cached": {},
                "freeable": {},
                "freed": [],
                "request_cached_ids": [],
            },
            Shows.COUNTERS,
        ),
        ({"num_free_slots": 4}, Shows.RESULTS),
        ({"num_free_slots": 4.0, "num_freeable_slots": 4}, Shows.RESULTS),
        ({"cached": {}, "freeable": {}, "freed": []}, Shows.RESULTS),
        ({}, Shows.RESULTS),
    ],
)
def test_how_much_a_class_shows_is_found_out(attributes: dict[str, object], shows: Shows) -> None:
    def init(self: object, capacity: int) -> None:
        vars(self).update(attributes)

    def method(self: object, *arguments: object) -> tuple[()]:
        return ()

    shown = type("Shown", (), {"__init__": init, **dict.fromkeys(METHODS, method)})
    assert python_target("shown", shown).shows is shows


class Counting:
    """A correct manager whose attributes have upstream's names and other contents."""

    def __init__(self, capacity: int) -> None:
        self._port = PortManager(capacity)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_port":
            raise AttributeError(name)
        return getattr(self._port, name)

    @property
    def cached(self) -> dict[str, int]:
        return {mm_hash: len(holders) for mm_hash, holders in self._port.cached.items()}

    def check_and_update_cache(self, request: ManagedRequest, input_id: int) -> bool:
        return self._port.check_and_update_cache(request, input_id)

    def can_allocate(self, request: ManagedRequest, input_id: int, budget: int, promised: int) -> bool:
        return self._port.can_allocate(request, input_id, budget, promised)

    def allocate(self, request: ManagedRequest, input_id: int) -> None:
        self._port.allocate(request, input_id)

    def get_cached_input_ids(self, request: ManagedRequest) -> set[int]:
        return self._port.get_cached_input_ids(request)

    def free_encoder_input(self, request: ManagedRequest, input_id: int) -> None:
        self._port.free_encoder_input(request, input_id)

    def free(self, request: ManagedRequest) -> None:
        self._port.free(request)

    def get_freed_mm_hashes(self) -> list[str]:
        return self._port.get_freed_mm_hashes()

    def reset(self) -> None:
        self._port.reset()


def test_attributes_of_another_shape_are_not_taken_for_upstreams() -> None:
    """The shape shows only once something is cached; misread, a correct manager would seem to crash."""
    target = python_target("counting", Counting)
    assert target.shows is Shows.COUNTERS
    assert explore(target, parse_scope("2r1i2h/sizes=1/capacity=1"), Discipline.CALLER).counterexamples == ()


# --- What is refused --------------------------------------------------------------------------------------


def test_a_class_without_a_method_is_refused_with_all_that_it_lacks() -> None:
    class Partial:
        def __init__(self, capacity: int) -> None: ...

        def allocate(self) -> None: ...

        free = None

    with pytest.raises(TargetError) as caught:
        python_target("py:mine", Partial)
    assert str(caught.value) == (
        "py:mine: class Partial has no check_and_update_cache, can_allocate, get_cached_input_ids, "
        "free_encoder_input, free, get_freed_mm_hashes; a manager must offer check_and_update_cache, "
        "can_allocate, allocate, get_cached_input_ids, free_encoder_input, free, get_freed_mm_hashes"
    )


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("too small"), "py:mine: Fussy(4) raised ValueError (too small); "),
        (SystemExit(1), "py:mine: Fussy(4) raised SystemExit (1); "),
    ],
)
def test_a_class_that_cannot_be_constructed_is_refused(error: BaseException, sentence: str) -> None:
    class Fussy(PortManager):
        def __init__(self, capacity: int) -> None:
            raise error

    with pytest.raises(TargetError) as caught:
        python_target("py:mine", Fussy)
    assert str(caught.value) == sentence + "a manager is constructed from its capacity alone"


def test_a_class_without_reset_is_accepted_and_said_to_have_none() -> None:
    without_reset = type("Old", (PortManager,), {"reset": None})
    assert not python_target("old", without_reset).has_reset
    assert python_target("port", PortManager).has_reset


# --- Copies -----------------------------------------------------------------------------------------------

Change = Callable[[Any], object]


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ({"a": {"r1"}}, lambda value: value["a"].add("r2")),
        ({"a": {"r1"}}, lambda value: value.clear()),
        ({"a": {"b": {"c": [1]}}}, lambda value: value["a"]["b"]["c"].append(2)),
        ([["a"], ["b"]], lambda value: value[0].append("c")),
        (["a", ("b", ["c"])], lambda value: value[1][1].append("d")),
        (OrderedDict(a=[1], b=[2]), lambda value: value.move_to_end("a")),
        (OrderedDict(a=[1], b=[2]), lambda value: value["a"].append(2)),
        (defaultdict(set, a={1}), lambda value: value["b"].add(2)),
        (defaultdict(set, a={1}), lambda value: value["a"].add(2)),
        (deque([[1], [2]], maxlen=2), lambda value: value.append(3)),
        (deque([[1], [2]], maxlen=2), lambda value: value[0].append(3)),
        ({"a"}, lambda value: value.add("b")),
        (bytearray(b"a"), lambda value: value.append(1)),
        (Bag(held={"a": [1]}), lambda value: value.held["a"].append(2)),
        ({("r1", 0): [1]}, lambda value: value["r1", 0].append(2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_is_equal_and_independent(value: Any, change: Change) -> None:
    original = Bag(value=value)
    before = text(value)
    copy, other = fork_of(original), fork_of(original)
    assert type(copy.value) is type(value)
    assert text(copy.value) == before
    change(copy.value)
    assert text(copy.value) != before
    change(original.value)
    assert text(other.value) == before


def test_a_copied_defaultdict_and_deque_keep_their_kind() -> None:
    copy = fork_of(Bag(by_default=defaultdict(list), bounded=deque([1], maxlen=3)))
    copy.by_default["a"].append(1)
    assert copy.by_default == {"a": [1]}
    assert copy.bounded.maxlen == 3


def test_one_container_known_by_two_names_stays_one() -> None:
    shared = ["a"]
    original = Bag(first=shared, second=shared, deep={"x": [shared]})
    copy = fork_of(original)
    copy.first.append("b")
    assert copy.second == ["a", "b"]
    assert copy.deep["x"][0] is copy.first
    assert original.first == ["a"]


def test_a_container_that_holds_itself_is_copied() -> None:
    ring: list[Any] = ["a"]
    ring.append(ring)
    original = Bag(ring=ring)
    copy = fork_of(original)
    assert copy.ring[1] is copy.ring
    assert copy.ring is not ring


def test_a_reference_to_the_manager_itself_follows_the_copy() -> None:
    original = Bag(entries=["a"])
    vars(original)["owner"] = original
    vars(original)["count"] = original.entries.__len__
    copy = fork_of(original)
    assert copy.owner is copy
    copy.entries.append("b")
    assert original.entries == ["a"]


def test_an_object_used_as_a_key_is_copied_too() -> None:
    class Entry:
        def __init__(self) -> None:
            self.holders = {"r1"}

    original = Bag(queue=OrderedDict({Entry(): 1}))
    copy = fork_of(original)
    (entry,) = copy.queue
    entry.holders.add("r2")
    (kept,) = original.queue
    assert kept.holders == {"r1"}


def test_slots_are_copied_beside_the_dictionary() -> None:
    class Slotted:
        __slots__ = ("held",)

    class Both(Slotted):
        def __init__(self) -> None:
            self.held = ["a"]
            self.freed = ["b"]

    copy = fork_of(Both())
    assert (copy.held, copy.freed) == (["a"], ["b"])


def test_a_manager_that_is_a_container_is_copied_with_its_contents() -> None:
    class Mapping(dict[str, list[int]]):
        def __init__(self) -> None:
            super().__init__(a=[1])
            self.freed = ["b"]

    original = Mapping()
    copy = fork_of(original)
    assert (dict(copy), copy.freed) == ({"a": [1]}, ["b"])
    copy["a"].append(2)
    assert original["a"] == [1]


def test_a_manager_that_says_how_it_is_copied_is_copied_so() -> None:
    class Own(Bag):
        def __deepcopy__(self, memo: object) -> "Own":
            return Own(copied=True)

    assert fork_of(Own(copied=False)).copied is True


def test_what_cannot_be_copied_is_said_so() -> None:
    with pytest.raises(CannotForkError, match="cannot pickle"):
        fork_of(Bag(lock=threading.Lock()))


class KeepsRequests(PortManager):
    """Remembers the request objects that it was handed, by identity."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.known: set[ManagedRequest] = set()

    def allocate(self, request: ManagedRequest, input_id: int) -> None:
        super().allocate(request, input_id)
        self.known.add(request)

    def free(self, request: ManagedRequest) -> None:
        if request in self.known:
            super().free(request)


def test_a_manager_that_remembers_request_objects_still_knows_them_after_a_copy() -> None:
    session = python_target("keeps", KeepsRequests).start(WORKLOAD)
    session.call(Allocate("r1", 0))
    twin = session.fork()
    twin.call(FreeRequest("r1"))
    assert twin.observe().freeable_slots == 3
    assert session.observe().freeable_slots == 2
