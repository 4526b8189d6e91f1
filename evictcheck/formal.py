"""`evictcheck search` and `evictcheck prove`: what z3 says about the model."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evictcheck.console import progress, stdout_console, write_json
from evictcheck.files import OutputError, refuse_unusable_folder, refuse_unwritable, write_whole
from evictcheck.options import DEFAULT_OUT, JsonOption, OutOption
from evictcheck.report import counterexamples_json, present, show
from impl.target import Target
from impl.targets import resolve
from model.errors import EvictcheckError
from model.operations import Discipline, Trace
from model.relation import Switches
from properties.bounded_search import (
    DEFAULT_DEPTH,
    ENGINE,
    Reached,
    Search,
    Verdict,
    default_target,
    reach,
    refuse_unsearchable,
    search,
)
from properties.counterexample import Counterexample, replay
from properties.formulas import FACTS, PROPERTY_FORMULAS
from properties.induction import INTERRUPTED, Level, Obligation, Outcome, Proof, obligations, prove, smtlib
from properties.minimize import minimize
from properties.scopes import DEFAULT_SCOPE, Scope, parse_scope
from properties.situations import SITUATIONS
from properties.solving import SolverProcess

SEARCH_FORMAT = "evictcheck-search/1"
PROVE_FORMAT = "evictcheck-prove/1"

_MENDS = {name.replace("_", "-"): name for name in Switches.__struct_fields__}

_STYLES = {
    Outcome.PROVED: "green",
    Outcome.FAILED: "bold red",
    Outcome.VACUOUS: "bold red",
    Outcome.UNKNOWN: "yellow",
}

_Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="MEND",
        help=f"Leave out one of upstream's mends: {', '.join(_MENDS)}. May be repeated.",
    ),
]
_ScopeText = Annotated[
    str, typer.Option("--scope", help="The bounds: 3r2i3h/sizes=1/capacity=2; see `evictcheck check --help`.")
]
_Seconds = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=31_536_000.0,
        help="A limit for each question to the solver; one that needs longer is unknown.",
    ),
]


def _switches(without: list[str] | None) -> Switches:
    for name in without or ():
        if name not in _MENDS:
            raise EvictcheckError(f"--without {name}: there is no such mend; the mends are {', '.join(_MENDS)}")
    return Switches(**{_MENDS[name]: False for name in without or ()})


def _left_out(switches: Switches) -> list[str]:
    return [name for name, field in _MENDS.items() if not getattr(switches, field)]


def _mends_in_words(switches: Switches) -> str:
    left_out = _left_out(switches)
    return f"without {' and '.join(left_out)}" if left_out else "with both mends"


# --- Search ------------------------------------------------------------------------------------------------


def search_command(
    asked: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="P", help="Search for this property only. May be repeated."),
    ] = None,
    without: _Without = None,
    scope: _ScopeText = str(DEFAULT_SCOPE),
    discipline: Annotated[
        Discipline,
        typer.Option(help="Who makes the calls: a scheduler in whole steps, or anybody one legal call at a time."),
    ] = Discipline.CALLER,
    depth: Annotated[int, typer.Option(metavar="N", help="Steps of the longest traces.")] = DEFAULT_DEPTH,
    replay_on: Annotated[
        str | None,
        typer.Option(
            "--replay",
            metavar="TARGET",
            help="The implementation on which each trace must replay. Default: the seeded defects that "
            "correspond to the mends left out.",
        ),
    ] = None,
    seconds: _Seconds = None,
    json_file: JsonOption = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Search the model for the shortest traces that break a property, with z3, and replay them on real code."""
    switches = _switches(without)
    properties = tuple(dict.fromkeys(asked or PROPERTY_FORMULAS))
    refuse_unsearchable(properties, depth)
    bounds = parse_scope(scope)
    _refuse_unwritable(json_file, out)
    target = resolve(replay_on or default_target(switches))

    console = stdout_console()
    with progress(f"search {bounds}") as announce:
        result = search(
            bounds,
            discipline,
            switches,
            properties,
            depth,
            target,
            seconds=seconds,
            progress=lambda done: announce("searched depth", done.steps, depth),
        )
    show(console, _depth_table(result), _search_table(result))
    found = tuple(minimize(one.counterexample, target) for one in result.verdicts if one.counterexample)
    files = present(console, found, target, out)
    if json_file is not None:
        document = _search_json(result)
        document["counterexamples"] = counterexamples_json(found, files)
        write_json(json_file, document)
    unknown = any(one.unknown for one in result.verdicts)
    raise typer.Exit(1 if found else 3 if unknown else 0)


