"""Copies of a Gymnasium environment as agents of one worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tests.envs.python.gymnasium_samples import CountingEnv, SpacesEnv, action_batch
from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError, UnsupportedError
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.python.gymnasium_environment import GymnasiumEnvironment
from trajtrainer.settings.environment import ConstantSettings, UniformSettings

NAME = "CountingEnv"


def counting(*envs: CountingEnv, seed: int = 100) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(envs, seed=seed)


def only(events: Sequence[EnvironmentEvent]) -> StepBatch:
    (event,) = events
    ((name, batch),) = event.steps.items()
    assert name == NAME
    return batch


def act(environment: GymnasiumEnvironment, *choices: int) -> StepBatch:
    environment.send(0, {environment.name: action_batch(np.zeros((len(choices), 0)), [[c] for c in choices])})
    return only(environment.wait())


def begin(environment: GymnasiumEnvironment, **parameters: Any) -> StepBatch:
    environment.reset(parameters)
    return only(environment.wait())


def test_the_first_event_announces_the_behavior_and_every_copy_decides() -> None:
    environment = counting(CountingEnv(), CountingEnv())
    environment.reset({})
    (event,) = environment.wait()
    assert event.is_reset
    assert event.worker == 0
    assert list(event.new_specs) == [NAME]
    assert event.new_specs[NAME].action_spec.discrete_branches == (4,)
    batch = event.steps[NAME]
    assert batch.agent.tolist() == [0, 1]
    assert batch.num_terminal == 0
    assert batch.reward.tolist() == [0, 0]
    # Seed, episode, step: copies have seeds of their own.
    assert batch.obs[0].tolist() == [[100, 1, 0], [101, 1, 0]]
    environment.send(0, {NAME: action_batch(np.zeros((2, 0)), [[0], [0]])})
    (event,) = environment.wait()
    assert not event.is_reset
    assert event.new_specs == {}


def test_a_step_brings_each_copy_its_own_action_and_reward() -> None:
    first, second = CountingEnv(), CountingEnv()
    environment = counting(first, second)
    begin(environment)
    batch = act(environment, 3, 0)
    assert (first.actions, second.actions) == ([13], [10])
    assert batch.reward.tolist() == [11, 11]
    assert batch.obs[0].tolist() == [[100, 1, 1], [101, 1, 1]]
    assert not batch.mask.any()
    assert batch.mask.shape == (2, 4)


def test_the_end_has_the_final_observation_and_the_next_episode_begins_in_the_same_event() -> None:
    environment = counting(CountingEnv(length=3), CountingEnv(length=2))
    begin(environment)
    act(environment, 0, 0)
    batch = act(environment, 0, 0)
    # Copy 1 ends: record 0 is its end, then both decide.
    assert batch.num_terminal == 1
    assert batch.agent.tolist() == [1, 0, 1]
    assert batch.obs[0].tolist() == [[101, 1, 2], [100, 1, 2], [101, 2, 0]]
    assert batch.reward.tolist() == [12, 12, 0]
    assert batch.interrupted.tolist() == [False]
    batch = act(environment, 0, 0)
    assert batch.agent.tolist() == [0, 0, 1]
    assert batch.obs[0].tolist() == [[100, 1, 3], [100, 2, 0], [101, 2, 1]]
    assert batch.reward.tolist() == [13, 0, 21]


class ReusingEnv(CountingEnv):
    """Hands out the same dictionary and the same array every time."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.array = np.zeros(3)
        self.seen = {"numbers": self.array}
        self.observation_space = spaces.Dict({"numbers": self.observation_space})

    def _observation(self) -> Any:
        self.array[:] = super()._observation()
        return self.seen


def test_a_final_observation_is_not_overwritten_by_the_reset() -> None:
    environment = GymnasiumEnvironment([ReusingEnv(2), ReusingEnv(3)], seed=100, name=NAME)
    assert begin(environment).obs[0].tolist() == [[100, 1, 0], [101, 1, 0]]
    act(environment, 0, 0)
    assert act(environment, 0, 0).obs[0].tolist() == [[100, 1, 2], [100, 2, 0], [101, 1, 2]]
    assert act(environment, 0, 0).obs[0].tolist() == [[101, 1, 3], [100, 2, 1], [101, 2, 0]]


def test_several_ends_at_once_keep_the_order_of_the_copies() -> None:
    environment = counting(CountingEnv(2), CountingEnv(1), CountingEnv(1))
    begin(environment)
    batch = act(environment, 0, 0, 0)
    assert batch.agent.tolist() == [1, 2, 0, 1, 2]
    assert batch.obs[0][:, 0].tolist() == [101, 102, 100, 101, 102]


