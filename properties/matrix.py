"""Which release breaks what: every release at one scope, each distinct manager explored once."""

import ast
import hashlib
from collections.abc import Callable
from concurrent.futures import Executor

from msgspec import Struct

from impl import upstream
from impl.inprocess import python_target
from impl.target import Target
from model.operations import Discipline
from properties.counterexample import Counterexample
from properties.exploration import explore
from properties.invariants import MANAGER_PROPERTIES
from properties.minimize import minimize
from properties.scopes import Scope
from properties.verdicts import Verdict, verdict_on


class Row(Struct, frozen=True):
    """One release.

    Attributes:
        release: Its number.
        verdicts: One for each property, in their order.
        counterexamples: Minimal ones, found in this release or in an earlier one with the same manager.
    """

    release: str
    verdicts: tuple[Verdict, ...]
    counterexamples: tuple[Counterexample, ...]


def matrix(
    releases: tuple[str, ...],
    scope: Scope,
    discipline: Discipline,
    *,
    executor: Executor | None = None,
    progress: Callable[[str, int, int], None],
) -> tuple[Row, ...]:
    """The verdicts on releases, in their order. An interrupt (Ctrl-C) leaves out those not reached.

    Args:
        releases: Which ones.
        scope: How far to explore each.
        discipline: Who makes the calls.
        executor: Where to explore workloads side by side; None explores them here.
        progress: Told which release is being explored, how many workloads of it are done, and of how many.

    Raises:
        TargetError: A release cannot be had.
    """
    found = [upstream.resolve(release) for release in releases]
    explored: dict[tuple[str, frozenset[str]], tuple[tuple[Verdict, ...], tuple[Counterexample, ...]]] = {}
    rows = []
    for release in found:
        target = python_target(release.name, release.manager_class, release.era)
        alike = (_digest(release), release.era)
        if alike not in explored:
            verdicts, counterexamples, complete = _explored(target, scope, discipline, executor, progress)
            if not complete:
                break
            explored[alike] = verdicts, counterexamples
        rows.append(Row(str(release.release), *explored[alike]))
    return tuple(rows)


def _explored(
    target: Target,
    scope: Scope,
    discipline: Discipline,
    executor: Executor | None,
    progress: Callable[[str, int, int], None],
) -> tuple[tuple[Verdict, ...], tuple[Counterexample, ...], bool]:
    result = explore(
        target,
        scope,
        discipline,
        executor=executor,
        progress=lambda done, total: progress(target.name, done, total),
    )
    minimal = tuple(minimize(one, target) for one in result.counterexamples)
    evidence = f"{result.transitions:,} transitions, all of {scope}"
    verdicts = tuple(
        verdict_on(one, target, minimal, evidence, complete=result.complete) for one in MANAGER_PROPERTIES
    )
    return verdicts, minimal, result.complete


def _digest(release: upstream.Upstream) -> str:
    """Equal for releases whose manager differs in comments, docstrings and layout at most."""
    tree = ast.parse(release.path.read_bytes())
    (manager,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "EncoderCacheManager"
    ]
    for node in ast.walk(manager):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(manager).encode()).hexdigest()
