"""Scopes: how large the explored world is, and the workloads that it holds up to renaming.

A scope is written `2r2i3h`: two requests with two inputs each, three hashes. Options follow after slashes:
`sizes=1..2` (embeds of an item), `capacity=1..3` (embeds of the cache), `mixed` (every input states its own
size, so that two requests can name one hash with different sizes) and `budget=1` (compute budget of a pass in
embeds; without it, the capacity). `2r2i3h/sizes=1/capacity=2` is a smaller one.

Two workloads that differ only in the names of requests and hashes behave alike, so one of them is enough.
Under the open discipline the positions of a request's inputs are names too; under the caller discipline they
are not, since inputs are visited and processed in order.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations, product
from math import comb, factorial, prod
from typing import TypeAlias

from msgspec import Struct

from model.errors import EvictcheckError
from model.operations import Discipline
from model.workload import Item, Request, Workload


class ScopeError(EvictcheckError):
    """A scope that cannot be read, or that bounds nothing."""


class Scope(Struct, frozen=True):
    """Bounds of a finite world.

    Attributes:
        requests: How many requests.
        inputs: Inputs of each request.
        hashes: Distinct hashes at most.
        sizes: Sizes that an item may have, in embeds.
        capacities: Capacities of the cache, in embeds.
        mixed: Whether inputs with one hash may differ in size.
        budgets: Compute budgets of a pass, in embeds; empty if the budget is the capacity.
    """

    requests: int
    inputs: int
    hashes: int
    sizes: tuple[int, ...] = (1, 2)
    capacities: tuple[int, ...] = (1, 2, 3)
    mixed: bool = False
    budgets: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [f"{self.requests}r{self.inputs}i{self.hashes}h"]
        if self.sizes != (1, 2):
            parts.append(f"sizes={_range_text(self.sizes)}")
        if self.capacities != (1, 2, 3):
            parts.append(f"capacity={_range_text(self.capacities)}")
        if self.mixed:
            parts.append("mixed")
        if self.budgets:
            parts.append(f"budget={_range_text(self.budgets)}")
        return "/".join(parts)


DEFAULT_SCOPE = Scope(2, 2, 3)
"""At two hashes the caller discipline cannot evict and readmit a hash within one pass."""

_EXAMPLE = "2r2i3h, or 2r2i3h/sizes=1..2/capacity=1..3/mixed/budget=1"


def parse_scope(text: str) -> Scope:
    """Reads a scope as a person writes it.

    Raises:
        ScopeError: It is not of the form, or one of its bounds is zero; the message says which part.
    """
    head, *options = text.strip().split("/")
    match = re.fullmatch(r"(\d+)r(\d+)i(\d+)h", head)
    if match is None:
        raise ScopeError(f"scope {text!r} does not start like 2r2i3h; a scope is written {_EXAMPLE}")
    requests, inputs, hashes = map(int, match.groups())
    for number, what in ((requests, "requests"), (inputs, "inputs"), (hashes, "hashes")):
        if number < 1:
            raise ScopeError(f"scope {text!r} has no {what}; it must have at least one")
    scope = Scope(requests, inputs, hashes)
    given: dict[str, tuple[int, ...]] = {}
    mixed = False
    for option in options:
        name, _, value = option.partition("=")
        if name in given or (mixed and option == "mixed"):
            raise ScopeError(f"scope {text!r} states {name} twice")
        if option == "mixed":
            mixed = True
        elif name in ("sizes", "capacity", "budget") and value:
            given[name] = _range_of(value, text)
        else:
            raise ScopeError(f"scope {text!r} has the unknown part {option!r}; a scope is written {_EXAMPLE}")
    return Scope(
        requests,
        inputs,
        hashes,
        given.get("sizes", scope.sizes),
        given.get("capacity", scope.capacities),
        mixed,
        given.get("budget", ()),
    )


def _range_of(value: str, text: str) -> tuple[int, ...]:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", value)
    if match is None:
        raise ScopeError(f"scope {text!r}: {value!r} is neither a number nor a range like 1..3")
    low, high = int(match[1]), int(match[2] or match[1])
    if not 1 <= low <= high:
        raise ScopeError(f"scope {text!r}: the range {value!r} must ascend from at least 1")
    return tuple(range(low, high + 1))


def _range_text(numbers: tuple[int, ...]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}..{numbers[-1]}"


def growing(scope: Scope) -> tuple[Scope, ...]:
    """Scopes on the way to one, each within the next, so that short counterexamples come out first."""
    steps = [
        Scope(
            requests,
            scope.inputs,
            min(scope.hashes, requests * scope.inputs),
            scope.sizes,
            scope.capacities,
            scope.mixed,
            scope.budgets,
        )
        for requests in range(1, scope.requests + 1)
    ]
    return tuple(dict.fromkeys((*steps, scope)))


class WorkloadClass(Struct, frozen=True):
    """Workloads equal up to renaming: one of them, and how many there are."""

    workload: Workload
    members: int


_Items: TypeAlias = tuple[tuple[int, int], ...]
"""Items of one request as (hash number, embeds)."""


def workload_classes(scope: Scope, discipline: Discipline) -> tuple[WorkloadClass, ...]:
    """Every workload of a scope up to renaming, small ones first.

    The members add up to the number of workloads without renaming: all ways of giving each input one of the
    hashes, and each hash in use (with `mixed`, each input) one of the sizes.

    Raises:
        ScopeError: There are so many that listing them would take minutes, and exploring them years.
    """
    _refuse_countless(scope, discipline)
    found: Counter[tuple[_Items, ...]] = Counter()
    for requests in _request_multisets(scope, discipline):
        found[_least_renaming(requests, scope.hashes, discipline)] += _arrangements(requests, discipline)
    ordered = sorted(found.items(), key=lambda entry: (_effort(entry[0]), entry[0]))
    return tuple(
        WorkloadClass(_workload(requests, capacity, budget), members)
        for capacity in scope.capacities
        for budget in (scope.budgets or (capacity,))
        for requests, members in ordered
    )


_MOST_RENAMINGS = 5_000_000


def _refuse_countless(scope: Scope, discipline: Discipline) -> None:
    """Estimates from above how many renamings would be looked at."""
    kinds = scope.hashes * (len(scope.sizes) if scope.mixed else 1)
    ordered = discipline is not Discipline.OPEN
    shapes = kinds**scope.inputs if ordered else comb(kinds + scope.inputs - 1, scope.inputs)
    workloads = comb(shapes + scope.requests - 1, scope.requests)
    if not scope.mixed:
        workloads *= len(scope.sizes) ** min(scope.hashes, scope.requests * scope.inputs)
    if workloads * factorial(scope.hashes) > _MOST_RENAMINGS:
        raise ScopeError(
            f"scope {scope} has up to {workloads:,} workloads at each capacity, too many to list; narrow it: "
            f"fewer requests, inputs or hashes, or sizes=1"
        )


def _request_multisets(scope: Scope, discipline: Discipline) -> Iterator[tuple[_Items, ...]]:
    hashes = range(scope.hashes)
    if scope.mixed:
        items = list(product(hashes, scope.sizes))
        yield from combinations_with_replacement(_item_lists(items, scope.inputs, discipline), scope.requests)
        return
    plain = [(mm_hash, 0) for mm_hash in hashes]
    shapes = _item_lists(plain, scope.inputs, discipline)
    for requests in combinations_with_replacement(shapes, scope.requests):
        used = sorted({mm_hash for request in requests for mm_hash, _ in request})
        for sizes in product(scope.sizes, repeat=len(used)):
            size = dict(zip(used, sizes, strict=True))
            sized = (tuple((mm_hash, size[mm_hash]) for mm_hash, _ in request) for request in requests)
            yield tuple(sorted(sized))


def _item_lists(items: list[tuple[int, int]], inputs: int, discipline: Discipline) -> list[_Items]:
    if discipline is Discipline.OPEN:
        return list(combinations_with_replacement(items, inputs))
    return list(product(items, repeat=inputs))


def _least_renaming(requests: tuple[_Items, ...], hashes: int, discipline: Discipline) -> tuple[_Items, ...]:
    """The representative of a class: the least workload that renaming makes of it."""
    return min(_renamed(requests, names, discipline) for names in permutations(range(hashes)))


def _renamed(requests: tuple[_Items, ...], names: tuple[int, ...], discipline: Discipline) -> tuple[_Items, ...]:
    renamed = (tuple((names[mm_hash], embeds) for mm_hash, embeds in request) for request in requests)
    if discipline is Discipline.OPEN:
        renamed = (tuple(sorted(request)) for request in renamed)
    return tuple(sorted(renamed))


def _arrangements(requests: tuple[_Items, ...], discipline: Discipline) -> int:
    """In how many orders its requests (and, under the open discipline, their inputs) can stand."""
    orders = _orders(requests)
    if discipline is Discipline.OPEN:
        orders *= prod(_orders(request) for request in requests)
    return orders


def _orders(things: tuple[object, ...]) -> int:
    return factorial(len(things)) // prod(factorial(count) for count in Counter(things).values())


def _effort(requests: tuple[_Items, ...]) -> int:
    return sum(embeds for request in requests for _, embeds in request)


def _workload(requests: tuple[_Items, ...], capacity: int, budget: int) -> Workload:
    return Workload(
        capacity,
        tuple(
            Request(
                f"r{number}",
                tuple(Item(hash_name(mm_hash), embeds) for mm_hash, embeds in request),
            )
            for number, request in enumerate(requests, start=1)
        ),
        budget,
    )


def hash_name(number: int) -> str:
    """`a` to `z`, then `h26` and so on."""
    return chr(ord("a") + number) if number < 26 else f"h{number}"
