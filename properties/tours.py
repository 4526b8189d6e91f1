"""Exhaustive exploration of a driver by tours: whole transcripts compared, and judged only where they differ.

A driver answers a million operations a second if it is not waited for after each. What explores the reference
knows every answer in advance, so its calls are recorded once, as a graph: its places are told apart as the
explorer does for a target without internals, by the state and the call that led there. A tour starts from a fresh
manager, takes calls that were not taken yet as long as there are some, and starts afresh at the next place that
has some. The answers are compared as they come, byte for byte. A driver that answers like the reference all along
has carried out every pair of consecutive calls, and the judge would find nothing. Where one byte differs, the
workload is explored call by call.

Recorded tours are kept in the cache folder, under what they depend on: they are made once for each scope.
"""

import hashlib
import zlib
from array import array
from collections.abc import Hashable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import time

import msgspec
from msgspec import Struct

import impl.drivers.client
import impl.port
import model
import properties
from impl.drivers.client import DriverTarget, call_line, look_lines, look_text, new_line, result_text
from impl.errors import NoAnswerError
from impl.folders import cache_root, write_whole
from impl.inprocess import PythonSession, RequestView
from impl.port import PortManager
from impl.target import Observation, Session, Shows, Target
from model.operations import Call, Discipline, Result
from model.workload import Workload
from properties.exploration import Covered, Exploration, Progress, cover, explore
from properties.scopes import Scope, workload_classes

_LINES_AT_ONCE = 50_000


class Tour(Struct, frozen=True):
    """All that exploring one workload asks, as a graph; place 0 is the fresh manager.

    The first call that leads to a place was recorded before those that start there. Numbers are of 32 bits.

    Attributes:
        sources: For each call the place where it is made.
        targets: For each call the place where it leads.
        lines: The distinct operations: a call, and the look after it.
        line_of: For each call its operation.
        answers: The distinct answers: to a call alone, and to it and the look.
        answer_of: For each call its answer.
        covered: What was covered thereby.
    """

    sources: bytes
    targets: bytes
    lines: list[tuple[bytes, bytes]]
    line_of: bytes
    answers: list[tuple[bytes, bytes]]
    answer_of: bytes
    covered: Covered


class Toured(Struct, frozen=True):
    """A run over a scope.

    Attributes:
        exploration: What was covered and found.
        operations: Calls that the driver carried out along tours.
        seconds: Time that the tours took, without recording them and without judging call by call.
    """

    exploration: Exploration
    operations: int
    seconds: float


class _Known:
    """The workloads that tours have covered, for the explorer to go round."""

    def __init__(self) -> None:
        self.covered: dict[int, Covered] = {}

    def keep(self, number: int, covered: Covered) -> None:
        """The explorer's own are not needed again."""


