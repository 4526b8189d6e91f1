"""A question to the solver's process ends: with its answer, or with the reason why there is none."""

import os
import signal
import time

import pytest
import z3

from properties.solving import SolverProcess, Unknown, decided


def factors(product: int, bits: int) -> bool | Unknown:
    """Whether a number has two factors: hard for a SAT solver if it is the product of two large primes."""
    one, other = z3.BitVecs("one other", bits)
    solver = z3.SolverFor("QF_FD")
    half = z3.BitVecVal(1 << bits // 2, bits)
    solver.add(one * other == product, z3.ULT(one, half), z3.ULT(other, half), z3.UGT(one, 1), z3.UGT(other, 1))
    return decided(solver.check(), solver)


LARGE = 2_147_483_647 * 2_147_483_629


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ValueError("on purpose")


def test_an_answer_comes_back() -> None:
    with SolverProcess() as process:
        assert process.ask(None, factors, 15, 8) is True
        assert process.ask(None, factors, 13, 8) is False


def test_a_limit_ends_a_query_that_would_go_on_and_the_next_one_is_answered() -> None:
    with SolverProcess() as process:
        process.start()
        began = time.monotonic()
        assert process.ask(0.5, factors, LARGE, 64) == Unknown("no answer within 0.5 s")
        # Not a figure to be proud of, only far from the hours that z3 would need.
        assert time.monotonic() - began < 30
        assert process.ask(None, factors, 15, 8) is True


def test_out_of_memory_is_unknown() -> None:
    with SolverProcess(memory_megabytes=128) as process:
        assert process.ask(None, factors, LARGE, 2048) == Unknown("out of memory")


def test_a_process_that_dies_is_unknown_and_the_next_question_gets_a_new_one() -> None:
    with SolverProcess() as process:
        assert process.ask(None, die) == Unknown("the solver's process died (killed, perhaps out of memory)")
        assert process.ask(None, factors, 15, 8) is True


def test_a_fault_of_ours_is_no_answer() -> None:
    with SolverProcess() as process, pytest.raises(RuntimeError, match="on purpose"):
        process.ask(None, fail)
