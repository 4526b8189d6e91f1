"""`evictcheck engine`: the cache inside an engine, told pass by pass."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from evictcheck.console import progress, stdout_console, write_json
from evictcheck.files import refuse_unusable_folder, refuse_unwritable, write_whole
from evictcheck.options import (
    DEFAULT_OUT,
    DriverOption,
    IncludeOption,
    JsonOption,
    OutOption,
    PythonOption,
    SanitizeOption,
    SecondsOption,
    SourceOption,
    TimeoutOption,
    target_options,
)
from evictcheck.report import verdicts_json
from impl.drivers.client import TIMEOUT
from impl.target import Target
from impl.targets import resolve
from impl.watchdog import WATCHDOG
from model.eras import NEWEST, rules_of
from model.errors import EvictcheckError
from model.scheduling import (
    Abort,
    Arrive,
    ChangeWeights,
    KnownEngineFault,
    Move,
    Note,
    Pass,
    Placement,
    Policy,
    Prompt,
    Scene,
    Setup,
    Taken,
    What,
    WorkerOrder,
    encode_engine_trace,
)
from properties import real_scheduler
from properties.engine_exploration import EngineCounterexample, EngineRun
from properties.engine_invariants import ENGINE_PROPERTIES
from properties.engine_reach import REACH_SCOPE, Reach, reach_table
from properties.engine_scopes import DEFAULT_ENGINE_SCOPE, EngineScope, parse_engine_scope
from properties.engine_verdicts import (
    EngineQuestion,
    EngineReport,
    default_setup,
    judge_engine,
    release_of,
)
from properties.invariants import NO_CRASH, listed
from properties.verdicts import Outcome

ENGINE_REPORT_FORMAT = "evictcheck-engine-check/1"

_STYLES = {
    Outcome.HOLDS: "green",
    Outcome.VIOLATED: "bold red",
    Outcome.UNKNOWN: "yellow",
    Outcome.NOT_OBSERVABLE: "dim",
}


class SettingError(EvictcheckError):
    """A `--set` that names no option, or no value of it."""


# --- Settings ----------------------------------------------------------------------------------------------


def _number(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ValueError(f"a number of at least {least}")
    return int(text)


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("yes or no")
    return text == "yes"


def _worker_order(text: str) -> WorkerOrder:
    try:
        return WorkerOrder(text)
    except ValueError:
        raise ValueError(" or ".join(WorkerOrder)) from None


def _frees(text: str) -> bool:
    if text not in ("after-step", "at-schedule"):
        raise ValueError("after-step or at-schedule")
    return text == "after-step"


class _Option(Struct, frozen=True):
    """One thing that `--set` can set: how its value is read, and where it goes."""

    read: Callable[[str], Any]
    field: str
    of_rules: bool = False


SETTINGS: dict[str, _Option] = {
    "capacity": _Option(lambda text: _number(text, 1), "capacity"),
    "compute-budget": _Option(lambda text: _number(text, 1), "compute_budget"),
    "token-budget": _Option(lambda text: _number(text, 1), "token_budget"),
    "chunk-limit": _Option(lambda text: _number(text, 1), "chunk_limit"),
    "kv-capacity": _Option(lambda text: _number(text, 1), "kv_capacity"),
    "split-items": _Option(_yes_or_no, "split_items"),
    "look-ahead": _Option(lambda text: _number(text, 0), "look_ahead"),
    "placeholders": _Option(lambda text: _number(text, 0), "placeholders"),
    "worker-order": _Option(_worker_order, "worker_order"),
    "skips-present": _Option(_yes_or_no, "skips_present"),
    "frees": _Option(_frees, "frees_after_step", of_rules=True),
}
"""What `--set OPTION=VALUE` can set; `capacity` is the largest one that the scope tries."""


def configured(setup: Setup, scope: EngineScope, settings: list[str]) -> tuple[Setup, EngineScope]:
    """A setup and a scope with settings applied, as a person writes them: `look-ahead=1`.

    Raises:
        SettingError: One of them names no option, or no value of it.
    """
    for setting in settings:
        name, _, value = setting.partition("=")
        option = SETTINGS.get(name)
        if option is None:
            raise SettingError(
                f"--set {setting}: there is no option {name!r}; the options are {', '.join(SETTINGS)}"
            )
        try:
            read = option.read(value)
        except ValueError as error:
            raise SettingError(f"--set {setting}: {name} is {error}") from None
        if name == "look-ahead" and read > 1:
            raise SettingError(f"--set {setting}: look-ahead is 0 or 1")
        if option.of_rules:
            setup = replace(setup, rules=replace(setup.rules, **{option.field: read}))
        else:
            setup = replace(setup, **{option.field: read})
        if name == "capacity":
            scope = replace(scope, capacity=read)
    return setup, scope


# --- A story, pass by pass ---------------------------------------------------------------------------------


class Episode(Struct, frozen=True):
    """One move, told.

    Attributes:
        number: Of the move, from 1.
        title: What was decided.
        lines: What happened, in order.
        cached: What the manager calls cached after it; "" if it shows nothing.
        tensors: What the worker has after it.
        breach: What broke, or "".
    """

    number: int
    title: str
    lines: tuple[str, ...]
    cached: str
    tensors: str
    breach: str = ""


def tell_engine(counterexample: EngineCounterexample, target: Target) -> tuple[Episode, ...]:
    """Runs a counterexample again on a fresh session, and tells it.

    Raises:
        SceneError: A move is not possible where it stands.
    """
    trace = counterexample.trace
    run = EngineRun(trace.scene, target)
    episodes: list[Episode] = []
    try:
        for number, move in enumerate(trace.moves, start=1):
            taken, _ = run.take(move)
            entries = run.entries()
            last = number == len(trace.moves)
            episodes.append(
                Episode(
                    number,
                    _title(move, trace.scene),
                    () if taken is None else tuple(_lines(taken, trace.scene)),
                    "" if entries is None else listed(entries.references),
                    "" if taken is None else listed(taken.state.tensors),
                    counterexample.breach.observed if last else "",
                )
            )
        return tuple(episodes)
    finally:
        run.close()


def _title(move: Move, scene: Scene) -> str:
    match move:
        case Arrive(request_id):
            return f"{request_id} arrives"
        case Abort(request_id):
            return f"{request_id} is aborted"
        case ChangeWeights():
            return "the weights change"
        case Pass(tokens, kv):
            budget = f"a pass of {_count(tokens, 'token')}"
            if tokens < scene.setup.token_budget and scene.setup.kv_capacity is None:
                budget += " (others took the rest)"
            return budget if all(kv) else f"{budget}, KV blocks are short"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _lines(taken: Taken, scene: Scene) -> Iterator[str]:
    for note in taken.notes:
        line = _line(note, scene)
        if line:
            yield line


def _line(note: Note, scene: Scene) -> str:
    """One thing that happened, as a sentence; "" for what the title has said."""
    who, what = note.request_id, listed(note.hashes)
    where = f"input {note.input_id}"
    tokens = f"tokens {note.start} to {note.end - 1}" if note.end - note.start > 1 else f"token {note.start}"
    match note.what:
        case What.HIT:
            return f"{who} hits {what} ({where})"
        case What.HIT_EVICTABLE:
            return f"{who} hits {what} ({where}), which was evictable"
        case What.PICKED:
            return f"{what} is picked for {who} ({where})"
        case What.DUPLICATE:
            return f"{who} needs {what} once more ({where})"
        case What.EVICTED:
            return f"{what} is evicted to make room for {where} of {who}"
        case What.REFUSED:
            return f"{what} is refused to {who} ({where}): no room for it, or no compute budget"
        case What.ROLLED_BACK:
            return f"{what} may not be split ({where} of {who}): the window ends before it"
        case What.NOT_COVERED:
            return f"no embed of {what} lies in the window of {who} ({where}): not picked"
        case What.REJECTED:
            return f"{who} is rejected: {what} is known with another size ({where})"
        case What.SKIPPED:
            return f"{who} is scheduled no tokens; what it has hit it keeps"
        case What.GAVE_UP:
            return f"no KV blocks for {who}: it stays waiting"
        case What.PREEMPTED:
            return f"{who} is preempted: freed, nothing computed"
        case What.WITHDRAWN:
            items = f" and the encoding of {what}" if note.hashes else ""
            return f"{who} is the victim, and this pass had scheduled it: {tokens}{items} are withdrawn"
        case What.SCHEDULED:
            return f"{who} is scheduled for {tokens}"
        case What.REPORTED:
            return f"the step tells the worker to drop {what}"
        case What.DROPPED:
            return f"the worker drops {what}"
        case What.ENCODED:
            return f"the worker encodes {what} for {who}"
        case What.ENCODED_AGAIN:
            return f"the worker encodes {what} again, for {who}"
        case What.STILL_THERE:
            return f"the worker still has {what} and does not encode it"
        case What.GATHERED:
            return f"the worker gathers {what} for {who}"
        case What.DRAFTER_DID_WITHOUT:
            return f"the drafter does without {what} for {who}"
        case What.MISSING:
            return f"the worker gathers {what} for {who}: Encoder cache miss"
        case What.FREED:
            return f"{who} is past {what} ({where}) and frees it"
        case What.FINISHED:
            return f"{who} finishes"
        case What.WEIGHTS_CHANGED:
            return "cache and tensors are cleared"
        case What.ARRIVED:
            return prompt_in_words(scene.requests[scene.place(who)], scene.setup.policy)
        case What.ABORTED:
            return ""


def prompt_in_words(request: Prompt, policy: Policy) -> str:
    """A prompt: `r1: 4 tokens, a at 0 to 1, b at 3`."""
    parts = [_count(request.tokens, "token"), *(_placed(item) for item in request.items)]
    if request.outputs > 1:
        parts.append(f"generates {request.outputs}")
    if policy is Policy.PRIORITY:
        parts.append(f"priority {request.priority}")
    return f"{request.request_id}: {', '.join(parts)}"


def _placed(item: Placement) -> str:
    where = f"{item.offset}" if item.length == 1 else f"{item.offset} to {item.end - 1}"
    markers = "" if item.embeds_at is None else f" ({_count(item.embeds, 'embed')})"
    return f"{item.mm_hash} at {where}{markers}"


def setup_in_words(setup: Setup) -> str:
    """A configuration, as far as it is not the default: `priority policy, capacity 2, look-ahead 1`."""
    parts = [f"{setup.policy} policy", f"capacity {setup.capacity}"]
    if setup.compute_budget is not None:
        parts.append(f"compute budget {setup.compute_budget}")
    if setup.kv_capacity is not None:
        parts.append(f"token budget {setup.token_budget}, KV capacity {setup.kv_capacity}")
    if setup.chunk_limit is not None:
        parts.append(f"chunk limit {setup.chunk_limit}")
    if not setup.split_items:
        parts.append("items not split")
    if setup.look_ahead:
        parts.append(f"look-ahead {setup.look_ahead}")
    if setup.placeholders:
        parts.append(f"placeholders {setup.placeholders}")
    if setup.worker_order is not WorkerOrder.DROP_FIRST:
        parts.append(f"worker: {setup.worker_order}")
    if setup.skips_present:
        parts.append("worker skips what it has")
    return ", ".join(parts)


# --- Tables ------------------------------------------------------------------------------------------------


def engine_verdict_table(report: EngineReport, release: str) -> RenderableType:
    """The verdicts at the engine level, what was covered, and which situations were reached how often."""
    setup = report.question.setup
    table = Table(
        title=f"{report.target}, engine of {release}, {_setup_without_capacity(setup)}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("property", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("evidence")
    table.add_column("found by", no_wrap=True)
    for verdict in report.verdicts:
        style = _STYLES[verdict.outcome]
        table.add_row(verdict.property, Text(verdict.outcome, style), verdict.evidence, verdict.engine)
    return Group(table, *map(Text, _coverage(report)))


def _setup_without_capacity(setup: Setup) -> str:
    return setup_in_words(setup).replace(f", capacity {setup.capacity}", "", 1)


def _coverage(report: EngineReport) -> Iterator[str]:
    one = report.exploration
    whole = "explored" if one.complete else "stopped early in"
    yield (
        f"{whole} {one.scope}: {one.scenes:,} scenes, {one.states:,} states, {one.moves:,} moves, "
        f"{one.passes:,} of them passes, {one.calls:,} calls of the real code in {one.seconds:.1f} s"
    )
    parts = [f"{name} {count:,}" for name, count in one.situations.items()]
    yield f"situations reached: {', '.join(parts)}"


def engine_counterexample_table(
    number: int, counterexample: EngineCounterexample, target: Target
) -> RenderableType:
    """A counterexample pass by pass, with the user's symptom."""
    sentences = {one.name: (one.sentence, one.symptom) for one in ENGINE_PROPERTIES}
    sentences[NO_CRASH.name] = (NO_CRASH.sentence, "the engine dies inside of its scheduler")
    broken = counterexample.breach.property
    sentence, symptom = sentences[broken]
    title = Text(f"{number}. {broken}", "bold red")
    title.append(f": {sentence}", "default")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("what is decided")
    table.add_column("what happens")
    table.add_column("manager", no_wrap=True)
    table.add_column("worker", no_wrap=True)
    for episode in tell_engine(counterexample, target):
        lines = Text("\n".join(episode.lines))
        if episode.breach:
            lines.append(f"\n> {episode.breach}" if episode.lines else f"> {episode.breach}", "bold red")
        table.add_row(str(episode.number), episode.title, lines, episode.cached, episode.tensors)
    return Group(
        title,
        Text(f"What a user sees: {symptom}."),
        Text(
            f"{len(counterexample.trace)} moves, found by {counterexample.found_by}; "
            f"{setup_in_words(counterexample.trace.scene.setup)}"
        ),
        table,
    )


