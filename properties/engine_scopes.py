"""Finite worlds for an engine: which requests may come, laid out how, in how small an engine.

A scope is written `2r2i3h/tokens=4`: at most two requests, with at most two items each, out of three hashes, in
prompts of at most four tokens. In one of these prompts there may be a token of text: at its start, between two
items, or at its end. A request without items is two tokens of text. Every hash has one size. Every capacity is
tried from the largest item to `capacity` embeds, or to one that holds everything at once: then nothing is ever
evicted.

Scenes that differ only in the names of requests and hashes behave alike; one of them is enough. Under the priority
policy every order of urgency is tried, ties included.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations_with_replacement, permutations, product
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from model.scheduling import Placement, Policy, Prompt, Scene, SceneError, Setup
from properties.scopes import ScopeError, hash_name


class EngineScope(Struct, frozen=True):
    """Bounds of a finite world around an engine.

    Attributes:
        requests: How many requests at most.
        inputs: Items of each request at most.
        hashes: Distinct hashes at most.
        tokens: Tokens of a prompt at most.
        text: Tokens of text at most in the prompts with items, taken together; one without items is two tokens of
            text.
        sizes: Sizes that a hash may have, in embeds; an item has as many placeholder tokens.
        capacity: The largest capacity of the cache, in embeds.
    """

    requests: int = 2
    inputs: int = 2
    hashes: int = 3
    tokens: int = 4
    text: int = 1
    sizes: tuple[int, ...] = (1, 2)
    capacity: int = 2

    def __str__(self) -> str:
        parts = [f"{self.requests}r{self.inputs}i{self.hashes}h", f"tokens={self.tokens}"]
        if self.text != 1:
            parts.append(f"text={self.text}")
        if self.sizes != (1, 2):
            parts.append(f"sizes={self.sizes[0]}..{self.sizes[-1]}")
        if self.capacity != 2:
            parts.append(f"capacity={self.capacity}")
        return "/".join(parts)


DEFAULT_ENGINE_SCOPE = EngineScope()
_EXAMPLE = "2r2i3h/tokens=4, or 2r2i3h/tokens=5/sizes=1..2/capacity=3"


def parse_engine_scope(text: str) -> EngineScope:
    """Reads a scope as a person writes it.

    Raises:
        ScopeError: It is not of the form, or one of its bounds is zero.
    """
    head, *options = text.strip().split("/")
    match = re.fullmatch(r"([1-9]\d*)r([1-9]\d*)i([1-9]\d*)h", head)
    if match is None:
        raise ScopeError(f"scope {text!r} does not start like 2r2i3h; an engine's scope is written {_EXAMPLE}")
    requests, inputs, hashes = map(int, match.groups())
    scope = EngineScope(requests, inputs, hashes)
    for option in options:
        name, _, value = option.partition("=")
        least = "0" if name == "text" else "1"
        numbers = re.fullmatch(rf"([{least}-9]\d*)(?:\.\.([1-9]\d*))?", value)
        if name not in ("tokens", "text", "sizes", "capacity") or numbers is None:
            raise ScopeError(f"scope {text!r} has the unknown part {option!r}; it is written {_EXAMPLE}")
        low, high = int(numbers[1]), int(numbers[2] or numbers[1])
        if name == "sizes" and low <= high:
            scope = replace(scope, sizes=tuple(range(low, high + 1)))
        elif low == high:
            scope = replace(scope, **{name: low})
        else:
            raise ScopeError(f"scope {text!r}: {option!r} is no such number or range; it is written {_EXAMPLE}")
    return scope


_Form: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""One request: the numbers of its hashes, and the text before each item and at the end, in tokens."""


_Named: TypeAlias = tuple[tuple[tuple[tuple[int, int], ...], tuple[int, ...], int], ...]
"""Requests without names: for each its items as (number of the hash, size), its gaps and its priority."""


def scenes(scope: EngineScope, setup: Setup) -> Iterator[Scene]:
    """Every scene of a scope, small ones first.

    Each set of requests comes first with KV blocks and tokens left to the outside world, and then, for `progress`,
    with a KV capacity (just enough for the longest request, and enough for all) and a fixed number of tokens in
    every pass (the token budget, and one of two tokens).

    Args:
        scope: The bounds.
        setup: The configuration. Its capacity is the scope's business; a KV capacity in it replaces the two.
    """
    for requests in _request_sets(scope, setup):
        for capacity in _capacities(scope, requests):
            sized = replace(setup, capacity=capacity)
            if setup.kv_capacity is None:
                yield from _possible(requests, sized)
            for kv_capacity in _kv_capacities(requests, setup):
                for token_budget in sorted({2, setup.token_budget} & set(range(setup.token_budget + 1))):
                    fixed = replace(sized, kv_capacity=kv_capacity, token_budget=token_budget)
                    yield from _possible(requests, fixed)


