"""Checkpoints: a run goes on where another stopped, and a file that is not its own is refused."""

import runpy
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from impl.drivers import python_driver
from impl.inprocess import python_target
from impl.port import PortManager
from impl.target import Target
from impl.targets import resolve
from model.operations import Discipline
from properties import checkpoint
from properties.checkpoint import Checkpoint, CheckpointError
from properties.exploration import LocalProcesses, explore
from properties.scopes import Scope, parse_scope, workload_classes

OPEN = Discipline.OPEN
PORT = python_target("port", PortManager)
SCOPE = parse_scope("2r2i2h/sizes=1/capacity=1..2")
TOTAL = len(workload_classes(SCOPE, OPEN))


def opened(path: Path, target: Target = PORT, scope: Scope = SCOPE) -> Checkpoint:
    return Checkpoint(path, target, scope, OPEN)


def interrupted_after(path: Path, workloads: int) -> None:
    """A run that is stopped by Ctrl-C, and leaves its file."""

    def stop(done: int, total: int) -> None:
        if done == workloads:
            raise KeyboardInterrupt

    record = opened(path)
    found = explore(PORT, SCOPE, OPEN, record=record, progress=stop)
    assert (found.complete, found.workloads) == (False, workloads)
    record.write()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_goes_on_gives_the_numbers_of_one_that_was_never_stopped(tmp_path: Path, jobs: int) -> None:
    path = tmp_path / "run"
    interrupted_after(path, 3)
    record = opened(path)
    assert record.resumed == 3
    told: list[int] = []
    with LocalProcesses(jobs) as executor:
        found = explore(
            PORT, SCOPE, OPEN, record=record, executor=executor, progress=lambda done, total: told.append(done)
        )
    whole = explore(PORT, SCOPE, OPEN)
    assert replace(found, seconds=0.0) == replace(whole, seconds=0.0)
    assert told == list(range(4, TOTAL + 1))
    record.write()
    assert opened(path).resumed == TOTAL


def test_counterexamples_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    target = resolve("port:early-evictable")
    record = opened(tmp_path / "run", target)
    found = explore(target, SCOPE, OPEN, record=record)
    record.write()
    again = explore(target, SCOPE, OPEN, record=opened(tmp_path / "run", target))
    assert found.counterexamples
    assert again.counterexamples == found.counterexamples


def test_the_file_follows_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_PAUSE", 0.0)
    explore(PORT, SCOPE, OPEN, record=opened(tmp_path / "run"))
    assert opened(tmp_path / "run").resumed == TOTAL
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_workload_covered_in_part_is_not_kept(tmp_path: Path) -> None:
    record = opened(tmp_path / "run")
    explore(PORT, SCOPE, OPEN, record=record, deadline=0.0)
    assert dict(record.covered) == {}


# --- Files that are refused -------------------------------------------------------------------------------


def refusal(path: Path, target: Target = PORT, scope: Scope = SCOPE) -> str:
    with pytest.raises(CheckpointError) as refused:
        opened(path, target, scope)
    return str(refused.value)


def test_truncated_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "run"
    interrupted_after(path, 2)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert refusal(path).startswith(f"{path} is truncated or not a checkpoint: ")


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01", b"requests,inputs\n1,2\n", b""])
def test_foreign(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run"
    path.write_bytes(data)
    assert refusal(path).startswith(f"{path} is truncated or not a checkpoint: ")


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"format": "evictcheck-trace/1", "trace": {}}'])
def test_json_of_something_else(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run"
    path.write_bytes(data)
    assert refusal(path).startswith(f"{path} is not a checkpoint of this version (evictcheck-checkpoint/1): ")


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path} cannot be read: Is a directory"


def test_another_version(tmp_path: Path) -> None:
    path = tmp_path / "run"
    interrupted_after(path, 1)
    path.write_bytes(path.read_bytes().replace(b"evictcheck-checkpoint/1", b"evictcheck-checkpoint/2"))
    assert refusal(path) == (
        f"{path} is of another run: its format is evictcheck-checkpoint/2, this run's is evictcheck-checkpoint/1; "
        f"name another file"
    )


def test_another_scope_and_another_target(tmp_path: Path) -> None:
    path = tmp_path / "run"
    interrupted_after(path, 1)
    assert "its scope is 2r2i2h/sizes=1/capacity=1..2, this run's is 2r2i3h" in refusal(
        path, scope=parse_scope("2r2i3h")
    )
    defective = resolve("port:early-evictable")
    assert "its target is port, this run's is port:early-evictable" in refusal(path, defective)


def test_other_code_of_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "run"
    interrupted_after(path, 1)

    class Changed(PortManager):
        def reset(self) -> None:
            super().reset()

    assert refusal(path, python_target("port", Changed)) == (
        f"{path} was made of other code: port or evictcheck has changed; remove it to begin again"
    )


def test_other_code_in_a_base_class(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(
        "from impl.port import PortManager\nclass Base(PortManager):\n    def a(self): pass"
    )
    module = runpy.run_path(str(tmp_path / "base.py"))
    derived = python_target("derived", type("Derived", (module["Base"],), {}))
    opened(tmp_path / "run", derived).write()
    assert opened(tmp_path / "run", derived).resumed == 0
    with (tmp_path / "base.py").open("a") as file:
        file.write("  # changed")
    assert "was made of other code: derived or evictcheck has changed" in refusal(tmp_path / "run", derived)


def test_another_program_under_the_same_name(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(Path(python_driver.__file__).read_text())
    command = f"cmd:{sys.executable} {driver} impl.port:PortManager"
    opened(tmp_path / "run", resolve(command)).write()
    assert opened(tmp_path / "run", resolve(command)).resumed == 0
    driver.write_text(driver.read_text() + "# changed\n")
    assert "was made of other code" in refusal(tmp_path / "run", resolve(command))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    record = opened(tmp_path / "nowhere" / "run")
    with pytest.raises(CheckpointError, match="cannot be written: No such file or directory"):
        record.write()


def test_numbers_that_no_workload_has(tmp_path: Path) -> None:
    path = tmp_path / "run"
    interrupted_after(path, 1)
    document = msgspec.json.decode(path.read_bytes())
    document["covered"]["999"] = document["covered"]["0"]
    path.write_bytes(msgspec.json.encode(document))
    assert refusal(path) == f"{path} was changed: it has a workload 999, of {TOTAL}"
