"""What the tests of out-of-process targets share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs are compiled once a run, and never taken from an earlier one or from the user's cache."""
    patch = pytest.MonkeyPatch()
    # Under xdist the processes of one run share a folder.
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    patch.setenv("EVICTCHECK_CACHE", str(shared / "cache"))
    yield
    patch.undo()
