"""The protocol's client: targets and sessions that are programs behind a pipe (PROTOCOL.md).

One process serves all sessions of a target, one after the other. A session that takes its turn again, or whose
process died under another one, is brought back to where it was by making its calls once more, in one write. So
a fork costs nothing until it is used, and a driver needs neither copies nor more than one manager.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import quote, unquote

from msgspec import Struct

from impl.drivers.process import DriverProcess
from impl.errors import NoAnswerError, TargetError
from impl.target import Internals, Observation, Shows
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
)
from model.workload import Request, Workload

CAPABILITIES = ("counters", "ids", "reset", "internals")
"""What a driver may announce."""

TIMEOUT = 10.0
"""Seconds that a driver may take for one answer, unless told otherwise."""

_HELLO = "hello 1"


# --- Lines -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 12)
def token(name: str) -> str:
    """A name as the protocol writes it: what could break a line into other tokens is percent-encoded."""
    return quote(name, safe="")


def call_line(call: Call) -> bytes:
    """The operation that makes a call."""
    match call:
        case Check(request_id, input_id):
            return b"check %s %d\n" % (token(request_id).encode(), input_id)
        case CanAllocate(request_id, input_id, budget, promised):
            return b"can_allocate %s %d %d %d\n" % (token(request_id).encode(), input_id, budget, promised)
        case Allocate(request_id, input_id):
            return b"allocate %s %d\n" % (token(request_id).encode(), input_id)
        case FreeInput(request_id, input_id):
            return b"free_input %s %d\n" % (token(request_id).encode(), input_id)
        case FreeRequest(request_id):
            return b"free %s\n" % token(request_id).encode()
        case CachedIds(request_id):
            return b"ids %s\n" % token(request_id).encode()
        case Drain():
            return b"drain\n"
        case Reset():
            return b"reset\n"


@lru_cache(maxsize=1 << 10)
def request_line(request: Request) -> bytes:
    """The operation that declares a request."""
    items = [f" {token(item.mm_hash)} {item.embeds}" for item in request.items]
    return f"request {token(request.request_id)} {len(items)}{''.join(items)}\n".encode()


def new_line(workload: Workload) -> bytes:
    """The operation that makes a fresh manager."""
    return b"new %d\n" % workload.capacity


@lru_cache(maxsize=1 << 10)
def look_lines(workload: Workload, capabilities: frozenset[str]) -> tuple[bytes, ...]:
    """The operations that ask for all that a driver shows."""
    lines: list[bytes] = []
    if capabilities & {"counters", "ids"}:
        names = "".join(f" {token(request.request_id)}" for request in workload.requests)
        lines.append(f"state{names}\n".encode())
    if "internals" in capabilities:
        lines.append(b"internals\n")
    return tuple(lines)


def result_text(result: Result) -> bytes:
    """A call's right answer, as a driver writes it, without the line feed."""
    if result is None:
        return b"ok"
    if isinstance(result, bool):
        return b"1" if result else b"0"
    if all(isinstance(item, int) for item in result):
        words = [str(item) for item in sorted(result, key=int)]
    else:
        words = sorted(token(str(item)) for item in result)
    return " ".join([str(len(words)), *words]).encode()


def look_text(shown: Observation, capabilities: frozenset[str]) -> bytes:
    """The right answers to `look_lines`, without internals, as a driver writes them."""
    parts: list[bytes] = []
    if "counters" in capabilities:
        parts += [b"%d" % (shown.free_slots or 0), b"%d" % (shown.freeable_slots or 0)]
    if "ids" in capabilities:
        parts += [result_text(inputs) for inputs in shown.inputs or ()]
    return b" ".join(parts) + b"\n" if parts else b""


