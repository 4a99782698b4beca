"""Gymnasium spaces become sensors and actions, and actions become what the space contains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs.python.gymnasium_samples import action_batch
from trajtrainer.core.errors import InvalidDataError, UnsupportedError
from trajtrainer.core.spec import ObservationKind, observation_kind
from trajtrainer.envs.python.gymnasium_agents import ActionLayout, AgentSpaces
from trajtrainer.envs.python.gymnasium_observations import ObservationLayout


def shapes(space: spaces.Space[Any]) -> dict[str, tuple[int, ...]]:
    return {spec.name: tuple(spec.shape) for spec in ObservationLayout(space, "Env").specs}


def byte_picture(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (4,)), {"observation": (4,)}),
        (spaces.Box(-1, 1, ()), {"observation": (1,)}),
        (spaces.Box(-1, 1, (2, 3)), {"observation": (6,)}),
        (spaces.Box(0, 1, (3, 3, 2), np.int8), {"observation": (18,)}),
        (spaces.Discrete(5, start=-2), {"observation": (5,)}),
        (spaces.MultiDiscrete([2, 3]), {"observation": (5,)}),
        (spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), {"observation": (14,)}),
        (spaces.MultiBinary(3), {"observation": (3,)}),
        (spaces.MultiBinary((2, 2)), {"observation": (4,)}),
        (byte_picture(84, 64, 3), {"observation": (3, 84, 64)}),
        (byte_picture(4, 84, 64), {"observation": (4, 84, 64)}),
        (byte_picture(84, 64), {"observation": (1, 84, 64)}),
        (byte_picture(64, 64, 64), {"observation": (64, 64, 64)}),
        (byte_picture(7, 7, 3), {"observation": (147,)}),
        (byte_picture(4, 84, 64, 1), {"observation": (4, 84, 64)}),
        (byte_picture(4, 84, 64, 3), {"observation": (12, 84, 64)}),
        (byte_picture(4, 3, 84, 64), {"observation": (12, 84, 64)}),
        (byte_picture(30, 84, 64, 1), {"observation": (30, 84, 64)}),
        (byte_picture(2, 7, 7, 3), {"observation": (294,)}),
        (spaces.Box(0, 1, (40, 40, 3)), {"observation": (3, 40, 40)}),
        (spaces.Box(0, 1, (2, 40, 40, 3)), {"observation": (6, 40, 40)}),
        (spaces.Box(0, 1, (40, 40)), {"observation": (1600,)}),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (3,))]), {"0": (2,), "1": (3,)}),
        (
            spaces.Dict({"b": spaces.Dict({"c": spaces.Discrete(2)}), "a": spaces.Box(0, 1, (3,))}),
            {"a": (3,), "b.c": (2,)},
        ),
    ],
)
def test_observation_table(space: spaces.Space[Any], expected: dict[str, tuple[int, ...]]) -> None:
    assert shapes(space) == expected
    layout = ObservationLayout(space, "Env")
    columns = layout.columns([space.sample(), space.sample()])
    for spec, column in zip(layout.specs, columns, strict=True):
        assert column.shape == (2, *spec.shape)
        expected_kind = ObservationKind.VECTOR if len(spec.shape) == 1 else ObservationKind.VISUAL
        assert observation_kind(spec) is expected_kind


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (byte_picture(20, 20, 3), np.uint8),
        (byte_picture(2, 20, 20, 3), np.uint8),
        (byte_picture(4, 4, 3), np.float32),
        (spaces.Box(0, 1, (20, 20, 3), np.uint8), np.float32),
        (spaces.Box(0, 255, (20, 20, 3), np.float64), np.float32),
    ],
)
def test_only_whole_byte_pictures_stay_bytes(space: spaces.Box, dtype: type) -> None:
    (column,) = ObservationLayout(space, "Env").columns([space.sample()])
    assert column.dtype == dtype


def test_pictures_are_turned_to_channels_first() -> None:
    picture = np.arange(20 * 24 * 3).reshape(20, 24, 3).astype(np.uint8)
    (column,) = ObservationLayout(byte_picture(20, 24, 3), "Env").columns([picture, picture + 1])
    assert column.flags.c_contiguous
    assert column[1, 2, 5, 7] == picture[5, 7, 2] + 1


@pytest.mark.parametrize(("shape", "turned"), [((4, 20, 24, 3), (0, 3, 1, 2)), ((4, 3, 20, 24), (0, 1, 2, 3))])
def test_the_frames_of_a_stack_become_channels_one_after_the_other(
    shape: tuple[int, ...], turned: tuple[int, ...]
) -> None:
    stacks = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)

    (column,) = ObservationLayout(byte_picture(*shape), "Env").columns(list(stacks))

    assert column.flags.c_contiguous
    for stack, seen in zip(stacks, column, strict=True):
        np.testing.assert_array_equal(seen, stack.transpose(turned).reshape(12, 20, 24))


def test_what_is_large_enough_for_a_picture_can_be_said() -> None:
    space = spaces.Box(0, 1, (6, 7, 2), np.int8)
    layout = ObservationLayout(space, "Board", smallest_picture=6)
    board = space.sample()
    assert [tuple(spec.shape) for spec in layout.specs] == [(2, 6, 7)]
    np.testing.assert_array_equal(layout.columns([board])[0], board.transpose(2, 0, 1)[None])
    assert [tuple(spec.shape) for spec in ObservationLayout(space, "Board", 7).specs] == [(84,)]


@pytest.mark.parametrize("stack", [False, True])
def test_lists_are_filled_up_with_zeros(stack: bool) -> None:
    space = spaces.Dict({"tiles": spaces.Sequence(spaces.Box(-9, 9, (2,)), stack=stack), "speed": spaces.Box(0, 1)})
    layout = ObservationLayout(space, "Env", max_items=3)
    lists = [[[1, 2], [3, 4]], [], [[5, 6], [7, 8], [9, -9]]]
    given: Any = [np.array(items, np.float32).reshape(-1, 2) for items in lists]
    given = given if stack else [tuple(items) for items in given]
    _, tiles = layout.specs
    assert (tiles.name, tiles.shape, observation_kind(tiles)) == ("tiles", (3, 2), ObservationKind.VARIABLE_LENGTH)
    expected = [[[1, 2], [3, 4], [0, 0]], [[0, 0]] * 3, lists[2]]
    _, column = layout.columns([{"tiles": items, "speed": [0.5]} for items in given])
    assert column.dtype == np.float32
    assert column.tolist() == expected
    _, column = layout.columns({"tiles": tuple(given), "speed": np.full((3, 1), 0.5)}, is_batch=True)
    assert column.tolist() == expected


def test_lists_have_their_own_lengths_and_items_of_any_vector() -> None:
    space = spaces.Tuple([spaces.Sequence(spaces.Discrete(3, start=5)), spaces.Sequence(spaces.MultiBinary(2))])
    layout = ObservationLayout(space, "Env", max_items={"0": 2, "1": 1})
    assert [tuple(spec.shape) for spec in layout.specs] == [(2, 3), (1, 2)]
    choices, flags = layout.columns([((6,), ([1, 0],))])
    assert choices.tolist() == [[[0, 1, 0], [0, 0, 0]]]
    assert flags.tolist() == [[[1, 0]]]


def test_lists_that_are_too_long_or_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    space = spaces.Sequence(spaces.Box(-9, 9, (2,)))
    for most in (None, {"walls": 3}):
        with pytest.raises(UnsupportedError, match=r"max_items=20, or with 'max_items=\{observation: 20\}'"):
            ObservationLayout(space, "Env", max_items=most)
    layout = ObservationLayout(space, "Env", max_items=2)
    with pytest.raises(InvalidDataError, match=r"'observation' has a list of 3 items, but max_items is 2"):
        layout.columns([(np.ones(2),), (np.ones(2),) * 3])
    with pytest.raises(InvalidDataError, match=r"shape \(3,\), expected \(2,\)"):
        layout.columns([(np.ones(3),)])
    assert not caplog.text
    layout.columns([(np.ones(2), np.zeros(2))])
    layout.columns([(np.ones(2), np.zeros(2))])
    assert caplog.text.count("contains an item that is all zeros") == 1
    for items in (spaces.Sequence(space), byte_picture(20, 24, 3)):
        with pytest.raises(UnsupportedError, match=r"cannot be converted to sensors|list of pictures"):
            ObservationLayout(spaces.Sequence(items), "Env", max_items=2)


@pytest.mark.parametrize("shape", [(128,), (7, 5, 3), (19, 40), (2, 7, 5, 3), (2, 2, 30, 30, 1)])
def test_bytes_that_are_no_picture_are_seen_as_0_to_1(shape: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    bytes_ = np.random.default_rng(0).integers(0, 256, shape, np.uint8)

    (column,) = ObservationLayout(byte_picture(*shape), "Maze-v3").columns([bytes_, bytes_ // 2])

    assert column.dtype == np.float32
    np.testing.assert_allclose(column[0], bytes_.ravel() / np.float32(255))
    np.testing.assert_allclose(column[1], (bytes_ // 2).ravel() / np.float32(255))
    # Who sends bytes in several dimensions may have meant a picture.
    assert [f"Maze-v3: sensor 'observation' consists of bytes, but its shape {shape} is" in caplog.text] == [
        len(shape) > 1
    ]


def test_whole_numbers_of_other_bounds_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    board = np.arange(18, dtype=np.uint8).reshape(3, 6)
    (column,) = ObservationLayout(spaces.Box(0, 20, (3, 6), np.uint8), "Env").columns([board])
    np.testing.assert_array_equal(column[0], np.arange(18))
    assert caplog.text == ""


def test_pictures_with_channels_first_stay_as_they_are() -> None:
    space = byte_picture(2, 20, 24)
    picture = space.sample()
    (column,) = ObservationLayout(space, "Env").columns([picture])
    np.testing.assert_array_equal(column[0], picture)


def test_discrete_observations_are_one_hot() -> None:
    layout = ObservationLayout(spaces.Discrete(4, start=10), "Env")
    np.testing.assert_array_equal(layout.columns([10, np.int64(13)])[0], [[1, 0, 0, 0], [0, 0, 0, 1]])
    several = ObservationLayout(spaces.MultiDiscrete([2, 3], start=[0, 5]), "Env")
    np.testing.assert_array_equal(several.columns([np.array([1, 5])])[0], [[0, 1, 1, 0, 0]])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]),
        spaces.Box(0, 1, (0,)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_unsupported_spaces_are_named(space: spaces.Space[Any]) -> None:
    for make in (ObservationLayout, ActionLayout):
        with pytest.raises(UnsupportedError) as error:
            make(spaces.Dict({"part": spaces.Tuple([space])}), "Maze-v3")
        assert "Maze-v3" in str(error.value)
        assert str(space) in str(error.value)
        assert "'part.0'" in str(error.value)


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Tuple([])])
def test_empty_spaces(space: spaces.Space[Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"observation space .* is empty"):
        ObservationLayout(space, "Env")
    with pytest.raises(UnsupportedError, match=r"action space .* is empty"):
        ActionLayout(space, "Env")


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (spaces.Box(0, 1, (3,)), np.zeros(4), r"shape \(4,\), expected \(3,\)"),
        (spaces.Box(0, 1, (3,)), np.zeros((1, 3)), r"shape \(1, 3\)"),
        (spaces.Box(0, 1, (3,)), None, "shape"),
        (spaces.Discrete(3), 3, "outside of"),
        (spaces.Discrete(3), -1, "outside of"),
        (spaces.Dict({"a": spaces.Discrete(3)}), {"b": 1}, "KeyError"),
    ],
)
def test_observations_that_are_not_of_the_space(space: spaces.Space[Any], observation: Any, message: str) -> None:
    with pytest.raises(InvalidDataError, match=message):
        ObservationLayout(space, "Env").columns([observation])


def test_huge_but_finite_observations_are_fine() -> None:
    (column,) = ObservationLayout(spaces.Box(-np.inf, np.inf, (2,)), "Env").columns([[3e38, 3e38]])
    assert np.isfinite(column).all()


@pytest.mark.parametrize(
    ("space", "continuous", "branches"),
    [
        (spaces.Box(-2, 2, (3,)), 3, ()),
        (spaces.Box(-2, 2, ()), 1, ()),
        (spaces.Box(-2, 2, (2, 2)), 4, ()),
        (spaces.Discrete(7), 0, (7,)),
        (spaces.MultiDiscrete([2, 3]), 0, (2, 3)),
        (spaces.MultiBinary(2), 0, (2, 2)),
        (spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,)), spaces.Discrete(4)]), 2, (3, 4)),
        (spaces.Dict({"z": spaces.Discrete(3), "a": spaces.Dict({"x": spaces.MultiDiscrete([4, 5])})}), 0, (4, 5, 3)),
    ],
)
def test_action_table(space: spaces.Space[Any], continuous: int, branches: tuple[int, ...]) -> None:
    spec = ActionLayout(space, "Env").spec
    assert (spec.continuous_size, spec.discrete_branches) == (continuous, branches)


def test_continuous_actions_are_stretched_to_the_bounds() -> None:
    space = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
    actions = ActionLayout(space, "Env").actions(action_batch([[-1] * 2, [0] * 2, [1] * 2], np.zeros((3, 0))))
    np.testing.assert_allclose(actions, [[-2, 0], [0, 5], [2, 10]])


@pytest.mark.parametrize(("low", "high"), [(-np.inf, np.inf), (0, np.inf), (-np.inf, 0)])
def test_continuous_actions_need_bounds(low: float, high: float) -> None:
    arm = spaces.Box(np.array([-1, low], np.float32), np.array([1, high], np.float32))
    space = spaces.Dict({"arm": arm})
    with pytest.raises(UnsupportedError, match=r"Env: the action space Box\(.*\) at 'arm' has no finite bounds"):
        ActionLayout(space, "Env")
    arm.low[:] = np.nan
    with pytest.raises(UnsupportedError, match="has no finite bounds"):
        ActionLayout(space, "Env")


def test_whole_numbered_boxes_get_equal_shares() -> None:
    space = spaces.Box(-1, 2, (1,), np.int64)
    steps = np.linspace(-1, 1, 401)[:, None]
    actions = np.concatenate(ActionLayout(space, "Env").actions(action_batch(steps, np.zeros((401, 0)))))
    assert np.unique_counts(actions).counts.tolist() == pytest.approx([100] * 4, abs=1)


def test_hybrid_actions_keep_their_parts() -> None:
    space = spaces.Dict(
        {
            "gears": spaces.MultiDiscrete([3, 4], start=[1, 0]),
            "steer": spaces.Box(-1, 1, (2,)),
            "on": spaces.Discrete(2),
        }
    )
    layout = ActionLayout(space, "Env")
    first, second = layout.actions(action_batch([[0.5, -0.5], [0, 1]], [[2, 3, 1], [0, 0, 0]]))
    assert first["gears"].tolist() == [3, 3]
    assert first["on"] == 1
    assert first["steer"].tolist() == [0.5, -0.5]
    assert second["gears"].tolist() == [1, 0]
    assert second["steer"].tolist() == [0, 1]


def leaves() -> st.SearchStrategy[spaces.Space[Any]]:
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    dtypes = st.sampled_from([np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64])
    bounds = st.tuples(st.integers(0, 100), st.integers(0, 27))
    boxes = st.builds(
        lambda shape, dtype, pair: spaces.Box(pair[0], pair[0] + pair[1], tuple(shape), dtype),
        st.lists(st.integers(1, 3), max_size=3),
        dtypes,
        bounds,
    )
    return st.one_of(
        boxes,
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
        st.builds(lambda n: spaces.MultiDiscrete(n), sizes),
        st.builds(lambda n: spaces.MultiBinary(n), sizes),
    )


def nested() -> st.SearchStrategy[spaces.Space[Any]]:
    return st.recursive(
        leaves(),
        lambda parts: st.one_of(
            st.builds(spaces.Tuple, st.lists(parts, min_size=1, max_size=3)),
            st.builds(spaces.Dict, st.dictionaries(st.sampled_from("abc"), parts, min_size=1, max_size=3)),
        ),
        max_leaves=4,
    )


@given(space=nested(), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=150)
def test_any_action_is_one_that_the_space_contains(space: spaces.Space[Any], seed: int) -> None:
    layout = ActionLayout(space, "Env")
    generator = np.random.default_rng(seed)
    continuous = generator.choice([-1, 1, *generator.uniform(-1, 1, 3)], (5, layout.spec.continuous_size))
    discrete = generator.integers(0, layout.spec.discrete_branches, (5, layout.spec.discrete_size))
    actions = layout.actions(action_batch(continuous, discrete))
    assert len(actions) == 5
    for action in actions:
        assert space.contains(action), action


@given(space=nested(), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=150)
def test_observations_keep_all_numbers(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    layout = ObservationLayout(space, "Env")
    samples = [space.sample() for _ in range(3)]
    columns = layout.columns(samples)
    assert [column.shape[1:] for column in columns] == [tuple(spec.shape) for spec in layout.specs]
    for index, sample in enumerate(samples):
        np.testing.assert_allclose(
            np.concatenate([column[index] for column in columns]),
            np.asarray(spaces.flatten(space, sample), np.float32),
        )


def masked(mask: spaces.Space[Any], action: spaces.Space[Any]) -> AgentSpaces:
    return AgentSpaces(spaces.Dict({"observation": spaces.Box(0, 1, (2,)), "action_mask": mask}), action, "Env")


def test_action_masks_of_observations_are_no_sensor() -> None:
    agent = masked(spaces.MultiBinary(3), spaces.Discrete(3))
    observations = [
        {"observation": [0, 1], "action_mask": np.array([1, 0, 1], np.int8)},
        {"observation": [1, 0], "action_mask": np.array([True, True, False])},
    ]
    assert [spec.name for spec in agent.spec.observation_specs] == ["observation"]
    np.testing.assert_array_equal(agent.columns(observations)[0], [[0, 1], [1, 0]])
    np.testing.assert_array_equal(
        agent.masks.rows(observations, [{}, {}]), [[False, True, False], [False, False, True]]
    )


def test_action_masks_of_several_branches_and_of_infos() -> None:
    agent = AgentSpaces(spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2, 3]), "Env")
    infos = [{"action_mask": ([0, 1], [1, 1, 0])}, {}]
    masks = agent.masks.rows([[0], [0]], infos)
    np.testing.assert_array_equal(masks, [[True, False, False, False, True], [False] * 5])


def test_a_mask_of_the_wrong_size() -> None:
    agent = masked(spaces.MultiBinary(2), spaces.Discrete(3))
    with pytest.raises(InvalidDataError, match="has 2 entries, expected 3"):
        agent.masks.rows([{"observation": [0, 1], "action_mask": np.ones(2)}], [{}])


def test_a_mask_of_text() -> None:
    agent = AgentSpaces(spaces.Box(0, 1, (1,)), spaces.Discrete(3), "Env")
    with pytest.raises(InvalidDataError, match="has 3 entries that are not numbers, expected 3"):
        agent.masks.rows([[0]], [{"action_mask": ["1", "0", "1"]}])


def test_masks_of_a_batch_are_for_the_copies_that_are_named() -> None:
    agent = AgentSpaces(spaces.Box(0, 1, (1,)), spaces.Discrete(3), "Env")
    batch = np.zeros((3, 1), np.float32)
    given = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]], np.int8)
    found = agent.masks.batch(batch, {"action_mask": given, "_action_mask": np.array([True, False, True])}, 3)
    np.testing.assert_array_equal(found, [[False, True, False], [False] * 3, [False, False, True]])
    assert not agent.masks.batch(batch, {}, 3).any()
    with pytest.raises(InvalidDataError, match="Env: found action_masks for 2 copies, expected 3"):
        agent.masks.batch(batch, {"action_mask": given[:2]}, 3)
