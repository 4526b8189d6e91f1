"""Generated pytest files: each is run, where the property is broken and where it is mended."""

import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings
from msgspec.structs import replace

from evictcheck.pytest_export import is_python, pytest_source
from impl import upstream
from impl.defects import DEFECTS, Defect
from impl.inprocess import PythonTarget
from impl.port import PortManager
from impl.target import Shows, Target
from impl.targets import resolve
from model.contract import trace_of
from model.operations import Allocate, Check, Discipline, Drain, FreeInput, Move
from model.workload import Item, Request, Workload
from properties.corpus import known_faults
from properties.counterexample import Counterexample, replay
from properties.machines import hunt
from properties.minimize import minimize

CALLER, OPEN = Discipline.CALLER, Discipline.OPEN
WALKS = settings(max_examples=100, stateful_step_count=30)
MODULE = "vllm.v1.core.encoder_cache_manager"

Release = Callable[[str], PythonTarget]


# --- Counterexamples ----------------------------------------------------------------------------------------


def walked(target: Target, discipline: Discipline, broken: str, *, mixed: bool = False) -> Counterexample:
    """What random walks find, minimised."""
    (found,) = hunt(target, discipline, frozenset({broken}), WALKS, mixed=mixed, seed=0).counterexamples
    return minimize(found, target)


def replayed(target: PythonTarget, name: str) -> Counterexample:
    """What a known trace breaks."""
    (fault,) = [one for discipline in Discipline for one in known_faults(discipline) if one.name == name]
    violation = replay(fault.trace, target)
    assert violation is not None
    return Counterexample(fault.trace, violation, target.name, f"corpus {name}")


def broken_by(defect: Defect, discipline: Discipline) -> Counterexample:
    target = resolve(f"port:{defect.name}")
    assert isinstance(target, PythonTarget)
    if defect.name == "drain-loses-twice-evicted":
        return replayed(target, f"evicted-twice-{discipline}")
    return walked(target, discipline, defect.property, mixed="mixed" in defect.scope)


# --- Running a generated file -------------------------------------------------------------------------------


def run(source: str) -> None:
    """Executes a generated file and its one test."""
    namespace: dict[str, object] = {}
    exec(compile(source, "generated.py", "exec"), namespace)  # noqa: S102 - the file is what is tested
    (test,) = [value for name, value in namespace.items() if name.startswith("test_")]
    assert callable(test)
    test()


def failing_line(source: str) -> tuple[type[BaseException], str, list[str]]:
    """Runs a generated file that fails: how, in which of its lines, and the lines after that."""
    try:
        run(source)
    except Exception as error:  # noqa: BLE001 - a manager may raise anything
        numbers = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "generated.py"
        ]
        lines = source.splitlines()
        number = next(number for number in numbers[::-1] if number and lines[number - 1].startswith("    "))
        return type(error), lines[number - 1].strip(), [line.strip() for line in lines[number:] if line.strip()]
    raise AssertionError(f"this passes:\n{source}")


def fails_at_its_end(source: str, broken: str) -> bool:
    """Whether it fails by its last assertion (of several alike, one of them), or by its last call."""
    kind, line, after = failing_line(source)
    if broken == "no-crash":
        return kind is not AssertionError and line.endswith("# it must not raise") and not after
    return (
        kind is AssertionError and line.startswith("assert ") and all(one.startswith("assert ") for one in after)
    )


def mended(source: str) -> str:
    """The same test of the port without a defect."""
    repaired, count = re.subn(
        r"^from impl\.defects import \w+ as EncoderCacheManager$",
        "from impl.port import PortManager as EncoderCacheManager",
        source,
        flags=re.MULTILINE,
    )
    assert count == 1
    return repaired


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[PythonTarget], None]:
    """Puts a release where a generated file imports it from."""

    def put(target: PythonTarget) -> None:
        for name in ("vllm", "vllm.v1", "vllm.v1.core", MODULE):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(sys.modules[MODULE], "EncoderCacheManager", target.manager_class, raising=False)

    return put


# --- The port and its defects -------------------------------------------------------------------------------

# A scheduler drains before it resets.
SHOWN = [
    pytest.param(defect, discipline, id=f"{defect.name}-{discipline}")
    for defect in DEFECTS
    for discipline in Discipline
    if (defect.name, discipline) != ("reset-keeps-pending", CALLER)
]


@pytest.mark.parametrize(("defect", "discipline"), SHOWN)
def test_the_file_of_a_defect_fails_on_it_and_passes_on_the_port(defect: Defect, discipline: Discipline) -> None:
    counterexample = broken_by(defect, discipline)
    target = resolve(f"port:{defect.name}")
    source = pytest_source(counterexample, target)
    assert fails_at_its_end(source, defect.property), source
    run(mended(source))


