"""z3 in a process of its own, so that a limit in seconds holds whatever the solver is doing.

z3's own time limit is polled and can be late by minutes. Here a question is a function that the child runs; a
child that has not answered in time, or that used up its memory, is killed, and the answer is `Unknown`, with
the reason. What the functions keep in their module (an incremental solver) lives as long as the child.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

import z3
from msgspec import Struct

from model.errors import EvictcheckError

_P = ParamSpec("_P")
_T = TypeVar("_T")

MEMORY_MEGABYTES = 4096
"""What one solver process may use; a question that needs more is answered by `Unknown`."""


class SolverError(EvictcheckError):
    """The solver cannot be run at all."""


class Unknown(Struct, frozen=True):
    """The solver did not decide; this is never a pass.

    Attributes:
        reason: Why, as a clause in words.
    """

    reason: str


class SolverProcess:
    """A child process that answers one question at a time; it is started at the first one."""

    def __init__(self, memory_megabytes: int = MEMORY_MEGABYTES) -> None:
        self._memory_megabytes = memory_megabytes
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> "SolverProcess":
        """The process itself; leaving the block ends the child."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the child ahead of its first question, so that the question's time is the solver's alone.

        Raises:
            SolverError: It does not start.
        """
        if self._process is not None:
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(theirs, self._memory_megabytes), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._pipe.recv()
        except EOFError as error:
            raise SolverError(f"the solver's process did not start ({self._epitaph()})") from error

    def ask(
        self, seconds: float | None, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T | Unknown:
        """The value of a function that the child runs.

        Args:
            seconds: How long it may take; None for as long as it needs. The start of a child does not count.
            function: A function of a module, with arguments and a value that can be pickled.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Returns:
            Its value, or `Unknown` if the child had no answer in time, or died. What the child kept is lost then.

        Raises:
            RuntimeError: The function raised, which is a fault of this project; the message has its traceback.
        """
        self.start()
        assert self._pipe is not None
        self._pipe.send((function, args, kwargs))
        if not self._pipe.poll(seconds):
            self.close()
            return Unknown(f"no answer within {seconds:g} s")
        try:
            kind, value = self._pipe.recv()
        except EOFError:
            return Unknown(f"the solver's process died ({self._epitaph()})")
        if kind == "value":
            answer: _T = value
            return answer
        if kind == "unknown":
            return Unknown(value)
        raise RuntimeError(f"the solver's process failed:\n{value}")

    def _epitaph(self) -> str:
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode
        self.close()
        return "killed, perhaps out of memory" if code == -9 else f"exit code {code}"

    def close(self) -> None:
        """Ends the child, in the middle of a question if need be."""
        if self._process is not None and self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None


def _answer(pipe: Connection, memory_megabytes: int) -> None:
    """The child: answers questions until the other end is gone."""
    # An interrupt is for the parent, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    z3.set_param("memory_max_size", memory_megabytes)
    pipe.send(None)
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[str, Any] = ("value", function(*args, **kwargs))
        except (z3.Z3Exception, MemoryError) as error:
            out_of_memory = isinstance(error, MemoryError) or "memory" in str(error)
            answer = ("unknown", "out of memory") if out_of_memory else ("error", traceback.format_exc())
        except Exception:  # noqa: BLE001 - whatever it is, the parent shows it
            answer = ("error", traceback.format_exc())
        pipe.send(answer)


def decided(verdict: z3.CheckSatResult, solver: z3.Solver) -> bool | Unknown:
    """Whether a query can be met; what z3 leaves undecided stays so."""
    if verdict == z3.unknown:
        reason = solver.reason_unknown()
        return Unknown("out of memory" if "memory" in reason else f"z3 gave up: {reason}")
    return bool(verdict == z3.sat)
