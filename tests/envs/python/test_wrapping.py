"""``--wrapper``: what is put around environments, in which order, and what is said where it cannot be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from tests.envs.python.gymnasium_samples import CountingEnv, action_batch, zeros
from tests.envs.test_select import NoLogs, settings
from tests.settings.command_line import parse_command_line
from trajtrainer.core.errors import SettingsError
from trajtrainer.envs import select
from trajtrainer.envs.protocol import Environment
from trajtrainer.run.evaluations import settings_of_evaluation
from trajtrainer.run.placement import settings_of_actor
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.flags import add_arguments, to_resume
from trajtrainer.settings.yaml.convert import dump, load

OURS = "tests.envs.python.wrappers"
COUNTING = "gym:tests.envs.python.registering:Counting-v3"


def make(env_path: str, *wrappers: str, num_envs: int = 1, env_args: Sequence[str] = ()) -> Environment:
    given = settings(env_path, *env_args, num_envs=num_envs)
    return select.make_environment(
        evolve(given, env_settings=evolve(given.env_settings, wrappers=list(wrappers))), NoLogs()
    )


def first(environment: Environment) -> Any:
    environment.reset({})
    (event,) = environment.wait()
    return event


@pytest.mark.parametrize("path", [COUNTING, "python:tests.envs.python.gymnasium_samples:CountingEnv"])
def test_every_copy_is_wrapped_in_the_order_in_which_wrappers_are_given(path: str) -> None:
    times, plus = f"{OURS}:Times factor=1e3", f"{OURS}:Plus"
    event = first(make(path, times, plus, num_envs=2))
    (batch,) = event.steps.values()
    assert batch.obs[0].tolist() == [[50_001, 1_001, 1], [51_001, 1_001, 1]]
    (batch,) = first(make(path, plus, times)).steps.values()
    assert batch.obs[0].tolist() == [[51_000, 2_000, 1_000]]


def test_the_behavior_keeps_the_name_of_its_environment() -> None:
    assert list(first(make(COUNTING, f"{OURS}:Plus")).steps) == ["Counting-v3"]


def test_functions_wrap_too_and_spaces_are_those_of_the_outermost() -> None:
    environment = make("gym:CartPole-v1", "gymnasium.wrappers:FrameStackObservation stack_size=3", f"{OURS}:halved")
    event = first(environment)
    assert event.new_specs["CartPole-v1"].observation_specs[0].shape == (12,)
    environment.send(0, {"CartPole-v1": action_batch(np.zeros((1, 0)), [[1]])})
    (event,) = environment.wait()
    assert event.steps["CartPole-v1"].reward.tolist() == [0.5]


@pytest.mark.parametrize(
    "path", ["pettingzoo:tests.envs.python.pettingzoo_samples", "python:tests.envs.python.pettingzoo_samples:Arena"]
)
def test_environments_of_pettingzoo_have_wrappers_of_their_own(path: str) -> None:
    def rewards(*wrappers: str) -> Any:
        environment = make(path, *wrappers, env_args=["lives={cat_0: 3, mouse_0: 3}"])
        event = first(environment)
        environment.send(0, zeros(event, event.new_specs))
        (event,) = environment.wait()
        return np.concatenate([batch.reward for batch in event.steps.values()])

    assert rewards().any()
    np.testing.assert_array_equal(rewards(f"{OURS}:Double"), 2 * rewards())
    with pytest.raises(
        SettingsError, match=r"Plus is not a wrapper for this kind of environment\. Expected a wrapper for petting"
    ):
        rewards(f"{OURS}:Plus")


@pytest.mark.parametrize(
    ("wrapper", "told"),
    [
        ("no.such.package:Wrapper", "--wrapper no.such.package:Wrapper: there is no Python module no.such.package"),
        (f"{OURS}:Wrong", f"--wrapper {OURS}:Wrong: the module {OURS} has no function or class 'Wrong'"),
        (
            "collections:Counter",
            "collections:Counter is not a wrapper for this kind of environment. Expected a wrapper for gym",
        ),
        ("gymnasium.wrappers.vector:ClipReward", "vector:ClipReward is not a wrapper for this kind of environment"),
        (
            f"{OURS}:forgetful",
            f"{OURS}:forgetful is not a wrapper: it returned a str. Expected a wrapper for gymnasium",
        ),
        (f"{OURS}:Times size=3", "cannot be called with the arguments {'size': 3}: got an unexpected keyword"),
        (f"{OURS}:Times longest=3", "cannot wrap <OrderEnforcing<CountingEnv<Counting-v3>>>: ValueError: the name is"),
        (f"{OURS}:Times factor=[1", r"Times 'factor=[1': the value is not valid YAML"),
    ],
)
def test_what_is_said_of_wrappers_that_are_none(wrapper: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[CountingEnv] = []
    monkeypatch.setattr(CountingEnv, "close", lambda env: closed.append(env))
    with pytest.raises(SettingsError) as error:
        make(COUNTING, wrapper)
    assert told in str(error.value)
    assert len(closed) == 1


def test_what_has_no_wrappers_is_told_by_name() -> None:
    with pytest.raises(SettingsError, match=r"created a tests.*Scripted, which cannot be wrapped: --wrapper is for"):
        make("python:tests.envs.test_select:base_env", f"{OURS}:Plus")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--env=sim:Basic", "--wrapper", "a:B"], "'sim:Basic' is not a Python environment"),
        (["--wrapper", "a:B"], "the Unity Editor is not a Python environment"),
        (["--env=gym:X-v0", "--wrapper", "a.b"], "found 'a.b', expected package.module:Wrapper"),
        (["--env=gym:X-v0", "--wrapper", "a:B", "c.yaml"], "found 'a:B c.yaml', expected package.module:Wrapper"),
        (["--env=gym:X-v0", "--wrapper", "a:B 'x=1"], 'found "a:B \'x=1", expected package.module:Wrapper'),
    ],
)
def test_what_can_be_told_without_an_environment_is_told_with_the_settings(arguments: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_command_line(arguments)
    assert "--wrapper" in str(error.value)
    assert told in str(error.value)


def test_the_command_line_and_the_file_say_the_same() -> None:
    given = ["--env=gym:X-v0", "--wrapper", "a:B", "x=[1, 2]", "y=z", "--seed=3", "--wrapper=c.d:E f=1", "--resume"]
    found = parse_command_line(given)
    assert found.env_settings.wrappers == ["a:B 'x=[1, 2]' y=z", "c.d:E f=1"]
    assert load(dump(found), "a.yaml").env_settings == found.env_settings
    assert "wrappers" not in dump(parse_command_line(["--env=gym:X-v0"]))


def test_a_run_is_gone_on_with_by_the_same_wrappers() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for given in (["--wrapper", "a:B", "x=[1, 2]", "--wrapper", "c:D"], ["--wrapper"]):
        arguments = parser.parse_args(["--env=gym:X-v0", *given])
        assert parser.parse_args(to_resume(arguments)).wrapper == arguments.wrapper


def test_evaluations_and_actors_have_those_of_the_training_unless_they_have_their_own() -> None:
    head = "env_settings: {env_path: 'gym:X-v0', seed: 5, num_envs: 2, wrappers: ['a:B']}\nactors: {count: 2}\n"
    alike = load(f"{head}evaluation: {{interval: 9, episodes: 1}}\n", "a.yaml")
    assert settings_of_evaluation(alike).env_settings.wrappers == ["a:B"]
    own = load(f"{head}evaluation: {{interval: 9, episodes: 1, wrappers: []}}\n", "a.yaml")
    assert settings_of_evaluation(own).env_settings.wrappers == []
    actors = [settings_of_actor(own, number).env_settings for number in range(2)]
    assert [(env.wrappers, env.seed, env.num_envs) for env in actors] == [(["a:B"], 5, 2), (["a:B"], 7, 2)]
    with pytest.raises(ConfigurationError, match=r"evaluation\.wrappers\.0: found 'B', expected package"):
        load("env_settings: {env_path: 'gym:X-v0'}\nevaluation: {interval: 9, episodes: 1, wrappers: [B]}\n", "a.yaml")
