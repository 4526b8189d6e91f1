"""Releases down, properties across: each distinct manager is explored once, with the explorer's verdicts."""

from collections.abc import Callable

import pytest

from impl import upstream
from impl.errors import TargetError
from impl.inprocess import PythonTarget
from model.operations import Discipline
from properties.counterexample import replay
from properties.exploration import LocalProcesses
from properties.invariants import MANAGER_PROPERTIES
from properties.matrix import Row, matrix
from properties.scopes import parse_scope
from properties.verdicts import Outcome

OPEN = Discipline.OPEN
Release = Callable[[str], PythonTarget]

SMALL = parse_scope("2r1i2h/sizes=1/capacity=1")
UNIT = parse_scope("2r2i2h/sizes=1/capacity=2")


def quiet(name: str, done: int, total: int) -> None:
    """Nobody watches."""


def outcomes(row: Row) -> dict[str, Outcome]:
    return {one.property: one.outcome for one in row.verdicts}


def test_rows_are_the_releases_in_their_order_with_a_verdict_on_each_property() -> None:
    asked = ("0.33.0", "0.15.1", "0.28.0")
    rows = matrix(asked, SMALL, OPEN, progress=quiet)
    assert tuple(row.release for row in rows) == asked
    for row in rows:
        assert [one.property for one in row.verdicts] == [one.name for one in MANAGER_PROPERTIES]


def test_what_each_release_breaks(release: Release) -> None:
    old, filtered, fixed, latest = matrix(("0.26.0", "0.28.0", "0.29.0", "0.33.0"), UNIT, OPEN, progress=quiet)
    early, unfiltered = "evictable-unreferenced", "freed-disjoint-cached"
    broken = [{name for name, one in outcomes(row).items() if one is Outcome.VIOLATED} for row in (old, filtered)]
    assert broken == [{early, unfiltered}, {early}]
    for row in (fixed, latest):
        assert set(outcomes(row).values()) == {Outcome.HOLDS}
        assert row.counterexamples == ()
    lengths = {one.property: one.length for one in old.verdicts if one.length is not None}
    assert lengths == {early: 2, unfiltered: 5}
    for row in (old, filtered):
        for one in row.counterexamples:
            assert replay(one.trace, release(row.release)) == one.violation


def test_the_rule_of_a_time_and_what_cannot_be_seen_are_no_verdicts() -> None:
    (row,) = matrix(("0.15.1",), SMALL, OPEN, progress=quiet)
    assert outcomes(row)["cached-ids-exact"] is Outcome.ERA
    assert outcomes(row)["reset-initial"] is Outcome.NOT_OBSERVABLE


def test_releases_with_the_same_manager_are_explored_once() -> None:
    told: list[str] = []
    rows = matrix(("0.31.0", "0.32.0"), SMALL, OPEN, progress=lambda name, done, total: told.append(name))
    assert set(told) == {"vllm:0.31.0"}
    assert len({row.verdicts for row in rows}) == 1


def test_releases_that_differ_are_explored_each() -> None:
    told: list[str] = []
    matrix(("0.28.0", "0.29.0"), SMALL, OPEN, progress=lambda name, done, total: told.append(name))
    assert set(told) == {"vllm:0.28.0", "vllm:0.29.0"}


def test_two_processes_give_the_same() -> None:
    alone = matrix(("0.26.0",), SMALL, OPEN, progress=quiet)
    with LocalProcesses(2) as executor:
        assert matrix(("0.26.0",), SMALL, OPEN, executor=executor, progress=quiet) == alone


def test_an_interrupt_leaves_out_what_was_not_reached() -> None:
    def interrupt(name: str, done: int, total: int) -> None:
        if name == "vllm:0.29.0":
            raise KeyboardInterrupt

    rows = matrix(("0.28.0", "0.29.0", "0.33.0"), SMALL, OPEN, progress=interrupt)
    assert [row.release for row in rows] == ["0.28.0"]


@pytest.mark.parametrize("asked", ["0.9.0", "99.0.0", "nonsense"])
def test_a_release_that_cannot_be_had_is_refused_before_anything_is_explored(asked: str) -> None:
    told: list[str] = []
    with pytest.raises(TargetError, match=asked):
        matrix(("0.33.0", asked), SMALL, OPEN, progress=lambda name, done, total: told.append(name))
    assert told == []


@pytest.mark.nightly
def test_all_releases_at_the_default_scope() -> None:
    published = upstream.published()
    rows = matrix(published, parse_scope("2r2i3h"), Discipline.CALLER, progress=quiet)
    assert tuple(row.release for row in rows) == published
    assert set(outcomes(rows[-1]).values()) == {Outcome.HOLDS}
