"""VisualBall: the pictures show where the ball is, how the platform is tilted and how the ball moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.envs.sim.scripts import make, play, random_policy
from trajtrainer.envs.sim.simulation import SimulationStep


def center(pictures: NDArray[Any], threshold: int = 215) -> NDArray[np.float64]:
    """Where the white disc of pictures [n, height, width] is, in the platform's units: right and up, f64 [n, 2]."""
    weight = np.clip(pictures.astype(float) - threshold, 0.0, None)
    weight /= weight.sum(axis=(1, 2), keepdims=True)
    across = np.linspace(-3.5, 3.5, pictures.shape[2])
    up = np.linspace(3.5, -3.5, pictures.shape[1])
    return np.stack(((weight.sum(axis=1) * across).sum(axis=1), (weight.sum(axis=2) * up).sum(axis=1)), axis=1)


def both(steps: int, **options: Any) -> list[tuple[SimulationStep, NDArray[Any]]]:
    """Steps of the visual ball beside what 3DBall would observe at the same time."""
    visual, plain = make("VisualBall", 4, agents=30, **options), make("3DBall", 4, agents=30)
    act = random_policy(plain)
    seen, known = visual.reset(), plain.reset()
    pairs: list[tuple[SimulationStep, NDArray[Any]]] = [(seen, known.observations[0])]
    for _ in range(steps):
        actions = act(known)
        seen, known = visual.step(actions), plain.step(actions)
        assert seen.ended.tolist() == known.ended.tolist()
        np.testing.assert_array_equal(seen.reward, known.reward)
        pairs.append((seen, known.observations[0]))
    return pairs


@pytest.mark.parametrize("camera", [(36, 36), (84, 84)])
def test_from_above_the_ball_is_where_it_is(camera: tuple[int, int]) -> None:
    for seen, known in both(20, camera=camera):
        assert tuple(seen.observations[0].shape) == (30, 3, *camera)
        np.testing.assert_allclose(center(seen.observations[0][:, -1]), known[:, [2, 4]], atol=0.12)


def test_the_last_pictures_are_stacked_newest_last_and_black_before_the_episode() -> None:
    (first, _), *pairs = both(30)
    assert not first.observations[0][:, :2].any()
    previous = first
    for seen, _ in pairs:
        new = np.isin(np.arange(30), seen.ended)
        pictures = seen.observations[0]
        np.testing.assert_array_equal(pictures[~new, :2], previous.observations[0][~new, 1:])
        assert not pictures[new, :2].any()
        previous = seen


def test_from_above_the_shade_tells_the_tilt() -> None:
    tilt, shade = [], []
    for seen, known in both(15):
        picture = seen.observations[0][:, -1].astype(float)
        tilt.append(known[:, :2])
        edges = (picture[:, 16:20, 7] - picture[:, 16:20, 28], picture[:, 7, 16:20] - picture[:, 28, 16:20])
        shade.append(np.stack([np.median(edge, axis=1) for edge in edges], axis=1))
    seen_tilt, true_tilt = np.concatenate(shade), np.concatenate(tilt)
    for axis in (0, 1):
        assert np.corrcoef(seen_tilt[:, axis], true_tilt[:, axis])[0, 1] > 0.9


def test_two_cameras_see_place_height_and_tilt_each_along_one_axis() -> None:
    for seen, known in both(15, cameras=2):
        front, side = (pictures[:, -1] for pictures in seen.observations)
        height = known[:, 3] - 2.5
        np.testing.assert_allclose(center(front), np.stack((known[:, 2], height), axis=1), atol=0.15)
        np.testing.assert_allclose(center(side), np.stack((known[:, 4], height), axis=1), atol=0.15)
        for pictures, tilt in ((front, known[:, 0]), (side, -known[:, 1])):
            bar = ((pictures > 50) & (pictures < 200)).sum(axis=1)  # height of the platform's part at each column
            leans = bar[:, 24:30].mean(axis=1) - bar[:, 6:12].mean(axis=1)
            assert np.corrcoef(leans, tilt)[0, 1] > 0.7


def test_scores_are_those_of_3dball_and_options_are_checked() -> None:
    simulation = make("VisualBall")
    assert 0.5 < np.mean(play(simulation, random_policy(simulation), 200)) < 3.0
    assert [sensor.name for sensor in make("VisualBall", cameras=2, stack=1).spec.observation_specs] == [
        "FrontCamera",
        "SideCamera",
    ]
    with pytest.raises(ValueError, match="--cameras 1 or 2"):
        make("VisualBall", cameras=3)
