"""Targets that are Python classes in an interpreter of their own."""

import sys
from pathlib import Path

from impl.drivers.client import TIMEOUT, DriverTarget
from impl.errors import TargetError
from impl.upstream import ERA_DIFFERENCES
from model.workload import Workload

_DRIVER = Path(__file__).with_name("python_driver.py")
_IMPORTING = 120.0
"""Seconds that importing a class may take: a whole vLLM takes long."""
_INSTALLED = "vllm.v1.core.encoder_cache_manager:EncoderCacheManager"


def class_target(spec: str, *, python: str = sys.executable, timeout: float = TIMEOUT) -> DriverTarget:
    """A class as a program in the current directory would import it: `package.module:Class`.

    Args:
        spec: Module and class.
        python: The interpreter, which needs nothing but its standard library.
        timeout: Seconds that one answer may take.

    Raises:
        TargetError: The interpreter cannot be started, or there is no such class, or no manager in it.
    """
    module, colon, name = spec.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise TargetError(f"py:{spec} is not of the form py:package.module:Class.")
    return _target(f"py:{spec}", python, spec, timeout)


def installed_target(python: str, *, timeout: float = TIMEOUT) -> DriverTarget:
    """The manager of the vLLM that is installed in an interpreter, imported as vLLM itself does.

    Args:
        python: The interpreter.
        timeout: Seconds that one answer may take.

    Raises:
        TargetError: The interpreter cannot be started, or has no vLLM with a manager keyed by hash.
    """
    target = _target("vllm:installed", python, _INSTALLED, timeout)
    if "internals" in target.capabilities:
        internals = target.start(Workload(1, (), 1)).observe().internals
        if internals is not None and internals.listed is None:
            target.era = frozenset(era.property for era in ERA_DIFFERENCES)
    return target


def _target(name: str, python: str, spec: str, timeout: float) -> DriverTarget:
    # The order of a set of strings is then the same in every run.
    environment = {"PYTHONHASHSEED": "0"}
    command = (python, str(_DRIVER), spec)
    return DriverTarget(name, command, timeout=timeout, starting=_IMPORTING, environment=environment)