def _refuse_unwritable(json_file: Path | None, out: Path) -> None:
    refuse_unusable_folder(out)
    if json_file is not None:
        refuse_unwritable(json_file)


def _depth_table(result: Search) -> Table:
    table = Table(
        title=f"search at {result.scope}, {result.discipline} discipline, {_mends_in_words(result.switches)}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("depth", justify="right")
    table.add_column("seconds", justify="right")
    table.add_column("decided on whole traces; the rest follows from the depth before")
    for one in result.depths:
        table.add_row(str(one.steps), f"{one.seconds:.2f}", ", ".join(one.unrolled) or "nothing")
    table.caption = "lemmas, decided anew at each depth: the properties and " + ", ".join(
        result.depths[-1].lemmas if result.depths else ()
    )
    table.caption_justify = "left"
    return table


def _search_table(result: Search) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("property", no_wrap=True)
    table.add_column("answer")
    for one in result.verdicts:
        table.add_row(one.property, _answer(one, result))
    return table


def _answer(verdict: Verdict, result: Search) -> Text:
    if verdict.depth is not None:
        unit = "steps" if result.discipline is Discipline.CALLER else "calls"
        return Text(f"violated in {verdict.depth} {unit}, the fewest; replayed on {result.target}", "bold red")
    none = f"none up to depth {verdict.ruled_out} at scope {result.scope}"
    if verdict.unknown is not None:
        return Text(f"unknown: {verdict.unknown}; {none}", "yellow")
    return Text(none, "green")


def _search_json(result: Search) -> dict[str, Any]:
    return {
        "format": SEARCH_FORMAT,
        "scope": str(result.scope),
        "discipline": str(result.discipline),
        "without": _left_out(result.switches),
        "target": result.target,
        "depths": [
            {
                "depth": one.steps,
                "seconds": round(one.seconds, 3),
                "lemmas": list(one.lemmas),
                "whole_traces": list(one.unrolled),
            }
            for one in result.depths
        ],
        "verdicts": [
            {
                "property": one.property,
                "verdict": "violated" if one.depth is not None else "unknown" if one.unknown else "none",
                "length": one.depth,
                "none_up_to": one.ruled_out,
                "reason": one.unknown,
            }
            for one in result.verdicts
        ],
    }


# --- Prove -------------------------------------------------------------------------------------------------


def prove_command(
    without: _Without = None,
    scope: _ScopeText = str(DEFAULT_SCOPE),
    depth: Annotated[
        int, typer.Option(metavar="N", help="Steps of the longest trace looked for where a proof fails.")
    ] = DEFAULT_DEPTH,
    smt2: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write each obligation for other solvers.")
    ] = None,
    seconds: _Seconds = None,
    json_file: JsonOption = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Prove the model's properties with z3: for every length in a scope, and for every size without one."""
    switches = _switches(without)
    bounds = parse_scope(scope)
    refuse_unsearchable((), depth)
    _refuse_unwritable(json_file, out)
    if smt2 is not None:
        refuse_unusable_folder(smt2)

    console = stdout_console()
    target = resolve(default_target(switches))
    proofs: list[Proof] = []
    reached: dict[Discipline, tuple[Reached, ...]] = {}
    with SolverProcess() as solver:
        for level in (Level.UNBOUNDED, Level.SCOPE):
            if not _interrupted(proofs):
                proofs += _prove_level(console, level, bounds, switches, depth, seconds, solver)
        for discipline in () if _left_out(switches) or _interrupted(proofs) else Discipline:
            with progress(f"situations, {discipline} discipline"):
                reached[discipline] = reach(bounds, discipline, depth, seconds=seconds, process=solver)
    found = _counterexamples(tuple(proofs), target)
    files = present(console, found, target, out)
    if reached:
        show(console, _situation_table(bounds, depth, reached))
    if smt2 is not None:
        _write_smt2(console, smt2, bounds, switches)
    if json_file is not None:
        document = _prove_json(bounds, switches, tuple(proofs), reached)
        document["counterexamples"] = counterexamples_json(found, files)
        write_json(json_file, document)
    outcomes = {one.outcome for one in proofs}
    if outcomes & {Outcome.FAILED, Outcome.VACUOUS}:
        raise typer.Exit(1)
    raise typer.Exit(3 if Outcome.UNKNOWN in outcomes else 0)


def _interrupted(proofs: list[Proof]) -> bool:
    return any(one.reason == INTERRUPTED for one in proofs)


def _prove_level(
    console: Console,
    level: Level,
    scope: Scope,
    switches: Switches,
    depth: int,
    seconds: float | None,
    solver: SolverProcess,
) -> tuple[Proof, ...]:
    reach = (
        "for every size and every length" if level is Level.UNBOUNDED else f"for every length, at scope {scope}"
    )
    console.print(f"{reach}, {_mends_in_words(switches)}")
    facts = [fact.name for fact in FACTS]
    console.print("properties rest on the supporting facts, which are proved with them:")
    for fact in FACTS:
        if any(one.claim == fact.name for one in obligations(level)):
            console.print(f"  {fact.name}: {fact.sentence}")

    with progress(str(level)) as announce:
        total, done = len(obligations(level)), 0

        def each(proof: Proof) -> None:
            nonlocal done
            done += 1
            announce("obligations", done, total)
            _show_proof(console, proof)

        proofs = prove(level, scope, switches, depth=depth, seconds=seconds, progress=each, process=solver)
    proved = sum(one.outcome is Outcome.PROVED for one in proofs)
    of_facts = sum(one.obligation.claim in facts for one in proofs)
    console.print(
        f"{proved} of {len(proofs)} obligations proved, {of_facts} of them about supporting facts, "
        f"in {sum(one.seconds for one in proofs):.2f} s"
    )
    console.print()
    return proofs


def _show_proof(console: Console, proof: Proof) -> None:
    one = proof.obligation
    line = Text(f"{proof.outcome:8}", _STYLES[proof.outcome])
    line.append(f" {one.claim:24} {one.discipline:7} {one.operation:20} {proof.seconds:6.2f} s", "default")
    console.print(line)
    if proof.outcome is Outcome.VACUOUS:
        console.print("  no state meets the premises, so nothing is shown")
    if proof.reason is not None:
        console.print(f"  {proof.reason}")
    if proof.failure is not None:
        _show_failure(console, proof)


def _show_failure(console: Console, proof: Proof) -> None:
    failure = proof.failure
    assert failure is not None
    console.print(f"  {failure.words}")
    console.print("  state:")
    for line in failure.before.lines():
        console.print(f"    {line}")
    console.print(f"  operation: {failure.operation}")
    if failure.report:
        console.print(f"    reports {', '.join(failure.report)}")
    console.print("  state after it, where it differs:")
    before = set(failure.before.lines())
    changed = [line for line in failure.after.lines() if line not in before]
    for line in changed or ["nothing"]:
        console.print(f"    {line}")
    console.print(f"  {_reached_in_words(proof)}")


def _reached_in_words(proof: Proof) -> str:
    if proof.trace is not None:
        return f"reached, by a trace of length {len(proof.trace)}: {_calls(proof.trace)}"
    if proof.trace_unknown is not None:
        return f"not known to be reached: {proof.trace_unknown}"
    return f"not reached within depth {proof.not_reached_within}"


def _calls(trace: Trace) -> str:
    words = []
    for call in trace.calls:
        arguments = ", ".join(str(getattr(call, field)) for field in call.__struct_fields__)
        words.append(f"{call.__struct_config__.tag}({arguments})")
    return "; ".join(words)


def _counterexamples(proofs: tuple[Proof, ...], target: Target) -> tuple[Counterexample, ...]:
    """Of the real traces that were reached, those that break a property on a real implementation: each once."""
    found: dict[tuple[str, Discipline], Counterexample] = {}
    for one in proofs:
        key = (one.obligation.claim, one.obligation.discipline)
        if one.trace is None or key in found or one.obligation.claim not in PROPERTY_FORMULAS:
            continue
        violation = replay(one.trace, target)
        if violation is not None:
            found[key] = minimize(Counterexample(one.trace, violation, target.name, ENGINE), target)
    return tuple(found.values())


def _situation_table(scope: Scope, depth: int, reached: dict[Discipline, tuple[Reached, ...]]) -> Table:
    table = Table(
        title=f"situations at {scope}: nothing proved above is about states in which nothing happens",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("situation", no_wrap=True)
    for discipline in reached:
        table.add_column(f"{discipline} discipline")
    answers = {
        discipline: {one.situation: _situation_in_words(one, depth) for one in found}
        for discipline, found in reached.items()
    }
    for situation in SITUATIONS:
        table.add_row(situation.name, *[answers[one].get(situation.name, "-") for one in reached])
    return table


def _situation_in_words(one: Reached, depth: int) -> str:
    if one.trace is not None:
        return f"reached in {len(one.trace)}"
    if one.impossible is not None:
        return f"never, at any length (induction over {one.impossible})"
    if one.unknown is not None:
        return f"unknown: {one.unknown}"
    return f"not reached within depth {depth}"


def _write_smt2(console: Console, folder: Path, scope: Scope, switches: Switches) -> None:
    everything: tuple[Obligation, ...] = (*obligations(Level.UNBOUNDED), *obligations(Level.SCOPE))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error.strerror}") from error
    with progress("smt2") as announce:
        for number, obligation in enumerate(everything, start=1):
            path = folder / f"{obligation.name}.smt2"
            write_whole(path, smtlib(obligation, scope, switches).encode())
            announce("written", number, len(everything))
    console.print(f"written: {len(everything)} SMT-LIB files in {folder}; unsat means proved")


def _prove_json(
    scope: Scope, switches: Switches, proofs: tuple[Proof, ...], reached: dict[Discipline, tuple[Reached, ...]]
) -> dict[str, Any]:
    return {
        "format": PROVE_FORMAT,
        "scope": str(scope),
        "without": _left_out(switches),
        "obligations": [
            {
                "level": str(one.obligation.level),
                "discipline": str(one.obligation.discipline),
                "claim": one.obligation.claim,
                "supporting": one.obligation.claim not in PROPERTY_FORMULAS,
                "operation": one.obligation.operation,
                "verdict": str(one.outcome),
                "seconds": round(one.seconds, 3),
                "reason": one.reason,
                "words": None if one.failure is None else one.failure.words,
                "reached": None if one.trace is None else len(one.trace),
                "not_reached_within": one.not_reached_within,
            }
            for one in proofs
        ],
        "situations": {
            str(discipline): {
                one.situation: {
                    "length": None if one.trace is None else len(one.trace),
                    "never": one.impossible is not None,
                    "reason": one.unknown,
                }
                for one in found
            }
            for discipline, found in reached.items()
        },
    }
