"""A program behind three pipes that answers lines with lines, and may do anything else instead.

One thread and no blocking call: while operations are written, answers and whatever the program says on
standard error are read, so that neither side can wait for the other for ever.
"""

import os
import re
import secrets
import select
import signal
import subprocess
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO

from impl.errors import NoAnswerError, TargetError

_MARK = "EVICTCHECK_DRIVER"
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 20
_STDERR_KEPT = 1 << 16
_SLICE = 0.05
"""Seconds between two looks at whether the program is still alive: a child of it can keep its pipes open."""
_LAST_WORDS = 0.5
"""Seconds that a program has to end, and its pipes to run dry, once it closed one of them."""


class DriverProcess:
    """One running driver.

    Attributes:
        alive: Whether it can be asked; after a `NoAnswerError` it has been ended, with all its children.
    """

    def __init__(self, command: Sequence[str], timeout: float, environment: Mapping[str, str]) -> None:
        """Starts the program.

        Args:
            command: The program and its arguments.
            timeout: Seconds that it may take for one answer.
            environment: Variables to set on top of this process's own.

        Raises:
            TargetError: It cannot be started.
        """
        token = secrets.token_hex(16)
        try:
            self._popen = subprocess.Popen(  # noqa: S603 - running the user's program is the purpose
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, **environment, _MARK: token},
            )
        except (OSError, ValueError) as error:
            raise TargetError(f"The driver {command[0]!r} cannot be started: {error}.") from error
        self._to, self._from, self._said = [pipe.fileno() for pipe in _pipes(self._popen)]
        for pipe in (self._to, self._from, self._said):
            os.set_blocking(pipe, False)
        self._reading = select.poll()
        self._reading.register(self._from, select.POLLIN)
        self._reading.register(self._said, select.POLLIN)
        self._writing = select.poll()
        self._writing.register(self._from, select.POLLIN)
        self._writing.register(self._said, select.POLLIN)
        self._writing.register(self._to, select.POLLOUT)
        self._timeout = timeout
        self._stderr = b""
        self._exchanged: deque[tuple[bytes, bytes]] = deque(maxlen=3)
        self.alive = True
        self._finalizer = weakref.finalize(self, _end, self._popen, token)

    def exchange(self, text: bytes, count: int, timeout: float | None = None) -> bytes:
        """Writes operations and reads their answers.

        Args:
            text: The operations, each ending in a line feed.
            count: How many they are.
            timeout: Seconds that one answer may take, if not those of the constructor.

        Returns:
            The answers, as many lines.

        Raises:
            NoAnswerError: It died, took too long, closed a pipe, or wrote more than was asked for. It has been
                ended.
        """
        received = bytearray()
        try:
            self._exchange(text, count, timeout or self._timeout, received)
        except NoAnswerError as trouble:
            self._remember(text, received)
            self.end()
            raise NoAnswerError(f"{trouble}{self._circumstances()}") from None
        except BaseException:
            # Interrupted half-way: the next answer would be taken for another operation's.
            self.end()
            raise
        self._remember(text, received)
        return bytes(received)

    def ends_with_its_input(self, timeout: float) -> bool:
        """Closes its input, and says whether it ends by itself in so many seconds."""
        self._writing.unregister(self._to)
        _pipes(self._popen)[0].close()
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def nonsense(self, trouble: str) -> NoAnswerError:
        """Ends a driver whose answer means nothing, and gives the exception that says so."""
        self.end()
        return NoAnswerError(f"{trouble}{self._circumstances()}")

    def end(self) -> None:
        """Ends the program and everything that it started."""
        self.alive = False
        self._finalizer()

    def _exchange(self, text: bytes, count: int, timeout: float, received: bytearray) -> None:
        if any(pipe == self._from for pipe, _ in self._reading.poll(0)) and self._read(timeout):
            raise NoAnswerError("the driver wrote something that it was not asked for")
        left = memoryview(text)
        missing = count
        deadline = monotonic() + timeout
        while True:
            if left:
                left = left[self._write(left) :]
            poller = self._writing if left else self._reading
            events = poller.poll(0 if not missing else min(_SLICE, max(deadline - monotonic(), 0)) * 1000)
            read = b""
            for pipe, _ in events:
                if pipe == self._from:
                    read = self._read(timeout)
                    received += read
                elif pipe == self._said:
                    self._listen()
            lines = read.count(b"\n")
            if lines:
                missing -= lines
                deadline = monotonic() + timeout
            if missing < 0 or (missing == 0 and received[-1:] != b"\n"):
                raise NoAnswerError("the driver wrote more than it was asked for")
            if missing == 0:
                return
            if len(received) - received.rfind(b"\n") > _LONGEST_LINE:
                raise NoAnswerError(f"the driver wrote a line of more than {_LONGEST_LINE} bytes")
            if not read and self._popen.poll() is not None:
                self._read_rest(received, missing)
                return
            if monotonic() >= deadline:
                raise NoAnswerError(f"the driver did not answer within {timeout:g} s")

    def _write(self, left: memoryview) -> int:
        try:
            return os.write(self._to, left[:_CHUNK])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise self._closed("input") from None

    def _read(self, timeout: float) -> bytes:
        try:
            read = os.read(self._from, _CHUNK)
        except BlockingIOError:
            return b""
        if not read:
            raise self._closed("output")
        return read

    def _read_rest(self, received: bytearray, missing: int) -> None:
        """It has ended: what it wrote before may still be in the pipe."""
        while missing > 0:
            try:
                read = os.read(self._from, _CHUNK)
            except BlockingIOError:
                read = b""
            if not read:
                raise self._death()
            received += read
            missing -= read.count(b"\n")

    def _listen(self) -> bool:
        """Reads what it says on standard error; False if that is closed."""
        try:
            said = os.read(self._said, _CHUNK)
        except BlockingIOError:
            return True
        if not said:
            for poller in (self._reading, self._writing):
                with suppress(KeyError):
                    poller.unregister(self._said)
            return False
        self._stderr = (self._stderr + said)[-_STDERR_KEPT:]
        return True

    def _closed(self, which: str) -> NoAnswerError:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_LAST_WORDS)
            return self._death()
        return NoAnswerError(f"the driver closed its standard {which}")

    def _death(self) -> NoAnswerError:
        """What it died of, in the words of a sanitizer if one spoke."""
        until = monotonic() + _LAST_WORDS
        while select.select([self._said], [], [], max(until - monotonic(), 0))[0] and self._listen():
            pass
        summary = sanitizer_summary(self._stderr.decode(errors="replace"))
        if summary is not None:
            return NoAnswerError(summary)
        status = self._popen.returncode
        if status < 0:
            return NoAnswerError(f"the driver was killed by {_signal_name(-status)}")
        return NoAnswerError(f"the driver exited with status {status}")

    def _remember(self, text: bytes, received: bytearray) -> None:
        self._exchanged.append((text[-300:], bytes(received[-300:])))

    def _circumstances(self) -> str:
        """The last lines exchanged, and the end of what it said."""
        lines: list[str] = []
        for text, received in self._exchanged:
            lines += [f"> {line}" for line in _last_lines(text)]
            lines += [f"< {line}" for line in _last_lines(received)]
        words = f"; last lines: {' | '.join(lines[-8:])}" if lines else ""
        said = _last_lines(self._stderr)
        if said:
            words += f"; it said: {said[-1][:200]}"
        return words


