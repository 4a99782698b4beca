"""What a game announces and sends, as behaviors and columns; what it is sent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.plugins.godot.games import Json, batch_of, env_info, first, step
from trajtrainer.core.errors import InvalidDataError, TrajtrainerError, UnsupportedError
from trajtrainer.core.spec import ActionSpec, ObservationKind, observation_kind
from trajtrainer.envs.unity.faults import ActionError, NotFiniteError
from trajtrainer.plugins.godot.messages import Layout, check_type, parse

MIXED: Json = {
    "jump": {"size": 2, "action_type": "discrete"},
    "move": {"size": 2, "action_type": "continuous"},
    "tool": {"size": 3, "action_type": "discrete"},
    "turn": {"size": 1, "action_type": "continuous"},
}


def only(layout: Layout) -> Any:
    (behavior,) = layout.behaviors
    return behavior


def test_a_vector_and_continuous_actions() -> None:
    behavior = only(Layout(env_info(3), worker=2))
    assert behavior.name == "shared_policy"
    (sensor,) = behavior.spec.observation_specs
    assert (sensor.name, sensor.shape) == ("obs", (2,))
    assert behavior.spec.action_spec == ActionSpec(2, ())
    batch = behavior.decisions([{"obs": [1, 2]}, {"obs": [3, 4]}, {"obs": [5.5, 6]}])
    assert batch.agent.tolist() == [2 << 32, 2 << 32 | 1, 2 << 32 | 2]
    assert batch.obs[0].tolist() == [[1, 2], [3, 4], [5.5, 6]]
    assert batch.obs[0].dtype == np.float32
    assert batch.num_decisions == 3


def test_plugins_of_old_send_one_space_for_all_and_no_names() -> None:
    message = env_info(2)
    for name in ("observation_space", "action_space"):
        message[name] = message[name][0]
    del message["agent_policy_names"]
    layout = Layout(message, worker=0)
    assert only(layout).name == "shared_policy"
    old = step(1, 2, done=[False, True])
    del old["info"]
    assert layout.read_step(old)["shared_policy"].num_terminal == 1


def test_policy_names_are_behaviors_whose_agents_may_be_mixed() -> None:
    names = ["Wolf", "Sheep?team=1", "Wolf"]
    layout = Layout(env_info(3, agent_policy_names=names), worker=0)
    steps = layout.read_step(step(0, 1, 2, reward=[10, 11, 12], done=[False, True, True]))
    wolf, sheep = steps["Wolf"], steps["Sheep?team=1"]
    assert wolf.agent.tolist() == [2, 0, 2]
    assert wolf.obs[0].tolist() == [[2, 2], [0, 0], [2, 2]]
    assert wolf.reward.tolist() == [12, 10, 0]
    assert sheep.agent.tolist() == [1, 1]
    assert sheep.reward.tolist() == [11, 0]
    spec = layout.behaviors[0].spec
    actions = {"Wolf": batch_of(spec, 2, [[1, 2], [3, 4]]), "Sheep?team=1": batch_of(spec, 1, [[5, 6]])}
    sent = json.loads(layout.write_actions(actions))
    assert sent == {"type": "action", "action": [{"move": [1, 2]}, {"move": [5, 6]}, {"move": [3, 4]}]}


def test_agents_of_one_policy_must_be_alike() -> None:
    message = env_info(2)
    message["observation_space"] = [{"obs": {"size": [2], "space": "box"}}, {"obs": {"size": [3], "space": "box"}}]
    with pytest.raises(
        InvalidDataError, match=r"agents 0 and 1 of the policy 'shared_policy' .* different policy names"
    ):
        Layout(message, worker=0)


def test_several_observations_keep_the_order_of_the_game() -> None:
    observed: Json = {
        "rays": {"size": [2, 3], "space": "box"},
        "obs": {"size": [1.0], "space": "box"},  # Godot writes some whole numbers so
    }
    behavior = only(Layout(env_info(1, observed), worker=0))
    assert [sensor.name for sensor in behavior.spec.observation_specs] == ["rays", "obs"]
    batch = behavior.decisions([{"obs": [7], "rays": [[1, 2, 3], [4, 5, 6]], "more": 3}])
    assert [column.tolist() for column in batch.obs] == [[[1, 2, 3, 4, 5, 6]], [[7]]]


@pytest.mark.parametrize("size", [[3, 2, 4], [2, 4, 3]])
def test_pictures_come_row_by_row_whatever_order_is_announced(size: list[int]) -> None:
    behavior = only(Layout(env_info(2, {"camera_2d": {"size": size, "space": "box"}}), worker=0))
    (sensor,) = behavior.spec.observation_specs
    assert sensor.shape == (3, 2, 4)
    assert observation_kind(sensor) is ObservationKind.VISUAL
    pictures = np.arange(48, dtype=np.uint8).reshape(2, 2, 4, 3)  # as Godot's Image.get_data has them
    batch = behavior.decisions([{"camera_2d": picture.tobytes().hex()} for picture in pictures])
    assert batch.obs[0].dtype == np.uint8
    assert (batch.obs[0] == pictures.transpose(0, 3, 1, 2)).all()


def test_actions_go_out_in_the_order_of_the_game() -> None:
    layout = Layout(env_info(2, acted=MIXED), worker=0)
    spec = only(layout).spec
    assert spec.action_spec == ActionSpec(3, (2, 3))
    batch = batch_of(spec, 2, [[0.5, -0.5, 1], [0, 0.25, -1]], [[1, 2], [0, 1]])
    sent = layout.write_actions({"shared_policy": batch})
    assert [list(action) for action in json.loads(sent)["action"]] == [["jump", "move", "tool", "turn"]] * 2
    assert json.loads(sent)["action"] == [
        {"jump": 1, "move": [0.5, -0.5], "tool": 2, "turn": [1]},
        {"jump": 0, "move": [0, 0.25], "tool": 1, "turn": [-1]},
    ]


def test_a_behavior_that_is_left_out_does_nothing() -> None:
    layout = Layout(env_info(1, acted=MIXED), worker=0)
    assert json.loads(layout.write_actions({}))["action"] == [{"jump": 0, "move": [0, 0], "tool": 0, "turn": [0]}]


def test_actions_must_be_as_many_as_agents() -> None:
    layout = Layout(env_info(2), worker=0)
    with pytest.raises(ActionError, match="3 actions for 2 agents"):
        layout.write_actions({"shared_policy": batch_of(only(layout).spec, 3)})


# -- ends


def test_done_alone_ends_an_episode_for_good() -> None:
    layout = Layout(env_info(2), worker=0)
    assert not layout.read_step(step(1, 2))["shared_policy"].num_terminal
    assert not layout.assumptions
    batch = layout.read_step(step(3, 4, reward=[0.5, 1], done=[False, True]))["shared_policy"]
    assert batch.num_terminal == 1
    assert batch.agent.tolist() == [1, 0, 1]
    assert batch.obs[0].tolist() == [[4, 4], [3, 3], [4, 4]]
    assert batch.reward.tolist() == [1, 0.5, 0]
    assert batch.interrupted.tolist() == [False]
    (assumption,) = layout.assumptions
    assert "end of the task" in assumption


def test_truncation_and_the_last_observation() -> None:
    layout = Layout(env_info(2), worker=0)
    infos = [{"truncated": True, "final_obs": {"obs": [8, 9]}}, {"truncated": False, "final_obs": {"obs": [6, 7]}}]
    batch = layout.read_step(step(1, 2, done=[True, True], info=infos))["shared_policy"]
    assert batch.obs[0].tolist() == [[8, 9], [6, 7], [1, 1], [2, 2]]
    assert batch.interrupted.tolist() == [True, False]
    assert not layout.assumptions


def test_truncation_without_a_last_observation() -> None:
    layout = Layout(env_info(1), worker=0)
    batch = layout.read_step(step(3, done=[True], info=[{"truncated": True}]))["shared_policy"]
    assert batch.obs[0].tolist() == [[3, 3], [3, 3]]
    assert batch.interrupted.tolist() == [True]
    (assumption,) = layout.assumptions
    assert "without a final_obs" in assumption


def test_the_last_observation_may_be_a_picture() -> None:
    layout = Layout(env_info(1, {"a_2d": {"size": [1, 1, 2], "space": "box"}}), worker=0)
    message = {"type": "step", "obs": [{"a_2d": "0102"}], "reward": [0], "done": [True]}
    message["info"] = [{"final_obs": {"a_2d": "fffe"}}]
    batch = layout.read_step(message)["shared_policy"]
    assert batch.obs[0].reshape(2, -1).tolist() == [[255, 254], [1, 2]]
    assert batch.obs[0].dtype == np.uint8


# -- what cannot be


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_agents": 0}, "0 as n_agents"),
        ({"n_agents": 1.5}, "1.5 as n_agents"),
        ({"n_agents": True}, "True as n_agents"),
        ({"n_agents": 10**9}, "1000000000 as n_agents"),
        ({"n_agents": None}, "None as n_agents"),
        ({"n_agents": 3}, "observation_space"),
        ({"observation_space": []}, "observation_space"),
        ({"observation_space": [1, 2]}, "observation_space"),
        ({"observation_space": {}}, "observation_space"),
        ({"action_space": "all"}, "action_space 'all'"),
        ({"agent_policy_names": ["a"]}, "agent_policy_names"),
        ({"agent_policy_names": [1, 2]}, "agent_policy_names"),
        ({"agent_policy_names": ["a?team=x"] * 2}, "team"),
        ({"observation_space": {"obs": 3}}, "expected its size"),
        ({"observation_space": {"obs": {"size": 3, "space": "box"}}}, "Expected its size"),
        ({"observation_space": {"obs": {"size": [-1], "space": "box"}}}, "-1 as the size"),
        ({"observation_space": {"obs": {"size": [1 << 30], "space": "box"}}}, "whole number up to"),
        ({"observation_space": {"obs": {"size": [1 << 20, 1 << 20], "space": "box"}}}, "too many"),
        ({"observation_space": {"obs": {"size": [4], "space": "discrete"}}}, "Only box is supported"),
        ({"observation_space": {"obs_2d": {"size": [36, 36, 36], "space": "box"}}}, "is a picture"),
        ({"observation_space": {"obs_2d": {"size": [4], "space": "box"}}}, "is a picture"),
        ({"action_space": {"move": 2}}, "action_type"),
        ({"action_space": {"move": {"size": 2, "action_type": "fast"}}}, "action_type"),
        ({"action_space": {"move": {"size": 0, "action_type": "discrete"}}}, "0 as the size"),
        ({"action_space": {"a": {"size": 99_999, "action_type": "discrete"}, "b": MIXED["tool"]}}, "100000 values"),
    ],
)
def test_announcements_that_cannot_be(change: Json, message: str) -> None:
    with pytest.raises((InvalidDataError, UnsupportedError), match=f"(?i){message}"):
        Layout(env_info(2, **change), worker=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": None}, "None as obs"),
        ({"obs": [{"obs": [1, 2]}]}, "1 entries as obs"),
        ({"obs": [{"obs": [1, 2]}] * 3}, "3 entries as obs"),
        ({"obs": [{"obs": [1, 2]}, {}]}, "without 'obs'"),
        ({"obs": [{"obs": [1, 2]}, 5]}, "5 without 'obs'"),
        ({"obs": [{"obs": [1, 2, 3]}] * 2}, "not 2 numbers"),
        ({"obs": [{"obs": [1, 2]}, {"obs": [1]}]}, "not 2 numbers"),
        ({"obs": [{"obs": "ab"}] * 2}, "not 2 numbers"),
        ({"obs": [{"obs": [1, {}]}] * 2}, "not 2 numbers"),
        ({"obs": [{"obs": [1, 10**400]}] * 2}, "not 2 numbers"),
        ({"obs": [{"obs": [1, None]}] * 2}, "nan as an observation: .*sensor 'obs' .*element 1"),
        ({"obs": [{"obs": [float("inf"), 1]}] * 2}, "inf as an observation: .*element 0"),
        ({"obs": [{"obs": [1e300, 1]}] * 2}, "inf as an observation: .*element 0"),
        ({"reward": [0]}, "1 entries as reward"),
        ({"obs": [{"obs": [1, "0.5"]}] * 2}, "not 2 numbers"),
        ({"reward": ["much", 0]}, "rewards"),
        ({"reward": ["0.5", 0]}, "rewards"),
        ({"info": [{"truncated": "no"}, {}], "done": [True, False]}, "'no' as truncated in an info. Expected true or"),
        ({"info": [{"truncated": "true"}, {}], "done": [True, False]}, "'true' as truncated"),
        ({"reward": [[1], [2]]}, "rewards"),
        ({"reward": [0, None]}, "nan as a reward"),
        ({"reward": [-float("inf"), 0]}, "-inf as a reward"),
        ({"done": [0.5, False]}, "done flags"),
        ({"done": ["yes", False]}, "done flags"),
        ({"done": [[], False]}, "done flags"),
        ({"done": True}, "True as done"),
        ({"info": []}, "0 entries as info"),
        ({"info": [3, 4], "done": [True, False]}, "the info 3"),
        ({"info": [{"final_obs": 3}, {}], "done": [True, False]}, "3 without 'obs'"),
        ({"info": [{"final_obs": {"obs": [1]}}, {}], "done": [True, False]}, "not 2 numbers"),
    ],
)
def test_steps_that_cannot_be(change: Json, message: str) -> None:
    layout = Layout(env_info(2), worker=0)
    with pytest.raises(InvalidDataError, match=message):
        layout.read_step(step(1, 2, **change))


@pytest.mark.parametrize("text", ["", "0", "zz" * 6, "00" * 5, "00" * 7, 7, None, ["00"] * 6])
def test_pictures_that_cannot_be(text: Any) -> None:
    layout = Layout(env_info(1, {"a_2d": {"size": [1, 2, 3], "space": "box"}}), worker=0)
    with pytest.raises(InvalidDataError, match=r"'a_2d' is not the 6 bytes of a picture"):
        layout.read_first({"type": "reset", "obs": [{"a_2d": text}]})


def test_pictures_of_other_sizes_that_fit_together() -> None:
    layout = Layout(env_info(2, {"a_2d": {"size": [1, 2, 3], "space": "box"}}), worker=0)
    with pytest.raises(InvalidDataError, match="not the 6 bytes"):
        layout.read_first({"type": "reset", "obs": [{"a_2d": "00" * 7}, {"a_2d": "00" * 5}]})


def test_numbers_that_are_none_say_so() -> None:
    with pytest.raises(NotFiniteError, match="division by zero"):
        Layout(env_info(1), worker=0).read_first(first(float("nan")))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"nan", b'{"obs": [nan]}', b"[" * 100_000, b"1" * 5000, b"[1, 2]", b"null", b'"step"'],
)
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(InvalidDataError, match=r"^The game sent .{1,400}$"):
        parse(data)


def test_an_answer_must_be_of_the_type_that_was_asked_for() -> None:
    check_type({"type": "step"}, "step")
    for message in ({}, {"type": "reset"}, {"type": ["step"]}):
        with pytest.raises(TrajtrainerError, match="expected 'step'"):
            check_type(message, "step")


def test_the_longest_message_follows_from_what_is_announced() -> None:
    small = Layout(env_info(1), worker=0).longest
    picture = {"a_2d": {"size": [3, 100, 100], "space": "box"}}
    assert 2 * 59_000 <= Layout(env_info(1, picture), worker=0).longest - small < 200_000
    huge = {"obs": {"size": [1 << 24], "space": "box"}}
    assert Layout(env_info(100, huge), worker=0).longest <= 1 << 26
