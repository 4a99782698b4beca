"""DAgger asks its expert about what the learner sees, and imitates that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajtrainer
from tests.learning.algos.recorded import recording
from tests.learning.nn.specs import behavior, network, vector
from tests.plugins.imitation.test_learn_offline import weights
from tests.run.api.test_learn_api import Lamp
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.steps import ActionBatch
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.plugins.imitation.distillation import labels
from trajtrainer.plugins.imitation.experts import FunctionExpert

HYBRID = behavior([vector(4)], 2, (3,))
STUDENT = Actor(HYBRID, network())


def follows_the_light(observations: Sequence[Any], mask: Any) -> Any:
    """What the lamp wants: its number."""
    assert not mask.any()
    return observations[0].argmax(1)


class Counts:
    """Remembers how often it was asked in an episode, and does that."""

    memory_size = 2

    def act(self, obs: Any, mask: Any, memory: Any) -> ActionBatch:
        after = memory + 1
        return ActionBatch(after, np.zeros((len(mask), 1), np.int32), after, after, after[:, 0], after, 0)


def test_a_memory_goes_through_episodes_that_the_horizon_cuts() -> None:
    packed = recording(HYBRID, [3, 2, 4, 1])
    packed.agent[:] = [7, 8, 7, 8]
    packed.ended[:] = [False, True, True, False]
    memories: dict[int, Any] = {}
    found = labels(Counts(), packed, memories, STUDENT)["continuous"][:, 0]
    assert found.tolist() == [1, 2, 3, 1, 2, 4, 5, 6, 7, 1]
    assert {agent: memory.tolist() for agent, memory in memories.items()} == {8: [1.0, 1.0]}


def test_actions_of_a_function_are_checked() -> None:
    def hybrid(observations: Any, mask: Any) -> Any:
        return observations[0][:, :2], mask[:, 0].astype(int)

    packed = recording(HYBRID, [5])
    found = labels(FunctionExpert(hybrid, "python:here:hybrid", HYBRID), packed, {}, STUDENT)
    assert found.keys() == {"continuous", "discrete"}
    assert np.array_equal(found["continuous"], packed.obs[0][:, :2])
    assert np.array_equal(found["discrete"][:, 0], packed["mask"][:, 0])
    wrong = FunctionExpert(lambda observations, _: (observations[0], [0] * 5), "python:here:wrong", HYBRID)
    with pytest.raises(SettingsError, match=r"python:here:wrong returned an array of shape \(5, 4\) for 5 agents"):
        labels(wrong, packed, {}, STUDENT)


def settings(expert: str) -> dict[str, Any]:
    dagger = {
        "trainer_type": "dagger",
        "hyperparameters": {"expert": expert, "batch_size": 16, "steps_per_update": 1, "learning_rate": 0.02},
        "network_settings": {"hidden_units": 16, "num_layers": 1},
        "max_steps": 200,
        "summary_freq": 100,
        "time_horizon": 8,
    }
    return {"behaviors": {"Lamp": dagger}, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}}


def test_a_learner_becomes_its_expert_and_then_one_itself(tmp_path: Path) -> None:
    """First of a function, then of the run that this has made; both learn the lamp without its reward."""
    function = f"python:{__name__}:follows_the_light"
    for run_id, expert in (("first", function), ("second", "first")):
        result = trajtrainer.learn(settings(expert), Lamp, run_id=run_id, results_dir=tmp_path, verbose=False)
        assert result.behaviors["Lamp"].steps > 200
    assert weights(result.behaviors["Lamp"].checkpoint)["trajtrainer"]["gradient_steps"] > 100
    acted = {"run_id": "second", "results_dir": tmp_path, "resume": True, "inference": True, "episodes": 10}
    result = trajtrainer.learn(settings(function), Lamp, **acted, verbose=False)  # type: ignore[arg-type]
    assert (result.behaviors["Lamp"].mean_reward or 0) > 7


@pytest.mark.parametrize(
    ("expert", "message"),
    [
        ("", "hyperparameters.expert: found nothing"),
        ("nobody", "hyperparameters.expert: "),
        ("python:tests.plugins.imitation.test_dagger:nothing", "hyperparameters.expert: .*nothing"),
    ],
)
def test_an_expert_that_is_none_is_told_before_anything_starts(tmp_path: Path, expert: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        trajtrainer.learn(settings(expert), Lamp, run_id="run", results_dir=tmp_path, verbose=False)
    assert not (tmp_path / "run").exists()
