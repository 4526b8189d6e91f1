"""A counterexample as a pytest file that a person could have written.

It needs the implementation and nothing of evictcheck's: a small stand-in for the request, the calls with the
answers that they got, and at the broken call what the property demands. It fails where the property is
broken and passes where it is mended.
"""

import json
import re
from keyword import iskeyword

from evictcheck.story import step_in_words, workload_in_words
from impl.inprocess import PythonTarget, asked_of_requests
from impl.target import Shows, Target
from model.operations import (
    Allocate,
    CachedIds,
    Call,
    CanAllocate,
    Check,
    Drain,
    FreeInput,
    FreeRequest,
    Reset,
    Result,
    Trace,
)
from model.reference import State, apply, held_inputs
from model.workload import Request, Workload
from properties.counterexample import Counterexample
from properties.lockstep import MEMBERSHIP_ERA, Lockstep
from properties.verdicts import property_named


def pytest_source(counterexample: Counterexample, target: Target) -> str:
    """The file's text."""
    trace, violation = counterexample.trace, counterexample.violation
    found_in = _on_one_line(counterexample.target).replace("\\", "/").replace('"', "'")
    sentence = property_named(violation.property).sentence
    lines = [
        f'"""{violation.property}: {sentence}.',
        "",
        f"Found in {found_in} by evictcheck: {counterexample.engine}, {trace.discipline} discipline.",
        '"""',
        "",
        *_imports(target),
        "",
        "",
        *_mock_request(target),
        "",
        "",
        f"def test_{violation.property.replace('-', '_')}() -> None:",
        f"    # {_on_one_line(workload_in_words(trace.workload))}",
        *[f"    {line}" if line else "" for line in _body(trace, violation.property, target)],
        "",
    ]
    return "\n".join(lines)


def is_python(target: Target) -> bool:
    """Whether a target is a Python class, in this process or in an interpreter of its own."""
    return target.name.partition(":")[0] in ("port", "vllm", "py")


def _imports(target: Target) -> list[str]:
    kind, _, argument = target.name.partition(":")
    if kind == "py":
        module, _, class_name = argument.partition(":")
        return [
            "from types import SimpleNamespace",
            "",
            f"from {module} import {class_name} as EncoderCacheManager",
        ]
    if kind == "port" and isinstance(target, PythonTarget):
        bases = [one for one in target.manager_class.__mro__ if one.__module__ in ("impl.defects", "impl.port")]
        own = target.manager_class if target.manager_class in bases else None
        if own is not None:
            return [
                "from types import SimpleNamespace",
                "",
                f"from {own.__module__} import {own.__name__} as EncoderCacheManager",
            ]
        parts = [base.__name__ for base in target.manager_class.__bases__]
        return [
            "from types import SimpleNamespace",
            "",
            f"from impl.defects import {', '.join(sorted(parts))}",
            "",
            "",
            f"class EncoderCacheManager({', '.join(parts)}):",
            "    pass",
        ]
    return [
        "from types import SimpleNamespace",
        "",
        "from vllm.v1.core.encoder_cache_manager import EncoderCacheManager",
    ]


def _mock_request(target: Target) -> list[str]:
    """A request that answers what managers ask today, and what this one asks by an earlier name."""
    asked = asked_of_requests(target.manager_class) if isinstance(target, PythonTarget) else frozenset()
    lines = [
        "class MockRequest:",
        "    def __init__(self, request_id: str, *items: tuple[str, int]) -> None:",
        "        self.request_id = request_id",
        "        self.mm_features = [SimpleNamespace(identifier=mm_hash) for mm_hash, _ in items]",
    ]
    if "mm_hashes" in asked:
        lines.append("        self.mm_hashes = [mm_hash for mm_hash, _ in items]  # asked up to 0.10.2")
    lines += [
        "        self._sizes = [size for _, size in items]",
        "",
        "    def get_num_encoder_embeds(self, input_id: int) -> int:",
        "        return self._sizes[input_id]",
    ]
    if "get_num_encoder_tokens" in asked:
        lines += ["", "    get_num_encoder_tokens = get_num_encoder_embeds  # asked up to 0.12.0"]
    return lines


def _body(trace: Trace, broken: str, target: Target) -> list[str]:
    names = _variables(trace.workload)
    lines = [f"manager = EncoderCacheManager({trace.workload.capacity})"]
    lines += [f"{names[request.request_id]} = {_construction(request)}" for request in trace.workload.requests]
    judge = Lockstep(target, trace.workload)
    try:
        for step in trace.steps:
            lines += ["", f"# {_on_one_line(step_in_words(step.taken))}"] if step.taken is not None else []
            for call in step.calls:
                before = judge.state
                if judge.apply(call) is not None:
                    return [*lines, *_demand(broken, call, before, target, names)]
                assert judge.last is not None
                # An answer by the rule of another time is no fault, and changes when that release is left behind.
                answer = None if _is_of_its_era(call, target) else judge.last.observed
                lines.append(_answered(_call(call, names), call, answer))
        return lines
    finally:
        judge.close()


