import re

import pytest

from model.errors import EvictcheckError
from model.workload import Item, Request, Workload, WorkloadError


def workload() -> Workload:
    return Workload(4, (Request("r1", (Item("a", 1), Item("b", 2))), Request("r2", (Item("a", 1),))), 3)


def test_a_request_is_found_by_its_id() -> None:
    assert workload().request("r2") == Request("r2", (Item("a", 1),))


def test_an_item_is_found_by_request_and_input() -> None:
    assert workload().item("r1", 1) == Item("b", 2)


def test_equal_workloads_are_equal_keys() -> None:
    assert {workload(): 1}[workload()] == 1


def test_a_workload_may_hold_no_request_and_a_request_no_input() -> None:
    assert Workload(1, (Request("r1", ()),), 1).request("r1").items == ()
    assert Workload(1, (), 1).requests == ()


def test_an_unknown_request_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        WorkloadError, match=re.escape("there is no request 'r3' in the workload (it has: r1, r2)")
    ):
        workload().request("r3")
    with pytest.raises(WorkloadError, match=re.escape("there is no request 'r1' in the workload (it has: none)")):
        Workload(1, (), 1).request("r1")


@pytest.mark.parametrize("input_id", [-1, 2, 99])
def test_an_unknown_input_is_refused_with_those_that_exist(input_id: int) -> None:
    with pytest.raises(
        WorkloadError,
        match=re.escape(f"request 'r1' has no input {input_id} (its inputs are 0 to 1)"),
    ):
        workload().item("r1", input_id)


def test_an_input_of_a_request_without_any_is_refused_in_words() -> None:
    with pytest.raises(WorkloadError, match=re.escape("request 'r1' has no input 0 (it has no inputs)")):
        Workload(1, (Request("r1", ()),), 1).item("r1", 0)


@pytest.mark.parametrize(
    ("capacity", "requests", "compute_budget", "sentence"),
    [
        (0, (), 1, "a capacity of 0 embeds holds nothing; it must be at least 1"),
        (-3, (), 1, "a capacity of -3 embeds holds nothing; it must be at least 1"),
        (1, (), 0, "a compute budget of 0 embeds must be at least 1"),
        (1, (Request("", ()),), 1, "a request has an empty request_id"),
        (1, (Request("r", ()), Request("r", ())), 1, "two requests are called 'r'; ids must be distinct"),
        (1, (Request("r", (Item("a", 1), Item("", 1))),), 1, "input 1 of request 'r' has an empty mm_hash"),
        (
            1,
            (Request("r", (Item("a", 0),)),),
            1,
            "input 0 of request 'r' has 0 embeds; it must have at least 1",
        ),
    ],
)
def test_an_impossible_workload_is_refused_with_the_reason(
    capacity: int, requests: tuple[Request, ...], compute_budget: int, sentence: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        Workload(capacity, requests, compute_budget)
    assert str(caught.value) == sentence
    assert isinstance(caught.value, EvictcheckError)