@pytest.mark.parametrize(
    ("truncates", "terminates", "interrupted"), [(True, False, True), (False, True, False), (True, True, False)]
)
def test_truncation_is_an_interruption_unless_the_episode_ended_anyway(
    truncates: bool, terminates: bool, interrupted: bool
) -> None:
    environment = counting(CountingEnv(1, truncates=truncates, terminates=terminates))
    begin(environment)
    assert act(environment, 0).interrupted.tolist() == [interrupted]


def test_time_limits_of_gymnasium_interrupt() -> None:
    environment = GymnasiumEnvironment(
        [gymnasium.make("CartPole-v1", max_episode_steps=3, disable_env_checker=True)], seed=1
    )
    environment.reset({})
    (event,) = environment.wait()
    assert list(event.new_specs) == ["CartPole-v1"]
    for step in range(1, 4):
        environment.send(0, {"CartPole-v1": action_batch(np.zeros((1, 0)), [[step % 2]])})
        (event,) = environment.wait()
    assert event.steps["CartPole-v1"].interrupted.tolist() == [True]
    environment.close()


def test_only_the_first_reset_is_seeded() -> None:
    first, second = CountingEnv(1), CountingEnv(1)
    environment = counting(first, second, seed=7)
    begin(environment)
    act(environment, 0, 0)
    begin(environment)
    assert first.seeds == [7, None, None]
    assert second.seeds == [8, None, None]


def test_a_reset_goes_before_actions_that_were_sent() -> None:
    env = CountingEnv()
    environment = counting(env)
    begin(environment)
    environment.send(0, {NAME: action_batch(np.zeros((1, 0)), [[1]])})
    environment.reset({})
    (event,) = environment.wait()
    assert event.is_reset
    assert env.actions == []
    assert event.steps[NAME].num_terminal == 0
    assert environment.wait(0) == []


def test_events_do_not_share_their_columns() -> None:
    """Who keeps an event keeps what it said."""
    environment = counting(CountingEnv(5))
    first = begin(environment)
    act(environment, 0)
    assert first.obs[0].tolist() == [[100, 1, 0]]


def test_parameters_are_drawn_for_each_episode() -> None:
    env, other = CountingEnv(1), CountingEnv(9)
    environment = counting(env, other)
    uniform = UniformSettings(seed=3, min_value=10, max_value=20)
    begin(environment, size=ConstantSettings(value=4), speed=uniform)
    act(environment, 0, 0)
    environment.set_parameters({"size": ConstantSettings(value=5), "speed": uniform})
    act(environment, 0, 0)
    options = [one or {} for one in env.options]
    assert [one["size"] for one in options] == [4, 4, 5]
    speeds = [one["speed"] for one in options]
    assert len(set(speeds)) == 3, "an unchanged sampler goes on drawing"
    assert all(10 <= speed <= 20 for speed in speeds)
    assert len(other.options) == 1


def test_without_parameters_there_are_no_options() -> None:
    env = CountingEnv()
    begin(counting(env))
    assert env.options == [None]


def test_action_masks_of_infos() -> None:
    class Masked(CountingEnv):
        def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
            return super().reset(**arguments)[0], {"action_mask": np.array([1, 1, 0, 1])}

    environment = GymnasiumEnvironment([Masked(1)], seed=0, name=NAME)
    assert begin(environment).mask.tolist() == [[False, False, True, False]]
    # The end's row allows everything, the new episode's first decision does not.
    assert act(environment, 0).mask.tolist() == [[False] * 4, [False, False, True, False]]


def test_every_kind_of_space_arrives_whole() -> None:
    observation = spaces.Dict(
        {"eye": spaces.Box(0, 255, (24, 24, 3), np.uint8), "place": spaces.Discrete(3), "arm": spaces.Box(-1, 1, (2,))}
    )
    action = spaces.Tuple([spaces.Box(-2, 2, (1,)), spaces.Discrete(2)])
    env = SpacesEnv(observation, action)
    environment = GymnasiumEnvironment([env], seed=5)
    environment.reset({})
    (event,) = environment.wait()
    (batch,) = event.steps.values()
    assert [column.dtype for column in batch.obs] == [np.float32, np.uint8, np.float32]
    np.testing.assert_array_equal(batch.obs[1][0], np.moveaxis(env.observations[0]["eye"], 2, 0))
    environment.send(0, {"SpacesEnv": action_batch([[0.5]], [[1]])})
    environment.wait()
    ((torque, gear),) = env.actions
    assert (torque.tolist(), gear) == ([1.0], 1)


