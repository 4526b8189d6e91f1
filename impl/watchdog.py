"""Interrupts calls of this process that do not return.

A timer ticks, and its handler looks whether the frame of a guarded call is on the stack, and whether it is the
same one as before. So a call costs nothing extra, and one that hangs is raised out of, at the very place. Only
the main thread can be interrupted, only between two instructions of Python, and only where nothing else uses
SIGALRM.
"""

import atexit
import signal
import threading
from types import CodeType, FrameType

TIMEOUT = 10.0
"""Seconds that a call may take, unless told otherwise; a tick later it is interrupted."""

_TICKS = 2
"""How many times in a row a frame may be seen at a tick."""


class Hang(BaseException):
    """Raised into a guarded call that takes too long, which turns it into a `NoAnswerError`.

    No `Exception`, so that a manager does not swallow it with its own.
    """


class Watchdog:
    """Guards the calls of some functions.

    Attributes:
        guarded: Their code.
    """

    def __init__(self) -> None:
        self.guarded: set[CodeType] = set()
        self._seen: FrameType | None = None
        self._times = 0
        self._timeout = TIMEOUT

    def start(self, timeout: float = TIMEOUT) -> None:
        """Starts ticking, unless it does already; without effect where it cannot work."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
            return
        self._timeout = timeout
        # Towards its end the interpreter takes its handlers back, and a tick would then kill the process.
        atexit.register(self.stop)
        signal.signal(signal.SIGALRM, self._tick)
        signal.setitimer(signal.ITIMER_REAL, timeout / _TICKS, timeout / _TICKS)

    def stop(self) -> None:
        """Stops ticking."""
        if signal.getsignal(signal.SIGALRM) == self._tick:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._seen = None

    def _tick(self, number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code not in self.guarded:
            frame = frame.f_back
        self._times = self._times + 1 if frame is not None and frame is self._seen else 0
        self._seen = frame
        if self._times >= _TICKS:
            raise Hang(f"it did not answer within {self._timeout:g} s")


WATCHDOG = Watchdog()
"""The one of this process."""
