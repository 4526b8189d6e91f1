"""A driver for Python classes: one file, standard library only, run by any interpreter from 3.9 on.

    python python_driver.py package.module:Class

The class is imported as a program in the current directory would import it. See PROTOCOL.md beside this file.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import types
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

METHODS = (
    "check_and_update_cache",
    "can_allocate",
    "allocate",
    "get_cached_input_ids",
    "free_encoder_input",
    "free",
    "get_freed_mm_hashes",
)
SAMPLE_EMBEDS = 4
TRIAL_SECONDS = 5
COUNTERS = ("num_free_slots", "num_freeable_slots")


class Feature:
    """One item as managers ask for it."""

    def __init__(self, identifier: str) -> None:
        self.identifier = identifier


class Request:
    """A request that answers what any release of vLLM's manager asks of one."""

    def __init__(self, request_id: str, hashes: list[str], embeds: list[int]) -> None:
        self.request_id = request_id
        self.mm_hashes = hashes
        self.mm_features = [Feature(mm_hash) for mm_hash in hashes]
        self._embeds = embeds

    def get_num_encoder_embeds(self, input_id: int) -> int:
        """Size of an input's encoder output, in embeds."""
        return self._embeds[input_id]

    get_num_encoder_tokens = get_num_encoder_embeds


class RefusalError(Exception):
    """Nothing here can be judged; the message says why."""


def imported(name: str) -> Any:
    """The class that `package.module:Class` names, seen from the current directory."""
    module_name, _, class_name = name.partition(":")
    here = os.getcwd()
    if sys.path and os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)):
        del sys.path[0]
    sys.path.insert(0, here)
    top = module_name.partition(".")[0]
    folder = os.path.join(here, top)
    if os.path.isdir(folder) and not os.path.exists(os.path.join(folder, "__init__.py")):
        # Without an __init__.py, an installed package of that name would go before this folder.
        package = types.ModuleType(top)
        package.__path__ = [folder]
        sys.modules[top] = package
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in class_name.split("."):
            if not hasattr(found, attribute):
                raise RefusalError(f"module {module_name} has no class {class_name}")
            found = getattr(found, attribute)
    except RefusalError:
        raise
    except (Exception, SystemExit) as error:
        raise RefusalError(f"importing {name} raised {in_words(error)}") from error
    if not isinstance(found, type):
        raise RefusalError(f"{class_name} of module {module_name} is no class but of type {type(found).__name__}")
    return found


def in_words(error: BaseException) -> str:
    """An exception on one line: `KeyError ('a')`."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__} ({text})" if text else type(error).__name__


def capabilities(manager_class: Any) -> list[str]:
    """What the class can do, found out with an instance."""
    missing = [method for method in METHODS if not callable(getattr(manager_class, method, None))]
    if missing:
        raise RefusalError(f"{manager_class!r} has no {', '.join(missing)}; a manager offers {', '.join(METHODS)}")
    try:
        sample = manager_class(SAMPLE_EMBEDS)
    except (Exception, SystemExit) as error:
        made = f"{manager_class.__name__}({SAMPLE_EMBEDS})"
        raise RefusalError(f"{made} raised {in_words(error)}; a manager is made of its capacity alone") from error
    found = ["ids"]
    if callable(getattr(manager_class, "reset", None)):
        found.append("reset")
    if all(type(getattr(sample, counter, None)) is int for counter in COUNTERS):
        found.append("counters")
        if keeps_upstreams_bookkeeping(sample):
            found.append("internals")
    return found


def keeps_upstreams_bookkeeping(sample: Any) -> bool:
    """Whether the attributes that show the bookkeeping are there, empty and once an entry was evicted.

    Asked of a child where there can be one: a manager that exits, forks or hangs does it there, and is judged
    for it later.
    """
    if not hasattr(os, "fork"):
        return stays_in_shape(sample)
    child = os.fork()
    if child == 0:
        signal.alarm(TRIAL_SECONDS)
        os._exit(0 if stays_in_shape(sample) else 1)
    _, status = os.waitpid(child, 0)
    # A child that came to no answer of its own kept the shapes until then.
    return not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1)


def stays_in_shape(sample: Any) -> bool:
    """Whether the bookkeeping has upstream's shapes, empty and once an entry was evicted."""
    request = Request("request", ["first", "second"], [SAMPLE_EMBEDS, SAMPLE_EMBEDS])
    if not has_upstreams_shapes(sample):
        return False
    try:
        for method, arguments in (
            (sample.allocate, (request, 0)),
            (sample.free_encoder_input, (request, 0)),
            (sample.can_allocate, (request, 1, SAMPLE_EMBEDS, 0)),
        ):
            method(*arguments)
            if not has_upstreams_shapes(sample):
                return False
    except BaseException:  # noqa: BLE001 - a fault of the manager, and not to be judged here
        return True
    return True


