"""C++ ports: the project's own, and trees of any maintainer, by results and counters alone."""

import os
import subprocess
from pathlib import Path

import pytest

from impl.drivers import cpp
from impl.drivers.client import DriverTarget
from impl.drivers.cpp import port_target, tree_target
from impl.errors import TargetError
from impl.target import Shows
from model.operations import Discipline
from model.workload import Item, Request, Workload
from properties.counterexample import Counterexample
from properties.exploration import Exploration, explore, explore_classes
from properties.scopes import WorkloadClass, parse_scope

TREES = Path(__file__).parents[1] / "cpp_trees"
BROKEN, MENDED = TREES / "broken", TREES / "mended"
HEADER = "include/vllm/v1/core/encoder_cache_manager.h"
SOURCE = "src/vllm/v1/core/encoder_cache_manager.cpp"
CALLERS_SIDE = Path(__file__).with_name("callers_side.cpp")

# Steps of the shortest counterexamples that vllm:0.26.0 has at the default scope, and the smallest scopes in which
# they show.
OF_0_26 = {
    Discipline.CALLER: {"evictable-unreferenced": 3, "freed-disjoint-cached": 5},
    Discipline.OPEN: {"evictable-unreferenced": 2, "freed-disjoint-cached": 5},
}
ENOUGH = {Discipline.CALLER: "2r2i3h/sizes=1/capacity=2", Discipline.OPEN: "1r2i2h"}

# In a smaller one both show as well, the second a step later.
SMALL = "2r2i2h/sizes=1/capacity=1"
EARLY, UNFILTERED = {"evictable-unreferenced": 3}, {"freed-disjoint-cached": 6}


def explored(target: DriverTarget, discipline: Discipline, scope: str) -> Exploration:
    exploration = explore(target, parse_scope(scope), discipline)
    assert exploration.complete
    return exploration


def lengths(
    target: DriverTarget, discipline: Discipline = Discipline.CALLER, scope: str = SMALL
) -> dict[str, int]:
    found = explored(target, discipline, scope).counterexamples
    return {one.violation.property: len(one.trace) for one in found}


def changed(tree: Path, to: Path, *changes: tuple[str, str, str]) -> Path:
    """A copy of a tree in which, for each (file, old, new), all of old is replaced."""
    for file in (HEADER, SOURCE):
        (to / file).parent.mkdir(parents=True)
        text = (tree / file).read_text("utf-8")
        for where, old, new in changes:
            if where == file:
                assert old in text, f"{file} of {tree.name} has no {old!r}"
                text = text.replace(old, new)
        (to / file).write_text(text, "utf-8")
    return to


# --- Both problems, both mended ----------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", Discipline)
def test_the_broken_tree_has_both_violations_as_short_as_the_release(discipline: Discipline) -> None:
    target = tree_target(BROKEN)
    assert target.shows is Shows.COUNTERS
    assert target.has_reset
    assert lengths(target, discipline, ENOUGH[discipline]) == OF_0_26[discipline]


@pytest.mark.parametrize("discipline", Discipline)
def test_the_mended_tree_has_none(discipline: Discipline) -> None:
    target = tree_target(MENDED)
    assert target.shows is Shows.COUNTERS
    assert not lengths(target, discipline, ENOUGH[discipline])


@pytest.mark.parametrize(
    ("defects", "found"),
    [
        ((), {}),
        (("early-evictable",), EARLY),
        (("unfiltered-freed",), UNFILTERED),
        (("early-evictable", "unfiltered-freed"), EARLY | UNFILTERED),
    ],
)
def test_each_switch_of_the_projects_own_port_seeds_one_problem(
    defects: tuple[str, ...], found: dict[str, int]
) -> None:
    target = port_target(defects)
    assert target.name == "cpp:port" + (":" if defects else "") + "+".join(defects)
    assert lengths(target) == found


def test_an_unknown_switch_is_a_sentence() -> None:
    with pytest.raises(TargetError, match="no defect 'other'; it has early-evictable, unfiltered-freed"):
        port_target(("other",))


def test_the_projects_own_sources_compile_without_a_warning() -> None:
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    own = Path(cpp.__file__).with_name("cpp") / "port"
    for switches in ([], [f"-D{switch}" for switch in cpp.DEFECTS.values()]):
        cpp.build("own", cpp.find_tree("own", own), flags=[*warnings, *switches])
    cpp.build("own", cpp.find_tree("own", BROKEN), driver=CALLERS_SIDE, flags=warnings)


def test_a_warning_would_have_been_an_error(tmp_path: Path) -> None:
    tree = changed(
        MENDED, tmp_path, (SOURCE, "  freed_.clear();\n  return freed;", "  return freed;\n  int unused;")
    )
    with pytest.raises(TargetError, match="unused"):
        cpp.build("own", cpp.find_tree("own", tree), flags=["-Wall", "-Werror"])


