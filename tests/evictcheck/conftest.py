"""Running the command line in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from evictcheck import cli


class Ended(Struct, frozen=True):
    """How a command ended, and what it said where."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder, with one process unless it says otherwise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "set_hypothesis_home_dir", lambda folder: None)

    def command(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["evictcheck", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        code = end.value.code or 0
        assert isinstance(code, int)
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return command
