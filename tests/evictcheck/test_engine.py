"""What a person reads and types at the engine level."""

from io import StringIO
from pathlib import Path

import msgspec
import pytest
import typer
from rich.console import Console

from evictcheck.engine import (
    SETTINGS,
    SettingError,
    check_engine,
    configured,
    engine,
    engine_counterexample_table,
    prompt_in_words,
    reach_in_table,
    setup_in_words,
    show_engine_report,
    tell_engine,
)
from impl.targets import resolve
from model.errors import EvictcheckError
from model.scheduling import Placement, Policy, Prompt, Setup, WorkerOrder, decode_engine_trace
from properties.engine_corpus import known_engine_faults
from properties.engine_exploration import EngineCounterexample, first_breach
from properties.engine_reach import PROBLEMS, reach
from properties.engine_scopes import EngineScope
from properties.engine_verdicts import EngineQuestion, judge_engine

TINY = EngineScope(tokens=2, text=0, sizes=(1,))
ENCODE_FIRST = Setup(capacity=2, worker_order=WorkerOrder.ENCODE_FIRST)


def text_of(*parts: object) -> str:
    console = Console(width=150, record=True, file=StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def known(name: str) -> EngineCounterexample:
    fault = next(one.fault for one in known_engine_faults() if one.name == name)
    found = first_breach(fault.trace, resolve("port"), fault.property)
    assert found is not None
    return EngineCounterexample(fault.trace, found[1], "port", "corpus")


def test_a_story_goes_pass_by_pass_in_words() -> None:
    episodes = tell_engine(known("withdrawn-encode-phantom"), resolve("port"))
    assert [episode.title for episode in episodes] == [
        "r1 arrives",
        "a pass of 1 token (others took the rest)",
        "r2 arrives",
        "a pass of 2 tokens (others took the rest)",
        "a pass of 2 tokens (others took the rest), KV blocks are short",
    ]
    assert episodes[0].lines == ("r1: 3 tokens, a at 1, b at 2, priority 1",)
    last = episodes[-1]
    assert (
        "r1 is the victim, and this pass had scheduled it: token 2 and the encoding of b are withdrawn"
        in last.lines
    )
    assert (last.cached, last.tensors) == ("b", "nothing")
    assert last.breach == "the manager calls b cached and the worker has no tensor of it"


def test_a_counterexample_names_property_symptom_and_engine() -> None:
    text = text_of(engine_counterexample_table(1, known("withdrawn-encode-hit"), resolve("port")))
    assert "1. gather-hits: a worker gathering an item for a scheduled token finds its tensor" in text
    assert "What a user sees: the engine dies with `Encoder cache miss`" in text
    assert "5 moves, found by corpus; priority policy, capacity" in text
    assert "r1 hits" in text


def test_a_report_is_shown_and_its_counterexamples_are_written(tmp_path: Path) -> None:
    target = resolve("port:unfiltered-freed")
    report = judge_engine(target, EngineQuestion(ENCODE_FIRST, TINY))
    console = Console(width=150, record=True, file=StringIO())
    files = show_engine_report(console, report, target, tmp_path, "0.33.0")
    text = console.export_text()
    assert "port:unfiltered-freed, engine of 0.33.0, first-come policy, worker: encode-drop-gather" in text
    assert "situations reached: two-evicted-for-one" in text
    written = decode_engine_trace(Path(files["gather-hits"]).read_bytes(), "x")
    assert written.trace == report.counterexamples[0].trace


def test_check_asks_upstreams_default_configuration() -> None:
    heard = []
    report = check_engine(resolve("port"), 0.0, lambda doing, done, total: heard.append(doing))
    assert report.question.setup == Setup(capacity=2)
    assert heard[0].startswith("known engine trace")


def test_the_reach_table_says_what_it_costs() -> None:
    lines = tuple(reach(PROBLEMS[0], setup, TINY) for setup in (Setup(capacity=2), ENCODE_FIRST))
    text = text_of(reach_in_table(lines, "0.33.0"))
    assert "harmless" in text
    assert "crash (4 moves)" in text


def test_a_prompt_and_a_setup_in_words() -> None:
    request = Prompt("r1", (Placement("a", 0, 3, (1,)), Placement("b", 3, 1)), 5, 2, 1)
    assert prompt_in_words(request, Policy.PRIORITY) == (
        "r1: 5 tokens, a at 0 to 2 (1 embed), b at 3, generates 2, priority 1"
    )
    setup = Setup(3, 2, 4, 2, 9, Policy.PRIORITY, False, 1, 1, WorkerOrder.ENCODE_FIRST, True)
    assert setup_in_words(setup) == (
        "priority policy, capacity 3, compute budget 2, token budget 4, KV capacity 9, chunk limit 2, "
        "items not split, look-ahead 1, placeholders 1, worker: encode-drop-gather, worker skips what it has"
    )


# --- Settings ---


def test_settings_are_read() -> None:
    texts = [
        "capacity=3",
        "compute-budget=2",
        "token-budget=4",
        "chunk-limit=2",
        "kv-capacity=9",
        "split-items=no",
    ]
    texts += ["look-ahead=1", "placeholders=1", "worker-order=encode-drop-gather", "skips-present=yes"]
    texts += ["frees=at-schedule"]
    assert len(texts) == len(SETTINGS)
    setup, scope = configured(Setup(capacity=2), TINY, texts)
    expected = Setup(3, 2, 4, 2, 9, Policy.FIRST_COME, False, 1, 1, WorkerOrder.ENCODE_FIRST, True)
    assert setup.rules.frees_after_step is False
    assert msgspec.structs.replace(setup, rules=expected.rules) == expected
    assert scope.capacity == 3


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("speed=1", "no option 'speed'"),
        ("capacity", "capacity is a number of at least 1"),
        ("capacity=0", "capacity is a number of at least 1"),
        ("look-ahead=2", "look-ahead is 0 or 1"),
        ("split-items=1", "split-items is yes or no"),
        ("worker-order=x", "worker-order is drop-encode-gather or encode-drop-gather"),
        ("frees=x", "frees is after-step or at-schedule"),
    ],
)
def test_what_cannot_be_set_is_refused(setting: str, reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        configured(Setup(capacity=2), TINY, [setting])


# --- The command ---


@pytest.mark.parametrize(
    ("settings", "code"), [([], 0), (["worker-order=encode-drop-gather"], 1)], ids=["holds", "violated"]
)
def test_the_command_exits_by_its_verdicts(settings: list[str], code: int, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    with pytest.raises(typer.Exit) as ended:
        engine(
            "port:unfiltered-freed",
            settings=settings,
            scope="2r2i3h/tokens=2/text=0/sizes=1",
            json_file=results,
            out=tmp_path,
        )
    assert ended.value.exit_code == code
    (report,) = msgspec.json.decode(results.read_bytes())["reports"]
    assert (report["target"], report["era"], report["policy"]) == ("port:unfiltered-freed", "0.33.0", "first-come")
    assert [one["property"] for one in report["counterexamples"]] == (["gather-hits"] if code else [])


def test_another_question_is_refused() -> None:
    with pytest.raises(EvictcheckError, match="the only other question is reach"):
        engine("port", question="why")
