"""Each row of the table of earlier releases, on both sides of its change."""

import pytest

from model.eras import ERAS, NEWEST, OLDEST_RULES, EraError, Refusal, Rules, rules_of

ROWS = [
    ("registers_duplicates", "0.31.0", False, "0.32.0", True),
    ("frees_on_give_up", "0.11.0", False, "0.14.0", True),
    ("passes_over_waiting", "0.32.0", False, "0.33.0", True),
    ("withdraws_victim", "0.11.0", False, "0.14.0", True),
    ("goes_on_after_own_preemption", "0.32.0", False, "0.33.0", True),
    ("frees_after_step", "0.17.0", False, "0.20.0", True),
    ("frees_less_placeholders", "0.23.0", False, "0.24.0", True),
    ("rejects_other_size", "0.30.0", False, "0.31.0", True),
    ("refusal", "0.32.0", Refusal.UP_TO_LOOK_AHEAD, "0.33.0", Refusal.AT_MOST_UP_TO_ITEM),
    ("refusal", "0.11.0", Refusal.UP_TO_ITEM, "0.14.0", Refusal.UP_TO_LOOK_AHEAD),
    ("rollback_at_item", "0.32.0", False, "0.33.0", True),
    ("rollback_comes_first", "0.31.0", False, "0.32.0", True),
    ("rollback_looks_ahead", "0.14.0", False, "0.15.0", True),
    ("covers_look_ahead", "0.27.1", False, "0.28.0", True),
    ("frees_wait_for_look_ahead", "0.23.0", False, "0.24.0", True),
    ("frees_wait_for_look_ahead", "0.32.0", True, "0.33.0", False),
    ("drafter_tolerates_absence", "0.23.0", False, "0.24.0", True),
    ("spares_lone_request", "0.28.0", False, "0.31.0", True),
]


@pytest.mark.parametrize(("rule", "earlier", "before", "later", "after"), ROWS)
def test_a_rule_changes_between_two_releases(
    rule: str, earlier: str, before: object, later: str, after: object
) -> None:
    assert getattr(rules_of(earlier), rule) == before
    assert getattr(rules_of(later), rule) == after


def test_every_rule_is_in_a_row_or_came_with_another() -> None:
    asked = {row[0] for row in ROWS} | {"looks_ahead"}
    assert asked == set(Rules.__struct_fields__)


def test_the_defaults_are_the_newest_rules_and_the_first_era_the_oldest() -> None:
    assert rules_of(NEWEST) == rules_of("99.0") == Rules()
    assert rules_of("0.10.2") == OLDEST_RULES


def test_eras_ascend() -> None:
    numbers = [tuple(map(int, change.release.split("."))) for change in ERAS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("release", ["0.28", "v0.28.0", "0.28.0"])
def test_a_release_is_written_in_several_ways(release: str) -> None:
    assert rules_of(release) == rules_of("0.28.0")


@pytest.mark.parametrize(
    ("release", "reason"),
    [("newest", "is no release"), ("1", "is no release"), ("0.33.0rc1", "is no release"), ("0.10.1", "older")],
)
def test_what_is_no_era_is_refused(release: str, reason: str) -> None:
    with pytest.raises(EraError, match=reason):
        rules_of(release)
