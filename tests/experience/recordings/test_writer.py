"""What is written is read again, by us and in the obvious way of ML-Agents."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.recordings.making import SPECS, check_same, packed_steps, read_plainly, write_demo
from tests.learning.nn.specs import behavior, vector
from trajtrainer.envs.unity import pictures
from trajtrainer.envs.unity.proto.communicator_pb2 import BrainParametersProto, DemonstrationMetaProto
from trajtrainer.experience.recordings.demo_file import open_demo
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.experience.recordings.pairing import Trajectory, trajectories
from trajtrainer.experience.recordings.writer import DemoWriter
from trajtrainer.experience.trajectory import PackedSteps


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(SPECS)),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    masked=st.booleans(),
    grouped=st.booleans(),
    cut=st.booleans(),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, name: str, lengths: list[int], masked: bool, grouped: bool, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("demos") / "written.demo"
    packed = packed_steps(name, lengths, masked=masked, grouped=grouped, cut=cut)
    write_demo(path, packed, SPECS[name], "Some?team=1")
    read = load_demonstrations([path], spec=SPECS[name])
    check_same(read.packed, packed)
    assert read.spec == SPECS[name]
    assert read.name == "Some?team=1"


def test_names_with_half_of_a_surrogate_pair_are_escaped(tmp_path: Path) -> None:
    spec = behavior([vector(3)._replace(name="eye\ud83d")], 1, ())
    with DemoWriter(tmp_path / "a.demo", spec, "Ball\ud83d"):
        pass
    assert b"Ball\\ud83d" in (tmp_path / "a.demo").read_bytes()


@pytest.mark.parametrize("name", sorted(SPECS))
def test_ml_agents_reads_the_same_numbers(tmp_path: Path, name: str) -> None:
    """The action and the observation of a record belong together there; reward and end stand in the next one."""
    packed, path = packed_steps(name, [4, 1, 3], grouped=True), tmp_path / "x.demo"
    write_demo(path, packed, SPECS[name], "Some")
    meta, parameters, pairs = read_plainly(path)
    assert (meta.api_version, meta.number_steps, meta.number_episodes) == (1, len(packed) + 3, 3)
    assert meta.mean_reward == pytest.approx(packed["reward"].sum() / 3)
    assert parameters.brain_name == "Some"
    step = -1
    for pair, follower in pairwise(pairs):
        if pair.agent_info.done:
            continue
        step += 1
        info, action = pair.agent_info, pair.action_info
        np.testing.assert_array_equal(np.array(action.continuous_actions, np.float32), packed["continuous"][step])
        np.testing.assert_array_equal(action.discrete_actions, packed["discrete"][step])
        assert follower.agent_info.reward == packed["reward"][step]
        assert follower.agent_info.group_reward == packed["group_reward"][step]
        assert follower.agent_info.done == packed["done"][step]
        assert follower.agent_info.max_step_reached == packed["interrupted"][step]
        assert info.group_id == packed["group"][step]
        assert (list(info.action_mask) or [False] * packed["mask"].shape[1]) == packed["mask"][step].tolist()
        sensors = zip(SPECS[name].observation_specs, info.observations, packed.obs, strict=True)
        for sensor, observation, column in sensors:
            assert (tuple(observation.shape), observation.name) == (sensor.shape, sensor.name)
            assert observation.observation_type == sensor.observation_type.value
            assert tuple(observation.dimension_properties) == tuple(each.value for each in sensor.dimension_property)
            if column.dtype == np.uint8:
                mapping = observation.compressed_channel_mapping
                found = pictures.decode(observation.compressed_data, mapping, sensor.shape)
            else:
                found = np.array(observation.float_data.data, np.float32).reshape(sensor.shape)
            np.testing.assert_array_equal(found, column[step])
    assert step == len(packed) - 1
    # ML-Agents takes the end of an episode for a step, for which there must be an action.
    assert all(len(pair.action_info.discrete_actions) == packed["discrete"].shape[1] for pair in pairs)


def test_a_trajectory_without_an_end_is_interrupted_where_another_follows(tmp_path: Path) -> None:
    path, packed = tmp_path / "x.demo", packed_steps("continuous", [3], cut=True)
    (cut,) = _written(path, packed, times=1)
    assert not cut.steps["done"].any()
    first, second = _written(path, packed, times=2)
    assert (first.steps["done"][-1], first.steps["interrupted"][-1]) == (True, True)
    assert not second.steps["done"].any()
    np.testing.assert_array_equal(first.after.obs[0], packed.bootstrap.obs[0])


def _written(path: Path, packed: PackedSteps, times: int) -> list[Trajectory]:
    with DemoWriter(path, SPECS["continuous"], "Some") as writer:
        for _ in range(times):
            writer.write(Trajectory(packed.steps, packed.bootstrap))
    return list(trajectories(open_demo(path)))


def test_a_writer_that_was_killed_leaves_what_can_be_read(tmp_path: Path) -> None:
    path, packed = tmp_path / "x.demo", packed_steps("hybrid", [5, 4])
    write_demo(path, packed, SPECS["hybrid"], "Some")
    data = path.read_bytes()
    unnamed = bytes([2, 8, 1]).ljust(33, b"\x00")  # the header as it is until the writer is closed: version 1
    path.write_bytes(unnamed + data[33:-7])
    read = load_demonstrations([path]).packed
    assert read.lengths.tolist() == [5, 3]
    np.testing.assert_array_equal(read["continuous"], packed["continuous"][:8])


def test_a_picture_stays_as_it_came(tmp_path: Path) -> None:
    path, copy = tmp_path / "x.demo", tmp_path / "copy.demo"
    write_demo(path, packed_steps("visual", [3, 2]), SPECS["visual"], "Some")
    file = open_demo(path)
    with DemoWriter(copy, file.behavior.spec, "Some") as writer:
        for trajectory in trajectories(file, decode=False):
            writer.write(trajectory)
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["", "A name that is longer than sixteen letters", "Ü?team=0", "-" * 40])
def test_the_header_holds_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.demo"
    with DemoWriter(path, SPECS["continuous"], name) as writer:
        writer.num_records, writer.num_episodes = 2**31 - 1, 2**31 - 1
    data = path.read_bytes()
    assert DemonstrationMetaProto.FromString(data[1 : 1 + data[0]]).number_steps == 2**31 - 1
    assert BrainParametersProto.FromString(data[34 : 34 + data[33]]).brain_name == name
