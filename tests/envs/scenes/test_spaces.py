"""Sensors and actions as spaces, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.envs.scenes.scene import BehaviorSpaces, Form
from trajtrainer.envs.sim.simulation import entities_sensor, picture_sensor, vector_sensor

VECTOR, OTHER, LIST, PICTURE = (
    vector_sensor(3, "a.b"),
    vector_sensor(2, "a_b"),
    entities_sensor(4, 2, "list"),
    picture_sensor(1, 2, 2, "camera"),
)
NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[7, 8], [9, 10]], np.float32)
BYTES = np.array([0, 51, 102, 255, 1, 2, 3, 4], np.uint8).reshape(2, 1, 2, 2)


def of(*sensors: Any, form: Form = "auto", uint8_visual: bool = False, **actions: Any) -> BehaviorSpaces:
    given = actions or {"continuous": 1}
    spec = BehaviorSpec(list(sensors), ActionSpec(given.get("continuous", 0), given.get("branches", ())))
    return BehaviorSpaces(spec, "Walker", form, uint8_visual=uint8_visual)


def test_one_sensor_is_a_box() -> None:
    made = of(VECTOR)
    assert made.observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert made.observations([NUMBERS[0]]) is NUMBERS[0]
    assert of(LIST).observation_space.shape == (4, 2)


@pytest.mark.parametrize(("form", "kind"), [("auto", spaces.Dict), ("dict", spaces.Dict), ("tuple", spaces.Tuple)])
def test_several_sensors(form: Form, kind: type) -> None:
    made = of(VECTOR, OTHER, form=form)
    assert isinstance(made.observation_space, kind)
    found = made.observations(NUMBERS)
    assert batch_space(made.observation_space, 2).contains(found)
    values = list(found.values()) if isinstance(found, dict) else list(found)
    assert all(value is column for value, column in zip(values, NUMBERS, strict=True))


def test_names_are_distinct_and_fit_torch() -> None:
    space = of(VECTOR, OTHER, vector_sensor(1, "")).observation_space
    assert isinstance(space, spaces.Dict)
    assert set(space.spaces) == {"a_b", "a_b_1", "VectorSensor_size1"}


def test_vectors_joined() -> None:
    made = of(VECTOR, OTHER, form="box")
    assert made.observation_space.shape == (5,)
    assert made.observations(NUMBERS).tolist() == [[0, 1, 2, 7, 8], [3, 4, 5, 9, 10]]
    with pytest.raises(UnsupportedError, match=r"only joins vectors.*\(3,\), \(1, 2, 2\)"):
        of(VECTOR, PICTURE, form="box")


def test_pictures() -> None:
    floats, bytes_ = of(PICTURE), of(PICTURE, uint8_visual=True)
    assert floats.observation_space == spaces.Box(0.0, 1.0, (1, 2, 2), np.float32)
    assert bytes_.observation_space == spaces.Box(0, 255, (1, 2, 2), np.uint8)
    seen = floats.observations([BYTES])
    assert seen.dtype == np.float32
    assert seen.ravel()[:4].tolist() == pytest.approx([0, 0.2, 0.4, 1])
    assert floats.observations([seen]) is seen
    assert bytes_.observations([BYTES]) is BYTES
    assert np.array_equal(bytes_.observations([seen]), BYTES)  # sent uncompressed


@pytest.mark.parametrize(
    ("actions", "space", "chosen", "continuous", "discrete"),
    [
        ({"continuous": 2}, spaces.Box(-1, 1, (2,), np.float32), [[0.5, 1], [0, -1]], [[0.5, 1], [0, -1]], [[], []]),
        ({"branches": (3,)}, spaces.Discrete(3), [2, 0], [[], []], [[2], [0]]),
        ({"branches": (3, 2)}, spaces.MultiDiscrete([3, 2]), [[2, 1], [0, 0]], [[], []], [[2, 1], [0, 0]]),
        (
            {"continuous": 1, "branches": (3,)},
            spaces.Tuple((spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(3))),
            ([[0.5], [-1]], [2, 1]),
            [[0.5], [-1]],
            [[2], [1]],
        ),
    ],
)
def test_actions(actions: Any, space: Any, chosen: Any, continuous: Any, discrete: Any) -> None:
    made = of(VECTOR, **actions)
    assert made.action_space == space
    found = made.decisions(chosen)
    assert (found[0].tolist(), found[1].tolist()) == (continuous, discrete)
    assert [column.dtype.name for column in found] == ["float32", "int32"]
    for _ in range(5):
        one = made.action_space.sample()
        batch = tuple(np.asarray(part)[None] for part in one) if isinstance(one, tuple) else np.asarray(one)[None]
        numbers = made.decisions(batch)
        assert (numbers[0].shape[1], numbers[1].shape[1]) == (len(continuous[0]), len(discrete[0]))


def test_to_do_nothing_heeds_masks() -> None:
    made = of(VECTOR, continuous=2, branches=(3, 2))
    mask = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 1, 0], [1, 0, 0, 1, 0]], np.bool_)
    continuous, discrete = made.nothing(mask)
    assert not continuous.any()
    assert discrete.tolist() == [[2, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize("actions", [{"branches": (3,)}, {"branches": (3, 2)}, {"continuous": 1, "branches": (3, 2)}])
def test_masks_for_sampling(actions: Any) -> None:
    made = of(VECTOR, **actions)
    allowed = np.array([0, 0, 1, 0, 1], np.int8)[: 3 if actions["branches"] == (3,) else 5]
    for _ in range(10):
        sample = made.action_space.sample(mask=made.sample_mask(allowed))
        chosen = sample[1] if isinstance(sample, tuple) else sample
        assert np.atleast_1d(chosen).tolist() == [2, 1][: np.size(chosen)]


def test_what_is_no_space() -> None:
    with pytest.raises(UnsupportedError, match="have no observations"):
        of()
    with pytest.raises(UnsupportedError, match="have no actions"):
        of(VECTOR, continuous=0)
    with pytest.raises(SettingsError, match="expected one of auto, box, dict, tuple"):
        of(VECTOR, form="list")  # type: ignore[arg-type]