def sanitizer_summary(said: str) -> str | None:
    """What a sanitizer's report says in one line, and from where; None if there is no report."""
    lines = said.splitlines()
    for line in lines:
        if ": runtime error: " in line:
            return line
    summary = next((line for line in reversed(lines) if line.startswith("SUMMARY: ")), None)
    if summary is None:
        return None
    # The summary names the innermost place, which can lie in the standard library.
    frames = (_FRAME.match(line) for line in lines)
    places = (frame[1] for frame in frames if frame and not _LIBRARY.search(frame[1]))
    place = next(places, None)
    told = summary.removeprefix("SUMMARY: ")
    return told if place is None or place in told else f"{told}, reached from {place}"


_FRAME = re.compile(r"\s*#\d+ 0x[0-9a-f]+ in .* (\S+:\d+)(?::\d+)?$")
_LIBRARY = re.compile(r"/include/c\+\+/|libsanitizer|/sysdeps/")


def _pipes(popen: "subprocess.Popen[bytes]") -> list[IO[bytes]]:
    pipes = (popen.stdin, popen.stdout, popen.stderr)
    return [pipe for pipe in pipes if pipe is not None]


def _last_lines(text: bytes) -> list[str]:
    return [line for line in text.decode(errors="backslashreplace").splitlines() if line][-6:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(popen: "subprocess.Popen[bytes]", token: str) -> None:
    """Ends a program, its group, and what left its group: whatever still carries its mark."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
    for pipe in _pipes(popen):
        pipe.close()
    mark = f"{_MARK}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
