"""The command line: what it says, what it writes, and how it ends."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from msgspec import Struct

import properties.verdicts
from evictcheck import cli
from impl import upstream
from impl.defects import DEFECTS
from impl.inprocess import PythonTarget
from impl.targets import FORMS
from model.operations import decode_trace
from properties.invariants import MANAGER_PROPERTIES
from properties.verdicts import RANDOM_RUNS

NAMES = [one.name for one in MANAGER_PROPERTIES]
SMALL = ("--scope", "1r2i2h/sizes=1/capacity=1", "--jobs", "1", "--no-engine")

Release = Callable[[str], PythonTarget]


class Run(Struct, frozen=True):
    """How a command ended, and what it said where."""

    code: int
    out: str
    err: str


Command = Callable[..., Run]


@pytest.fixture
def evictcheck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process, in an empty folder, with few random walks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "set_hypothesis_home_dir", lambda folder: None)
    monkeypatch.setattr(properties.verdicts, "RANDOM_RUNS", settings(RANDOM_RUNS, max_examples=5))

    def run(*arguments: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["evictcheck", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert isinstance(end.value.code, int)
        said = capsys.readouterr()
        return Run(end.value.code, said.out, said.err)

    return run


def in_a_process(folder: Path, *arguments: object, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Starts the command as a person does, with results in a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", "from evictcheck.cli import main; main()", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "EVICTCHECK_CACHE": str(folder / "cache"), "TERM": "xterm-256color"},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def screens(terminal: int) -> Iterator[str]:
    """What is shown on a terminal, as it comes, until nobody writes to it any more."""
    while select.select([terminal], [], [], 120)[0]:
        try:
            block = os.read(terminal, 1 << 16)
        except OSError:
            return
        if not block:
            return
        yield block.decode(errors="replace")


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def verdicts(run: Run) -> dict[str, str]:
    """The verdict table, read back."""
    rows = re.findall(r"^  ([a-z-]+) +(holds|violated|unknown|era|not observable) ", run.out, re.MULTILINE)
    return dict(rows)


# --- Exit codes ---------------------------------------------------------------------------------------------


def test_0_everything_holds_for_the_default_target(evictcheck: Command, tmp_path: Path) -> None:
    run = evictcheck("check", *SMALL)
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith("port, caller discipline")
    assert verdicts(run) == dict.fromkeys(NAMES, "holds")
    assert written(tmp_path) == []


def test_1_something_is_violated(evictcheck: Command, tmp_path: Path) -> None:
    run = evictcheck("check", "port:early-evictable", *SMALL)
    assert (run.code, run.err) == (1, "")
    assert verdicts(run) == {**dict.fromkeys(NAMES, "holds"), "evictable-unreferenced": "violated"}
    names = [
        "port-early-evictable-caller-evictable-unreferenced.itf.json",
        "port-early-evictable-caller-evictable-unreferenced.trace.json",
        "test_port_early_evictable_caller_evictable_unreferenced.py",
    ]
    assert written(tmp_path) == ["evictcheck-out"]
    assert written(tmp_path / "evictcheck-out") == names
    assert set(re.findall(r"^  written: (.*)$", run.out, re.MULTILINE)) == {
        f"evictcheck-out/{one}" for one in names
    }


def test_3_nothing_violated_but_unknown(evictcheck: Command) -> None:
    run = evictcheck("check", "port", "--seconds", "0", *SMALL)
    assert (run.code, run.err) == (3, "")
    assert verdicts(run) == dict.fromkeys(NAMES, "unknown")
    assert "port: stopped early, so what is unknown is no pass" in run.out


def test_a_violation_counts_more_than_what_is_unknown(evictcheck: Command) -> None:
    run = evictcheck("check", "port:early-evictable", "--seconds", "0", *SMALL)
    assert run.code == 1
    assert verdicts(run) == {**dict.fromkeys(NAMES, "unknown"), "evictable-unreferenced": "violated"}


def test_several_targets_end_with_the_worst(evictcheck: Command) -> None:
    run = evictcheck("check", "port", "port:early-evictable", "port", *SMALL)
    assert run.code == 1
    assert re.findall(r"^(\S+), caller discipline", run.out, re.MULTILINE) == [
        "port",
        "port:early-evictable",
        "port",
    ]


def test_a_property_that_cannot_be_seen_is_no_reason_for_3(evictcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "shy_manager.py").write_text(SHY)
    run = evictcheck("check", "py:shy_manager:Shy", *SMALL)
    assert run.code == 0, run
    assert verdicts(run)["slots-conserved"] == "not observable"
    assert verdicts(run)["no-crash"] == "holds"


SHY = """
from impl.port import PortManager


