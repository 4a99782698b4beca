"""What a run can never measure, and is warned about when it starts."""

from __future__ import annotations

import pytest

from trajtrainer.cli.main import main
from trajtrainer.settings.unmeasured import unmeasured
from trajtrainer.settings.yaml.convert import load

SHORT = "max_steps: 600"
EVALUATION = "evaluation: {interval: 601, episodes: 1}"


def found(text: str) -> list[str]:
    return [str(fault) for fault in unmeasured(load(text, "a.yaml"))]


def lesson(criteria: str) -> str:
    lessons = f"[{{name: A, value: 1, completion_criteria: {{{criteria}}}}}, {{name: B, value: 2}}]"
    return f"environment_parameters: {{mass: {{curriculum: {lessons}}}}}"


@pytest.mark.parametrize(
    ("text", "consequence"),
    [
        (f"behaviors: {{A: {{{SHORT}}}}}", "so the last model is kept as the best"),
        (
            f"behaviors: {{A: {{{SHORT}, stop: {{reward: 1, patience: 2}}}}}}",
            "so the last model is kept as the best, and stop.reward and stop.patience cannot end it",
        ),
        (f"behaviors: {{A: {{{SHORT}, keep_best: 0, stop: {{reward: 1}}}}}}", "so stop.reward cannot end it"),
        (f"default_settings: {{{SHORT}}}", "so the last model is kept as the best"),
    ],
)
def test_a_run_that_ends_before_its_first_summary(text: str, consequence: str) -> None:
    (fault,) = found(text)
    expected = "found 50000, expected at most max_steps (600): the run ends before its first summary"
    assert fault.endswith(f"summary_freq: {expected}, {consequence}")


@pytest.mark.parametrize(
    "text",
    [
        "behaviors: {A: {}}",
        f"behaviors: {{A: {{{SHORT}, summary_freq: 600}}}}",
        f"behaviors: {{A: {{{SHORT}, keep_best: 0, stop: {{episodes: 3, time: 5}}}}}}",
        f"behaviors: {{A: {{{SHORT}}}}}\n{EVALUATION}",  # the last model is evaluated
        "behaviors: {A: {}}\n" + lesson("behavior: A, threshold: 3"),
        "default_settings: {}\n" + lesson("behavior: A, threshold: 3"),
        "behaviors: {A: {}}\n" + lesson("behavior: A, measure: progress, threshold: 0.99"),
    ],
)
def test_nothing_is_said_where_everything_is_measured(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    ("behavior", "place"),
    [
        ("stop: {patience: 1}", "evaluation.interval"),
        ("stop: {patience: 1}, evaluation: {interval: 602}", "behaviors.A.evaluation.interval"),
    ],
)
def test_an_evaluation_that_comes_too_late_to_stop_the_run(behavior: str, place: str) -> None:
    (fault,) = found(f"behaviors: {{A: {{{SHORT}, {behavior}}}}}\n{EVALUATION}")
    assert fault.startswith(f"{place}: found 60")
    assert fault.endswith("the only evaluation is at the end, so stop.patience cannot end the run")


@pytest.mark.parametrize(
    ("behaviors", "criteria", "reason"),
    [
        ("{A: {}, B: {}}", "behavior: C, threshold: 1", "the configuration has no behavior 'C' (listed: A, B)"),
        ("{A: {}}", "behavior: A, measure: progress, threshold: 1", "training ends when the progress reaches 1"),
    ],
)
def test_a_lesson_that_never_ends(behaviors: str, criteria: str, reason: str) -> None:
    (fault,) = found(f"behaviors: {behaviors}\n{lesson(criteria)}")
    place = "environment_parameters.mass.curriculum.0.completion_criteria"
    assert fault == f"{place}: this lesson never ends, because {reason}"


def test_the_last_lesson_needs_no_end() -> None:
    lessons = "[{name: A, value: 1, completion_criteria: {behavior: C, threshold: 1}}]"
    assert found(f"behaviors: {{A: {{}}}}\nenvironment_parameters: {{mass: {{curriculum: {lessons}}}}}") == []


@pytest.mark.parametrize("command", ["learn", "config"])
def test_a_run_is_warned_when_it_starts(
    command: str, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    path = folder / "a.yaml"
    path.write_text("behaviors: {Basic: {max_steps: 20}}", encoding="utf-8")
    assert main([command, str(path), "--env=sim:Basic", f"--results-dir={folder}", "--run-id=short"]) == 0
    output = capsys.readouterr()
    printed = output.out if command == "learn" else output.err
    assert "behaviors.Basic.summary_freq: found 50000, expected at most max_steps (20)" in printed