def test_several_defects_at_once_have_a_class_of_their_own() -> None:
    target = resolve("port:early-evictable+unfiltered-freed")
    assert isinstance(target, PythonTarget)
    for broken, only in (
        ("evictable-unreferenced", "EarlyEvictable"),
        ("freed-disjoint-cached", "UnfilteredFreed"),
    ):
        source = pytest_source(walked(target, OPEN, broken), target)
        assert "class EncoderCacheManager(EarlyEvictable, UnfilteredFreed):" in source
        assert fails_at_its_end(source, broken)
        # One of the two is enough for its own property, and does not break the other's.
        both = "EarlyEvictable, UnfilteredFreed"
        assert fails_at_its_end(source.replace(f"({both})", f"({only})"), broken)
        (other,) = set(both.split(", ")) - {only}
        run(source.replace(f"({both})", f"({other})"))


# --- Releases -----------------------------------------------------------------------------------------------

BROKEN = [
    (release, trace)
    for release in ("0.10.2", "0.11.0", "0.12.0", "0.13.0", "0.16.0", "0.22.1", "0.26.0", "0.27.1")
    for trace in (
        "early-evictable-caller",
        "early-evictable-open",
        "unfiltered-freed-caller",
        "unfiltered-freed-open",
        "unheld-input-freed-open",
        "two-sizes-open",
    )
]
BROKEN += [
    ("0.28.0", "early-evictable-caller"),
    ("0.28.0", "early-evictable-open"),
    ("0.30.0", "two-sizes-open"),
    ("0.30.0", "two-sizes-caller"),
]


@pytest.mark.parametrize(("version", "trace"), BROKEN)
def test_the_file_of_a_release_fails_on_it_and_passes_on_the_latest(
    release: Release, install: Callable[[PythonTarget], None], version: str, trace: str
) -> None:
    target = release(version)
    counterexample = replayed(target, trace)
    source = pytest_source(counterexample, target)
    assert f"from {MODULE} import EncoderCacheManager" in source
    install(target)
    assert fails_at_its_end(source, counterexample.violation.property), source
    install(release("0.33.0"))
    run(source)


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("broken", ["evictable-unreferenced", "freed-disjoint-cached"])
def test_the_file_of_what_walks_find_fails_on_the_release_and_passes_on_the_latest(
    release: Release, install: Callable[[PythonTarget], None], broken: str, discipline: Discipline
) -> None:
    target = release("0.26.0")
    source = pytest_source(walked(target, discipline, broken), target)
    install(target)
    assert fails_at_its_end(source, broken), source
    install(release("0.33.0"))
    run(source)


# A package of that name whose module is the release's: what a user of a real vLLM has.
STAND_IN = """
from pathlib import Path

from impl import upstream

EncoderCacheManager = upstream.load(Path(__file__).with_name("released.py"), "the release")
"""


@pytest.mark.parametrize(("version", "code"), [("0.26.0", 1), ("0.33.0", 0)])
def test_the_file_runs_under_pytest_with_nothing_but_the_implementation(
    release: Release, tmp_path: Path, version: str, code: int
) -> None:
    package = tmp_path / "site" / Path(*MODULE.split("."))
    package.parent.mkdir(parents=True)
    for folder in (package.parent, package.parent.parent, package.parent.parent.parent):
        (folder / "__init__.py").touch()
    package.with_suffix(".py").write_text(STAND_IN)
    package.with_name("released.py").write_bytes(upstream.fetch(version).read_bytes())
    broken = release("0.26.0")
    file = tmp_path / "test_generated.py"
    file.write_text(pytest_source(replayed(broken, "early-evictable-caller"), broken))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    assert ('assert "a" not in manager.freeable' in result.stdout) == (code == 1)


# --- The text -----------------------------------------------------------------------------------------------

EARLY = '''"""evictable-unreferenced: no evictable entry still has an occurrence held by a request.

Found in vllm:0.26.0 by evictcheck: corpus early-evictable-caller, caller discipline.
"""

from types import SimpleNamespace

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager


class MockRequest:
    def __init__(self, request_id: str, *items: tuple[str, int]) -> None:
        self.request_id = request_id
        self.mm_features = [SimpleNamespace(identifier=mm_hash) for mm_hash, _ in items]
        self._sizes = [size for _, size in items]

    def get_num_encoder_embeds(self, input_id: int) -> int:
        return self._sizes[input_id]


def test_evictable_unreferenced() -> None:
    # capacity 1; r1: a, a
    manager = EncoderCacheManager(1)
    r1 = MockRequest("r1", ("a", 1), ("a", 1))

    # r1 is admitted up to input 1 and runs
    assert not manager.check_and_update_cache(r1, 0)
    assert manager.can_allocate(r1, 0, 1, 0)
    manager.allocate(r1, 0)
    assert manager.check_and_update_cache(r1, 1)

    # the pass ends
    assert set(manager.get_freed_mm_hashes()) == set()

    # input 0 of r1 is processed
    assert set(manager.get_cached_input_ids(r1)) == {0, 1}
    manager.free_encoder_input(r1, 0)
    assert "a" not in manager.freeable  # still needed
'''