class _Words:
    """The tokens of an answer, taken one by one; whatever is wrong with them is a ValueError."""

    def __init__(self, answer: bytes) -> None:
        self._left = answer.decode("ascii").split(" ")[::-1]

    def _next(self) -> str:
        if not self._left or not self._left[-1]:
            raise ValueError("a token is missing")
        return self._left.pop()

    def number(self) -> int:
        word = self._next()
        if not word.removeprefix("-").isdigit():
            raise ValueError(word)
        return int(word)

    def numbers(self) -> frozenset[int]:
        return frozenset([self.number() for _ in range(self.number())])

    def name(self) -> str:
        return unquote(self._next())

    def names(self) -> tuple[str, ...]:
        return self.names_after(self.number())

    def names_after(self, length: int) -> tuple[str, ...]:
        return tuple([self.name() for _ in range(length)])

    def end(self) -> None:
        if self._left:
            raise ValueError("there are more tokens than the answer has")


def read_result(call: Call, answer: bytes) -> Result:
    """What an answer says.

    Raises:
        ValueError: It has another form than the answer to that call.
    """
    match call:
        case Check() | CanAllocate():
            if answer not in (b"0", b"1"):
                raise ValueError(answer)
            return answer == b"1"
        case CachedIds():
            words = _Words(answer)
            numbers = words.numbers()
            words.end()
            return numbers
        case Drain():
            words = _Words(answer)
            names = frozenset(words.names())
            words.end()
            return names
        case _:
            if answer != b"ok":
                raise ValueError(answer)
            return None


@lru_cache(maxsize=1 << 14)
def read_look(answers: tuple[bytes, ...], capabilities: frozenset[str], requests: int) -> Observation:
    """What the answers to `look_lines` say.

    Raises:
        ValueError: They have another form.
    """
    free = freeable = inputs = internals = None
    if capabilities & {"counters", "ids"}:
        words = _Words(answers[0])
        if "counters" in capabilities:
            free, freeable = words.number(), words.number()
        if "ids" in capabilities:
            inputs = tuple([words.numbers() for _ in range(requests)])
        words.end()
    if "internals" in capabilities:
        internals = _read_internals(answers[-1])
    return Observation(inputs, free, freeable, internals)


def _read_internals(answer: bytes) -> Internals:
    words = _Words(answer)
    references = {words.name(): frozenset(words.names()) for _ in range(words.number())}
    evictable, pending = words.names(), Counter(words.names())
    length = words.number()
    listed = None if length == -1 else frozenset(words.names_after(length))
    words.end()
    repeated = any(times > 1 for times in pending.values())
    return Internals(references, evictable, frozenset(pending), listed, repeated)


# --- Targets and sessions ----------------------------------------------------------------------------------


