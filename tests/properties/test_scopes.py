from collections import Counter
from itertools import permutations, product

import pytest

from model.errors import EvictcheckError
from model.operations import Discipline
from model.workload import Workload
from properties.scopes import (
    DEFAULT_SCOPE,
    Scope,
    ScopeError,
    growing,
    hash_name,
    parse_scope,
    workload_classes,
)

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN


# --- How a scope is written -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("2r2i3h", Scope(2, 2, 3)),
        ("3r1i2h/sizes=1/capacity=2", Scope(3, 1, 2, (1,), (2,))),
        ("2r2i3h/sizes=2..4/capacity=1..5", Scope(2, 2, 3, (2, 3, 4), (1, 2, 3, 4, 5))),
        ("2r2i3h/mixed", Scope(2, 2, 3, mixed=True)),
        ("2r2i3h/mixed/budget=1..2", Scope(2, 2, 3, mixed=True, budgets=(1, 2))),
        ("12r10i30h", Scope(12, 10, 30)),
    ],
)
def test_a_scope_is_read_and_written_alike(text: str, scope: Scope) -> None:
    assert parse_scope(text) == scope
    assert str(scope) == text
    assert parse_scope(f"  {text}\n") == scope


def test_defaults_are_left_out_when_a_scope_is_written() -> None:
    assert str(parse_scope("2r2i3h/sizes=1..2/capacity=1..3")) == "2r2i3h" == str(DEFAULT_SCOPE)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "scope '' does not start like 2r2i3h; "),
        ("2r2i", "scope '2r2i' does not start like 2r2i3h; "),
        ("2i2r3h", "scope '2i2r3h' does not start like 2r2i3h; "),
        ("0r2i3h", "scope '0r2i3h' has no requests; it must have at least one"),
        ("2r0i3h", "scope '2r0i3h' has no inputs; it must have at least one"),
        ("2r2i0h", "scope '2r2i0h' has no hashes; it must have at least one"),
        ("2r2i3h/", "scope '2r2i3h/' has the unknown part ''; "),
        ("2r2i3h/size=1", "scope '2r2i3h/size=1' has the unknown part 'size=1'; "),
        ("2r2i3h/sizes=", "scope '2r2i3h/sizes=' has the unknown part 'sizes='; "),
        ("2r2i3h/mixed=1", "scope '2r2i3h/mixed=1' has the unknown part 'mixed=1'; "),
        ("2r2i3h/sizes=a", "scope '2r2i3h/sizes=a': 'a' is neither a number nor a range like 1..3"),
        ("2r2i3h/sizes=-1", "scope '2r2i3h/sizes=-1': '-1' is neither a number nor a range like 1..3"),
        ("2r2i3h/capacity=0", "scope '2r2i3h/capacity=0': the range '0' must ascend from at least 1"),
        ("2r2i3h/capacity=3..1", "scope '2r2i3h/capacity=3..1': the range '3..1' must ascend from at least 1"),
        (
            "2r2i3h/capacity=1/capacity=2",
            "scope '2r2i3h/capacity=1/capacity=2' states capacity twice",
        ),
        ("2r2i3h/mixed/mixed", "scope '2r2i3h/mixed/mixed' states mixed twice"),
    ],
)
def test_a_scope_that_cannot_be_read_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ScopeError) as caught:
        parse_scope(text)
    assert str(caught.value).startswith(sentence)
    assert isinstance(caught.value, EvictcheckError)


def test_scopes_grow_by_requests_and_end_with_the_one_asked_for() -> None:
    assert list(map(str, growing(parse_scope("3r2i4h/sizes=1/mixed")))) == [
        "1r2i2h/sizes=1/mixed",
        "2r2i4h/sizes=1/mixed",
        "3r2i4h/sizes=1/mixed",
    ]
    # A hash that no input can name is not asked for on the way, but is at the end.
    assert list(map(str, growing(parse_scope("1r1i3h")))) == ["1r1i1h", "1r1i3h"]


def test_hashes_are_named_like_letters_and_then_numbered() -> None:
    names = [hash_name(number) for number in range(40)]
    assert names[:3] == ["a", "b", "c"]
    assert names[25:27] == ["z", "h26"]
    assert len(set(names)) == 40


# --- Workloads up to renaming -----------------------------------------------------------------------------


def all_workloads(scope: Scope) -> list[tuple[tuple[tuple[int, int], ...], ...]]:
    """By brute force: every way of giving inputs hashes, and hashes in use (or inputs) sizes."""
    places = scope.requests * scope.inputs
    found = []
    for hashes in product(range(scope.hashes), repeat=places):
        if scope.mixed:
            sizings = [dict(enumerate(sizes)) for sizes in product(scope.sizes, repeat=places)]
            sized = [[(mm_hash, sizes[at]) for at, mm_hash in enumerate(hashes)] for sizes in sizings]
        else:
            used = sorted(set(hashes))
            by_hash = [dict(zip(used, sizes, strict=True)) for sizes in product(scope.sizes, repeat=len(used))]
            sized = [[(mm_hash, size[mm_hash]) for mm_hash in hashes] for size in by_hash]
        found += [
            tuple(tuple(items[at : at + scope.inputs]) for at in range(0, places, scope.inputs)) for items in sized
        ]
    return found


