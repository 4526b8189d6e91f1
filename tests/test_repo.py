"""What must hold of the repository itself: of what git tracks, not of what happens to lie in the folder."""

import re
import shutil
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = frozenset({".ci", "evictcheck", "impl", "model", "properties", "tests"})

# Joined here, so that this file does not name one itself. Clients know their default registry; a name in the
# tree would pin a reader with a mirror to a host that they may not reach.
HOSTS = tuple(
    "".join(halves)
    for halves in (
        ("pypi", ".org"),
        ("python", "hosted"),
        ("registry", ".npmjs"),
        ("registry", ".yarnpkg"),
        ("deb", ".debian.org"),
        ("proxy", ".golang.org"),
        ("crates", ".io"),
    )
)
REGISTRY_HOST = re.compile("|".join(map(re.escape, HOSTS)), re.IGNORECASE)
MACHINE_PATH = re.compile(
    r"(?:^|[^A-Za-z0-9_.])(?:/(?:work|farm|tmp|root|home|Users)/[A-Za-z]|[A-Za-z]:[\\/]+Users[\\/])"
)


def git(root: Path, *arguments: str) -> str:
    executable = shutil.which("git")
    assert executable, "git is not on the PATH, and these tests ask it what is tracked"
    run = subprocess.run(
        [executable, "-C", str(root), *arguments], check=True, capture_output=True, encoding="utf-8"
    )
    return run.stdout


def tracked(root: Path) -> dict[str, str]:
    """Return git's mode of every tracked file, by path."""
    rows = (row.split("\t", 1) for row in git(root, "ls-files", "--stage", "-z").split("\0") if row)
    return {path: stage.split()[0] for stage, path in rows}


def text_faults(root: Path, pattern: re.Pattern[str]) -> list[str]:
    """Return one `file:line: text` for each line of a tracked text file that `pattern` occurs in."""

    def lines() -> Iterator[tuple[str, int, str]]:
        for path in tracked(root):
            file = root / path
            # A file deleted but not yet staged is still tracked; a NUL byte is git's sign of a binary file.
            if file.is_file() and b"\0" not in (content := file.read_bytes()):
                for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
                    yield path, number, line

    return [f"{path}:{number}: {line.strip()}" for path, number, line in lines() if pattern.search(line)]


def unexpected_folders(root: Path) -> set[str]:
    return {path.split("/")[0] for path in tracked(root) if "/" in path} - TOP_LEVEL


def pins(lock: str) -> dict[str, set[Version]]:
    """Return the versions that a lock file pins, by canonical name: several where markers choose."""
    found: dict[str, set[Version]] = defaultdict(set)
    for line in lock.splitlines():
        if line and not line.startswith((" ", "#")):
            requirement = Requirement(line.removesuffix("\\").strip())
            found[canonicalize_name(requirement.name)] |= {
                Version(specifier.version) for specifier in requirement.specifier
            }
    return found


def lock_faults(pyproject: str, lock: str) -> list[str]:
    """Return a sentence for each requirement of pyproject.toml that the lock leaves out or contradicts."""
    project = tomllib.loads(pyproject)["project"]
    extras: dict[str, list[str]] = project.get("optional-dependencies", {})
    locked = pins(lock)
    sentences: list[str] = []
    for origin, texts in {"dependencies": project["dependencies"], **extras}.items():
        for text in texts:
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            if name == canonicalize_name(project["name"]):
                missing = requirement.extras - extras.keys()
                sentences += [f"{origin}: {text} names no extra of this project" for _ in missing]
            elif name not in locked:
                sentences.append(f"{origin}: {text} is not in the lock")
            else:
                sentences += [
                    f"{origin}: {text} does not allow the locked {version}"
                    for version in sorted(locked[name])
                    if not requirement.specifier.contains(version, prereleases=True)
                ]
    return sentences


def test_no_tracked_file_names_a_registry_host() -> None:
    assert not text_faults(ROOT, REGISTRY_HOST)


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    assert not text_faults(ROOT, MACHINE_PATH)