class DriverTarget:
    """A program that speaks the protocol.

    Attributes:
        name: As a person names it.
        shows: How much of its state it shows.
        has_reset: Whether it offers `reset`.
        era: Properties in which it differs by a documented rule of its time.
        capabilities: What it announced.
        command: The program and its arguments.
        hints: For some properties, what else to say when one of them breaks.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        timeout: float = TIMEOUT,
        starting: float = TIMEOUT,
        environment: Mapping[str, str] = MappingProxyType({}),
        hints: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Starts the program and asks what it can do.

        Args:
            name: As a person names it.
            command: The program and its arguments.
            timeout: Seconds that it may take for one answer.
            starting: Seconds that it may take for its first answer, if that is more.
            environment: Variables to set on top of this process's own.
            hints: For some properties, what else to say when one of them breaks.

        Raises:
            TargetError: It cannot be started, or does not speak the protocol.
        """
        self.name = name
        self.hints = hints
        self.era: frozenset[str] = frozenset()
        self.command = command
        self._timeout = timeout
        self._starting = max(starting, timeout)
        self._environment = environment
        self._process, self.capabilities = self._start()
        self.shows = Shows.RESULTS
        if "counters" in self.capabilities:
            self.shows = Shows.INTERNALS if "internals" in self.capabilities else Shows.COUNTERS
        self.has_reset = "reset" in self.capabilities
        self._declared: dict[str, bytes] = {}
        self._turn: object = None

    @property
    def lists_inputs(self) -> bool:
        """Whether it can be asked which inputs a request holds."""
        return "ids" in self.capabilities

    def __reduce__(self) -> tuple[object, ...]:
        """Goes to another process as its command: over there a process of its own is started."""
        arguments = (self._timeout, self._starting, dict(self._environment), dict(self.hints), self.era)
        return _started_again, (self.name, tuple(self.command), *arguments)

    def start(self, workload: Workload) -> "DriverSession":
        """A fresh manager of the workload's capacity.

        Raises:
            TargetError: The driver cannot make one.
        """
        session = DriverSession(self, workload, None, None)
        try:
            session.observe()
        except NoAnswerError as trouble:
            raise TargetError(
                f"{self.name}: a manager of {workload.capacity} embeds cannot be made: {trouble}."
            ) from trouble
        return session

    def close(self) -> None:
        """Ends the program; it is started again if it is asked again."""
        self._process.end()

    def exchange(self, lines: Sequence[bytes]) -> list[bytes]:
        """Writes operations and reads their answers, in a new process if the last one has ended.

        Raises:
            NoAnswerError: The driver did not answer them all.
        """
        answers = self._process.exchange(b"".join(lines), len(lines))
        return answers[:-1].split(b"\n")

    def transcript(self, workload: Workload, lines: bytes, count: int) -> bytes:
        """The answers to many operations that start from a fresh manager, as they came.

        Raises:
            NoAnswerError: The driver did not answer them all.
        """
        self.begin(object())
        ahead = self.undeclared(workload)
        answers = self._process.exchange(b"".join(ahead) + lines, len(ahead) + count)
        return answers[len(b"ok\n" * len(ahead)) :]

    def begin(self, turn: object) -> bool:
        """Gives somebody the turn; True if it was theirs already and the process is still there."""
        if self._process.alive and self._turn is turn:
            return True
        if not self._process.alive:
            self._process, _ = self._start()
            self._declared = {}
        self._turn = turn
        return False

    def yield_turn(self) -> None:
        """Whoever has the turn loses it: its manager is not to be used again."""
        self._turn = None

    def undeclared(self, workload: Workload) -> list[bytes]:
        """The lines that declare those requests of a workload that the process does not know so."""
        lines = []
        for request in workload.requests:
            line = request_line(request)
            if self._declared.get(request.request_id) != line:
                self._declared[request.request_id] = line
                lines.append(line)
        return lines

    def nonsense(self, line: bytes, answer: bytes) -> NoAnswerError:
        """The exception for an answer that means nothing; the driver is ended."""
        return self._process.nonsense(f"the driver answered {_shown(answer)} to {_shown(line)}")

    def _start(self) -> tuple[DriverProcess, frozenset[str]]:
        process = DriverProcess(self.command, self._timeout, self._environment)
        try:
            answer = process.exchange(f"{_HELLO}\n".encode(), 1, self._starting)[:-1]
        except NoAnswerError as trouble:
            raise TargetError(f"{self.name} does not speak the driver protocol: {trouble}.") from trouble
        text = answer.decode(errors="backslashreplace")
        try:
            return process, read_hello(text)
        except ValueError as error:
            process.end()
            if text.startswith("error "):
                raise TargetError(f"{self.name}: {text.removeprefix('error ')}.") from None
            raise TargetError(f"{self.name} does not speak the driver protocol: {error}.") from None


def read_hello(answer: str) -> frozenset[str]:
    """The capabilities in the answer to `hello`.

    Raises:
        ValueError: It has another form; the message is a clause.
    """
    if answer != _HELLO and not answer.startswith(f"{_HELLO} "):
        raise ValueError(f"it answered {answer[:200]!r} to {_HELLO!r}, not {_HELLO!r} and its capabilities")
    announced = answer.split(" ")[2:]
    for word in announced:
        if word not in CAPABILITIES:
            raise ValueError(f"it announced {word[:200]!r}, which is none of {', '.join(CAPABILITIES)}")
    if "internals" in announced and "counters" not in announced:
        raise ValueError("it announced internals without counters")
    return frozenset(announced)


class _Past(Struct, frozen=True):
    """The calls made so far with their answers, youngest first; forks share it."""

    line: bytes
    answer: bytes
    earlier: "_Past | None"


def _started_again(
    name: str,
    command: Sequence[str],
    timeout: float,
    starting: float,
    environment: Mapping[str, str],
    hints: Mapping[str, str],
    era: frozenset[str],
) -> DriverTarget:
    target = DriverTarget(name, command, timeout=timeout, starting=starting, environment=environment, hints=hints)
    target.era = era
    return target


