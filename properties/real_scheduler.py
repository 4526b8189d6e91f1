"""Known engine faults, confirmed on vLLM's own scheduler: `impl/drivers/vllm_scheduler.py` in its interpreter."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

import impl.drivers
from impl.errors import TargetError
from model.scheduling import encode_engine_trace
from properties.engine_corpus import NamedEngineFault, known_engine_faults

NAME = "vllm-scheduler:installed"
"""The target name of the scheduler in the interpreter that `--python` names."""

_DRIVER = Path(impl.drivers.__file__).with_name("vllm_scheduler.py")
_SECONDS = 300.0
"""One trace: most of it is importing vLLM."""

_VERSION = "import importlib.metadata; print(importlib.metadata.version('vllm'))"


class Confirmation(Struct, frozen=True):
    """One known engine fault on the real scheduler.

    Attributes:
        name: Of its file in the corpus.
        property: The property that it breaks.
        known: Whether the corpus says that the installed release has it.
        seen: Whether the real scheduler broke the property.
    """

    name: str
    property: str
    known: bool
    seen: bool


def installed_version(python: str) -> str:
    """The release of vLLM that an interpreter has.

    Raises:
        TargetError: The interpreter cannot be started, or has no vLLM.
    """
    run = _run([python, "-c", _VERSION], b"")
    if run.returncode:
        raise TargetError(f"{NAME}: {python} has no vLLM; name the interpreter of one that has with --python")
    return run.stdout.decode().strip()


def confirm(python: str, told: Callable[[int, int], None]) -> tuple[Confirmation, ...]:
    """Takes every known engine trace to the real scheduler.

    Args:
        python: The interpreter that has vLLM.
        told: Told how many traces are done, and of how many.

    Raises:
        TargetError: The interpreter cannot be started, has no vLLM, or its scheduler cannot be driven.
    """
    release = f"vllm:{installed_version(python)}"
    faults = known_engine_faults()
    found = []
    for number, one in enumerate(faults):
        told(number, len(faults))
        known = release in one.fault.targets
        found.append(Confirmation(one.name, one.fault.property, known, _breaks(python, one)))
    return tuple(found)


def _breaks(python: str, one: NamedEngineFault) -> bool:
    run = _run([python, str(_DRIVER)], encode_engine_trace(one.fault))
    if run.returncode:
        last = run.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it says nothing"]
        raise TargetError(f"{NAME}: the trace {one.name} could not be taken: {last[0]}")
    done = [json.loads(line) for line in run.stdout.splitlines() if line.startswith(b"{")]
    return _SEEN[one.fault.property](done)


def _run(command: list[str], data: bytes) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(command, input=data, capture_output=True, check=False, timeout=_SECONDS)  # noqa: S603 - the person names the interpreter
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TargetError(f"{NAME}: {command[0]} cannot be run: {error}") from error


def _encoded_twice(done: list[dict[str, Any]]) -> bool:
    encoded = [mm_hash for one in done for mm_hash in one.get("encoded", [])]
    return len(set(encoded)) < len(encoded)


_SEEN: dict[str, Callable[[list[dict[str, Any]]], bool]] = {
    "gather-hits": lambda done: any(one.get("missing") for one in done),
    "worker-coherent": lambda done: any(one["cached"] != one["tensors"] for one in done if one["move"] == "pass"),
    "no-idle-reference": lambda done: bool(done[-1]["held by waiting"]),
    # Every item of these traces is needed from its encode to the end.
    "no-redundant-encode": _encoded_twice,
    "progress": lambda done: not done[-1].get("scheduled"),
}
"""How each property shows in what the driver prints."""
