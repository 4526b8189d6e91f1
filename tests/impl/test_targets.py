"""What a person can name as a target."""

from pathlib import Path

import pytest

from impl.defects import DEFECTS, Defect, EarlyEvictable, UnfilteredFreed
from impl.errors import TargetError
from impl.inprocess import PythonTarget
from impl.port import PortManager
from impl.target import Shows
from impl.targets import FORMS, resolve


def refusal(name: str) -> str:
    with pytest.raises(TargetError) as error:
        resolve(name)
    return str(error.value)


def python(name: str) -> PythonTarget:
    target = resolve(name)
    assert isinstance(target, PythonTarget)
    return target


def test_port() -> None:
    target = python("port")
    assert (target.name, target.manager_class) == ("port", PortManager)
    assert (target.shows, target.has_reset, target.era) == (Shows.INTERNALS, True, frozenset())


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect(defect: Defect) -> None:
    target = python(f"port:{defect.name}")
    assert (target.name, target.manager_class) == (f"port:{defect.name}", defect.manager_class)


def test_several_defects_are_one_class_with_all_of_them() -> None:
    manager_class = python("port:early-evictable+unfiltered-freed").manager_class
    assert issubclass(manager_class, EarlyEvictable)
    assert issubclass(manager_class, UnfilteredFreed)


def test_a_defect_named_twice_counts_once() -> None:
    assert python("port:early-evictable+early-evictable").manager_class is EarlyEvictable


def test_a_release() -> None:
    target = python("vllm:0.22.1")
    assert (target.name, target.shows, target.has_reset) == ("vllm:0.22.1", Shows.INTERNALS, True)
    assert target.era == {"cached-ids-exact"}
    assert python("vllm:0.33.0").era == frozenset()
    assert not python("vllm:0.15.1").has_reset
    # However it is spelled, it is called by its own name.
    assert python("vllm:v0.26").name == "vllm:0.26.0"


OWN_MODEL = """
class Mine:
    def __init__(self, capacity):
        self.capacity = capacity

    def check_and_update_cache(self, request, input_id):
        return False

    def can_allocate(self, request, input_id, budget, promised):
        return False

    def get_cached_input_ids(self, request):
        return set()

    def get_freed_mm_hashes(self):
        return []

    def allocate(self, request, input_id): ...
    def free_encoder_input(self, request, input_id): ...
    def free(self, request): ...


instance = Mine(1)
"""


def test_a_package_called_model_is_the_persons_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "cache.py").write_text(OWN_MODEL)
    target = resolve("py:model.cache:Mine")
    assert target.name == "py:model.cache:Mine"
    assert target.shows is Shows.RESULTS
    assert refusal("py:model.cache:Other") == "py:model.cache:Other: module model.cache has no class Other."
    sentence = "py:model.cache:instance: instance of module model.cache is no class but of type Mine."
    assert refusal("py:model.cache:instance") == sentence


@pytest.mark.parametrize("name", ["", "ports", "vllm", "vllm:", "py:", "py", "PORT", " port"])
def test_what_is_no_form_is_refused_with_the_forms(name: str) -> None:
    forms = ", ".join(form.example for form in FORMS)
    assert refusal(name) == f"{name!r} names no target; a target is one of: {forms}"


@pytest.mark.parametrize("name", ["port:", "port:none", "port:early-evictable+none", "port:early-evictable+"])
def test_an_unknown_defect_is_refused_with_the_defects(name: str) -> None:
    sentence = refusal(name)
    assert sentence.startswith(f"{name}: there is no defect ")
    for defect in DEFECTS:
        assert defect.name in sentence


@pytest.mark.parametrize("name", ["py:json", "py:json:", "py::JSONDecoder"])
def test_half_a_class_is_refused(name: str) -> None:
    assert refusal(name) == f"{name} is not of the form py:package.module:Class."


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("py:no_such_module:X", "importing no_such_module:X raised ModuleNotFoundError (No module named "),
        ("py:.relative:X", "is not of the form py:package.module:Class"),
        ("py:json:JSONDecoder", "has no check_and_update_cache, can_allocate, allocate, "),
        ("vllm:0.10.1", "older than 0.10.2"),
        ("vllm:nowhere/at/all.py", "does not exist"),
    ],
)
def test_what_cannot_be_had_is_a_sentence(name: str, sentence: str) -> None:
    assert sentence in refusal(name)


def test_every_form_is_described() -> None:
    assert len({form.example for form in FORMS}) == len(FORMS)
    assert all(form.sentence for form in FORMS)
