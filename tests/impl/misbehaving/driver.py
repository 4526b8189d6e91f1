"""A driver that follows the protocol until its first `check`, and then does what its argument says.

Its manager is a cache of one entry a hash that never evicts: enough to be asked. Nothing here is shared with
the project's own drivers.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable


class Manager:
    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self.cached: set[str] = set()
        self.held: dict[str, set[int]] = {}


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def say_bytes(answer: bytes) -> None:
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


def spin() -> None:
    while True:
        pass


def ignore_everything() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(60)


def leave_children(*, own_session: bool) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=own_session)
    sys.exit(0)


def close(*pipes: int) -> None:
    for pipe in pipes:
        os.close(pipe)
    time.sleep(600)


def flood(pipe: int, chunk: bytes) -> None:
    while True:
        os.write(pipe, chunk)


FAULTS: dict[str, Callable[[], None]] = {
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: sys.exit(3),
    "last-words": lambda: sys.exit("assertion failed: free >= 0"),
    "hang": lambda: time.sleep(600),
    "spin": spin,
    "nonsense": lambda: say("maybe\n"),
    "not-text": lambda: say_bytes(b"\xff\xfe\n"),
    "too-many": lambda: say("0\n0\n"),
    "late-line": lambda: say("0\n"),
    "half-a-line": lambda: say("0"),
    "flood-of-lines": lambda: flood(1, b"0\n" * 4096),
    "flood-of-one-line": lambda: flood(1, b"0" * 4096),
    "flood-of-stderr": lambda: flood(2, b"noise\n" * 4096),
    "closes-output": lambda: close(1),
    "closes-input": lambda: close(0),
    "closes-all": lambda: close(0, 1, 2),
    "ignores-termination": ignore_everything,
    "leaves-children": lambda: leave_children(own_session=False),
    "leaves-daemons": lambda: leave_children(own_session=True),
}


def main() -> None:
    fault = FAULTS[sys.argv[1]]
    manager = Manager(0)
    for line in sys.stdin:
        operation, *words = line.split()
        if operation == "check":
            fault()
        elif operation == "hello":
            say("hello 1 counters ids\n")
        elif operation == "new":
            manager = Manager(int(words[0]))
            say("ok\n")
        elif operation == "state":
            say(f"{manager.free} {manager.free} {' '.join('0' for _ in words)}\n")
            if sys.argv[1] == "late-line":
                say("0\n")
        elif operation == "drain":
            say("0\n")
        else:
            say("ok\n")


if __name__ == "__main__":
    main()