# --- Shapes ------------------------------------------------------------------------------------------------


def test_the_two_files_may_lie_in_one_folder(tmp_path: Path) -> None:
    include = '#include "vllm/v1/core/encoder_cache_manager.h"'
    header, source = tmp_path / "encoder_cache_manager.h", tmp_path / "encoder_cache_manager.cpp"
    header.write_text((MENDED / HEADER).read_text("utf-8"), "utf-8")
    text = (MENDED / SOURCE).read_text("utf-8")
    source.write_text(text.replace(include, '#include "encoder_cache_manager.h"'), "utf-8")
    assert tree_target(tmp_path).shows is Shows.COUNTERS
    assert tree_target(source).shows is Shows.COUNTERS


def test_header_and_source_may_be_named(tmp_path: Path) -> None:
    target = tree_target(tmp_path, include=[MENDED / "include"], source=[MENDED / SOURCE])
    assert target.shows is Shows.COUNTERS


NO_COUNTERS = (
    (HEADER, "  int64_t num_free_slots() const { return num_free_slots_; }\n", ""),
    (HEADER, "  int64_t num_freeable_slots() const { return num_freeable_slots_; }\n", ""),
)


def test_a_tree_without_counters_and_reset_shows_its_results(tmp_path: Path) -> None:
    source = (BROKEN / SOURCE).read_text("utf-8")
    reset = source[source.index("void EncoderCacheManager::Reset()") : source.index("}  // namespace")]
    tree = changed(BROKEN, tmp_path, *NO_COUNTERS, (HEADER, "  void Reset();\n", ""), (SOURCE, reset, ""))
    target = tree_target(tree)
    assert target.capabilities == {"ids"}
    assert target.shows is Shows.RESULTS
    assert not target.has_reset
    assert lengths(target)["freed-disjoint-cached"] == 6


def test_a_tree_that_lists_no_inputs_is_judged_by_the_rest(tmp_path: Path) -> None:
    lister = "  std::set<int> GetCachedInputIds(const std::string& request_id) const;\n"
    for name, tree, found in (
        ("broken", BROKEN, EARLY | UNFILTERED),
        ("mended", MENDED, {}),
    ):
        private = changed(
            tree, tmp_path / name, (HEADER, lister, ""), (HEADER, " private:\n", f" private:\n{lister}")
        )
        target = tree_target(private)
        assert target.capabilities == {"counters", "reset"}
        assert lengths(target) == found


FREE_IN_HEADER = "const std::string& mm_hash,\n                        int64_t num_embeds);"
FREE_IN_SOURCE = "const std::string& mm_hash, int64_t num_embeds) {\n  auto rit"
DROPPED = "  cit->second.erase(request_id);\n"
HANDED_OVER = {
    "std::vector<std::string>": "for (int id : GetCachedInputIds(request_id)) if (others[id] == mm_hash) return;",
    "std::set<std::string>": "if (others.count(mm_hash)) return;",
    "std::unordered_map<int, std::string>": (
        "for (int id : GetCachedInputIds(request_id)) if (others.at(id) == mm_hash) return;"
    ),
}


@pytest.mark.parametrize("handed_over", HANDED_OVER)
def test_a_fix_that_takes_the_requests_other_inputs(handed_over: str, tmp_path: Path) -> None:
    tree = changed(
        BROKEN,
        tmp_path,
        (HEADER, FREE_IN_HEADER, FREE_IN_HEADER.replace(");", f", const {handed_over}& others);")),
        (SOURCE, FREE_IN_SOURCE, FREE_IN_SOURCE.replace(") {", f", const {handed_over}& others) {{")),
        (SOURCE, DROPPED, f"  {HANDED_OVER[handed_over]}\n{DROPPED}"),
    )
    assert lengths(tree_target(tree)) == UNFILTERED


def test_a_fix_in_the_callers_is_judged_by_a_driver_of_ones_own() -> None:
    assert "--driver" in tree_target(BROKEN).hints["evictable-unreferenced"]
    target = tree_target(BROKEN, driver=CALLERS_SIDE)
    assert not target.hints
    assert lengths(target) == UNFILTERED


# --- What cannot be built ----------------------------------------------------------------------------------


def test_a_tree_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"there is no .*src.*encoder_cache_manager\.cpp: give a folder with"):
        tree_target(tmp_path)
    with pytest.raises(TargetError, match=r"there is no .*encoder_cache_manager\.h: name the folder"):
        tree_target(tmp_path, source=[MENDED / SOURCE])
    with pytest.raises(TargetError, match="there is no driver"):
        tree_target(MENDED, driver=tmp_path / "driver.cpp")


def test_an_error_of_the_compiler_is_told_by_its_first_lines(tmp_path: Path) -> None:
    tree = changed(MENDED, tmp_path, (SOURCE, "return true;", "return ture;"))
    with pytest.raises(TargetError) as error:
        tree_target(tree)
    first, *more = str(error.value).splitlines()
    assert first.startswith(f"cpp:{tree} does not compile with ")
    assert 1 <= len(more) <= 4
    assert f"{SOURCE}:" in more[0]
    assert "ture" in more[0]


