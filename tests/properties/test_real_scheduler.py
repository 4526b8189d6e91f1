"""Known engine traces on vLLM's own scheduler: what is made of the driver's answers, without vLLM."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from impl.errors import TargetError
from properties.engine_corpus import known_engine_faults
from properties.real_scheduler import confirm, installed_version

QUIET: dict[str, Any] = {"move": "pass", "scheduled": {"r1": [0, 1]}, "encoded": [], "reported": [], "missing": []}
HELD: dict[str, Any] = {"cached": ["a"], "tensors": ["a"], "held by waiting": []}
BROKEN: dict[str, dict[str, Any]] = {
    "gather-hits": {"missing": [["r1", "a"]]},
    "worker-coherent": {"tensors": []},
    "no-idle-reference": {"held by waiting": ["a"]},
    "no-redundant-encode": {"encoded": ["a", "a"]},
    "progress": {"scheduled": {}},
}


def stand_in(folder: Path, answers: list[dict[str, Any]], code: int = 0) -> str:
    """An interpreter that knows the version of its vLLM, and answers every trace alike."""
    script = folder / "python"
    lines = "\n".join(json.dumps(answer) for answer in answers)
    script.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"if sys.argv[1] == '-c':\n    print('0.33.0')\n"
        f"else:\n    sys.stdin.read()\n    print({lines!r})\n"
        f"    sys.exit({code} and 'the scheduler is of another shape')\n"
    )
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("broken", [None, *BROKEN])
def test_each_property_is_read_off_the_drivers_answers(tmp_path: Path, broken: str | None) -> None:
    answer = QUIET | HELD | (BROKEN[broken] if broken is not None else {})
    found = confirm(stand_in(tmp_path, [answer]), lambda done, total: None)
    assert [one.name for one in found] == [one.name for one in known_engine_faults()]
    assert {one.property for one in found} == set(BROKEN)
    assert {one.property for one in found if one.seen} == ({broken} if broken is not None else set())
    assert {one.name for one in found if one.known} == {
        one.name for one in known_engine_faults() if "vllm:0.33.0" in one.fault.targets
    }


def test_a_scheduler_that_cannot_be_driven_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="could not be taken: the scheduler is of another shape"):
        confirm(stand_in(tmp_path, [], 1), lambda done, total: None)


def test_an_interpreter_without_vllm_is_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    script.chmod(0o755)
    with pytest.raises(TargetError, match="has no vLLM; name the interpreter of one that has with --python"):
        installed_version(str(script))
    with pytest.raises(TargetError, match="cannot be run"):
        installed_version(str(tmp_path / "nowhere"))
