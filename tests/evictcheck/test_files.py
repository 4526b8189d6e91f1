"""Writing results: whole files or none."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from evictcheck.files import (
    OutputError,
    refuse_unusable_folder,
    refuse_unwritable,
    write_counterexample,
    write_whole,
)
from impl.inprocess import PythonTarget
from impl.target import Session, Shows
from impl.targets import resolve
from model.operations import Discipline, decode_trace
from model.workload import Workload
from properties.corpus import known_faults
from properties.counterexample import Counterexample, replay

# Tests may run as a user that may write anywhere, so that a file stands where a folder is needed.


def refusal(check: Callable[[Path], None], path: Path) -> str:
    with pytest.raises(OutputError) as error:
        check(path)
    return str(error.value)


def test_a_file_can_be_written_where_there_is_a_folder(tmp_path: Path) -> None:
    refuse_unwritable(tmp_path / "new.json")
    (tmp_path / "old.json").write_text("{}")
    refuse_unwritable(tmp_path / "old.json")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


def test_a_file_cannot_be_written_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(refuse_unwritable, tmp_path) == f"{tmp_path} is a folder; name a file to write"
    for folder in (tmp_path / "missing", tmp_path / "file"):
        path = folder / "results.json"
        assert refusal(refuse_unwritable, path) == f"{path} cannot be written: there is no folder {folder}"


def test_a_folder_need_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_unusable_folder(tmp_path)
    refuse_unusable_folder(tmp_path / "new" / "below")
    monkeypatch.chdir(tmp_path)
    refuse_unusable_folder(Path("new"))
    refuse_unusable_folder(Path("new/below"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_cannot_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below", file / "below" / "deep"):
        assert refusal(refuse_unusable_folder, path) == f"results cannot go into {path}: {file} is a file"


def test_what_is_closed_to_us_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "does not let us" in refusal(refuse_unwritable, tmp_path / "results.json")
    assert "does not let us write" in refusal(refuse_unusable_folder, tmp_path / "out")


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    write_whole(path, b"first, and long")
    write_whole(path, b"second")
    assert path.read_bytes() == b"second"
    assert [one.name for one in path.parent.iterdir()] == ["results.json"]


def test_a_new_file_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write_whole(tmp_path / "results.json", b"")
    assert (tmp_path / "results.json").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_what_a_link_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    link = tmp_path / "latest.json"
    link.symlink_to(Path("runs") / "1.json")
    write_whole(link, b"results")
    assert link.is_symlink()
    assert (tmp_path / "runs" / "1.json").read_bytes() == b"results"


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    # A device is no other case, and a test must not be able to replace one.
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(path, b"results")
        assert os.read(reader, 100) == b"results"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "results.json"
    with pytest.raises(OutputError, match=r"results\.json cannot be written: "):
        write_whole(path, b"")


def test_what_was_there_survives_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(b"old")

    def fail(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError, match=r"results\.json cannot be written: No space left on device$"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["results.json"]


class AProgram:
    """A target that is no Python class."""

    name = "cmd:./driver --fast"
    shows = Shows.INTERNALS
    has_reset = True
    era: frozenset[str] = frozenset()

    def start(self, workload: Workload) -> Session:
        return resolve("port:early-evictable").start(workload)


@pytest.fixture
def counterexample() -> Counterexample:
    target = resolve("port:early-evictable")
    (fault,) = [one for one in known_faults(Discipline.OPEN) if one.name == "early-evictable-open"]
    violation = replay(fault.trace, target)
    assert violation is not None
    return Counterexample(fault.trace, violation, target.name, "exhaustive")


def test_a_counterexample_is_written_three_times(tmp_path: Path, counterexample: Counterexample) -> None:
    target = resolve("port:early-evictable")
    assert isinstance(target, PythonTarget)
    written = write_counterexample(tmp_path / "out", counterexample, 1, target)
    stem = "port-early-evictable-open-evictable-unreferenced"
    assert [path.name for path in written] == [
        "test_port_early_evictable_open_evictable_unreferenced.py",
        f"{stem}.trace.json",
        f"{stem}.itf.json",
    ]
    test, trace, itf = written
    compile(test.read_text("utf-8"), str(test), "exec")
    decoded, note = decode_trace(trace.read_bytes(), trace.name)
    assert decoded == counterexample.trace
    assert note == "evictable-unreferenced broken in port:early-evictable, found by exhaustive"
    assert json.loads(itf.read_bytes())["#meta"]["description"] == note
    assert [path.read_bytes()[-1:] for path in written] == [b"\n"] * 3


def test_counterexamples_to_one_property_are_told_apart(tmp_path: Path, counterexample: Counterexample) -> None:
    target = resolve("port:early-evictable")
    first = write_counterexample(tmp_path, counterexample, 1, target)
    second = write_counterexample(tmp_path, counterexample, 2, target)
    assert second[0].name == "test_port_early_evictable_open_evictable_unreferenced_2.py"
    assert not {*first} & {*second}


def test_a_program_gets_no_python_test(tmp_path: Path, counterexample: Counterexample) -> None:
    named = replace(counterexample, target=AProgram.name)
    written = write_counterexample(tmp_path, named, 1, AProgram())
    assert [path.name for path in written] == [
        "cmd-driver-fast-open-evictable-unreferenced.trace.json",
        "cmd-driver-fast-open-evictable-unreferenced.itf.json",
    ]
