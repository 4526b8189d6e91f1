"""A property that cannot fail proves nothing: each defect of the catalogue is caught, by the property it names."""

import pytest

from impl.defects import DEFECTS, Defect
from impl.inprocess import python_target
from impl.port import PortManager
from model.contract import refuse_illegal
from model.operations import Discipline
from properties.counterexample import Counterexample, replay
from properties.exploration import Exploration, explore
from properties.invariants import MANAGER_PROPERTIES
from properties.scopes import parse_scope

PORT = python_target("port", PortManager)

# Steps (caller) or calls (open) of the shortest counterexample in the declared scope.
SHORTEST: dict[str, dict[Discipline, int]] = {
    name: {Discipline.CALLER: steps, Discipline.OPEN: calls}
    for name, steps, calls in (
        ("early-evictable", 3, 3),
        ("unfiltered-freed", 6, 5),
        ("newest-first-eviction", 6, 5),
        ("one-eviction-too-many", 6, 5),
        ("one-eviction-too-few", 4, 3),
        ("hit-stays-evictable", 4, 3),
        ("hit-without-reference", 3, 3),
        ("hit-not-listed", 2, 2),
        ("slots-not-returned", 4, 3),
        ("slots-counted-twice", 4, 3),
        ("drain-does-not-clear", 6, 5),
        ("drain-loses-twice-evicted", 9, 7),
        ("reset-keeps-pending", 0, 4),
        ("reset-keeps-references", 3, 2),
        ("freed-request-stays-listed", 2, 2),
        ("size-of-freeing-request", 4, 4),
        ("budget-refusal-evicts", 4, 3),
        ("empty-queue-raises", 3, 1),
        ("overcommits", 4, 3),
        ("refuses-exactly-full", 1, 1),
    )
}


def explored(defect: Defect, discipline: Discipline) -> Exploration:
    target = python_target(f"port:{defect.name}", defect.manager_class)
    return explore(target, parse_scope(defect.scope), discipline)


def shortest(found: Exploration) -> list[Counterexample]:
    length = min(len(one.trace) for one in found.counterexamples)
    return [one for one in found.counterexamples if len(one.trace) == length]


SHOWN = [
    pytest.param(defect, discipline, id=f"{defect.name}-{discipline}")
    for defect in DEFECTS
    for discipline in defect.disciplines
]
HIDDEN = [
    pytest.param(defect, discipline, id=f"{defect.name}-{discipline}")
    for defect in DEFECTS
    for discipline in Discipline
    if discipline not in defect.disciplines
]


@pytest.mark.parametrize(("defect", "discipline"), SHOWN)
def test_a_defect_breaks_its_property_first(defect: Defect, discipline: Discipline) -> None:
    found = explored(defect, discipline)
    assert found.complete
    first = shortest(found)
    assert {one.violation.property for one in first} == {defect.property}
    assert len(first[0].trace) == SHORTEST[defect.name][discipline]
    target = python_target(f"port:{defect.name}", defect.manager_class)
    for one in found.counterexamples:
        refuse_illegal(one.trace)
        again = replay(one.trace, target)
        assert again == one.violation
        assert again.call_index == len(list(one.trace.calls)) - 1
        assert replay(one.trace, PORT) is None


@pytest.mark.parametrize(("defect", "discipline"), HIDDEN)
def test_a_defect_shows_under_no_other_discipline(defect: Defect, discipline: Discipline) -> None:
    for scope in (defect.scope, "2r2i3h/sizes=1/capacity=2"):
        found = explore(python_target(defect.name, defect.manager_class), parse_scope(scope), discipline)
        assert found.complete
        assert found.counterexamples == ()


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("scope", sorted({defect.scope for defect in DEFECTS}))
def test_the_port_itself_breaks_nothing_in_those_scopes(scope: str, discipline: Discipline) -> None:
    found = explore(PORT, parse_scope(scope), discipline)
    assert found.complete
    assert found.transitions > 0
    assert found.counterexamples == ()


def test_every_property_is_the_first_to_break_for_some_defect() -> None:
    assert {defect.property for defect in DEFECTS} == {one.name for one in MANAGER_PROPERTIES}
    assert len(MANAGER_PROPERTIES) == 12


def test_the_catalogue_is_in_order() -> None:
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names)
    assert set(names) == set(SHORTEST)
    for defect in DEFECTS:
        assert issubclass(defect.manager_class, PortManager)
        assert defect.manager_class is not PortManager
        assert defect.disciplines
        assert not defect.sentence.endswith(".")
        assert str(parse_scope(defect.scope)) == defect.scope