def test_copies_must_be_alike() -> None:
    one, other = CountingEnv(), CountingEnv()
    other.action_space = spaces.Discrete(5)
    with pytest.raises(InvalidDataError, match="different spaces"):
        counting(one, other)


class Failing(CountingEnv):
    """Its second step goes wrong."""

    def __init__(self, reward: Any) -> None:
        super().__init__(9)
        self.reward = reward

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        if self.steps < 2:
            return observation, reward, *rest
        if self.reward is None:
            raise ZeroDivisionError("wheels came off")
        return observation, self.reward, *rest


def test_what_an_environment_raises_ends_the_run_with_the_reason() -> None:
    environment = GymnasiumEnvironment([Failing(None)], seed=0, name=NAME)
    begin(environment)
    act(environment, 0)
    with pytest.raises(EnvironmentFaultError, match="CountingEnv failed in its step: ZeroDivisionError: wheels") as e:
        act(environment, 0)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


class Mismatch(CountingEnv):
    """Returns what an environment of Gymnasium does not."""

    def __init__(self, call: str, returned: Any) -> None:
        super().__init__(9)
        self.call, self.returned = call, returned

    def reset(self, **options: Any) -> Any:
        found = super().reset(**options)
        return self.returned if self.call == "reset" else found

    def step(self, action: Any) -> Any:
        found = super().step(action)
        return self.returned if self.call == "step" else found


@pytest.mark.parametrize(
    ("call", "returned", "expected"),
    [
        ("reset", np.zeros(2), r"\(observation, info\)"),
        ("reset", (np.zeros(2), None), r"\(observation, info\)"),
        ("step", (np.zeros(2), 1.0, True, {}), r"\(observation, reward, terminated, truncated, info\)"),
        ("step", None, r"\(observation, reward, terminated, truncated, info\)"),
        ("step", (np.zeros(2), 1.0, "no", False, {}), "True or False for terminated and truncated"),
        ("step", (np.zeros(2), 1.0, False, "no", {}), "True or False for terminated and truncated"),
        ("step", (np.zeros(2), "much", False, False, {}), "a number for the reward"),
        ("step", (np.zeros(2), "1", False, False, {}), "a number for the reward"),
        ("step", (np.zeros(2), np.zeros(2), False, False, {}), "a number for the reward"),
    ],
)
def test_what_calls_return_is_checked(call: str, returned: Any, expected: str) -> None:
    environment = GymnasiumEnvironment([Mismatch(call, returned)], seed=0, name=NAME)

    def play() -> None:
        begin(environment)
        act(environment, 0)

    with pytest.raises(InvalidDataError, match=rf"(?s)The {call}\(\) of the environment {NAME} returned .*{expected}"):
        play()


@pytest.mark.parametrize("attribute", ["observation_space", "action_space"])
def test_an_environment_without_spaces_is_refused(attribute: str) -> None:
    env = CountingEnv()
    setattr(env, attribute, None)
    with pytest.raises(UnsupportedError, match=f"has no {attribute}: found NoneType"):
        counting(env)


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_rewards_must_be_finite(reward: float) -> None:
    environment = GymnasiumEnvironment([Failing(reward)], seed=0, name=NAME)
    begin(environment)
    act(environment, 0)
    with pytest.raises(InvalidDataError, match=f"sent {reward} as a reward"):
        act(environment, 0)


@pytest.mark.parametrize("reward", [np.array([7.0]), [7.0], np.array(7), np.float64(7)])
def test_a_reward_may_be_in_an_array_of_one_element(reward: Any) -> None:
    environment = GymnasiumEnvironment([Failing(reward), CountingEnv(2)], seed=0, name=NAME)
    begin(environment)
    act(environment, 0, 0)
    assert act(environment, 0, 0).reward.tolist() == [12, 7, 0]


def test_text_is_no_observation() -> None:
    environment = GymnasiumEnvironment([Mismatch("step", (["1", "2", "3"], 1.0, False, False, {}))], seed=0, name=NAME)
    begin(environment)
    with pytest.raises(InvalidDataError, match=r"does not fit its space at sensor 'observation'.*found '1'"):
        act(environment, 0)


def test_close_closes_every_copy_and_may_be_repeated() -> None:
    envs = CountingEnv(), CountingEnv()
    environment = counting(*envs)
    environment.close()
    environment.close()
    assert [env.closed for env in envs] == [True, True]


def test_there_is_one_worker() -> None:
    environment = counting(CountingEnv())
    assert environment.num_workers == 1
    empty: dict[str, ActionBatch] = {}
    with pytest.raises(ValueError, match="no worker 1"):
        environment.send(1, empty)
