"""Hypothesis profiles, and the targets that tests of several packages share."""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import HealthCheck, settings

from impl import upstream
from impl.inprocess import PythonTarget, python_target

_UNHURRIED = (HealthCheck.too_slow, HealthCheck.differing_executors)

settings.register_profile("dev", deadline=None, suppress_health_check=_UNHURRIED)
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=_UNHURRIED,
)
settings.register_profile("nightly", max_examples=2_000, deadline=None, suppress_health_check=_UNHURRIED)
settings.load_profile("dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--target`: what the conformance gate drives (tests/properties/test_conformance.py)."""
    parser.addoption(
        "--target",
        action="append",
        default=[],
        metavar="TARGET",
        help="judge this target in tests/properties/test_conformance.py, as `evictcheck targets` names them; may "
        "be repeated (default: port and two releases)",
    )


@cache
def _release(version: str) -> PythonTarget:
    module = upstream.resolve(version)
    return python_target(module.name, module.manager_class, module.era)


@pytest.fixture(scope="session")
def release() -> Callable[[str], PythonTarget]:
    """A published vLLM release as a target; read once over the network, then from the user's cache."""
    return _release
