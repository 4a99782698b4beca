"""EnvPool's environments: what Gymnasium's of the same dynamics say, ends of episodes above all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.envs.python.gymnasium_samples import action_batch
from tests.envs.test_select import NoLogs, make, settings
from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.steps import StepBatch
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.select import make_filmed_environment
from trajtrainer.settings.environment import ConstantSettings

pytest.importorskip("envpool", reason="the extra envpool is not installed")

COPIES = 3


def pole(env: Any, seen: Any) -> None:
    env.state = tuple(map(float, seen))


def pendulum(env: Any, seen: Any) -> None:
    env.state = np.array([np.arctan2(seen[1], seen[0]), seen[2]], np.float64)


def act(environment: Environment, continuous: Any, discrete: Any) -> StepBatch:
    environment.send(0, {environment.name: action_batch(continuous, discrete)})  # type: ignore[attr-defined]
    (event,) = environment.wait()
    (batch,) = event.steps.values()
    return batch


def begin(environment: Environment) -> Any:
    environment.reset({})
    (event,) = environment.wait()
    assert event.is_reset
    (batch,) = event.steps.values()
    assert (batch.num_terminal, batch.agent.tolist()) == (0, list(range(len(batch))))
    return batch.obs[0]


@pytest.mark.parametrize(
    ("env_id", "place", "limit", "steps"),
    [("CartPole-v1", pole, 500, 70), ("CartPole-v1", pole, 9, 40), ("Pendulum-v1", pendulum, 20, 70)],
)
def test_steps_and_ends_are_those_of_gymnasium(
    env_id: str, place: Callable[[Any, Any], None], limit: int, steps: int
) -> None:
    """Gymnasium's copy of each is put where EnvPool's begins an episode and gets the same actions."""
    environment = make(f"envpool:{env_id}", f"max_episode_steps={limit}", "num_threads=2", num_envs=COPIES)
    others = [gymnasium.make(env_id, max_episode_steps=limit) for _ in range(COPIES)]
    is_pole = place is pole
    generator = np.random.default_rng(3)
    starts = begin(environment)
    assert len(np.unique(starts, axis=0)) == COPIES, "copies have their own seeds"
    ends = {True: 0, False: 0}
    begun = dict(enumerate(starts))
    for _ in range(steps):
        for copy, seen in begun.items():
            others[copy].reset()
            place(others[copy].unwrapped, seen)
        begun = {}
        if is_pole:
            choices = generator.integers(2, size=(COPIES, 1))
            batch = act(environment, np.zeros((COPIES, 0)), choices)
            expected = [env.step(int(choice[0])) for env, choice in zip(others, choices, strict=True)]
        else:
            torques = generator.uniform(-1, 1, (COPIES, 1)).astype(np.float32)
            batch = act(environment, torques, np.zeros((COPIES, 0)))
            expected = [env.step(2 * torque) for env, torque in zip(others, torques, strict=True)]
        over = [copy for copy, (_, _, terminated, truncated, _) in enumerate(expected) if terminated or truncated]
        assert batch.agent.tolist() == [*over, *range(COPIES)]
        final, going_on = batch.obs[0][: len(over)], batch.obs[0][len(over) :]
        for row, copy in enumerate(over):
            np.testing.assert_allclose(final[row], expected[copy][0], atol=1e-3)
            assert batch.reward[row] == pytest.approx(float(expected[copy][1]), abs=1e-3)
            # Where both happen in one step EnvPool tells of the limit only.
            interrupted = expected[copy][3]
            assert batch.interrupted[row] == interrupted
            ends[bool(interrupted)] += 1
            begun[copy] = going_on[copy]
            assert batch.reward[len(over) + copy] == 0
            if is_pole:
                assert np.abs(going_on[copy]).max() <= 0.05, "the first observation of an episode"
        for copy in set(range(COPIES)) - set(over):
            np.testing.assert_allclose(going_on[copy], expected[copy][0], atol=1e-3)
            assert batch.reward[len(over) + copy] == pytest.approx(float(expected[copy][1]), abs=1e-3)
    assert ends[limit < 500] > 3
    environment.close()
    environment.close()


def test_a_seed_repeats_itself_and_its_copies() -> None:
    def starts(seed: int, num_envs: int) -> Any:
        from trajtrainer.envs import select

        return begin(select.make_environment(settings("envpool:CartPole-v1", num_envs=num_envs, seed=seed), NoLogs()))

    np.testing.assert_array_equal(starts(5, 3), starts(5, 3))
    np.testing.assert_array_equal(starts(5, 3)[1:], starts(6, 2))


def test_observations_that_are_parts_of_a_dict_or_numbers_are_sensors() -> None:
    environment = make("envpool:FrozenLake-v1", num_envs=2)
    assert begin(environment).shape == (2, 16)
    environment = make("envpool:WalkerWalk-v1", num_envs=2)
    environment.reset({})
    (event,) = environment.wait()
    names = [sensor.name for sensor in event.new_specs["WalkerWalk-v1"].observation_specs]
    assert dict(zip(names, [column.shape for column in event.steps["WalkerWalk-v1"].obs], strict=True)) == {
        "orientations": (2, 14),
        "height": (2, 1),
        "velocity": (2, 9),
    }


def test_pictures_are_stacks_of_frames() -> None:
    environment = make("envpool:Pong-v5", num_envs=2)
    seen = begin(environment)
    assert (seen.shape, seen.dtype) == ((2, 4, 84, 84), np.uint8)
    batch = act(environment, np.zeros((2, 0)), [[0], [2]])
    np.testing.assert_array_equal(batch.obs[0][:, :3], seen[:, 1:])


def test_episodes_are_filmed() -> None:
    pictures: list[Any] = []
    given = settings("envpool:CartPole-v1", "max_episode_steps=3")
    environment = make_filmed_environment(given, NoLogs(), lambda picture, rate: pictures.append(picture.shape))
    begin(environment)
    for _ in range(3):
        act(environment, np.zeros((1, 0)), [[1]])
    assert pictures == [(400, 600, 3)] * 4
    environment.close()


@pytest.mark.parametrize(
    ("path", "arguments", "told"),
    [
        ("envpool:Pong", (), "has no environment with this id; did you mean Pong-v5?"),
        ("envpool:CartPole-v1", ("color=3",), "unexpected keyword argument 'color'. It accepts: num_threads,"),
        ("envpool:CartPole-v1", ("seed=3",), "--env-args seed=3: this is set by --num-envs and --seed"),
        ("envpool:CartPole-v1", ("smallest_picture=large",), "smallest_picture='large': expected a whole number"),
    ],
)
def test_what_cannot_be(path: str, arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(SettingsError) as error:
        make(path, *arguments)
    assert told in str(error.value)


def test_there_are_no_parameters_for_an_episode() -> None:
    with pytest.raises(UnsupportedError, match=r"does not accept environment_parameters \(gravity\)"):
        make("envpool:CartPole-v1").reset({"gravity": ConstantSettings(value=3)})