def explore_target(
    target: Target,
    scope: Scope,
    discipline: Discipline,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Exploration:
    """Explores a target in the way that suits it: a driver by tours where it can be toured, else call by call."""
    if isinstance(target, DriverTarget) and _can_be_toured(target):
        return explore_by_tours(target, scope, discipline, deadline=deadline, progress=progress).exploration
    return explore(target, scope, discipline, deadline=deadline, progress=progress, executor=executor)


def explore_by_tours(
    target: DriverTarget,
    scope: Scope,
    discipline: Discipline,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Toured:
    """Explores every workload of a scope; the outcome is that of `exploration.explore`.

    Args:
        target: What to judge.
        scope: The bounds.
        discipline: Who makes the calls.
        deadline: When to stop, on the clock of `time.time`.
        progress: Told after each workload that a tour has covered.
    """
    began = time()
    classes = workload_classes(scope, discipline)
    known, operations, touring = _Known(), 0, 0.0
    if _can_be_toured(target):
        for number, one in enumerate(classes):
            if deadline is not None and time() >= deadline:
                break
            tour = recorded(one.workload, discipline, target)
            started = time()
            made = agrees(target, one.workload, tour)
            touring += time() - started
            operations += made or 0
            if made is not None:
                known.covered[number] = tour.covered
                if progress is not None:
                    progress(len(known.covered), len(classes))
    exploration = explore(target, scope, discipline, deadline=deadline, progress=progress, record=known)
    return Toured(msgspec.structs.replace(exploration, seconds=time() - began), operations, touring)


def _can_be_toured(target: DriverTarget) -> bool:
    """Tours hold no internals, and the answers of today's reference only."""
    return target.shows is not Shows.INTERNALS and "ids" in target.capabilities and not target.era


def agrees(target: DriverTarget, workload: Workload, tour: Tour) -> int | None:
    """Takes a tour: how many calls were made, or None if one answer differed or was missing."""
    made = 0
    for text, count, calls, right in transcripts(tour, workload, len(look_lines(workload, target.capabilities))):
        try:
            answers = target.transcript(workload, text, count)
        except NoAnswerError:
            return None
        if answers != right:
            return None
        made += calls
    return made


def transcripts(tour: Tour, workload: Workload, looks: int) -> Iterator[tuple[bytes, int, int, bytes]]:
    """The operations, how many they are, how many of them are calls, and the right answers."""
    sources, targets = _numbers(tour.sources), _numbers(tour.targets)
    line_of, answer_of = _numbers(tour.line_of), _numbers(tour.answer_of)
    lines, answers = tour.lines, tour.answers
    untaken: list[list[int]] = [[] for _ in range(max(targets, default=0) + 1)]
    first: list[int] = [-1] * len(untaken)
    for number in range(len(sources) - 1, -1, -1):
        untaken[sources[number]].append(number)
        first[targets[number]] = number
    text: list[bytes] = []
    right: list[bytes] = []
    count = calls = 0
    for place in range(len(untaken)):
        while untaken[place]:
            text.append(new_line(workload))
            right.append(b"ok\n")
            way = []
            there = place
            while there:
                way.append(first[there])
                there = sources[way[-1]]
            for number in reversed(way):
                text.append(lines[line_of[number]][0])
                right.append(answers[answer_of[number]][0])
            taken = 0
            there = place
            while untaken[there]:
                number = untaken[there].pop()
                text.append(lines[line_of[number]][1])
                right.append(answers[answer_of[number]][1])
                there = targets[number]
                taken += 1
            count += 1 + len(way) + taken * (1 + looks)
            calls += len(way) + taken
            if len(text) >= _LINES_AT_ONCE:
                yield b"".join(text), count, calls, b"".join(right)
                text, right, count, calls = [], [], 0, 0
    if text:
        yield b"".join(text), count, calls, b"".join(right)


def _numbers(packed: bytes) -> list[int]:
    return array("I", packed).tolist()


# --- Recording ---------------------------------------------------------------------------------------------


class _Recorder:
    """Explores this project's own manager, which is the reference's equal, and writes down each call."""

    name = "port"
    era: frozenset[str] = frozenset()

    def __init__(self, target: DriverTarget) -> None:
        self.shows = target.shows
        self.has_reset = target.has_reset
        self.capabilities = target.capabilities
        self._sources, self._targets = array("I"), array("I")
        self._line_of, self._answer_of = array("I"), array("I")
        self._lines: dict[tuple[bytes, bytes], int] = {}
        self._answers: dict[tuple[bytes, bytes], int] = {}
        self._places: dict[Hashable, int] = {}
        self._known: dict[tuple[int, int], int] = {}

    def start(self, workload: Workload) -> Session:
        look = b"".join(look_lines(workload, self.capabilities))
        manager = PortManager(workload.capacity)
        self.place(manager, b"")
        views = {request.request_id: RequestView(request) for request in workload.requests}
        return _Recording(self, PythonSession(manager, views, self.shows), look, 0)

    def place(self, manager: PortManager, line: bytes) -> int:
        """The place where a manager stands after a call."""
        held = frozenset((request_id, *sorted(ids)) for request_id, ids in manager.request_cached_ids.items())
        state = (frozenset(manager.embeds.items()), held, tuple(manager.freeable), frozenset(manager.freed), line)
        return self._places.setdefault(state, len(self._places))

    def record(self, source: int, line: tuple[bytes, bytes], answer: tuple[bytes, bytes], target: int) -> None:
        """Adds a call, unless it was made at that place before."""
        number = self._lines.setdefault(line, len(self._lines))
        if self._known.setdefault((source, number), target) == target and len(self._known) > len(self._sources):
            self._sources.append(source)
            self._targets.append(target)
            self._line_of.append(number)
            self._answer_of.append(self._answers.setdefault(answer, len(self._answers)))

    def tour(self, covered: Covered) -> Tour:
        return Tour(
            self._sources.tobytes(),
            self._targets.tobytes(),
            list(self._lines),
            self._line_of.tobytes(),
            list(self._answers),
            self._answer_of.tobytes(),
            covered,
        )


class _Recording:
    """A session of which each call is written down."""

    __slots__ = ("_inner", "_look", "_place", "_recorder")

    def __init__(self, recorder: _Recorder, inner: PythonSession, look: bytes, place: int) -> None:
        self._recorder = recorder
        self._inner = inner
        self._look = look
        self._place = place

    def call(self, call: Call) -> Result:
        recorder = self._recorder
        result = self._inner.call(call)
        line, answer = call_line(call), result_text(result) + b"\n"
        shown = look_text(self._inner.observe(), recorder.capabilities)
        there = recorder.place(self._inner.manager, line)
        recorder.record(self._place, (line, line + self._look), (answer, answer + shown), there)
        self._place = there
        return result

    def observe(self) -> Observation:
        return self._inner.observe()

    def fork(self) -> "_Recording":
        return _Recording(self._recorder, self._inner.fork(), self._look, self._place)

    def close(self) -> None:
        pass


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Tour)


def recorded(workload: Workload, discipline: Discipline, target: DriverTarget) -> Tour:
    """The tour of a workload for drivers with a target's capabilities, recorded if no run has done so before."""
    question = (workload, discipline, sorted(target.capabilities), _sources())
    path = cache_root() / "tours" / hashlib.sha256(msgspec.json.encode(question)).hexdigest()
    try:
        return _decoder.decode(zlib.decompress(path.read_bytes()))
    except (OSError, zlib.error, msgspec.DecodeError):
        pass
    recorder = _Recorder(target)
    tour = recorder.tour(cover(recorder, workload, discipline))
    assert not tour.covered.counterexamples, "the port is not the reference's equal"
    # Without a cache it is recorded again next time.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, zlib.compress(_encoder.encode(tour), 1))
    return tour


@cache
def _sources() -> str:
    """What tours depend on, beside the question: how calls are chosen, told apart, answered and written."""
    digest = hashlib.sha256()
    folders = [Path(folder) for package in (model, properties) for folder in package.__path__]
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    for file in (*files, Path(impl.port.__file__), Path(impl.drivers.client.__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()