_COSTS = {
    "gather-hits": "crash",
    "worker-coherent": "crash at the next hit",
    "no-redundant-encode": "recompute",
    "no-idle-reference": "space kept",
    "progress": "hang",
    NO_CRASH.name: "the manager raises",
}


def consequence_in_words(line: Reach) -> str:
    """What an engine pays for a problem: `crash (4 moves)`, or `harmless`."""
    if line.reached is None:
        return "not reached"
    parts = [f"{_COSTS[one.breach.property]} ({len(one.trace)} moves)" for one in line.consequences]
    return ", ".join(parts) or "harmless"


def reach_in_table(lines: tuple[Reach, ...], release: str) -> RenderableType:
    """Both seeded problems by policy and worker: reached or not, and what it costs."""
    table = Table(
        title=f"are the seeded problems reachable? engine of {release}", title_justify="left", box=SIMPLE_HEAD
    )
    for heading in ("problem", "policy", "worker", "reached", "consequence"):
        table.add_column(heading)
    for line in lines:
        worker = str(line.setup.worker_order) + (", skips what it has" if line.setup.skips_present else "")
        reached = "no" if line.reached is None else f"yes, {len(line.reached.trace)} moves"
        table.add_row(line.problem, line.setup.policy, worker, reached, consequence_in_words(line))
    passes = sum(line.exploration.passes for line in lines)
    scope = lines[0].exploration.scope
    note = f"all of {scope}: {passes:,} passes; what the correct port does too on the same trace is not counted"
    return Group(table, Text(note))


