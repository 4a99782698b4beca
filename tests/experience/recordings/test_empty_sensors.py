"""Recordings with a sensor of shape (0,), as packages before 1.0 wrote for agents without vector observations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.experience.recordings.making import write_plainly
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.envs.unity.pictures import encode
from trajtrainer.envs.unity.proto.communicator_pb2 import (
    PNG,
    AgentInfoActionPairProto,
    BrainParametersProto,
    ObservationProto,
    continuous,
)
from trajtrainer.experience.recordings.demonstrations import load_demonstrations

NUM_STEPS = 38
NUMBERS = np.random.default_rng(0).random((NUM_STEPS + 1, 3), np.float32)
IMAGES = np.random.default_rng(1).integers(0, 256, (NUM_STEPS + 1, 3, 20, 30), np.uint8)


def record(path: Path, *, png: bool, by_unity: bool, spoilt: int | None = None) -> NDArray[np.float32]:
    """Record an episode that is cut off. Each action tells its step. Observations: image, nothing, vector."""
    pairs = []
    actions = np.linspace(-1, 1, NUM_STEPS + 1, dtype=np.float32)
    for step, (numbers, image) in enumerate(zip(NUMBERS, IMAGES, strict=True)):
        pair = AgentInfoActionPairProto()
        if png:
            data = encode(image, 1)
            pair.agent_info.observations.append(
                ObservationProto(shape=(20, 30, 3), compression_type=PNG, compressed_data=data)
            )
        empty = ObservationProto(shape=(0,))
        empty.float_data.SetInParent()
        vector = ObservationProto(shape=(3,))
        vector.float_data.data.extend(numbers.tolist())
        pair.agent_info.observations.extend([empty] * (step != spoilt))
        pair.agent_info.observations.append(vector)
        pair.agent_info.reward = step
        pair.action_info.vector_actions_deprecated.append(actions[step])
        pairs.append(pair.SerializeToString())
    parameters = BrainParametersProto(brain_name="Empty", vector_action_size_deprecated=[1])
    parameters.vector_action_space_type_deprecated = continuous
    write_plainly(path, parameters.SerializeToString(), pairs, by_unity=by_unity)
    return actions


@pytest.mark.parametrize("png", [True, False])
@pytest.mark.parametrize("by_unity", [True, False])
def test_the_others_are_read(tmp_path: Path, png: bool, by_unity: bool) -> None:
    path = tmp_path / "empty.demo"
    actions = record(path, png=png, by_unity=by_unity)
    found = load_demonstrations([path])
    assert [tuple(sensor.shape) for sensor in found.spec.observation_specs] == [(3, 20, 30)] * png + [(3,)]
    assert len(found) == NUM_STEPS
    np.testing.assert_array_equal(found.packed.obs[-1], NUMBERS[:-1])
    np.testing.assert_array_equal(found.packed["continuous"][:, 0], actions[1:] if by_unity else actions[:-1])
    np.testing.assert_array_equal(found.packed["reward"], np.arange(1, NUM_STEPS + 1))
    if png:
        np.testing.assert_array_equal(found.packed.obs[0], IMAGES[:-1])


def test_each_step_has_as_many_observations(tmp_path: Path) -> None:
    path = tmp_path / "empty.demo"
    record(path, png=True, by_unity=True, spoilt=5)
    with pytest.raises(DemonstrationError, match=r"step 6: it has 2 observations, but the first agent has 3"):
        load_demonstrations([path])
