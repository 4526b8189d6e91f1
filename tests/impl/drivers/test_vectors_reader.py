"""A vectors file run against C++ ports by a reader that has nothing of this project's drivers in it.

`vectors_reader.cpp` is what a port's maintainer would keep in their own CI. It and `evictcheck vectors --run` were
written apart from each other, so a call on which they agree is one that the file asks for.
"""

import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from impl.drivers import cpp
from impl.drivers.cpp import find_compiler, port_target, tree_target
from properties.scopes import parse_scope
from properties.vectors import encode_vectors, make_vectors, run_vectors

READER = Path(__file__).with_name("vectors_reader.cpp")
TREES = Path(__file__).parents[1] / "cpp_trees"
OWN = Path(cpp.__file__).with_name("cpp") / "port"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")

VECTORS = make_vectors(parse_scope("2r2i2h/sizes=1/capacity=1"))
FILE = encode_vectors(VECTORS)

Compiled = Callable[[Path, tuple[str, ...]], Path]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The reader, compiled around a tree with some macros defined."""

    @cache
    def compile_reader(tree: Path, macros: tuple[str, ...] = ()) -> Path:
        program = tmp_path_factory.mktemp("reader") / "vectors_reader"
        source = tree / "src" / "vllm" / "v1" / "core" / "encoder_cache_manager.cpp"
        flags = ["-std=c++17", *WARNINGS, *[f"-D{macro}" for macro in macros], f"-I{tree / 'include'}"]
        subprocess.run([*find_compiler(), *flags, str(READER), str(source), "-o", str(program)], check=True)
        return program

    return compile_reader


def run(program: Path, path: Path) -> tuple[int, str, str]:
    done = subprocess.run([str(program), str(path)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def run_on(program: Path, folder: Path, data: bytes) -> tuple[int, str, str]:
    path = folder / "vectors.jsonl"
    path.write_bytes(data)
    return run(program, path)


@pytest.mark.parametrize("tree", [TREES / "mended", OWN], ids=["mended", "own"])
def test_a_right_port_answers_every_call(tree: Path, compiled: Compiled, tmp_path: Path) -> None:
    passed = f"{len(VECTORS.traces)} traces, {VECTORS.calls} calls: every answer as expected\n"
    assert run_on(compiled(tree, ()), tmp_path, FILE) == (0, passed, "")


@pytest.mark.parametrize(
    ("tree", "defects"),
    [
        (TREES / "broken", ()),
        (OWN, ("early-evictable",)),
        (OWN, ("unfiltered-freed",)),
        (OWN, ("early-evictable", "unfiltered-freed")),
    ],
    ids=["broken", "early-evictable", "unfiltered-freed", "both"],
)
def test_a_broken_port_fails_at_the_call_where_evictcheck_says_so(
    tree: Path, defects: Sequence[str], compiled: Compiled, tmp_path: Path
) -> None:
    found, skipped = run_vectors(VECTORS, port_target(defects) if defects else tree_target(tree))
    assert found is not None
    assert skipped == 0
    program = compiled(tree, tuple(cpp.DEFECTS[defect] for defect in defects))
    code, said, _ = run_on(program, tmp_path, FILE)
    assert code == 1
    assert said.startswith(f"{found.engine.removeprefix('vectors, ')}, call {len(found.trace)}: expected ")
    number = int(found.engine.rpartition(" ")[2])
    expected = calls_of(number)[len(found.trace) - 1]
    assert f": expected {expected}, got {expected.split('=')[0].split('/')[0]}" in said


def calls_of(trace: int, data: bytes = FILE) -> list[str]:
    return data.decode().splitlines()[trace].rpartition(':"')[2].removesuffix('"}').split()


def with_answer(trace: int, call: int, token: str) -> bytes:
    """The file with one call's token replaced; traces and calls are counted from one."""
    lines = FILE.decode().splitlines(keepends=True)
    before, calls = lines[trace].rsplit(':"', 1)
    tokens = calls.removesuffix('"}\n').split(" ")
    tokens[call - 1] = token
    lines[trace] = f'{before}:"{" ".join(tokens)}"}}\n'
    return "".join(lines).encode()


