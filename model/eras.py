"""What vLLM's scheduler and worker changed between releases, as data.

A `Rules` value says how one release behaves around its encoder cache; `ERAS` says which release brought each
rule. There is one engine (`model.scheduling`) for all of them.

Where upstream changed a rule between two releases of which only the outer ones were read, the later one is
named as the one that brought it.
"""

from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from model.errors import EvictcheckError

NEWEST = "0.33.0"
"""The newest release whose scheduler was read; later ones are taken to behave like it."""


class EraError(EvictcheckError):
    """A release that has no era."""


class Refusal(StrEnum):
    """How many tokens are left to a request when one of its items is refused (step 5 of the visit)."""

    UP_TO_ITEM = "up-to-item"
    """Those before the item."""
    UP_TO_LOOK_AHEAD = "up-to-look-ahead"
    """Those before the item less the look-ahead; none if the look-ahead reaches the item already."""
    AT_MOST_UP_TO_ITEM = "at-most-up-to-item"
    """Those before the item, and no more than it had."""


class Rules(Struct, frozen=True):
    """How a release schedules around its encoder cache; the defaults are those of 0.33.

    Attributes:
        looks_ahead: Whether the encoder window reaches over the drafter's look-ahead at all.
        withdraws_victim: Whether a victim that this pass has scheduled already leaves the step, its tokens and
            encoder inputs with it, and the budgets are given back.
        frees_on_give_up: Whether a waiting request that gets no KV blocks gives up its references.
        refusal: What is left to a request whose item is refused.
        rollback_looks_ahead: Whether the roll-back before an unsplittable item leaves room for the look-ahead.
        rollback_comes_first: Whether that roll-back is decided before the cache is asked.
        rollback_at_item: Whether it also happens to a request that stands exactly at the item.
        frees_after_step: Whether processed inputs are freed after the step ran; else at the end of scheduling.
        frees_less_placeholders: Whether they are processed only once no outstanding placeholder can undo it.
        frees_wait_for_look_ahead: Whether they are freed only once the drafter's look-ahead has passed them.
        drafter_tolerates_absence: Whether the drafter does without an item that starts where processing ends.
        covers_look_ahead: Whether embeds in the look-ahead count as covered by the window (step 6).
        rejects_other_size: Whether a hash that is cached or picked with another size rejects the request.
        spares_lone_request: Whether the chunk limit leaves a request alone that has no other beside it.
        registers_duplicates: Whether a second occurrence picked within one pass is registered.
        passes_over_waiting: Whether a waiting request without tokens lets the next one try.
        goes_on_after_own_preemption: Whether, under the priority policy, the next running request is tried
            after one that was its own victim.
    """

    looks_ahead: bool = True
    withdraws_victim: bool = True
    frees_on_give_up: bool = True
    refusal: Refusal = Refusal.AT_MOST_UP_TO_ITEM
    rollback_looks_ahead: bool = True
    rollback_comes_first: bool = True
    rollback_at_item: bool = True
    frees_after_step: bool = True
    frees_less_placeholders: bool = True
    frees_wait_for_look_ahead: bool = False
    drafter_tolerates_absence: bool = True
    covers_look_ahead: bool = True
    rejects_other_size: bool = True
    spares_lone_request: bool = True
    registers_duplicates: bool = True
    passes_over_waiting: bool = True
    goes_on_after_own_preemption: bool = True


class Change(Struct, frozen=True):
    """Rules that came with a release.

    Attributes:
        release: The first release that has them.
        rules: Field of `Rules`, and its value from then on.
    """

    release: str
    rules: dict[str, Any]


OLDEST_RULES = Rules(
    looks_ahead=False,
    withdraws_victim=False,
    frees_on_give_up=False,
    refusal=Refusal.UP_TO_ITEM,
    rollback_looks_ahead=False,
    rollback_comes_first=False,
    rollback_at_item=False,
    frees_after_step=False,
    frees_less_placeholders=False,
    frees_wait_for_look_ahead=False,
    drafter_tolerates_absence=False,
    covers_look_ahead=False,
    rejects_other_size=False,
    spares_lone_request=False,
    registers_duplicates=False,
    passes_over_waiting=False,
    goes_on_after_own_preemption=False,
)
"""0.10.2, the first release whose manager is keyed by hash."""

ERAS: tuple[Change, ...] = (
    Change("0.12.0", {"looks_ahead": True, "withdraws_victim": True, "refusal": Refusal.UP_TO_LOOK_AHEAD}),
    Change("0.14.0", {"frees_on_give_up": True}),
    Change("0.15.0", {"rollback_looks_ahead": True}),
    Change("0.20.0", {"frees_after_step": True}),
    Change(
        "0.24.0",
        {
            "frees_less_placeholders": True,
            "frees_wait_for_look_ahead": True,
            "drafter_tolerates_absence": True,
        },
    ),
    Change("0.28.0", {"covers_look_ahead": True}),
    Change("0.31.0", {"rejects_other_size": True, "spares_lone_request": True}),
    Change("0.32.0", {"registers_duplicates": True, "rollback_comes_first": True}),
    Change(
        "0.33.0",
        {
            "refusal": Refusal.AT_MOST_UP_TO_ITEM,
            "rollback_at_item": True,
            "frees_wait_for_look_ahead": False,
            "passes_over_waiting": True,
            "goes_on_after_own_preemption": True,
        },
    ),
)
"""What each release brought, oldest first."""


def rules_of(release: str) -> Rules:
    """The rules of a release: those of 0.10.2, and every change up to it.

    Args:
        release: `0.28.0`, `0.28` or `v0.28.0`.

    Raises:
        EraError: It is no release number, or older than 0.10.2.
    """
    number = _numbers(release)
    if number < (0, 10, 2):
        raise EraError(f"era {release} is older than 0.10.2, the first release whose manager is keyed by hash")
    rules = OLDEST_RULES
    for change in ERAS:
        if _numbers(change.release) <= number:
            rules = replace(rules, **change.rules)
    return rules


def _numbers(release: str) -> tuple[int, ...]:
    parts = release.removeprefix("v").split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isascii() and part.isdigit() for part in parts):
        raise EraError(f"era {release!r} is no release; write it like 0.28 or 0.28.0")
    return tuple(int(part) for part in (*parts, "0")[: max(3, len(parts))])