class DriverSession:
    """One workload and the calls made so far; the manager is the driver's while the session has its turn."""

    __slots__ = ("_look", "_past", "_shown", "_target", "_turn", "_workload")

    def __init__(
        self, target: DriverTarget, workload: Workload, past: _Past | None, shown: Observation | None
    ) -> None:
        self._target = target
        self._workload = workload
        self._past = past
        self._shown = shown
        self._look = look_lines(workload, target.capabilities)
        # The target must know whose turn it is without keeping the session, which keeps the target.
        self._turn = object()

    def call(self, call: Call) -> Result:
        """Carries out a call and answers; what the target shows after it comes with the same exchange.

        Raises:
            NoAnswerError: The call failed, or the driver hung, died or answered nonsense.
            TargetError: The driver could not be started again, or did something else when it was made to do
                the earlier calls once more.
        """
        if isinstance(call, CachedIds) and "ids" not in self._target.capabilities:
            return None
        line = call_line(call)
        answer, *seen = self._exchange((line, *self._look))
        try:
            result = read_result(call, answer)
        except ValueError:
            raise self._trouble(line, answer) from None
        self._shown = self._seen(seen)
        self._past = _Past(line, answer, self._past)
        return result

    def observe(self) -> Observation:
        """What the target shows now."""
        if self._shown is None:
            self._shown = self._seen(self._exchange(self._look))
        return self._shown

    def fork(self) -> "DriverSession":
        """An independent session in the same state."""
        return DriverSession(self._target, self._workload, self._past, self._shown)

    def close(self) -> None:
        """Nothing is occupied: the next session replaces the manager."""

    def _exchange(self, lines: Sequence[bytes]) -> list[bytes]:
        """Answers to these lines alone, brought to its state before if another session had the turn."""
        target = self._target
        if target.begin(self._turn):
            return target.exchange(lines)
        ahead, right = [*target.undeclared(self._workload), new_line(self._workload)], []
        right = [b"ok"] * len(ahead)
        for past in self._pasts():
            ahead.append(past.line)
            right.append(past.answer)
        answers = target.exchange([*ahead, *lines])
        for line, expected, answer in zip(ahead, right, answers, strict=False):
            if answer != expected:
                target.yield_turn()
                raise self._unlike(line, expected, answer)
        return answers[len(ahead) :]

    def _pasts(self) -> list[_Past]:
        pasts: list[_Past] = []
        past = self._past
        while past is not None:
            pasts.append(past)
            past = past.earlier
        return pasts[::-1]

    def _unlike(self, line: bytes, expected: bytes, answer: bytes) -> TargetError:
        if expected == b"ok" and line.startswith((b"new ", b"request ")):
            return TargetError(
                f"{self._target.name} cannot be judged: to {_shown(line)} the driver answered {_shown(answer)}."
            )
        return TargetError(
            f"{self._target.name} does not do the same thing twice: to {_shown(line)} it answered "
            f"{_shown(expected)}, and {_shown(answer)} when the same calls were made of a new manager; it is "
            f"random, or keeps state outside of the manager object."
        )

    def _seen(self, answers: Sequence[bytes]) -> Observation:
        target = self._target
        try:
            return read_look(tuple(answers), target.capabilities, len(self._workload.requests))
        except ValueError:
            for line, answer in zip(self._look, answers, strict=True):
                if answer.startswith(b"error "):
                    raise self._trouble(line, answer) from None
            raise target.nonsense(b"".join(self._look), b"\n".join(answers)) from None

    def _trouble(self, line: bytes, answer: bytes) -> NoAnswerError:
        if answer.startswith(b"error "):
            self._target.yield_turn()
            words = answer.removeprefix(b"error ").decode(errors="backslashreplace")
            return NoAnswerError(f"it raised {words}")
        return self._target.nonsense(line, answer)


def _shown(line: bytes) -> str:
    text = line.rstrip(b"\n").decode(errors="backslashreplace")
    return repr(text if len(text) <= 200 else f"{text[:200]}...")