def shape(requests: tuple[tuple[tuple[object, int], ...], ...], discipline: Discipline) -> object:
    """Equal for workloads that differ by renaming: hashes become the places (and requests) they occur in.

    A set of requests has no order. A hash is known by the multiset of where it occurs.
    """
    best = None
    for order in permutations(range(len(requests))):
        arranged = [requests[at] for at in order]
        inner = [
            [list(choice) for choice in permutations(items)] if discipline is OPEN else [list(items)]
            for items in arranged
        ]
        for chosen in product(*inner):
            names: dict[object, int] = {}
            renamed = tuple(
                tuple((names.setdefault(mm_hash, len(names)), embeds) for mm_hash, embeds in items)
                for items in chosen
            )
            best = renamed if best is None else min(best, renamed)
    return best


def requests_of(world: Workload) -> tuple[tuple[tuple[object, int], ...], ...]:
    return tuple(tuple((item.mm_hash, item.embeds) for item in request.items) for request in world.requests)


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize(
    "text",
    [
        "1r1i1h/sizes=1/capacity=1",
        "2r1i3h/capacity=2",
        "2r2i3h/sizes=1/capacity=2",
        "2r2i3h/capacity=2",
        "1r3i3h/capacity=2",
        "3r1i2h/capacity=2",
        "2r2i2h/capacity=2/mixed",
        "3r1i3h/capacity=2/mixed",
        "3r2i3h/sizes=1/capacity=2",
    ],
)
def test_classes_are_those_of_brute_force(text: str, discipline: Discipline) -> None:
    scope = parse_scope(text)
    by_brute_force = Counter(shape(requests, discipline) for requests in all_workloads(scope))
    classes = workload_classes(scope, discipline)
    assert {shape(requests_of(one.workload), discipline): one.members for one in classes} == by_brute_force
    assert len(classes) == len(by_brute_force)


@pytest.mark.parametrize(
    ("text", "discipline", "classes", "members"),
    [
        ("3r2i3h/sizes=1/capacity=2", OPEN, 14, 729),
        ("3r3i3h/sizes=1/capacity=2", OPEN, 44, 19_683),
        ("3r2i3h/sizes=1/capacity=2", CALLER, 31, 729),
        ("2r2i3h", OPEN, 72, 1_386),
        ("2r2i3h", CALLER, 144, 1_386),
        ("2r2i3h/mixed", OPEN, 150, 3_888),
        ("2r2i3h/mixed", CALLER, 372, 3_888),
    ],
)
def test_pinned_numbers_of_workloads(text: str, discipline: Discipline, classes: int, members: int) -> None:
    found = workload_classes(parse_scope(text), discipline)
    assert (len(found), sum(one.members for one in found)) == (classes, members)


@pytest.mark.parametrize("discipline", Discipline)
def test_small_workloads_come_first_for_each_capacity(discipline: Discipline) -> None:
    found = workload_classes(DEFAULT_SCOPE, discipline)
    efforts = [
        (
            one.workload.capacity,
            sum(item.embeds for request in one.workload.requests for item in request.items),
        )
        for one in found
    ]
    assert efforts == sorted(efforts)
    assert {capacity for capacity, _ in efforts} == {1, 2, 3}


def test_the_budget_is_the_capacity_unless_stated() -> None:
    plain = workload_classes(parse_scope("1r1i1h"), CALLER)
    assert {(one.workload.capacity, one.workload.compute_budget) for one in plain} == {(1, 1), (2, 2), (3, 3)}
    stated = workload_classes(parse_scope("1r1i1h/capacity=3/budget=1..2"), CALLER)
    assert {(one.workload.capacity, one.workload.compute_budget) for one in stated} == {(3, 1), (3, 2)}


def test_requests_and_hashes_are_named_in_order() -> None:
    (first, *_) = workload_classes(parse_scope("2r2i1h/sizes=1/capacity=1"), CALLER)
    assert [request.request_id for request in first.workload.requests] == ["r1", "r2"]
    assert {item.mm_hash for request in first.workload.requests for item in request.items} == {"a"}


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("text", ["6r4i6h", "9r9i3h", "4r4i4h/mixed"])
def test_a_scope_with_countless_workloads_is_refused_at_once(text: str, discipline: Discipline) -> None:
    with pytest.raises(ScopeError, match=rf"^scope {text} has up to [0-9,]+ workloads at each capacity, too many"):
        workload_classes(parse_scope(text), discipline)
