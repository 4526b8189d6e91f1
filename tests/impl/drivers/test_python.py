"""Python classes in an interpreter of their own."""

import sys
import textwrap
from pathlib import Path

import pytest

from impl.defects import EarlyEvictable, EmptyQueueRaises, FreedRequestStaysListed, ResetKeepsPending
from impl.drivers.client import DriverTarget
from impl.drivers.python import class_target, installed_target
from impl.errors import TargetError
from impl.inprocess import python_target
from impl.port import PortManager
from impl.target import Shows
from model.operations import Allocate, CanAllocate, Check, Discipline, Drain, FreeInput, Step, Trace
from model.workload import Item, Request, Workload
from properties.counterexample import replay
from properties.exploration import Exploration, explore
from properties.lockstep import Lockstep
from properties.scopes import parse_scope

ROOT = Path(__file__).parents[3]
SCOPE = "2r1i2h/sizes=1/capacity=1"

MANAGER = '''
from collections import OrderedDict


class Cache:
    """Upstream's methods, written once more; knows nothing of evictcheck."""

    def __init__(self, cache_size):
        self.cache_size = cache_size
        self.reset()

    def reset(self):
        self.num_free_slots = self.num_freeable_slots = self.cache_size
        self.holders, self.queue, self.gone, self.held = {}, OrderedDict(), [], {}

    def check_and_update_cache(self, request, i):
        mm_hash = request.mm_features[i].identifier
        if mm_hash not in self.holders:
            return False
        if mm_hash in self.queue:
            self.num_freeable_slots -= self.queue.pop(mm_hash)
        self.hold(request, i, mm_hash)
        return True

    def hold(self, request, i, mm_hash):
        self.holders[mm_hash].add((request.request_id, i))
        self.held.setdefault(request.request_id, set()).add(i)

    def can_allocate(self, request, i, budget, promised):
        embeds = request.get_num_encoder_embeds(i)
        if embeds > budget or embeds + promised > self.num_freeable_slots:
            return False
        while embeds + promised > self.num_free_slots:
            mm_hash, size = self.queue.popitem(last=False)
            del self.holders[mm_hash]
            self.gone.append(mm_hash)
            self.num_free_slots += size
        return True

    def allocate(self, request, i):
        mm_hash, embeds = request.mm_features[i].identifier, request.get_num_encoder_embeds(i)
        self.holders[mm_hash] = set()
        self.num_free_slots -= embeds
        self.num_freeable_slots -= embeds
        self.hold(request, i, mm_hash)

    def get_cached_input_ids(self, request):
        return self.held.get(request.request_id, set())

    def free_encoder_input(self, request, i):
        if i not in self.get_cached_input_ids(request):
            return
        self.held[request.request_id].remove(i)
        mm_hash = request.mm_features[i].identifier
        self.holders[mm_hash].remove((request.request_id, i))
        if not self.holders[mm_hash]:
            self.queue[mm_hash] = request.get_num_encoder_embeds(i)
            self.num_freeable_slots += self.queue[mm_hash]

    def free(self, request):
        for i in sorted(self.get_cached_input_ids(request)):
            self.free_encoder_input(request, i)

    def get_freed_mm_hashes(self):
        gone, self.gone = self.gone, []
        return [mm_hash for mm_hash in gone if mm_hash not in self.holders]
'''


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's current directory, with a package that is called like one of this project's."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "__init__.py").touch()
    (tmp_path / "model" / "cache.py").write_text(MANAGER, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def explored(target: DriverTarget, discipline: Discipline = Discipline.OPEN) -> Exploration:
    exploration = explore(target, parse_scope(SCOPE), discipline)
    target.close()
    return exploration


def broken(target: DriverTarget) -> set[str]:
    return {one.violation.property for one in explored(target).counterexamples}


@pytest.mark.parametrize("with_init", [True, False])
def test_a_users_own_package_called_model_is_theirs(
    tree: Path, with_init: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where evictcheck's own packages are on the path of the child as well."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if not with_init:
        (tree / "model" / "__init__.py").unlink()
    target = class_target("model.cache:Cache")
    assert target.name == "py:model.cache:Cache"
    assert target.shows is Shows.COUNTERS
    assert target.has_reset
    assert not broken(target)


def test_a_fault_in_a_users_tree_is_found(tree: Path) -> None:
    source = tree / "model" / "cache.py"
    source.write_text(MANAGER.replace(" if mm_hash not in self.holders]", "]"), "utf-8")
    assert broken(class_target("model.cache:Cache")) == {"freed-disjoint-cached"}


def test_an_interpreter_of_ones_own_is_used(tree: Path, tmp_path: Path) -> None:
    """The driver runs without a single installed package."""
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', "utf-8")
    bare.chmod(0o755)
    (tree / "model" / "cache.py").write_text(
        f"import sys\nassert not any('site-packages' in entry for entry in sys.path)\n{MANAGER}", "utf-8"
    )
    assert not broken(class_target("model.cache:Cache", python=str(bare)))


@pytest.mark.parametrize(
    "manager_class", [EarlyEvictable, EmptyQueueRaises, FreedRequestStaysListed, ResetKeepsPending]
)
@pytest.mark.parametrize("discipline", Discipline)
def test_a_child_interpreter_and_this_one_judge_alike(
    manager_class: type[PortManager], discipline: Discipline
) -> None:
    """Internals included: the same counterexamples, found in as many calls."""
    scope = parse_scope("1r2i2h/sizes=1/capacity=1")
    outside = class_target(f"impl.defects:{manager_class.__name__}")
    assert outside.shows is Shows.INTERNALS
    seen = explore(outside, scope, discipline)
    right = explore(python_target(outside.name, manager_class), scope, discipline)
    assert seen.counterexamples == right.counterexamples
    assert seen.calls == right.calls
    outside.close()


def test_names_of_upstreams_that_hold_something_else_are_no_internals(tree: Path) -> None:
    other = MANAGER.replace("self.holders", "self.cached").replace("self.queue", "self.freeable")
    other = other.replace("self.gone", "self.freed")
    (tree / "model" / "cache.py").write_text(other, "utf-8")
    target = class_target("model.cache:Cache")
    assert target.shows is Shows.COUNTERS, "its entries are held by pairs, not by requests"
    assert not broken(target)


def test_what_a_manager_prints_and_reads_is_not_taken_for_answers(tree: Path) -> None:
    noisy = MANAGER.replace(
        "    def allocate(self, request, i):\n",
        "    def allocate(self, request, i):\n"
        "        print('allocating'); assert not __import__('sys').stdin.read()\n",
    )
    (tree / "model" / "cache.py").write_text(noisy, "utf-8")
    assert not broken(class_target("model.cache:Cache"))


@pytest.mark.parametrize(
    ("spec", "content", "sentence"),
    [
        ("model.cache:Nothing", MANAGER, "model.cache:Nothing: module model.cache has no class Nothing."),
        ("model.cache:Cache.Inner", MANAGER, "module model.cache has no class Cache.Inner."),
        ("model.cache:Cache", "Cache = 1", "Cache of module model.cache is no class but of type int."),
        ("model.cache:Cache", "import os; os.nothing", "importing model.cache:Cache raised AttributeError"),
        ("model.absent:Cache", MANAGER, "importing model.absent:Cache raised ModuleNotFoundError"),
        ("model.cache:Cache", "raise SystemExit(1)", "importing model.cache:Cache raised SystemExit (1)"),
        ("model.cache:Cache", "class Cache: pass", "has no check_and_update_cache, can_allocate"),
        (
            "model.cache:Cache",
            MANAGER.replace("(self, cache_size)", "(self, cache_size, more)"),
            "a manager is made of its capacity alone",
        ),
        ("model.cache", MANAGER, "py:model.cache is not of the form py:package.module:Class"),
        ("model.cache:Cache:x", MANAGER, "is not of the form py:package.module:Class"),
    ],
)
def test_what_cannot_be_judged_is_a_sentence(tree: Path, spec: str, content: str, sentence: str) -> None:
    (tree / "model" / "cache.py").write_text(content, "utf-8")
    with pytest.raises(TargetError) as error:
        class_target(spec)
    assert sentence in str(error.value)
    assert str(error.value).endswith(".")


def test_an_interpreter_that_is_none_is_a_sentence() -> None:
    with pytest.raises(TargetError, match="does not speak the driver protocol: the driver exited with status 1"):
        class_target("model.cache:Cache", python="false")


def test_forks_are_independent_and_keep_their_past() -> None:
    target = class_target("impl.port:PortManager")
    judge = Lockstep(target, Workload(1, (Request("r1", (Item("a", 1), Item("b", 1))),), 1))
    assert judge.apply(CanAllocate("r1", 0, 1, 0)) is None
    twin = judge.fork()
    assert judge.apply(Allocate("r1", 0)) is None
    assert twin.apply(Allocate("r1", 1)) is None
    assert judge.apply(Check("r1", 0)) is None
    assert twin.apply(Check("r1", 0)) is None
    assert judge.in_accord
    assert twin.in_accord
    target.close()


def test_state_outside_of_the_manager_is_a_sentence(tree: Path) -> None:
    """Making the same calls of a new manager then answers otherwise."""
    forgetful = MANAGER.replace(
        "    def get_freed_mm_hashes(self):\n",
        "    drains = []\n\n    def get_freed_mm_hashes(self):\n"
        "        self.drains.append(1)\n        self.gone = ['a'] * (len(self.drains) > 1)\n",
    )
    (tree / "model" / "cache.py").write_text(forgetful, "utf-8")
    judge = Lockstep(class_target("model.cache:Cache"), Workload(1, (), 1))
    assert judge.apply(Drain()) is None
    with pytest.raises(
        TargetError, match="does not do the same thing twice: to 'drain' it answered '0', and '1 a'"
    ):
        judge.fork().apply(Drain())


def test_an_exception_is_told_as_if_raised_here() -> None:
    workload = Workload(1, (Request("r1", (Item("a", 1), Item("b", 1))),), 1)
    calls = (CanAllocate("r1", 0, 1, 0), Allocate("r1", 0), CanAllocate("r1", 1, 1, 0))
    trace = Trace(workload, Discipline.OPEN, tuple(Step((call,)) for call in calls))
    target = class_target("impl.defects:EmptyQueueRaises")
    violation = replay(trace, target)
    assert violation is not None
    assert violation.property == "no-crash"
    assert violation.observed == "it raised KeyError ('dictionary is empty')"
    target.close()


def test_names_that_could_break_a_line_are_carried_through() -> None:
    names = ["a b", "c\nd", "%20", "é", "-1", "0"]
    requests = tuple(Request(f"{name}!", (Item(name, 1), Item("x", 1))) for name in names)
    target = class_target("impl.port:PortManager")
    judge = Lockstep(target, Workload(1, requests, 1))
    for name in names:
        for call in (
            Check(f"{name}!", 0),
            CanAllocate(f"{name}!", 0, 1, 0),
            Allocate(f"{name}!", 0),
        ):
            assert judge.apply(call) is None
            assert judge.in_accord
        assert judge.apply(FreeInput(f"{name}!", 0)) is None
    assert judge.apply(Drain()) is None
    assert judge.in_accord
    target.close()


def test_an_installed_vllm_is_imported_whole(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own packages, not with stand-ins; and its era is known by what it keeps."""
    package = tree / "vllm" / "v1" / "core"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (tree / "vllm" / "real.py").write_text("IMPORTED = True\n", "utf-8")
    module = f"from vllm.real import IMPORTED\nassert IMPORTED\n{MANAGER}\nEncoderCacheManager = Cache\n"
    (package / "encoder_cache_manager.py").write_text(module, "utf-8")
    target = installed_target(sys.executable)
    assert target.name == "vllm:installed"
    assert not target.era
    assert not broken(target)
    shown = textwrap.dedent(
        """
        class Old(Cache):
            cached = property(lambda self: {h: {r for r, _ in held} for h, held in self.holders.items()})
            freeable = property(lambda self: self.queue)
            freed = property(lambda self: self.gone)
        EncoderCacheManager = Old
        """
    )
    (package / "encoder_cache_manager.py").write_text(module + shown, "utf-8")
    assert installed_target(sys.executable).era == {"cached-ids-exact"}


def test_no_installed_vllm_is_a_sentence(tree: Path) -> None:
    with pytest.raises(TargetError, match=r"vllm:installed: importing vllm\.v1.* raised ModuleNotFoundError"):
        installed_target(sys.executable)


DYING = """
import os

from impl.port import PortManager


class Exits(PortManager):
    def allocate(self, request, input_id):
        os._exit(3)


class Interrupts(PortManager):
    def allocate(self, request, input_id):
        raise KeyboardInterrupt
"""


@pytest.mark.parametrize("name", ["Exits", "Interrupts"])
def test_a_manager_that_ends_its_interpreter_is_judged_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    target = class_target(f"dying:{name}")
    found = explore(target, parse_scope("1r1i1h/sizes=1/capacity=1"), Discipline.OPEN)
    assert [(one.violation.property, len(one.trace)) for one in found.counterexamples] == [("no-crash", 1)]
