"""Reads recordings of the Godot RL Agents plugin (control mode Record Expert Demos) as trajectories.

The file is a JSON list of episodes. Each episode has a list of observations (the numbers of ``obs``, including those
after the last action) and a list of actions. The file does not contain rewards, or which numbers of an action are
discrete.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, usual_sensor
from trajtrainer.experience.recordings.formats import ReadOptions, RecordingFormat
from trajtrainer.experience.recordings.pairing import Trajectory
from trajtrainer.experience.recordings.source import DemonstrationSource
from trajtrainer.experience.recordings.step_reader import StepError, complete_steps

_KEY = "obs"  # the only key that the plugin records
_MOST_CHOICES = 100_000
_OPTION = "--actions"
_EXPECTED = "for example continuous:2,discrete:3 for two continuous numbers followed by one of three choices"


def read(path: str | Path, options: ReadOptions) -> list[DemonstrationSource]:
    """Read the trajectories of a recording, and return a list with one source.

    Raises:
        DemonstrationError: the file does not exist or is not a recording, or ``options.actions`` does not match it.
    """
    path, actions = Path(path), options.actions
    try:
        episodes = _episodes(path)
        size = len(_row(episodes[0][1][0]))
        if actions is None:
            raise DemonstrationError(
                f"{path} does not say what the {size} numbers of each action mean. Pass {_OPTION} in the order of the "
                f"game's get_action, {_EXPECTED}."
            )
        is_discrete, spec = _spec(actions, len(_row(episodes[0][0][0])))
        if len(is_discrete) != size:
            raise DemonstrationError(
                f"{_OPTION} {actions} is for {len(is_discrete)} numbers, but each action in {path} has {size}."
            )
        trajectories = [_trajectory(episode, spec, is_discrete) for episode in episodes]
    except StepError as error:
        raise DemonstrationError(f"{path}, step {error.row + 1} of an episode: {error}.") from error
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DemonstrationError(
            f"{path} is damaged, or not a recording of the Godot RL Agents plugin: {error}. Expected a list of "
            "episodes, each with a list of observations and a list of actions."
        ) from error
    return [DemonstrationSource(path, spec, "", lambda: iter(trajectories))]


def _episodes(path: Path) -> list[tuple[list[Any], list[Any]]]:
    """Return the observations and actions of each episode that has at least one step."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise DemonstrationError(f"The recording {path} cannot be read: {error.strerror or error}.") from error
    episodes = [(episode[0], episode[1]) for episode in found if episode[1]]
    if not episodes:
        raise ValueError("it has no steps")
    return episodes


def _spec(actions: str, num_observed: int) -> tuple[NDArray[np.bool_], BehaviorSpec]:
    """Return which numbers of an action are discrete, and the behavior's spec.

    Raises:
        DemonstrationError: ``actions`` cannot be parsed.
    """
    branches: list[int] = []
    is_discrete: list[bool] = []
    for word in actions.split(","):
        kind, _, count = word.strip().partition(":")
        if kind not in ("continuous", "discrete") or not count.isdecimal() or not 0 < int(count) <= _MOST_CHOICES:
            raise DemonstrationError(f"{_OPTION} has {word!r}. Expected a kind and a number, {_EXPECTED}.")
        if kind == "discrete":
            branches.append(int(count))
        is_discrete += [True] if kind == "discrete" else [False] * int(count)
    sensor = usual_sensor((num_observed,), _KEY)
    return np.array(is_discrete), BehaviorSpec([sensor], ActionSpec(is_discrete.count(False), tuple(branches)))


def _trajectory(episode: tuple[list[Any], list[Any]], spec: BehaviorSpec, is_discrete: NDArray[np.bool_]) -> Trajectory:
    observed, done = (np.array([_row(each) for each in part], np.float64) for part in episode)
    count = len(done)
    if observed.shape != (count + 1, *spec.observation_specs[0].shape) or done.shape != (count, len(is_discrete)):
        raise ValueError(
            f"an episode has observations of shape {observed.shape} and actions of shape {done.shape}, expected one "
            "observation more than actions, and the same sizes in all episodes"
        )
    own = sensor_name(0)
    with np.errstate(over="ignore", invalid="ignore"):  # complete_steps reports invalid numbers
        known = {
            own: observed[:-1],
            "continuous": np.clip(done[:, ~is_discrete], -1.0, 1.0),
            "discrete": done[:, is_discrete].astype(np.int32),
            "done": np.arange(count) == count - 1,
        }
        steps = complete_steps(known, count, spec)
        return Trajectory(steps, Columns({own: observed[-1:].astype(np.float32)}))


def _row(numbers: Any) -> list[float]:
    """Flatten a list of numbers that may contain nested lists, because ``get_action`` may return those."""
    row: list[float] = []
    for number in numbers:
        if isinstance(number, list):
            row += _row(number)
        elif isinstance(number, int | float):
            row.append(float(number))
        else:
            raise TypeError(f"found {number!r}, expected a number")
    return row


ROW = RecordingFormat(read)
