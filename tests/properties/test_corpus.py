"""The named traces: each legal, minimal, and broken exactly where its note says."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec import Struct

import properties.corpus
from impl.defects import DEFECTS
from impl.inprocess import PythonTarget
from impl.target import Target
from impl.targets import resolve
from model.contract import refuse_illegal
from model.operations import Discipline, TraceError, encode_trace
from properties.corpus import KnownFault, known_faults
from properties.counterexample import Counterexample, replay
from properties.minimize import minimize

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "corpus"

Release = Callable[[str], PythonTarget]

# One release of each distinct text of the module, and the neighbours of each mend.
RELEASES = (
    *("0.10.2", "0.12.0", "0.15.1", "0.16.0", "0.22.1", "0.23.0", "0.26.0", "0.27.0", "0.27.1"),
    *("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)


def until(release: str) -> tuple[str, ...]:
    return RELEASES[: RELEASES.index(release) + 1]


class Fault(Struct, frozen=True):
    """What a trace breaks, and where."""

    property: str
    releases: tuple[str, ...]
    defects: frozenset[str] = frozenset()


FAULTS: Mapping[str, Fault] = {
    "early-evictable-caller": Fault("evictable-unreferenced", until("0.28.0"), frozenset({"early-evictable"})),
    "early-evictable-open": Fault("evictable-unreferenced", until("0.28.0"), frozenset({"early-evictable"})),
    # The port never frees what is not held, with or without a defect.
    "unheld-input-freed-open": Fault("evictable-unreferenced", until("0.28.0")),
    "unfiltered-freed-caller": Fault("freed-disjoint-cached", until("0.27.1"), frozenset({"unfiltered-freed"})),
    "unfiltered-freed-open": Fault("freed-disjoint-cached", until("0.27.1"), frozenset({"unfiltered-freed"})),
    "two-sizes-caller": Fault("slots-conserved", until("0.30.0"), frozenset({"size-of-freeing-request"})),
    "two-sizes-open": Fault(
        "slots-conserved",
        until("0.30.0"),
        # The trace has the hit on an evictable entry that the other two get wrong as well.
        frozenset({"size-of-freeing-request", "slots-counted-twice", "hit-without-reference"}),
    ),
    "evicted-twice-caller": Fault("report-complete", (), frozenset({"drain-loses-twice-evicted"})),
    "evicted-twice-open": Fault("report-complete", (), frozenset({"drain-loses-twice-evicted"})),
}

KNOWN = {fault.name: fault for discipline in Discipline for fault in known_faults(discipline)}


def broken(fault: KnownFault, target: Target) -> str | None:
    violation = replay(fault.trace, target)
    return None if violation is None else violation.property


def test_every_file_is_known_and_every_name_has_a_file() -> None:
    assert KNOWN.keys() == FAULTS.keys() == {path.stem for path in FOLDER.glob("*.json")}


@pytest.mark.parametrize("name", FAULTS)
def test_a_known_trace_is_legal_and_written_as_evictcheck_writes_it(name: str) -> None:
    fault = KNOWN[name]
    refuse_illegal(fault.trace)
    assert (FOLDER / f"{name}.json").read_bytes() == encode_trace(fault.trace, fault.note)


@pytest.mark.parametrize("name", FAULTS)
def test_a_name_ends_in_its_discipline_and_the_note_names_the_property(name: str) -> None:
    fault = KNOWN[name]
    assert name.endswith(f"-{fault.trace.discipline}")
    assert FAULTS[name].property in fault.note
    for release in FAULTS[name].releases[-1:]:
        assert f"up to {release}" in fault.note


@pytest.mark.parametrize("name", FAULTS)
def test_a_known_trace_breaks_its_property_in_the_releases_that_have_the_fault(
    release: Release, name: str
) -> None:
    seen = {version: broken(KNOWN[name], release(version)) for version in RELEASES}
    expected = FAULTS[name]
    assert seen == {version: expected.property if version in expected.releases else None for version in RELEASES}


@pytest.mark.parametrize("name", FAULTS)
def test_a_known_trace_breaks_its_property_in_the_defects_that_have_the_fault(name: str) -> None:
    expected = FAULTS[name]
    having = {one.name for one in DEFECTS if broken(KNOWN[name], resolve(f"port:{one.name}")) == expected.property}
    assert having == expected.defects
    assert broken(KNOWN[name], resolve("port")) is None


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_can_be_left_out_of_a_known_trace(release: Release, name: str) -> None:
    fault, expected = KNOWN[name], FAULTS[name]
    # On a release two calls will do for early-evictable-open, which is a trace of its own.
    on_release = expected.releases and name != "early-evictable-open"
    target: Target = release(expected.releases[-1]) if on_release else resolve(f"port:{min(expected.defects)}")
    violation = replay(fault.trace, target)
    assert violation is not None
    minimal = minimize(Counterexample(fault.trace, violation, target.name, "corpus"), target)
    assert minimal.trace == fault.trace


def test_only_traces_of_two_sizes_are_called_mixed() -> None:
    assert {name for name, fault in KNOWN.items() if fault.mixed} == {"two-sizes-caller", "two-sizes-open"}


def test_a_damaged_file_of_the_corpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.json").write_text('{"format": "evictcheck-trace/1"}')
    monkeypatch.setattr(properties.corpus, "_PLACES", (tmp_path,))
    with pytest.raises(TraceError, match=r"^broken\.json is not a valid trace: .*`trace`"):
        known_faults(Discipline.OPEN)


def test_without_a_corpus_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties.corpus, "_PLACES", (tmp_path / "missing",))
    assert known_faults(Discipline.CALLER) == ()


def test_the_wheel_carries_the_corpus_where_the_module_looks_for_it() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["force-include"] == {"tests/corpus": "properties/corpus"}
