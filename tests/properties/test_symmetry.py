from collections.abc import Iterator
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from model.contract import Caller, Position, carry_out, moves, start
from model.operations import Discipline
from model.reference import State
from model.workload import Item, Request, Workload
from properties.scopes import parse_scope, workload_classes
from properties.symmetry import Symmetry

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN


def renamings(
    workload: Workload, discipline: Discipline
) -> Iterator[tuple[tuple[int, ...], dict[str, str], tuple[tuple[int, ...], ...]]]:
    """By brute force: where each request goes, each hash, and each input, if the workload stays as it is."""
    requests = workload.requests
    hashes = sorted({item.mm_hash for request in requests for item in request.items})
    for seats in permutations(range(len(requests))):
        for order in permutations(hashes):
            names = dict(zip(hashes, order, strict=True))
            ways = [
                list(permutations(range(len(request.items))))
                if discipline is OPEN
                else [tuple(range(len(request.items)))]
                for request in requests
            ]
            for inputs in product(*ways):
                moved = all(
                    len(requests[seats[at]].items) == len(request.items)
                    and all(
                        requests[seats[at]].items[inputs[at][place]] == replace(item, mm_hash=names[item.mm_hash])
                        for place, item in enumerate(request.items)
                    )
                    for at, request in enumerate(requests)
                )
                if moved:
                    yield seats, names, inputs


def renamed(
    position: Position, seats: tuple[int, ...], names: dict[str, str], inputs: tuple[tuple[int, ...], ...]
) -> Position:
    state, caller = position.state, position.caller
    ids = [request.request_id for request in state.workload.requests]
    at = {request_id: place for place, request_id in enumerate(ids)}
    moved = State(
        state.workload,
        tuple(sorted((names[mm_hash], embeds) for mm_hash, embeds in state.cached)),
        frozenset((ids[seats[at[who]]], inputs[at[who]][place]) for who, place in state.held),
        tuple(names[mm_hash] for mm_hash in state.evictable),
        frozenset(names[mm_hash] for mm_hash in state.evicted),
    )
    if caller is None:
        return Position(moved, None)
    order = sorted(range(len(ids)), key=lambda place: seats[place])
    return Position(moved, Caller(tuple(caller.seats[place] for place in order), caller.waiting_closed))


def walk(data: st.DataObject, workload: Workload, discipline: Discipline, longest: int = 14) -> Position:
    position = start(workload, discipline)
    for _ in range(data.draw(st.integers(0, longest))):
        _, position = carry_out(position, data.draw(st.sampled_from(moves(position))))
    return position


WORKLOADS = [
    one.workload
    for text in ("2r2i3h/capacity=2", "3r1i3h/sizes=1/capacity=2", "2r2i2h/capacity=3/mixed")
    for one in workload_classes(parse_scope(text), OPEN)
] + [Workload(3, (Request("r1", (Item("a", 1), Item("a", 1), Item("b", 1))), Request("r2", (Item("b", 1),))), 3)]


@settings(max_examples=300)
@given(st.data(), st.sampled_from(WORKLOADS), st.sampled_from(Discipline))
def test_a_canonical_form_is_the_same_under_every_renaming(
    data: st.DataObject, workload: Workload, discipline: Discipline
) -> None:
    symmetry = Symmetry(workload, discipline)
    position = walk(data, workload, discipline)
    orbit = {renamed(position, *renaming) for renaming in renamings(workload, discipline)}
    assert position in orbit
    form, members = symmetry.canonical(position)
    assert {symmetry.canonical(other) for other in orbit} == {(form, members)}
    assert members == len(orbit)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(WORKLOADS), st.sampled_from(Discipline))
def test_positions_that_no_renaming_makes_equal_have_different_forms(
    data: st.DataObject, workload: Workload, discipline: Discipline
) -> None:
    symmetry = Symmetry(workload, discipline)
    one = walk(data, workload, discipline, 6)
    # A neighbour is the likeliest to be confused with it.
    _, other = carry_out(one, data.draw(st.sampled_from(moves(one))))
    orbit = {renamed(one, *renaming) for renaming in renamings(workload, discipline)}
    assert (symmetry.canonical(one)[0] == symmetry.canonical(other)[0]) is (other in orbit)


@settings(max_examples=100)
@given(st.data(), st.sampled_from(WORKLOADS), st.sampled_from(Discipline))
def test_renaming_commutes_with_every_move(
    data: st.DataObject, workload: Workload, discipline: Discipline
) -> None:
    """What the reduction relies on: from positions of one class, moves lead to the same classes."""
    symmetry = Symmetry(workload, discipline)
    position = walk(data, workload, discipline)
    renaming = data.draw(st.sampled_from(list(renamings(workload, discipline))))
    other = renamed(position, *renaming)

    def reached(origin: Position) -> list[str]:
        following = [carry_out(origin, move)[1] for move in moves(origin)]
        return sorted(repr(symmetry.canonical(one)) for one in following)

    assert len(moves(other)) == len(moves(position))
    # A free of a request queues its hashes in ascending order of its inputs, which is a name as well; their
    # order is a choice, so those moves are compared without it.
    if discipline is CALLER or len({renaming[2], tuple(tuple(sorted(row)) for row in renaming[2])}) == 1:
        assert reached(other) == reached(position)


@pytest.mark.parametrize(
    ("workload", "discipline", "number"),
    [
        # Nothing to exchange: a is larger.
        (Workload(3, (Request("r1", (Item("a", 2), Item("b", 1))),), 3), OPEN, 1),
        # a and b together with their requests.
        (Workload(3, (Request("r1", (Item("a", 1),)), Request("r2", (Item("b", 1),))), 3), CALLER, 2),
        # Positions are names under the open discipline only.
        (Workload(3, (Request("r1", (Item("a", 1), Item("b", 1))),), 3), OPEN, 2),
        (Workload(3, (Request("r1", (Item("a", 1), Item("b", 1))),), 3), CALLER, 1),
        (Workload(3, (Request("r1", (Item("a", 1), Item("a", 1))),), 3), OPEN, 2),
        (Workload(3, (Request("r1", (Item("a", 1), Item("a", 2))),), 3), OPEN, 1),
    ],
)
def test_the_renamings_of_a_workload(workload: Workload, discipline: Discipline, number: int) -> None:
    assert len(list(renamings(workload, discipline))) == number


def test_what_else_tells_positions_apart_is_part_of_the_form() -> None:
    world = Workload(
        3, (Request("r1", (Item("a", 1),)), Request("r2", (Item("b", 1),)), Request("r3", (Item("c", 2),))), 3
    )
    symmetry = Symmetry(world, OPEN)
    once = symmetry.canonical(Position(State(world, evicted=frozenset("a")), None), repeated=False)
    twice = symmetry.canonical(Position(State(world, evicted=frozenset("a")), None), repeated=True)
    renamed = symmetry.canonical(Position(State(world, evicted=frozenset("b")), None), repeated=True)
    assert once[0] != twice[0]
    assert twice == renamed
    assert (once[1], twice[1]) == (2, 2)
