"""Lessons: ML-Agents' decisions and flow, samplers, seeds, saving and restoring."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.core.errors import SettingsError
from trajtrainer.run.curriculum import BehaviorProgress, Curriculum, LessonChange, describe, is_lesson_done
from trajtrainer.settings.environment import (
    CompletionCriteria,
    ConstantSettings,
    EnvironmentParameterSettings,
    GaussianSettings,
    Lesson,
    Measure,
    MultiRangeUniformSettings,
    Sampler,
    UniformSettings,
)

MASS = EnvironmentParameterSettings([Lesson("mass", GaussianSettings(mean=2.0, st_dev=0.3))])


def criteria(threshold: float = 0.5, **changes: Any) -> CompletionCriteria:
    defaults: dict[str, Any] = {"behavior": "Ball", "threshold": threshold, "signal_smoothing": False}
    return CompletionCriteria(**defaults | changes)


def lessons(*all_criteria: CompletionCriteria) -> EnvironmentParameterSettings:
    """Lessons "0", "1", ... with the values 0.0, 10.0, ...; the last without criteria."""
    return EnvironmentParameterSettings(
        [Lesson(str(i), ConstantSettings(value=10.0 * i), c) for i, c in enumerate([*all_criteria, None])]
    )


def ball(*rewards: float, step: int = 0) -> dict[str, BehaviorProgress]:
    return {"Ball": BehaviorProgress(step, 1000, deque(rewards))}


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((shared_data / "golden" / "schedules" / "curriculum.json").read_text())
    return loaded


def rewards_of(recorded: list[float] | str) -> list[float]:
    """``"all NaN, 9 of them"`` or the numbers themselves."""
    return [math.nan] * int(recorded.split()[2]) if isinstance(recorded, str) else recorded


def test_criteria_decide_as_mlagents(golden: dict[str, Any]) -> None:
    for case in golden["criteria"]:
        settings = CompletionCriteria(**case["criteria"] | {"measure": Measure(case["criteria"]["measure"])})
        for call in case["calls"]:
            rewards = rewards_of(call["rewards"])
            progress = BehaviorProgress(step=0, max_steps=1, rewards=rewards)
            if settings.measure is Measure.PROGRESS:
                progress = BehaviorProgress(round(call["progress"] * 10_000), 10_000, rewards)
            done, smoothed = is_lesson_done(settings, progress, call["smoothed_before"])
            assert done is call["advance"]
            assert smoothed == pytest.approx(call["smoothed_after"], rel=1e-12)


def parameter_of(mapping: dict[str, Any]) -> EnvironmentParameterSettings:
    if "curriculum" not in mapping:
        return EnvironmentParameterSettings([Lesson("only", sampler_of(mapping))])
    return EnvironmentParameterSettings(
        [
            Lesson(
                lesson["name"],
                sampler_of(lesson["value"]),
                CompletionCriteria(**ends | {"measure": Measure(ends["measure"])})
                if (ends := lesson.get("completion_criteria"))
                else None,
            )
            for lesson in mapping["curriculum"]
        ]
    )


def sampler_of(value: float | dict[str, Any]) -> Sampler:
    if not isinstance(value, dict):
        return ConstantSettings(value=value)
    classes: dict[str, type[Sampler]] = {"uniform": UniformSettings, "gaussian": GaussianSettings}
    return classes[value["sampler_type"]](**value["sampler_parameters"])


def test_flow_of_several_parameters_is_that_of_mlagents(golden: dict[str, Any]) -> None:
    flow = golden["flow"]
    parameters = {name: parameter_of(mapping) for name, mapping in flow["environment_parameters"].items()}
    curriculum = Curriculum(parameters, flow["run_seed"])
    for behavior, length in flow["minimum_reward_buffer"].items():
        assert curriculum.reward_buffer_length(behavior) == length
    for call in flow["calls"]:
        before = curriculum.lesson_numbers
        change = curriculum.advance(
            {
                behavior: BehaviorProgress(step, flow["max_steps"][behavior], call["rewards"][behavior])
                for behavior, step in call["steps"].items()
            }
        )
        assert bool(change.advanced) is call["updated"]
        assert change.require_reset is call["must_reset"]
        assert curriculum.lesson_numbers == call["lessons"]
        assert change.advanced == tuple(name for name, number in call["lessons"].items() if number != before[name])
        smoothed_rewards = {name: parameter.smoothed for name, parameter in curriculum._states.items()}
        assert smoothed_rewards == pytest.approx(call["smoothed"], rel=1e-12)
        assert {name: describe(sampler) for name, sampler in curriculum.samplers.items()} == call["values"]
        for name, sampler in curriculum.samplers.items():
            assert sampler.seed == flow["sampler_seeds"][name][curriculum.lesson_numbers[name]]
    assert not curriculum.has_next_lesson


def test_samplers_without_seed_get_consecutive_ones_and_others_keep_theirs() -> None:
    fixed = EnvironmentParameterSettings([Lesson("fixed", UniformSettings(seed=77))])
    curriculum = Curriculum({"size": lessons(criteria()), "fixed": fixed, "mass": MASS}, run_seed=5)
    assert {name: sampler.seed for name, sampler in curriculum.samplers.items()} == {"size": 5, "fixed": 77, "mass": 7}


def test_smoothing_as_the_reference_has_it() -> None:
    settings = criteria(0.9, signal_smoothing=True)
    done, smoothed = is_lesson_done(settings, ball(1.0)["Ball"], 0.0)
    assert (done, smoothed) == (False, 0.75)
    assert is_lesson_done(settings, ball(1.0)["Ball"], smoothed) == (True, 0.9375)


def test_group_rewards_have_their_own_episodes_and_smoothing() -> None:
    settings = criteria(0.5, measure=Measure.GROUP_REWARD, min_lesson_length=2, signal_smoothing=True)
    few = BehaviorProgress(0, 1000, rewards=[9.0, 9.0], group_rewards=[1.0])
    assert is_lesson_done(settings, few, 0.0) == (False, 0.0)
    enough = BehaviorProgress(0, 1000, rewards=[], group_rewards=[0.5, 1.0])
    assert is_lesson_done(settings, enough, 0.0) == (True, 0.5625)
    assert not is_lesson_done(criteria(0.5, measure=Measure.GROUP_REWARD), ball(9.0)["Ball"], 0.0)[0]


def test_at_most_one_lesson_per_check_and_none_after_the_last() -> None:
    curriculum = Curriculum({"size": lessons(criteria(), criteria())}, 0)
    assert [curriculum.advance(ball(1.0)).advanced for _ in range(4)] == [("size",), ("size",), (), ()]
    assert curriculum.samplers == {"size": ConstantSettings(value=20.0, seed=2)}


def test_criteria_of_the_last_lesson_do_nothing() -> None:
    only = EnvironmentParameterSettings([Lesson("only", ConstantSettings(), criteria(min_lesson_length=8))])
    curriculum = Curriculum({"size": only}, 0)
    assert not curriculum.has_next_lesson
    assert curriculum.advance(ball(1.0)) == LessonChange()
    assert curriculum.reward_buffer_length("Ball") == 8


def test_reset_is_required_when_any_finished_lesson_asks_for_it() -> None:
    curriculum = Curriculum(
        {"a": lessons(criteria(require_reset=True)), "b": lessons(criteria()), "c": lessons(criteria(2.0))}, 0
    )
    assert curriculum.advance(ball(1.0)) == LessonChange(("a", "b"), require_reset=True)
    quiet = Curriculum({"b": lessons(criteria()), "c": lessons(criteria(2.0, require_reset=True))}, 0)
    assert quiet.advance(ball(1.0)) == LessonChange(("b",), require_reset=False)


def test_unknown_behaviors_and_short_lessons_do_not_advance() -> None:
    curriculum = Curriculum({"size": lessons(criteria(min_lesson_length=3))}, 0)
    assert curriculum.advance({}) == LessonChange()
    assert curriculum.advance(ball(1.0, 1.0)) == LessonChange()
    assert curriculum.advance(ball(1.0, 1.0, 1.0)).advanced == ("size",)
    assert curriculum.reward_buffer_length("Ball") == 3
    assert curriculum.reward_buffer_length("other") == 1


def test_progress_must_exceed_the_threshold() -> None:
    curriculum = Curriculum({"size": lessons(criteria(0.5, measure=Measure.PROGRESS))}, 0)
    assert not curriculum.advance(ball(step=500)).advanced
    assert curriculum.advance(ball(step=501)).advanced


def test_no_parameters() -> None:
    curriculum = Curriculum(None, 0)
    assert curriculum.samplers == {}
    assert curriculum.lesson_numbers == {}
    assert not curriculum.has_next_lesson
    assert curriculum.advance(ball(1.0)) == LessonChange()
    assert curriculum.descriptions() == []


def test_descriptions() -> None:
    ranges = EnvironmentParameterSettings([Lesson("wide", MultiRangeUniformSettings(intervals=[(1.0, 2.0)]))])
    evenly = EnvironmentParameterSettings([Lesson("even", UniformSettings(min_value=0.5, max_value=2.0))])
    curriculum = Curriculum({"ranges": ranges, "even": evenly, "mass": MASS, "size": lessons(criteria())}, 0)
    assert curriculum.descriptions() == [
        "Parameter 'ranges' is in lesson 'wide' and has value 'MultiRangeUniform sampler: intervals=[(1.0, 2.0)]'.",
        "Parameter 'even' is in lesson 'even' and has value 'Uniform sampler: min=0.5, max=2.0'.",
        "Parameter 'mass' is in lesson 'mass' and has value 'Gaussian sampler: mean=2.0, stddev=0.3'.",
        "Parameter 'size' is in lesson '0' and has value 'Float: value=0.0'.",
    ]
    assert len(curriculum.descriptions(["size"])) == 1


def test_restoring_goes_to_the_saved_lessons() -> None:
    parameters = {"size": lessons(criteria(), criteria()), "Ball": lessons(criteria()), "new": lessons(criteria())}
    curriculum = Curriculum(parameters, 0)
    curriculum.restore(
        {"size": {"lesson_num": 2}, "Ball": {"checkpoints": []}, "metadata": {"x": 1}, "gone": {"lesson_num": 7}}
    )
    assert curriculum.lesson_numbers == {"size": 2, "Ball": 0, "new": 0}


@pytest.mark.parametrize("number", [3, -1, "1", None, 1.5])
def test_restoring_a_lesson_that_is_not_there_is_an_error(number: object) -> None:
    curriculum = Curriculum({"size": lessons(criteria(), criteria())}, 0)
    with pytest.raises(SettingsError, match=r"parameter 'size'.* lessons 0 to 2"):
        curriculum.restore({"size": {"lesson_num": number}})
    assert curriculum.lesson_numbers == {"size": 0}


@given(st.lists(st.floats(-1, 2), max_size=12), st.integers(0, 11))
def test_saving_and_restoring_in_between_changes_nothing_without_smoothing(rewards: list[float], pause: int) -> None:
    parameters = {"a": lessons(*[criteria(0.1 * i) for i in range(5)]), "b": lessons(criteria(0.3), criteria(0.9))}
    straight, resumed = Curriculum(parameters, 3), Curriculum(parameters, 3)
    for i, reward in enumerate(rewards):
        if i == pause:
            saved = {name: {"lesson_num": number} for name, number in resumed.lesson_numbers.items()}
            resumed = Curriculum(parameters, 3)
            resumed.restore(saved)
        assert straight.advance(ball(reward)) == resumed.advance(ball(reward))
    assert straight.samplers == resumed.samplers