def opposite(token: str) -> str:
    return token.translate(str.maketrans("+-", "-+"))


FALSIFIED: dict[str, tuple[Callable[[str], bool], Callable[[str], str]]] = {
    "a check": (lambda asked: asked[0] == "k", opposite),
    "a can-allocate": (lambda asked: asked[0] == "q", opposite),
    "a report that names too much": (lambda asked: asked == "d=", "{}a".format),
    "a report that names too little": (lambda asked: asked == "d=a", lambda _: "d="),
    "other slots": (lambda asked: asked.endswith("/0.1"), lambda asked: asked.replace("/0.1", "/1.1")),
    "a change left out": (lambda asked: "/" in asked, lambda asked: asked.partition("/")[0]),
    "a change put in": (lambda asked: asked[0] == "f" and "/" not in asked, "{}/1.1".format),
    "slots after a reset": (lambda asked: asked[0] == "z" and "/" in asked, lambda _: "z"),
}


@pytest.mark.parametrize("kind", FALSIFIED)
def test_one_falsified_answer_fails_at_its_call(kind: str, compiled: Compiled, tmp_path: Path) -> None:
    falsifies, falsified = FALSIFIED[kind]
    places = [
        (trace, call, token)
        for trace in range(1, len(VECTORS.traces) + 1)
        for call, token in enumerate(calls_of(trace), start=1)
        if falsifies(token)
    ]
    assert places
    for trace, call, token in (places[0], places[-1]):
        wrong = falsified(token)
        code, said, _ = run_on(compiled(TREES / "mended", ()), tmp_path, with_answer(trace, call, wrong))
        assert (code, said) == (1, f"trace {trace}, call {call}: expected {wrong}, got {token}\n")


def test_a_port_that_throws_fails_at_that_call(compiled: Compiled, tmp_path: Path) -> None:
    tree = TREES / "mended"
    throwing = tmp_path / "throwing"
    for file in ("include/vllm/v1/core/encoder_cache_manager.h", "src/vllm/v1/core/encoder_cache_manager.cpp"):
        (throwing / file).parent.mkdir(parents=True)
        text = (tree / file).read_text("utf-8")
        (throwing / file).write_text(
            text.replace("  auto [cit, inserted]", '  cached_.at("nothing");\n  auto [cit, inserted]'), "utf-8"
        )
    code, said, _ = run_on(compiled(throwing, ()), tmp_path, FILE)
    first = next(call for call, token in enumerate(calls_of(1), start=1) if token[0] == "a")
    assert code == 1
    assert said.startswith(f"trace 1, call {first}: expected {calls_of(1)[first - 1]}, got an exception: ")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line 1: it cannot be read, or is empty"),
        (FILE.replace(b"evictcheck-vectors/1", b"evictcheck-vectors/2"), "line 1: there is no {"),
        (FILE.rsplit(b"\n", 2)[0] + b"\n", f"{len(VECTORS.traces) - 1} traces, where {len(VECTORS.traces)} are"),
        (FILE[:-20], f"line {len(VECTORS.traces) + 1}: a string has no end"),
        (FILE.replace(b'"capacity":1', b'"capacity":true', 1), "line 2: there is no number where one must be"),
        (with_answer(1, 1, "x10"), "line 2: there is no such call as x10"),
        (with_answer(1, 1, "k90-"), "line 2: there is no such call as k90-"),
        (with_answer(1, 1, "k"), "line 2: there is no such call as k"),
    ],
)
def test_a_file_that_is_none_is_said_to_be_none(
    data: bytes, said: str, compiled: Compiled, tmp_path: Path
) -> None:
    code, _, error = run_on(compiled(TREES / "mended", ()), tmp_path, data)
    assert code == 2
    assert said in error


def test_a_file_that_is_not_there_and_no_file_at_all(compiled: Compiled, tmp_path: Path) -> None:
    program = compiled(TREES / "mended", ())
    code, _, error = run(program, tmp_path / "none.jsonl")
    assert (code, error) == (2, f"{tmp_path / 'none.jsonl'}, line 1: it cannot be read, or is empty\n")
    alone = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (alone.returncode, alone.stderr) == (2, f"usage: {program} FILE\n")