def test_top_level_holds_the_four_rooms_and_what_tools_require() -> None:
    assert not unexpected_folders(ROOT)


def test_ci_script_can_be_executed() -> None:
    assert tracked(ROOT)[".ci/run"] == "100755"


def test_lock_agrees_with_pyproject() -> None:
    pyproject, lock = (ROOT / name for name in ("pyproject.toml", "requirements.lock"))
    assert not lock_faults(pyproject.read_text("utf-8"), lock.read_text("utf-8"))


@pytest.fixture
def seeded(tmp_path: Path) -> Path:
    """A repository with one innocent file, one binary file and a script without its run bit."""
    files = {"model/a.py": b"x = 1\n", "model/b.bin": b"\0", ".ci/run": b"echo\n"}
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    return tmp_path


@pytest.mark.parametrize("host", HOSTS)
def test_a_seeded_registry_host_is_caught(seeded: Path, host: str) -> None:
    assert not text_faults(seeded, REGISTRY_HOST)
    (seeded / "model/a.py").write_text(f"x = 1\nurl = 'https://{host}/simple'\n", "utf-8")
    assert text_faults(seeded, REGISTRY_HOST) == [f"model/a.py:2: url = 'https://{host}/simple'"]


@pytest.mark.parametrize(
    "parts",
    [("", "home", "someone"), ("", "tmp", "x"), ("", "root", "x"), ("", "Users", "x"), ("C:", "Users", "x")],
)
@pytest.mark.parametrize("before", ["", "see ", "file://", "'"])
def test_a_seeded_machine_path_is_caught(seeded: Path, parts: tuple[str, ...], before: str) -> None:
    assert not text_faults(seeded, MACHINE_PATH)
    line = before + "/".join(parts)
    (seeded / "model/a.py").write_text(f"x = 1\n{line}\n", "utf-8")
    assert text_faults(seeded, MACHINE_PATH) == [f"model/a.py:2: {line}"]


def test_an_untracked_file_is_nobodys_business(seeded: Path) -> None:
    (seeded / "new").mkdir()
    (seeded / "new/notes.txt").write_text(HOSTS[0], "utf-8")
    assert not text_faults(seeded, REGISTRY_HOST)
    assert not unexpected_folders(seeded)


def test_a_seeded_folder_is_caught(seeded: Path) -> None:
    (seeded / "scripts").mkdir()
    (seeded / "scripts/a.sh").touch()
    git(seeded, "add", "scripts")
    assert unexpected_folders(seeded) == {"scripts"}


def test_a_missing_run_bit_is_seen(seeded: Path) -> None:
    assert tracked(seeded)[".ci/run"] == "100644"
    git(seeded, "update-index", "--chmod=+x", ".ci/run")
    assert tracked(seeded)[".ci/run"] == "100755"


PYPROJECT = """
[project]
name = "Sample"
dependencies = ["Direct_Need>=2,<3"]

[project.optional-dependencies]
test = ["tester>=1"]
dev = ["sample[test]"]
"""
LOCK = """# header
direct-need==2.5 ; sys_platform == 'win32' \\
    --hash=sha256:00
    # via sample
direct-need==2.4 ; sys_platform != 'win32' \\
    --hash=sha256:00
tester==1.0
"""


def test_a_lock_that_agrees_passes() -> None:
    assert not lock_faults(PYPROJECT, LOCK)


@pytest.mark.parametrize(
    ("pyproject", "lock", "sentence"),
    [
        (
            PYPROJECT,
            LOCK.replace("2.4", "3.0"),
            "dependencies: Direct_Need>=2,<3 does not allow the locked 3.0",
        ),
        (PYPROJECT, LOCK.replace("tester", "other"), "test: tester>=1 is not in the lock"),
        (PYPROJECT.replace("[test]", "[tests]"), LOCK, "dev: sample[tests] names no extra of this project"),
    ],
)
def test_a_lock_that_disagrees_is_caught(pyproject: str, lock: str, sentence: str) -> None:
    assert lock_faults(pyproject, lock) == [sentence]
