"""A trace in the Informal Trace Format (ITF), which viewers of TLA+, Quint and Apalache traces open.

One state for each call: the reference's state after it, with the call and its answer.
"""

from typing import Any

from model.operations import Call, Result, Trace
from model.reference import State, apply, initial

_VARIABLES = ("call", "answer", "cached", "held", "evictable", "evicted", "free_slots", "freeable_slots")


def itf_document(trace: Trace, note: str) -> dict[str, Any]:
    """The JSON document of a trace; integers are plain numbers, sets and maps are ITF's."""
    state = initial(trace.workload)
    states = [_state(0, state, None, None)]
    for number, call in enumerate(trace.calls, start=1):
        state, answer = apply(state, call)
        states.append(_state(number, state, call, answer))
    return {
        "#meta": {"format": "ITF", "format-description": "Informal Trace Format", "description": note},
        "params": [],
        "vars": list(_VARIABLES),
        "states": states,
    }


def _state(number: int, state: State, call: Call | None, answer: Result) -> dict[str, Any]:
    return {
        "#meta": {"index": number},
        "call": _call(call),
        "answer": _words(answer),
        "cached": {"#map": [[mm_hash, embeds] for mm_hash, embeds in state.cached]},
        "held": _set(sorted(f"{request_id}[{input_id}]" for request_id, input_id in state.held)),
        "evictable": list(state.evictable),
        "evicted": _set(sorted(state.evicted)),
        "free_slots": state.free_slots,
        "freeable_slots": state.freeable_slots,
    }


def _call(call: Call | None) -> str:
    if call is None:
        return "start"
    arguments = ", ".join(str(getattr(call, field)) for field in call.__struct_fields__)
    return f"{call.__struct_config__.tag}({arguments})"


def _words(answer: Result) -> str:
    # One type for all answers: a variable of a trace keeps its type.
    if isinstance(answer, frozenset):
        return "{" + ", ".join(map(str, sorted(answer, key=str))) + "}"
    return "" if answer is None else str(answer)


def _set(values: list[Any]) -> dict[str, list[Any]]:
    return {"#set": values}