def test_a_method_of_another_shape_is_named(tmp_path: Path) -> None:
    tree = changed(MENDED, tmp_path, (HEADER, "FreeEncoderInput", "Free"), (SOURCE, "FreeEncoderInput", "Free"))
    with pytest.raises(TargetError, match="FreeEncoderInput"):
        tree_target(tree)


def test_no_compiler_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match=r"^There is no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\): install one"):
        tree_target(MENDED)
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(TargetError, match="'no-such-compiler' that CXX names is not there"):
        tree_target(MENDED)


def test_a_cxx_that_no_shell_reads_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ '-O1")
    with pytest.raises(TargetError, match=r"^CXX is no command line that a shell reads: No closing quotation\.$"):
        cpp.find_compiler()


def test_what_cxx_names_is_used_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ -O1")
    found = cpp.find_compiler()
    assert os.path.basename(found[0]) == "g++"
    assert found[1:] == ("-O1",)


# --- The cache ---------------------------------------------------------------------------------------------


def test_a_program_is_compiled_again_when_a_file_that_it_includes_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVICTCHECK_CACHE", str(tmp_path / "cache"))
    tree = changed(MENDED, tmp_path / "a tree", (HEADER, "#pragma once", '#pragma once\n#include "more.h"'))
    more = (tree / HEADER).with_name("more.h")
    more.write_text("\n", "utf-8")
    commands: list[object] = []
    run = subprocess.run

    def counted(command: list[str], **options: object) -> object:
        commands.extend([command] if "-c" in command else [])
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", counted)
    found = cpp.find_tree("a", tree)
    program = cpp.build("a", found)
    assert len(commands) == 2
    assert cpp.build("a", found) == program
    assert len(commands) == 2
    more.write_text("// changed\n", "utf-8")
    assert cpp.build("a", found) == program
    assert len(commands) == 4
    assert sorted(file.name for file in program.parent.iterdir()) == ["driver", "inputs"]


# --- Memory errors -----------------------------------------------------------------------------------------

SANITIZERS = ("address", "undefined")
USE_AFTER_FREE = (
    SOURCE,
    "auto [mm_hash, size] = freeable_.front();",
    "auto& [mm_hash, size] = freeable_.front();",
)
POP_OUT_OF_RANGE = (
    (SOURCE, "  if (num_embeds > num_freeable_slots_) return false;\n", ""),
    (
        SOURCE,
        "  while (num_embeds",
        "  std::vector<Freeable::value_type> q(freeable_.begin(), freeable_.end());\n  while (num_embeds",
    ),
    (SOURCE, "auto [mm_hash, size] = freeable_.front();", "auto [mm_hash, size] = q.data()[next++];"),
    (SOURCE, "  while (num_embeds", "  int next = 0;\n  while (num_embeds"),
    (SOURCE, "freeable_.pop_front();", "if (!freeable_.empty()) freeable_.pop_front();"),
)


def crashes(target: DriverTarget, depth: int) -> tuple[Counterexample, ...]:
    """Counterexamples of at most so many calls, in a cache of one embed and a request of two items."""
    workload = Workload(1, (Request("r1", (Item("a", 1), Item("b", 1))),), 1)
    classes = [WorkloadClass(workload, 1)]
    return explore_classes(target, classes, Discipline.OPEN, name="two items", deepest=depth).counterexamples


def test_a_use_after_free_is_found_with_its_place_and_minimal(tmp_path: Path) -> None:
    target = tree_target(changed(MENDED, tmp_path, USE_AFTER_FREE), sanitize=SANITIZERS)
    assert not crashes(target, 2)
    found = crashes(target, 3)
    stories = [[type(call).__name__ for call in one.trace.calls] for one in found]
    assert ["Allocate", "FreeInput", "CanAllocate"] in stories
    for one in found:
        assert one.violation.property == "no-crash"
        assert one.violation.observed.startswith("AddressSanitizer: heap-use-after-free ")
        assert f"{SOURCE}:" in one.violation.observed


def test_a_pop_out_of_range_is_found_and_minimal(tmp_path: Path) -> None:
    target = tree_target(changed(MENDED, tmp_path, *POP_OUT_OF_RANGE), sanitize=SANITIZERS)
    (found,) = crashes(target, 1)
    assert [type(call).__name__ for call in found.trace.calls] == ["CanAllocate"]
    assert found.violation.property == "no-crash"
    assert "Sanitizer: " in found.violation.observed or ": runtime error: " in found.violation.observed


def test_a_clean_tree_is_clean_under_the_sanitizers() -> None:
    assert not crashes(tree_target(MENDED, sanitize=SANITIZERS), 5)