class Shy:
    def __init__(self, capacity):
        self.__own = PortManager(capacity)

    def check_and_update_cache(self, request, input_id):
        return self.__own.check_and_update_cache(request, input_id)

    def can_allocate(self, *arguments):
        return self.__own.can_allocate(*arguments)

    def allocate(self, request, input_id):
        self.__own.allocate(request, input_id)

    def get_cached_input_ids(self, request):
        return self.__own.get_cached_input_ids(request)

    def free_encoder_input(self, request, input_id):
        self.__own.free_encoder_input(request, input_id)

    def free(self, request):
        self.__own.free(request)

    def get_freed_mm_hashes(self):
        return self.__own.get_freed_mm_hashes()

    def reset(self):
        self.__own.reset()
"""


# --- Questions that cannot be asked: 2, one sentence, nothing written ---------------------------------------


def refused(run: Run, folder: Path, *sentence: str) -> None:
    """Checks that a run was refused in one line that has these parts, and left nothing behind."""
    assert run.code == 2
    assert run.out == ""
    assert run.err.startswith("evictcheck: ")
    assert run.err.count("\n") == 1
    for part in sentence:
        assert part in run.err
    assert "Traceback" not in run.err
    assert not (folder / "evictcheck-out").exists()


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("vllm:0.10.1", "vLLM 0.10.1 is older than 0.10.2: its manager is keyed by request and input"),
        ("vllm:no/such/file.py", "no/such/file.py does not exist: pass a file like vLLM's"),
        ("vllm:nonsense", "'nonsense' names no vLLM: give a release (vllm:0.26.0)"),
        ("vllm:", "'vllm:' names no target; a target is one of: port, port:<defect>"),
        ("bogus", "'bogus' names no target; a target is one of: port, port:<defect>"),
        ("port:bogus", "port:bogus: there is no defect 'bogus'; the defects are early-evictable, "),
        ("port:early-evictable+bogus", "there is no defect 'bogus'"),
        (f"cpp:{'x' * 300}", "there is no "),
        ("cmd:./driver 'one", "is no command line that a shell reads: No closing quotation."),
        ("py:json", "py:json is not of the form py:package.module:Class."),
        ("py:no.such:Manager", "importing no.such:Manager raised ModuleNotFoundError (No module named 'no')"),
        ("py:json:Manager", "py:json:Manager: module json has no class Manager."),
        ("py:json:dumps", "py:json:dumps: dumps of module json is no class but of type function."),
        ("py:json:JSONDecoder", "has no check_and_update_cache, can_allocate, "),
    ],
)
def test_a_target_that_cannot_be_had(evictcheck: Command, tmp_path: Path, target: str, sentence: str) -> None:
    refused(evictcheck("check", target, *SMALL), tmp_path, sentence)
    assert written(tmp_path) == []


def test_a_release_that_is_not_published(evictcheck: Command, tmp_path: Path) -> None:
    refused(
        evictcheck("check", "vllm:9.9.9", *SMALL), tmp_path, "vLLM 9.9.9 is not published: the nearest release"
    )


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("x = 1\n", "defines no class EncoderCacheManager"),
        ("class EncoderDecoderCacheManager: ...\n", "another contract"),
        ("def f(:\n", "is not Python: line 1: "),
        ("import no_such_module\n", "imports no_such_module, which fails here"),
        ("1 / 0\n", "cannot be loaded alone: line 1 raises ZeroDivisionError: division by zero"),
        ("class EncoderCacheManager: ...\n", "EncoderCacheManager(cache_size=1) raises TypeError"),
    ],
)
def test_a_file_that_is_no_manager(evictcheck: Command, tmp_path: Path, source: str, sentence: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    refused(evictcheck("check", "vllm:mine.py", *SMALL), tmp_path, sentence)


RAISING = """
from impl.port import PortManager