def test_the_text_is_what_a_person_would_write(release: Release) -> None:
    target = release("0.26.0")
    assert pytest_source(replayed(target, "early-evictable-caller"), target) == EARLY


def test_an_old_release_is_asked_by_its_names(release: Release) -> None:
    source = pytest_source(replayed(release("0.10.2"), "early-evictable-open"), release("0.10.2"))
    assert "        self.mm_hashes = [mm_hash for mm_hash, _ in items]  # asked up to 0.10.2\n" in source
    assert "    get_num_encoder_tokens = get_num_encoder_embeds  # asked up to 0.12.0\n" in source
    source = pytest_source(replayed(release("0.12.0"), "early-evictable-open"), release("0.12.0"))
    assert "mm_hashes" not in source
    assert "    get_num_encoder_tokens = get_num_encoder_embeds  # asked up to 0.12.0\n" in source


def test_a_listing_by_the_rule_of_its_time_is_no_demand(release: Release) -> None:
    source = pytest_source(replayed(release("0.22.1"), "early-evictable-caller"), release("0.22.1"))
    assert "    manager.get_cached_input_ids(r1)\n" in source
    assert "set(manager.get_cached_input_ids" not in source


def by_hand(request_id: str, mm_hash: str) -> Counterexample:
    """The early-evictable story with names of somebody's choice."""
    request = Request(request_id, (Item(mm_hash, 1), Item(mm_hash, 1)))
    made: tuple[Move, ...] = (
        Drain(),
        Allocate(request_id, 0),
        Check(request_id, 1),
        FreeInput(request_id, 0),
    )
    trace = trace_of(Workload(1, (request,), 1), OPEN, made)
    target = resolve("port:early-evictable")
    violation = replay(trace, target)
    assert violation is not None
    return Counterexample(trace, violation, target.name, "by hand")


@pytest.mark.parametrize(
    ("request_id", "mm_hash"),
    [
        ("chatcmpl-7f 3", "sha256:00"),
        ("class", 'a "quoted" hash'),
        ("manager", "back\\slash"),
        ("set", "line\nfeed"),
        ("MockRequest", "{a}"),
        ("EncoderCacheManager", "é"),
        ('"', "'"),
    ],
)
def test_any_names_make_a_file_that_runs(request_id: str, mm_hash: str) -> None:
    source = pytest_source(by_hand(request_id, mm_hash), resolve("port:early-evictable"))
    assert fails_at_its_end(source, "evictable-unreferenced"), source
    run(mended(source))


def test_the_name_of_a_target_cannot_break_the_docstring() -> None:
    strange = replace(by_hand("r1", "a"), target='vllm:C:\\code\\x\n"""/cache.py')
    source = pytest_source(strange, resolve("port:early-evictable"))
    assert "\nFound in vllm:C:/code/x/n'''/cache.py by evictcheck" in source
    assert fails_at_its_end(source, "evictable-unreferenced")


def test_a_class_that_shows_counters_only_is_judged_by_them() -> None:
    target = resolve("port:early-evictable")
    assert isinstance(target, PythonTarget)
    blind = PythonTarget(target.name, target.manager_class, Shows.COUNTERS, True)
    source = pytest_source(minimize(by_hand("r1", "a"), blind), blind)
    assert source.endswith("    assert manager.num_freeable_slots <= 0  # the rest is still needed\n")
    assert fails_at_its_end(source, "evictable-unreferenced"), source
    run(mended(source))


def test_a_class_of_somebody_else_is_imported_from_where_it_is() -> None:
    target = resolve("py:impl.defects:EarlyEvictable")
    assert is_python(target)
    source = pytest_source(walked(target, OPEN, "evictable-unreferenced"), target)
    assert "\nfrom impl.defects import EarlyEvictable as EncoderCacheManager\n" in source
    assert fails_at_its_end(source, "evictable-unreferenced")
    run(mended(source))


def test_the_port_is_imported_as_such() -> None:
    target = resolve("port")
    assert isinstance(target, PythonTarget)
    assert target.manager_class is PortManager
    source = pytest_source(by_hand("r1", "a"), target)
    assert "\nfrom impl.port import PortManager as EncoderCacheManager\n" in source
    run(source)
