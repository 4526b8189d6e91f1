"""The gate for an implementation: `pytest --hypothesis-profile=ci --target vllm:path/to/file.py`.

Drives any target through the state machines, one test a property and discipline. How many walks of how many
moves it makes is the active Hypothesis profile's; `evictcheck check` explores exhaustively as well.
"""

import re
import subprocess
import sys
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import settings
from rich.console import Console

from evictcheck.report import counterexample_table
from impl.target import Shows
from impl.targets import resolve
from model.operations import Discipline
from properties.counterexample import Counterexample
from properties.invariants import MANAGER_PROPERTIES, Property
from properties.machines import hunt
from properties.minimize import shortest

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_TARGETS = ("port", "vllm:0.29.0", "vllm:0.33.0")
NAMES = frozenset(one.name for one in MANAGER_PROPERTIES)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target_name" in metafunc.fixturenames:
        names = dict.fromkeys(metafunc.config.getoption("--target") or DEFAULT_TARGETS)
        metafunc.parametrize("target_name", names)


@cache
def hunted(target_name: str, discipline: Discipline) -> dict[str, Counterexample]:
    """What breaks in a target, by property; all are hunted for at once."""
    target = resolve(target_name)
    found = hunt(target, discipline, NAMES, settings()).counterexamples
    return {one.violation.property: shortest(one, target) for one in found}


def in_plain_text(counterexample: Counterexample, target_name: str) -> str:
    """The command line's table, without colours."""
    console = Console(file=StringIO(), width=120, force_terminal=False, no_color=True)
    console.print(counterexample_table(1, counterexample, resolve(target_name)))
    assert isinstance(console.file, StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("discipline", Discipline)
@pytest.mark.parametrize("asked", MANAGER_PROPERTIES, ids=lambda one: one.name)
def test_walks_do_not_break(asked: Property, discipline: Discipline, target_name: str) -> None:
    target = resolve(target_name)
    if asked.needs > target.shows:
        pytest.skip(f"{target_name} does not show what {asked.name} is decided by")
    found = hunted(target_name, discipline).get(asked.name)
    if found is not None:
        pytest.fail(f"{target_name} breaks\n{in_plain_text(found, target_name)}", pytrace=False)


# --- The gate itself ----------------------------------------------------------------------------------------


def gate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs this file as a user does."""
    command = [sys.executable, "-m", "pytest", "--hypothesis-profile=ci", "-p", "no:cacheprovider", "-q", "-rfs"]
    return subprocess.run(
        [*command, "-k", "test_walks_do_not_break", *arguments, str(Path(__file__).relative_to(ROOT))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def failed(run: subprocess.CompletedProcess[str]) -> set[str]:
    return set(re.findall(r"^FAILED .*::test_walks_do_not_break\[(\S+)\]", run.stdout, re.MULTILINE))


EARLY = """\
1. evictable-unreferenced: no evictable entry still has an occurrence held by a request
3 steps, caller discipline, found by hypothesis; capacity 1; r1: a, a
"""


def test_the_gate_fails_for_the_two_properties_that_a_release_breaks() -> None:
    run = gate("--target", "vllm:0.26.0")
    assert run.returncode == 1, run.stdout + run.stderr
    broken = ("evictable-unreferenced", "freed-disjoint-cached")
    disciplines = ("caller", "open")
    assert failed(run) == {f"vllm:0.26.0-{name}-{discipline}" for name in broken for discipline in disciplines}
    assert "20 passed" in run.stdout
    assert EARLY in run.stdout
    assert "Traceback" not in run.stdout


def test_the_gate_names_a_target_that_cannot_be_had() -> None:
    run = gate("--target", "vllm:0.10.1", "--target", "port:no-such-defect", "-k", "no-crash-open")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "vLLM 0.10.1 is older than 0.10.2" in run.stdout
    assert "there is no defect 'no-such-defect'" in run.stdout


def test_default_targets_show_everything() -> None:
    # Nothing is skipped for them.
    assert all(resolve(name).shows is Shows.INTERNALS for name in DEFAULT_TARGETS)