class AtOnce(PortManager):
    def __init__(self, capacity):
        raise ValueError("no GPU")


class IfSmall(PortManager):
    def __init__(self, capacity):
        if capacity < 4:
            raise ValueError("too small")
        super().__init__(capacity)
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("AtOnce", "AtOnce(4) raised ValueError (no GPU)"),
        ("IfSmall", "to 'new 1' the driver answered 'error ValueError (too small)'"),
    ],
)
def test_a_target_that_raises_in_its_constructor(
    evictcheck: Command, tmp_path: Path, name: str, sentence: str
) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    refused(evictcheck("check", f"py:raising:{name}", *SMALL), tmp_path, sentence)


def test_no_network_and_no_cache(evictcheck: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVICTCHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    upstream._wheels.cache_clear()
    run = evictcheck("check", "vllm:0.26.0", *SMALL)
    refused(run, tmp_path, "vLLM 0.26.0 is not cached and the package index cannot be reached")
    assert written(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--property", "no-crush"),
            "there is no property 'no-crush'; the properties are freed-disjoint-cached, ",
        ),
        (("--expect", "no-crush"), "there is no property 'no-crush'"),
        (
            ("--property", "no-crash", "--expect", "eviction-order"),
            "--expect eviction-order is not among the properties asked about",
        ),
        (("--scope", "2x2"), "scope '2x2' does not start like 2r2i3h"),
        (("--scope", "0r1i1h"), "scope '0r1i1h' has no requests"),
        (("--scope", "1r1i1h/sizes=2..1"), "the range '2..1' must ascend"),
        (("--scope", "1r1i1h/huge"), "the unknown part 'huge'"),
        (("--json", "missing/results.json"), "missing/results.json cannot be written: there is no folder missing"),
        (("--json", "."), ". is a folder; name a file to write"),
        (("--json", "x" * 300), f"{'x' * 300} cannot be written: File name too long"),
        (("--out", "x" * 300), f"{'x' * 300} cannot be written: File name too long"),
        (("--driver", "x" * 300), "is not a file"),
        (("--out", "occupied"), "results cannot go into occupied: occupied is a file"),
        (("--out", "occupied/below"), "results cannot go into occupied/below: "),
    ],
)
def test_a_question_that_cannot_be_asked(
    evictcheck: Command, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "occupied").write_text("taken")
    refused(evictcheck("check", "port:early-evictable", *SMALL, *arguments), tmp_path, sentence)
    assert written(tmp_path) == ["occupied"]
    assert (tmp_path / "occupied").read_text() == "taken"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--discipline", "both"), "'caller', 'open'"),
        (("--seconds", "-1"), "--seconds"),
        (("--seconds", "soon"), "--seconds"),
        (("--jobs", "0"), "--jobs"),
        (("--timeout", "1e300"), "--timeout"),
        (("--no-such-option",), "No such option"),
    ],
)
def test_an_option_that_cannot_be_read(
    evictcheck: Command, tmp_path: Path, arguments: tuple[str, ...], part: str
) -> None:
    run = evictcheck("check", *arguments)
    assert (run.code, run.out) == (2, "")
    assert part in run.err
    assert "evictcheck check --help" in run.err
    assert written(tmp_path) == []


# --- Known violations ---------------------------------------------------------------------------------------


def test_an_expected_violation_passes(evictcheck: Command) -> None:
    run = evictcheck("check", "port:early-evictable", "--expect", "evictable-unreferenced", *SMALL)
    assert run.code == 0
    assert verdicts(run)["evictable-unreferenced"] == "violated"


def test_an_expected_violation_that_is_gone_fails(evictcheck: Command) -> None:
    run = evictcheck("check", "port", "--expect", "evictable-unreferenced", *SMALL)
    assert run.code == 1
    assert "port: --expect evictable-unreferenced, but it is no longer violated; take the option out" in run.out


def test_another_violation_than_the_expected_one_fails(evictcheck: Command) -> None:
    both = "port:early-evictable+unfiltered-freed"
    one = ("--expect", "evictable-unreferenced")
    assert evictcheck("check", both, *one, *SMALL).code == 1
    assert evictcheck("check", both, *one, "--expect", "freed-disjoint-cached", *SMALL).code == 0


