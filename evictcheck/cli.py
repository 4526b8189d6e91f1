"""The command line."""

import sys
from time import time
from typing import Annotated, Any

import typer
from hypothesis.configuration import set_hypothesis_home_dir
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from evictcheck.console import processes, progress, stdout_console, write_json
from evictcheck.diff import diff_command
from evictcheck.drivertest import driver_test_command
from evictcheck.engine import check_engine, engine, engine_report_json, show_engine_report
from evictcheck.explore import explore_command
from evictcheck.files import refuse_unusable_folder, refuse_unwritable
from evictcheck.formal import prove_command, search_command
from evictcheck.matrix import matrix_command
from evictcheck.options import (
    DEFAULT_OUT,
    DisciplineOption,
    DriverOption,
    IncludeOption,
    JobsOption,
    JsonOption,
    OutOption,
    PythonOption,
    SanitizeOption,
    ScopeOption,
    SecondsOption,
    SourceOption,
    TimeoutOption,
    target_options,
)
from evictcheck.report import REPORT_FORMAT, present, report_json, show, verdict_table
from evictcheck.vectors import vectors_command
from impl import upstream
from impl.defects import DEFECTS
from impl.drivers.client import TIMEOUT
from impl.targets import FORMS, resolve
from impl.watchdog import WATCHDOG
from model.errors import EvictcheckError
from model.operations import Discipline
from properties.engine_invariants import ENGINE_PROPERTIES
from properties.engine_verdicts import release_of
from properties.invariants import MANAGER_PROPERTIES
from properties.scopes import DEFAULT_SCOPE, parse_scope
from properties.verdicts import Outcome, Question, Verdict, judge

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_NAMES = tuple(one.name for one in MANAGER_PROPERTIES)


@app.callback()
def _evictcheck() -> None:
    """Find, minimise and rule out invariant violations in encoder-cache managers.

    Exit codes: 0 everything asked holds; 1 something is violated; 2 the question could not be asked; 3 nothing
    is violated, but something is unknown (out of time, interrupted).
    """


@app.command()
def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET]...", help="What to check; see `evictcheck targets`. Default: port."),
    ] = None,
    scope: ScopeOption = str(DEFAULT_SCOPE),
    discipline: DisciplineOption = Discipline.CALLER,
    asked: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="P", help="Ask about this property only. May be repeated."),
    ] = None,
    expected: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            metavar="P",
            help="A violation known to be there: the run passes with it, and fails once it no longer occurs. "
            "May be repeated.",
        ),
    ] = None,
    seconds: SecondsOption = None,
    json_file: JsonOption = None,
    out: OutOption = DEFAULT_OUT,
    jobs: JobsOption = None,
    python: PythonOption = "",
    timeout: TimeoutOption = TIMEOUT,
    sanitize: SanitizeOption = "",
    driver: DriverOption = None,
    include: IncludeOption = None,
    source: SourceOption = None,
    no_engine: Annotated[
        bool, typer.Option("--no-engine", help="Leave out the engine level (scheduler and worker).")
    ] = False,
) -> None:
    """Look for violations in one or more implementations.

    Known traces first, then exhaustively, then by random walks; last the engine level: a scheduler and a worker
    around the manager, in upstream's default configuration.
    """
    manager_level, engine_level = _split(asked, no_engine=no_engine)
    question = Question(parse_scope(scope), discipline, manager_level, seconds)
    for name in expected or ():
        _split([name], no_engine=no_engine)
        if name not in manager_level + engine_level:
            raise EvictcheckError(f"--expect {name} is not among the properties asked about")
    refuse_unusable_folder(out)
    if json_file is not None:
        refuse_unwritable(json_file)
    WATCHDOG.start(timeout)
    options = target_options(python, timeout, sanitize, driver, include, source)
    resolved = [resolve(name, options) for name in targets or ["port"]]

    console = stdout_console()
    documents: list[dict[str, Any]] = []
    codes: list[int] = []
    with processes(jobs) as executor:
        for target in resolved:
            began = time()
            verdicts: list[Verdict] = []
            document: dict[str, Any] = {"target": target.name}
            complete = True
            if manager_level:
                with progress(target.name) as announce:
                    report = judge(target, question, announce, executor)
                show(console, verdict_table(report))
                document |= report_json(report, present(console, report.counterexamples, target, out))
                verdicts += report.verdicts
                complete = report.complete
            if engine_level and (complete or seconds is not None):
                with progress(target.name) as announce:
                    left = None if seconds is None else max(0.0, seconds - (time() - began))
                    engine_report = check_engine(target, left, announce)
                release = release_of(target.name)
                files = show_engine_report(console, engine_report, target, out, release)
                document["engine"] = engine_report_json(engine_report, release, files)
                verdicts += [one for one in engine_report.verdicts if one.property in engine_level]
                complete = complete and engine_report.complete
            documents.append(document)
            codes.append(_exit_code(console, target.name, verdicts, complete, expected or []))
            if json_file is not None:
                write_json(json_file, {"format": REPORT_FORMAT, "reports": documents})
            if not complete and (seconds is None or time() - began < seconds):
                break
    raise typer.Exit(max(codes, key=(0, 3, 2, 1).index))


