from collections.abc import Iterator

import pytest

from impl.defects import EarlyEvictable, UnfilteredFreed
from impl.inprocess import METHODS, RequestView, python_target
from impl.port import PortManager
from impl.target import Shows
from model.operations import Discipline
from model.workload import Item, Request
from properties.exploration import explore
from properties.scopes import parse_scope

SHARED = RequestView(Request("r1", (Item("a", 2), Item("a", 2), Item("b", 1))))
OTHER = RequestView(Request("r2", (Item("a", 2), Item("c", 3))))


def counters(manager: PortManager) -> tuple[int, int]:
    return manager.num_free_slots, manager.num_freeable_slots


def bookkeeping(manager: PortManager) -> Iterator[object]:
    yield from (manager.cached, manager.embeds, manager.request_cached_ids, manager.freeable, manager.freed)


def test_it_offers_all_methods_and_shows_everything() -> None:
    target = python_target("port", PortManager)
    assert target.shows is Shows.INTERNALS
    assert target.has_reset
    assert target.era == frozenset()
    assert all(callable(getattr(PortManager, method)) for method in METHODS)


def test_it_starts_empty() -> None:
    manager = PortManager(4)
    assert counters(manager) == (4, 4)
    assert not any(bookkeeping(manager))


def test_an_entry_keeps_its_size_its_holders_and_their_inputs() -> None:
    manager = PortManager(4)
    manager.allocate(SHARED, 0)
    assert manager.check_and_update_cache(SHARED, 1)
    assert manager.check_and_update_cache(OTHER, 0)
    assert manager.cached == {"a": {"r1", "r2"}}
    assert manager.embeds == {"a": 2}
    assert manager.request_cached_ids == {"r1": {0, 1}, "r2": {0}}
    assert counters(manager) == (2, 2)


def test_an_entry_joins_the_queue_at_the_last_free_of_its_last_request() -> None:
    manager = PortManager(4)
    manager.allocate(SHARED, 0)
    manager.check_and_update_cache(SHARED, 1)
    manager.check_and_update_cache(OTHER, 0)
    manager.free_encoder_input(SHARED, 0)
    assert manager.cached == {"a": {"r1", "r2"}}
    manager.free_encoder_input(SHARED, 1)
    assert manager.cached == {"a": {"r2"}}
    assert counters(manager) == (2, 2)
    manager.free(OTHER)
    assert list(manager.freeable) == ["a"]
    assert counters(manager) == (2, 4)
    assert manager.request_cached_ids == {}


def test_listed_inputs_are_a_copy() -> None:
    manager = PortManager(4)
    manager.allocate(SHARED, 0)
    manager.get_cached_input_ids(SHARED).clear()
    assert manager.get_cached_input_ids(SHARED) == {0}


def test_a_report_names_each_hash_once() -> None:
    manager = PortManager(3)
    for _ in range(2):
        manager.allocate(SHARED, 0)
        manager.free(SHARED)
        assert manager.can_allocate(OTHER, 1, 3, 0)
    assert manager.freed == ["a", "a"]
    assert manager.get_freed_mm_hashes() == ["a"]
    assert manager.get_freed_mm_hashes() == []


def test_a_reset_leaves_what_a_new_one_has() -> None:
    manager = PortManager(3)
    manager.allocate(SHARED, 0)
    manager.free(SHARED)
    assert manager.can_allocate(OTHER, 1, 3, 0)
    manager.allocate(SHARED, 2)
    assert all((manager.cached, manager.freed, manager.request_cached_ids))
    manager.reset()
    assert counters(manager) == (3, 3)
    assert not any(bookkeeping(manager))


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("scope", ["2r2i2h/sizes=1/capacity=1", "2r1i2h/mixed", "2r1i2h/capacity=2/budget=1"])
def test_it_breaks_nothing(scope: str, discipline: Discipline) -> None:
    found = explore(python_target("port", PortManager), parse_scope(scope), discipline)
    assert found.complete
    assert found.counterexamples == ()


def test_defects_combine_by_inheritance() -> None:
    class Both(EarlyEvictable, UnfilteredFreed):
        pass

    found = explore(python_target("both", Both), parse_scope("2r2i2h/sizes=1/capacity=1"), Discipline.OPEN)
    assert {one.violation.property for one in found.counterexamples} == {
        "evictable-unreferenced",
        "freed-disjoint-cached",
    }