def test_an_expected_violation_that_was_not_reached_in_time_is_unknown(evictcheck: Command) -> None:
    run = evictcheck("check", "port", "--expect", "evictable-unreferenced", "--seconds", "0", *SMALL)
    assert run.code == 3
    assert "no longer violated" not in run.out


# --- Files --------------------------------------------------------------------------------------------------


def test_results_as_json(evictcheck: Command, tmp_path: Path) -> None:
    run = evictcheck("check", "port", "port:early-evictable", *SMALL, "--json", "results.json", "--out", "found")
    assert run.code == 1
    document = json.loads((tmp_path / "results.json").read_text())
    assert list(document) == ["format", "reports"]
    assert document["format"] == "evictcheck-check/1"
    first, second = document["reports"]
    assert list(first) == [
        "target",
        "discipline",
        "scope",
        "complete",
        "verdicts",
        "counterexamples",
        "explorations",
        "random_walks",
        "corpus",
    ]
    assert (first["target"], first["discipline"], first["complete"]) == ("port", "caller", True)
    assert first["scope"] == "1r2i2h/sizes=1/capacity=1"
    assert [one["property"] for one in first["verdicts"]] == NAMES
    assert {one["verdict"] for one in first["verdicts"]} == {"holds"}
    assert first["counterexamples"] == []
    assert first["random_walks"] == {"examples": 5, "steps": 30}
    (exploration,) = first["explorations"]
    assert exploration["complete"] is True
    assert list(exploration) == [
        "scope",
        "complete",
        "workloads",
        "states",
        "transitions",
        "calls",
        "unreduced",
        "situations",
        "too_large",
    ]
    assert list(exploration["unreduced"]) == ["workloads", "states", "transitions"]
    (broken,) = [one for one in second["verdicts"] if one["verdict"] != "holds"]
    assert broken == {
        "property": "evictable-unreferenced",
        "verdict": "violated",
        "evidence": "broken in 3 steps",
        "engine": "exhaustive",
        "length": 3,
    }
    (counterexample,) = second["counterexamples"]
    files = counterexample.pop("files")
    assert counterexample == {
        "property": "evictable-unreferenced",
        "engine": "exhaustive",
        "length": 3,
        "call": 6,
        "expected": "a not evictable: input 1 of r1 still needs it",
        "observed": "a is in the evictable queue",
    }
    assert [Path(one).parent for one in files] == [Path("found")] * 3
    trace, note = decode_trace((tmp_path / files[1]).read_bytes(), files[1])
    assert len(trace) == 3
    assert note == "evictable-unreferenced broken in port:early-evictable, found by exhaustive"


