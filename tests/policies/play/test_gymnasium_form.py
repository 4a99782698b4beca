"""Observations and actions of Gymnasium spaces, of one agent and of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.policies.play.gymnasium_form import SpacesForm

PLACE, BODY = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(-9, 9, (3,), np.float32)
PLACES = np.array([[1, 2], [3, 4]], np.float32)
BODIES = np.array([[5, 6, 7], [8, 8, 9]], np.float32)


def form(space: spaces.Space[Any]) -> SpacesForm:
    return SpacesForm(space, spaces.Discrete(3), "Crawler")


@pytest.mark.parametrize(
    ("space", "observations"),
    [
        (spaces.Tuple((PLACE, BODY)), (PLACES, BODIES)),
        (spaces.Dict(a=PLACE, b=BODY), {"a": PLACES, "b": BODIES}),
        (spaces.Dict(a=spaces.Tuple((PLACE, BODY))), {"a": (PLACES, BODIES)}),
    ],
)
def test_a_batch_of_nested_spaces_is_taken_apart(space: spaces.Space[Any], observations: Any) -> None:
    columns, mask, is_single = form(space).ask(observations, None)
    assert not is_single
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), np.concatenate([PLACES, BODIES], axis=1))
    assert mask.shape == (2, 3)


def test_a_single_observation_of_nested_spaces_is_one_row() -> None:
    columns, _, is_single = form(spaces.Tuple((PLACE, BODY))).ask((PLACES[1], BODIES[1]), None)
    assert is_single
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), [[3, 4, 8, 8, 9]])


@pytest.mark.parametrize("observations", [{"b": BODIES}, 7, ()])
def test_an_observation_that_lacks_a_part_is_refused(observations: Any) -> None:
    with pytest.raises(InvalidDataError, match=r"does not fit the space Dict\('a': Box"):
        form(spaces.Dict(a=PLACE, b=BODY)).ask(observations, None)


def test_each_observation_needs_a_mask() -> None:
    with pytest.raises(InvalidDataError, match="one mask for each of the 2 observations, found 3"):
        form(PLACE).ask(PLACES, np.ones((3, 3), np.int8))
    _, mask, _ = form(PLACE).ask(PLACES, np.array([[1, 0, 1], [1, 1, 0]], np.int8))
    np.testing.assert_array_equal(mask, [[False, True, False], [False, False, True]])
