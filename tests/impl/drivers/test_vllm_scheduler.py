"""The driver of vLLM's own scheduler, as far as it goes without vLLM."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
DRIVER = ROOT / "impl" / "drivers" / "vllm_scheduler.py"
TRACE = ROOT / "tests" / "corpus" / "engine" / "withdrawn-encode-hit.json"


def test_an_interpreter_without_vllm_is_told_so() -> None:
    run = subprocess.run(
        [sys.executable, "-I", "-S", DRIVER], input=TRACE.read_bytes(), capture_output=True, check=False
    )
    assert run.returncode == 1
    assert b"this interpreter has no working vLLM" in run.stderr
    assert b"Traceback" not in run.stderr