def has_upstreams_shapes(manager: Any) -> bool:
    """Whether what they hold now has those shapes."""
    cached, freeable = getattr(manager, "cached", None), getattr(manager, "freeable", None)
    freed, listed = getattr(manager, "freed", None), getattr(manager, "request_cached_ids", {})
    return (
        isinstance(cached, Mapping)
        and isinstance(freeable, Mapping)
        and isinstance(freed, (Sequence, Set))
        and isinstance(listed, Mapping)
        and all(isinstance(holders, (Sequence, Set)) for holders in cached.values())
        and all(isinstance(name, str) for names in (cached, freeable, freed, listed) for name in names)
        and all(isinstance(name, str) for holders in cached.values() for name in holders)
    )


def as_list(items: Iterable[Any]) -> str:
    """A list in the protocol's form."""
    words = [str(item) for item in items]
    return " ".join([str(len(words)), *words])


def as_set(items: Iterable[Any]) -> str:
    """A list that stands for a set."""
    return as_list(sorted(set(items)))


class Driver:
    """Carries out operations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: dict[str, Request] = {}
        self.manager: Any = None
        self.manager_class: Any = None
        self.announced: list[str] = []

    def hello(self, words: list[str]) -> str:
        """Loads the class and says what it can do."""
        if words != ["1"]:
            raise RefusalError(f"this driver speaks version 1 of the protocol, not {' '.join(words)}")
        self.manager_class = imported(self.name)
        self.announced = capabilities(self.manager_class)
        return " ".join(["hello", "1", *self.announced])

    def request(self, words: list[str]) -> None:
        """Declares a request."""
        request_id, _, *items = words
        self.requests[request_id] = Request(request_id, items[::2], [int(size) for size in items[1::2]])

    def new(self, words: list[str]) -> None:
        """Makes a fresh manager."""
        self.manager = self.manager_class(int(words[0]))

    def check(self, words: list[str]) -> int:
        """`check_and_update_cache`."""
        return int(bool(self.manager.check_and_update_cache(self.requests[words[0]], int(words[1]))))

    def can_allocate(self, words: list[str]) -> int:
        """`can_allocate`."""
        return int(bool(self.manager.can_allocate(self.requests[words[0]], *map(int, words[1:]))))

    def allocate(self, words: list[str]) -> None:
        """`allocate`."""
        self.manager.allocate(self.requests[words[0]], int(words[1]))

    def free_input(self, words: list[str]) -> None:
        """`free_encoder_input`."""
        self.manager.free_encoder_input(self.requests[words[0]], int(words[1]))

    def free(self, words: list[str]) -> None:
        """`free`."""
        self.manager.free(self.requests[words[0]])

    def drain(self, words: list[str]) -> str:
        """`get_freed_mm_hashes`."""
        return as_set(self.manager.get_freed_mm_hashes())

    def reset(self, words: list[str]) -> None:
        """`reset`."""
        self.manager.reset()

    def ids(self, words: list[str]) -> str:
        """`get_cached_input_ids`."""
        return as_set(self.manager.get_cached_input_ids(self.requests[words[0]]))

    def state(self, words: list[str]) -> str:
        """The counters and the input ids."""
        counters = [str(getattr(self.manager, name)) for name in COUNTERS] if "counters" in self.announced else []
        return " ".join([*counters, *[self.ids([request_id]) for request_id in words]])

    def internals(self, words: list[str]) -> str:
        """The bookkeeping."""
        manager = self.manager
        entries = [f"{mm_hash} {as_set(manager.cached[mm_hash])}" for mm_hash in sorted(manager.cached)]
        tracked = getattr(manager, "request_cached_ids", None)
        held = "-1" if tracked is None else as_set(tracked)
        return " ".join([as_list(entries), as_list(manager.freeable), as_list(sorted(manager.freed)), held])

    def answer(self, line: str) -> str:
        """One operation's answer; whatever the manager raises is one too."""
        operation, *words = line.split(" ")
        try:
            answer = getattr(self, operation)(words)
        except RefusalError as refusal:
            return f"error {refusal}"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is its answer
            return f"error {in_words(error)}"
        return "ok" if answer is None else str(answer)


def main() -> None:
    """Answers until the input ends."""
    operations, answers = os.dup(0), os.dup(1)
    # What the manager reads or prints must not get between the answers.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    driver = Driver(sys.argv[1])
    with os.fdopen(answers, "wb") as answered:
        rest = b""
        while True:
            read = os.read(operations, 1 << 16)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            answered.write(b"".join([driver.answer(line.decode()).encode() + b"\n" for line in lines]))
            answered.flush()


if __name__ == "__main__":
    main()