# --- JSON --------------------------------------------------------------------------------------------------


def engine_report_json(report: EngineReport, release: str, files: dict[str, str]) -> dict[str, Any]:
    """The JSON form of an engine report; `files` names what was written for each property's counterexample."""
    one = report.exploration
    return {
        "target": report.target,
        "era": release,
        "policy": str(report.question.setup.policy),
        "setup": msgspec.to_builtins(report.question.setup),
        "scope": str(report.question.scope),
        "complete": report.complete,
        "verdicts": verdicts_json(report.verdicts),
        "counterexamples": [
            {
                "property": found.breach.property,
                "engine": found.found_by,
                "length": len(found.trace),
                "observed": found.breach.observed,
                "trace": msgspec.to_builtins(found.trace),
                "file": files.get(found.breach.property),
            }
            for found in report.counterexamples
        ],
        "exploration": {
            "scenes": one.scenes,
            "states": one.states,
            "moves": one.moves,
            "passes": one.passes,
            "calls": one.calls,
            "situations": one.situations,
        },
        "corpus": list(report.corpus),
    }


def write_engine_counterexamples(folder: Path, report: EngineReport, release: str) -> dict[str, str]:
    """Writes each counterexample as an engine trace; the file of each property.

    Raises:
        OutputError: A file cannot be written.
    """
    files = {}
    for found in report.counterexamples:
        broken = found.breach.property
        words = [report.target, "engine", str(report.question.setup.policy), broken]
        stem = "-".join("".join(letter if letter.isalnum() else "-" for letter in word) for word in words)
        note = f"{found.breach.observed}; rules of {release}, found by {found.found_by}"
        path = folder / f"{stem}.engine.json"
        write_whole(path, encode_engine_trace(KnownEngineFault(found.trace, broken, note, (report.target,))))
        files[broken] = str(path)
    return files