def _is_of_its_era(call: Call, target: Target) -> bool:
    return isinstance(call, CachedIds) and MEMBERSHIP_ERA in target.era


_TAKEN = ("all", "freed", "getattr", "manager", "set")
"""Names that the test uses itself."""


def _variables(workload: Workload) -> dict[str, str]:
    """A name for each request: their ids, if all of them can be names."""
    ids = [request.request_id for request in workload.requests]
    usable = all(re.fullmatch(r"[a-z]\w*", name) and not iskeyword(name) and name not in _TAKEN for name in ids)
    return {name: name if usable else f"request_{number}" for number, name in enumerate(ids, start=1)}


def _construction(request: Request) -> str:
    items = [f"({_quoted(item.mm_hash)}, {item.embeds})" for item in request.items]
    return f"MockRequest({', '.join([_quoted(request.request_id), *items])})"


def _call(call: Call, names: dict[str, str]) -> str:
    match call:
        case Check(request_id, input_id):
            return f"manager.check_and_update_cache({names[request_id]}, {input_id})"
        case CanAllocate(request_id, input_id, compute_budget, promised):
            return f"manager.can_allocate({names[request_id]}, {input_id}, {compute_budget}, {promised})"
        case Allocate(request_id, input_id):
            return f"manager.allocate({names[request_id]}, {input_id})"
        case FreeInput(request_id, input_id):
            return f"manager.free_encoder_input({names[request_id]}, {input_id})"
        case FreeRequest(request_id):
            return f"manager.free({names[request_id]})"
        case CachedIds(request_id):
            return f"manager.get_cached_input_ids({names[request_id]})"
        case Drain():
            return "manager.get_freed_mm_hashes()"
        case Reset():
            return "manager.reset()"


def _answered(text: str, call: Call, answer: Result) -> str:
    if isinstance(answer, bool):
        return f"assert {text}" if answer else f"assert not {text}"
    if isinstance(answer, frozenset):
        return f"assert set({text}) == {_set(answer)}"
    return text


def _set(values: frozenset[int] | frozenset[str] | set[str]) -> str:
    if not values:
        return "set()"
    texts = [_quoted(value) if isinstance(value, str) else str(value) for value in sorted(values)]
    return "{" + ", ".join(texts) + "}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _on_one_line(text: str) -> str:
    """For comments and the docstring: a name may hold anything."""
    return "".join([letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text])


def _demand(broken: str, call: Call, before: State, target: Target, names: dict[str, str]) -> list[str]:
    """The broken call, and what the property demands of it."""
    text = _call(call, names)
    after, answer = apply(before, call)
    internals = target.shows is Shows.INTERNALS
    slots = [
        f"assert manager.num_free_slots == {after.free_slots}",
        f"assert manager.num_freeable_slots == {after.freeable_slots}",
    ]
    listings = [
        f"assert set(manager.get_cached_input_ids({name})) == {_set(held_inputs(after, request_id))}"
        for request_id, name in names.items()
    ]
    if broken == "freed-disjoint-cached":
        live = sorted(mm_hash for mm_hash in before.evicted if after.embeds_of(mm_hash))
        absent = [f"assert {_quoted(mm_hash)} not in freed  # it is cached again" for mm_hash in live]
        return [f"freed = {text}", *absent]
    if broken == "evictable-unreferenced":
        held = {after.workload.item(*place).mm_hash for place in after.held}
        if not internals:
            most = after.workload.capacity - sum(after.embeds_of(mm_hash) for mm_hash in held)
            return [text, f"assert manager.num_freeable_slots <= {most}  # the rest is still needed"]
        return [
            text,
            *[f"assert {_quoted(mm_hash)} not in manager.freeable  # still needed" for mm_hash in sorted(held)],
        ]
    if broken == "slots-conserved":
        return [_answered(text, call, answer), *slots]
    if broken == "capacity-respected":
        if isinstance(call, CanAllocate):
            needed = after.workload.item(call.request_id, call.input_id).embeds + call.embeds_to_schedule
            return [f"assert {text}", f"assert manager.num_free_slots >= {needed}  # what it just promised"]
        return [text, "assert manager.num_free_slots >= 0"]
    if broken == "eviction-order" and internals:
        return [
            _answered(text, call, answer),
            f"assert set(manager.cached) == {_set({h for h, _ in after.cached})}",
        ]
    if broken == "cached-ids-exact":
        return listings if isinstance(call, CachedIds) else [_answered(text, call, answer), *listings]
    if broken == "reset-initial" and isinstance(call, Reset):
        kept = ["assert not manager.cached", "assert not manager.freeable", "assert not manager.freed"]
        return [text, *listings, *(slots if target.shows else []), *(kept if internals else [])]
    if broken == "nothing-stale" and isinstance(call, FreeInput | FreeRequest):
        gone = _quoted(call.request_id)
        return [
            text,
            f"assert all({gone} not in holders for holders in manager.cached.values())",
            f'assert {gone} not in getattr(manager, "request_cached_ids", {{}})',
        ]
    if broken == "no-crash":
        return [f"{text}  # it must not raise"]
    return [_answered(text, call, answer)]