def test_no_json_is_left_half_written(evictcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("old")
    refused(evictcheck("check", "bogus", *SMALL, "--json", "results.json"), tmp_path)
    assert (tmp_path / "results.json").read_text() == "old"


def test_brackets_in_what_a_target_says_are_no_markup(
    evictcheck: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bracketed.py").write_text(
        "from impl.port import PortManager\n"
        "class Manager(PortManager):\n"
        "    def allocate(self, request, input_id):\n"
        "        raise ValueError('[bold] and [/nope] and :smile:')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = evictcheck("check", "py:bracketed:Manager", *SMALL, "--out", "out[/red]")
    assert run.code == 1
    assert "broken in 1 step " in run.out
    assert "\n1 step, caller discipline" in run.out
    assert "written: out[/red]/test_py_bracketed_Manager_" in run.out
    for word in ("[bold]", "[/nope]", ":smile:"):
        assert word in run.out


def test_targets_are_listed(evictcheck: Command, tmp_path: Path) -> None:
    run = evictcheck("targets", "--json", "targets.json")
    assert (run.code, run.err) == (0, "")
    for form in FORMS:
        assert form.example in run.out
    for defect in DEFECTS:
        assert f"port:{defect.name} " in run.out
    document = json.loads((tmp_path / "targets.json").read_text())
    assert list(document) == ["format", "forms", "defects", "cached_releases"]
    assert document["format"] == "evictcheck-targets/1"
    assert [one["name"] for one in document["forms"]] == [form.example for form in FORMS]
    assert [one["name"] for one in document["defects"]] == [f"port:{one.name}" for one in DEFECTS]
    assert document["cached_releases"] == list(upstream.cached_releases())


def test_help_says_what_the_exit_codes_mean(evictcheck: Command) -> None:
    run = evictcheck("--help")
    assert run.code == 0
    said = " ".join(run.out.split())
    assert "Exit codes: 0 " in said
    for number in (1, 2, 3):
        assert f"; {number} " in said
    options = evictcheck("check", "--help")
    assert options.code == 0
    for option in (
        "--scope",
        "--discipline",
        "--property",
        "--expect",
        "--seconds",
        "--json",
        "--out",
        "--no-engine",
    ):
        assert f" {option} " in options.out


# --- As a process -------------------------------------------------------------------------------------------


def test_a_pipe_gets_results_alone_and_the_folder_files_alone(tmp_path: Path) -> None:
    process = in_a_process(
        tmp_path, "check", "port:early-evictable", "--property", "evictable-unreferenced", *SMALL
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (1, "")
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 120
    assert written(tmp_path) == ["evictcheck-out"]


def test_walks_leave_nothing_where_the_person_stands(tmp_path: Path) -> None:
    process = in_a_process(tmp_path, "check", "port", "--scope", "1r1i1h/sizes=1/capacity=1", "--jobs", "1")
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert set(written(tmp_path)) <= {"cache"}


def test_a_terminal_gets_progress_and_a_pipe_results(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = in_a_process(tmp_path, "check", "port:early-evictable", *SMALL, stderr=theirs)
    os.close(theirs)
    shown = "".join(screens(ours))
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    spinner = "⠋"
    assert f"{spinner}\x1b[0m port:early-evictable" in shown
    assert spinner not in out
    assert "violated" in out


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_leaves_the_results_so_far(tmp_path: Path, jobs: str) -> None:
    # Exploring that scope takes hours.
    arguments = ["check", "port:early-evictable", "port", "--scope", "3r3i3h", "--jobs", jobs]
    arguments += ["--json", "so-far.json", "--expect", "evictable-unreferenced"]
    ours, theirs = pty.openpty()
    process = in_a_process(tmp_path, *arguments, stderr=theirs)
    os.close(theirs)
    shown = ""
    for screen in screens(ours):
        if "exploring" in screen and "exploring" not in shown:
            process.send_signal(signal.SIGINT)
        shown += screen
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3, out + shown
    assert "Traceback" not in shown
    assert "port:early-evictable: stopped early, so what is unknown is no pass" in out
    (report,) = json.loads((tmp_path / "so-far.json").read_text())["reports"]
    assert report["complete"] is False
    outcomes = {one["property"]: one["verdict"] for one in report["verdicts"]}
    assert outcomes == {**dict.fromkeys(NAMES, "unknown"), "evictable-unreferenced": "violated"}


# --- The engine level ---------------------------------------------------------------------------------------

AT_THE_ENGINE = ("--property", "gather-hits", "--property", "no-redundant-encode", "--seconds", "2")


def test_the_engine_level_is_asked_by_its_properties(evictcheck: Command, tmp_path: Path) -> None:
    run = evictcheck("check", "port", *AT_THE_ENGINE, "--json", "results.json")
    assert run.code == 3, run
    (report,) = json.loads((tmp_path / "results.json").read_text())["reports"]
    assert "verdicts" not in report
    assert {one["property"] for one in report["engine"]["verdicts"]} >= {"gather-hits", "no-redundant-encode"}
    assert "port, engine of 0.33.0, first-come policy" in run.out


def test_a_violation_at_the_engine_level_counts(evictcheck: Command) -> None:
    broken = ("check", "port:early-evictable", *AT_THE_ENGINE)
    assert evictcheck(*broken).code == 1
    assert evictcheck(*broken, "--expect", "no-redundant-encode").code == 3


def test_the_engine_level_cannot_be_asked_about_and_left_out(evictcheck: Command, tmp_path: Path) -> None:
    sentence = "gather-hits is a property of the engine level, which --no-engine leaves out"
    refused(evictcheck("check", "--property", "gather-hits", "--no-engine"), tmp_path, sentence)