# --- For `check` and for `evictcheck engine` ---------------------------------------------------------------


def check_engine(target: Target, seconds: float | None, announce: Callable[[str, int, int], None]) -> EngineReport:
    """The engine level as `check` asks it: upstream's default configuration, in the target's own era.

    Args:
        target: What to judge.
        seconds: When to stop; None to finish.
        announce: Told what is going on.
    """
    return judge_engine(target, EngineQuestion(default_setup(target.name), seconds=seconds), announce)


def show_engine_report(
    console: Console, report: EngineReport, target: Target, out: Path, release: str
) -> dict[str, str]:
    """Prints an engine report and writes its counterexamples; the file of each property."""
    console.print(engine_verdict_table(report, release))
    console.print()
    files = write_engine_counterexamples(out, report, release)
    for number, counterexample in enumerate(report.counterexamples, start=1):
        console.print(engine_counterexample_table(number, counterexample, target))
        console.print(f"  written: {files[counterexample.breach.property]}", soft_wrap=True)
        console.print()
    return files


def engine(
    target_name: Annotated[
        str,
        typer.Argument(
            metavar="[TARGET]",
            help="Whose manager the engine drives; see `evictcheck targets`. vllm-scheduler:installed takes the "
            "known engine traces to vLLM's own scheduler instead, in the interpreter that --python names.",
        ),
    ] = "port",
    policy: Annotated[Policy, typer.Option(help="Who is served first, and who is preempted.")] = Policy.FIRST_COME,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="OPTION=VALUE", help=f"Configure the engine: {', '.join(SETTINGS)}. May be repeated."
        ),
    ] = None,
    era: Annotated[
        str | None,
        typer.Option(
            metavar="R", help="Schedule as this release does. Default: the target's own, else the newest."
        ),
    ] = None,
    question: Annotated[
        str | None,
        typer.Option(
            help="Ask another question. `reach`: does an engine reach the two seeded problems, and at what cost?"
        ),
    ] = None,
    python: PythonOption = "",
    timeout: TimeoutOption = TIMEOUT,
    sanitize: SanitizeOption = "",
    driver: DriverOption = None,
    include: IncludeOption = None,
    source: SourceOption = None,
    scope: Annotated[
        str | None, typer.Option(help="How far to look: requests, items of each, hashes, tokens of a prompt.")
    ] = None,
    seconds: SecondsOption = None,
    json_file: JsonOption = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Put a manager into an engine: scheduler passes, preemption, and a worker's tensors."""
    if question not in (None, "reach"):
        raise EvictcheckError(f"--question {question}: the only other question is reach")
    if target_name == real_scheduler.NAME:
        raise typer.Exit(_confirm(python, json_file))
    release = era or release_of(target_name)
    wanted = DEFAULT_ENGINE_SCOPE if question is None else REACH_SCOPE
    if scope is not None:
        wanted = parse_engine_scope(scope)
    setup = Setup(capacity=wanted.capacity, policy=policy, rules=rules_of(release))
    setup, wanted = configured(setup, wanted, settings or [])
    if json_file is not None:
        refuse_unwritable(json_file)
    console = stdout_console()
    if question == "reach":
        release = era or NEWEST
        lines = reach_table(replace(setup, rules=rules_of(release)), wanted)
        console.print(reach_in_table(lines, release))
        if json_file is not None:
            _write_reports(json_file, [reach_json(line) for line in lines])
        raise typer.Exit(0)
    refuse_unusable_folder(out)
    WATCHDOG.start(timeout)
    target = resolve(target_name, target_options(python, timeout, sanitize, driver, include, source))
    report = judge_engine(target, EngineQuestion(setup, wanted, seconds))
    files = show_engine_report(console, report, target, out, release)
    if json_file is not None:
        _write_reports(json_file, [engine_report_json(report, release, files)])
    raise typer.Exit(report.exit_code)