def _split(asked: list[str] | None, *, no_engine: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The properties asked about, at the manager level and at the engine level.

    Raises:
        EvictcheckError: There is no such property, or it lies at a level that is left out.
    """
    engine_names = tuple(one.name for one in ENGINE_PROPERTIES)
    if asked is None:
        return _NAMES, () if no_engine else engine_names
    for name in asked:
        if name in engine_names and no_engine:
            raise EvictcheckError(f"{name} is a property of the engine level, which --no-engine leaves out")
        if name not in _NAMES + engine_names:
            names = ", ".join(_NAMES + engine_names)
            raise EvictcheckError(f"there is no property {name!r}; the properties are {names}")
    return (
        tuple(name for name in _NAMES if name in asked),
        tuple(name for name in engine_names if name in asked),
    )


def _exit_code(console: Console, target: str, verdicts: list[Verdict], complete: bool, known: list[str]) -> int:
    violated = {one.property for one in verdicts if one.outcome is Outcome.VIOLATED}
    gone = [name for name in known if name not in violated]
    if complete:
        for name in gone:
            console.print(f"{target}: --expect {name}, but it is no longer violated; take the option out")
    for name in known:
        if name in violated:
            console.print(f"{target}: {name} is violated, as expected")
    if violated - set(known) or (gone and complete):
        return 1
    if not complete:
        console.print(f"{target}: stopped early, so what is unknown is no pass")
        return 3
    return 0


@app.command(name="targets")
def list_targets(json_file: JsonOption = None) -> None:
    """List what can be named as a target, the seeded defects, and the releases that are cached."""
    if json_file is not None:
        refuse_unwritable(json_file)
    console = stdout_console()
    forms = Table(title="targets", title_justify="left", box=SIMPLE_HEAD)
    forms.add_column("name", no_wrap=True)
    forms.add_column("what is judged")
    for form in FORMS:
        forms.add_row(form.example, form.sentence)
    defects = Table(title="seeded defects", title_justify="left", box=SIMPLE_HEAD)
    defects.add_column("defect", no_wrap=True)
    defects.add_column("what it does wrong")
    defects.add_column("breaks", no_wrap=True)
    defects.add_column("shows at scope", no_wrap=True)
    for defect in DEFECTS:
        defects.add_row(f"port:{defect.name}", defect.sentence, defect.property, defect.scope)
    cached = upstream.cached_releases()
    show(console, forms, defects)
    console.print(f"vLLM releases cached (no network needed): {', '.join(cached) or 'none yet'}")
    console.print(f"any other release from {upstream.OLDEST} on is fetched when it is first named")
    if json_file is not None:
        document = {
            "format": "evictcheck-targets/1",
            "forms": [{"name": form.example, "sentence": form.sentence} for form in FORMS],
            "defects": [
                {
                    "name": f"port:{one.name}",
                    "sentence": one.sentence,
                    "property": one.property,
                    "scope": one.scope,
                }
                for one in DEFECTS
            ],
            "cached_releases": list(cached),
        }
        write_json(json_file, document)


app.command(name="explore")(explore_command)
app.command(name="matrix")(matrix_command)
app.command(name="diff")(diff_command)
app.command(name="vectors")(vectors_command)
app.command(name="search")(search_command)
app.command(name="prove")(prove_command)
app.command(name="driver-test")(driver_test_command)
app.command(name="engine")(engine)


def main() -> None:
    """Runs the command line; an error that a person can mend is a sentence and exit code 2."""
    # Hypothesis keeps notes of its own, and else would do so in the folder that the person stands in.
    set_hypothesis_home_dir(upstream.cache_root() / "hypothesis")
    try:
        app()
    except EvictcheckError as error:
        sys.stderr.write(f"evictcheck: {error}\n")
        sys.exit(2)