def _possible(requests: tuple[Prompt, ...], setup: Setup) -> Iterator[Scene]:
    """The scene, if every request fits; one that does not would not be admitted by the engine."""
    with suppress(SceneError):
        yield Scene(requests, setup)


def _capacities(scope: EngineScope, requests: tuple[Prompt, ...]) -> Iterator[int]:
    sizes = {item.mm_hash: item.embeds for request in requests for item in request.items}
    largest, everything = max(sizes.values(), default=1), sum(sizes.values())
    for capacity in range(largest, scope.capacity + 1):
        yield capacity
        if capacity >= everything:
            return


def _kv_capacities(requests: tuple[Prompt, ...], setup: Setup) -> tuple[int, ...]:
    if setup.kv_capacity is not None:
        return (setup.kv_capacity,)
    lengths = [request.tokens + request.outputs - 1 for request in requests]
    return tuple(dict.fromkeys((max(lengths), sum(lengths))))


def _request_sets(scope: EngineScope, setup: Setup) -> Iterator[tuple[Prompt, ...]]:
    """Every set of requests once, whatever they and their hashes are called."""
    found: dict[_Named, tuple[Prompt, ...]] = {}
    forms = list(_forms(scope))
    for number in range(1, scope.requests + 1):
        for chosen in combinations_with_replacement(forms, number):
            used = sorted({mm_hash for hashes, _ in chosen for mm_hash in hashes})
            text = sum(sum(gaps) for hashes, gaps in chosen if hashes)
            if used != list(range(len(used))) or not used or text > scope.text:
                continue
            for sizes in product(scope.sizes, repeat=len(used)):
                for priorities in _priorities(number, setup.policy):
                    requests = _prompts(chosen, sizes, priorities)
                    if all(request.tokens <= scope.tokens for request in requests):
                        found.setdefault(_named(chosen, sizes, priorities), requests)
    by_length = sorted(found.items(), key=lambda one: (sum(request.tokens for request in one[1]), one[0]))
    yield from (requests for _, requests in sorted(by_length, key=lambda one: len(one[1])))


def _prompts(chosen: tuple[_Form, ...], sizes: tuple[int, ...], priorities: tuple[int, ...]) -> tuple[Prompt, ...]:
    return tuple(
        _prompt(f"r{place}", form, sizes, priority)
        for place, (form, priority) in enumerate(zip(chosen, priorities, strict=True), start=1)
    )


def _named(chosen: tuple[_Form, ...], sizes: tuple[int, ...], priorities: tuple[int, ...]) -> _Named:
    """The same for two sets of requests that renaming makes equal: the least of their namings."""
    together = list(zip(chosen, priorities, strict=True))
    return min(_first_naming(order, sizes) for order in permutations(together))


def _first_naming(order: Sequence[tuple[_Form, int]], sizes: tuple[int, ...]) -> _Named:
    numbers: dict[int, int] = {}
    named = []
    for (hashes, gaps), priority in order:
        renamed = tuple((numbers.setdefault(one, len(numbers)), sizes[one]) for one in hashes)
        named.append((renamed, gaps, priority))
    return tuple(named)


def _priorities(number: int, policy: Policy) -> Iterator[tuple[int, ...]]:
    """Every order of urgency, ties included: only the order matters, so that priorities are ranks without gaps."""
    if policy is Policy.FIRST_COME:
        yield (0,) * number
        return
    for ranks in product(range(number), repeat=number):
        if set(ranks) == set(range(max(ranks) + 1)):
            yield ranks


def _forms(scope: EngineScope) -> Iterator[_Form]:
    for number in range(1, scope.inputs + 1):
        for hashes in product(range(scope.hashes), repeat=number):
            for gaps in product((0, 1), repeat=number + 1):
                if number and sum(gaps) <= scope.text:
                    yield hashes, gaps
    yield (), (2,)


def _prompt(request_id: str, form: _Form, sizes: tuple[int, ...], priority: int) -> Prompt:
    hashes, gaps = form
    items: list[Placement] = []
    place = 0
    for mm_hash, gap in zip(hashes, gaps, strict=False):
        items.append(Placement(hash_name(mm_hash), place + gap, sizes[mm_hash]))
        place = items[-1].end
    return Prompt(request_id, tuple(items), place + gaps[-1], 1, priority)