def _confirm(python: str, json_file: Path | None) -> int:
    """Known engine traces on the real scheduler; 1 if it does not do what is known of its release."""
    if not python:
        raise EvictcheckError(f"{real_scheduler.NAME} needs --python: an interpreter that has vLLM")
    if json_file is not None:
        refuse_unwritable(json_file)
    with progress(real_scheduler.NAME) as announce:
        release = real_scheduler.installed_version(python)
        found = real_scheduler.confirm(python, lambda done, total: announce("taking traces", done, total))
    table = Table(title=f"vLLM {release}'s own scheduler", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("known engine trace", "property", "known of this release", "seen"):
        table.add_column(heading)
    for one in found:
        words = ("broken" if one.known else "holds", "broken" if one.seen else "holds")
        table.add_row(one.name, one.property, *words)
    stdout_console().print(table)
    if json_file is not None:
        rows = [msgspec.to_builtins(one) for one in found]
        write_json(json_file, {"format": "evictcheck-confirm/1", "release": release, "traces": rows})
    return int(any(one.known != one.seen for one in found))


def reach_json(line: Reach) -> dict[str, Any]:
    """The JSON form of one line of the reach table."""
    return {
        "problem": line.problem,
        "policy": str(line.setup.policy),
        "worker": str(line.setup.worker_order),
        "skips_present": line.setup.skips_present,
        "reached": None if line.reached is None else len(line.reached.trace),
        "trace": None if line.reached is None else msgspec.to_builtins(line.reached.trace),
        "consequences": [
            {
                "property": one.breach.property,
                "cost": _COSTS[one.breach.property],
                "length": len(one.trace),
                "trace": msgspec.to_builtins(one.trace),
            }
            for one in line.consequences
        ],
        "passes": line.exploration.passes,
    }


def _write_reports(path: Path, reports: list[dict[str, Any]]) -> None:
    write_json(path, {"format": ENGINE_REPORT_FORMAT, "reports": reports})
