"""Data sets of Minari as trajectories (the extra ``minari``), seen as ``--env=gym:`` sees the environment itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.core.errors import DemonstrationError, UnsupportedError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.data.npz import explain
from trajtrainer.demos.pairing import Trajectory
from trajtrainer.demos.source import Source
from trajtrainer.demos.step_reader import check_steps, entries_of_steps

PREFIX = "minari:"
_DATA = "data"


def minari_source(name: str) -> Source:
    """Return the episodes of a data set.

    Args:
        name: the id of a data set that was downloaded (``minari download``), or its folder.

    Raises:
        DemonstrationError: Minari is not installed, there is no such data set, or it is damaged.
        UnsupportedError: its spaces are of a kind that no sensor or action is made of.
    """
    try:
        import gymnasium  # noqa: F401 (the spaces need it)
        import minari
    except ImportError as error:
        raise DemonstrationError(
            f"{PREFIX}{name} needs Minari, which is not installed ({error}): pip install 'trajtrainer[minari]'."
        ) from error
    from trajtrainer.envs.gymnasium_actions import ActionLayout
    from trajtrainer.envs.gymnasium_observations import ObservationLayout

    folder = Path(name)
    try:
        data = folder / _DATA if (folder / _DATA).is_dir() else folder
        dataset = minari.MinariDataset(data) if folder.is_dir() else minari.load_dataset(name)
        where = f"{PREFIX}{name}"
        observations, actions = (
            ObservationLayout(dataset.observation_space, where),
            ActionLayout(dataset.action_space, where),
        )
    except (UnsupportedError, MemoryError):
        raise
    except Exception as error:
        # Whatever its storage (HDF5, Arrow) and its JSON raise.
        raise DemonstrationError(
            f"There is no data set {name!r} that Minari can read ({type(error).__name__}: {error}). Give the folder "
            "of a data set, or an id that 'minari list local' names."
        ) from error
    spec = BehaviorSpec(observations.specs, actions.spec)

    def trajectories() -> Iterator[Trajectory]:
        place = f"{PREFIX}{name}, before its first episode"
        try:
            for episode in dataset.iterate_episodes():
                place = f"{PREFIX}{name}, episode {episode.id}"
                trajectory = _trajectory(episode, observations, actions, spec)
                if trajectory is not None:
                    check_steps(trajectory.steps, spec)
                    yield trajectory
                place = f"{PREFIX}{name}, after episode {episode.id}"
        except MemoryError:
            raise
        except Exception as error:  # its storage reads episodes only now, and raises anything
            raise DemonstrationError(f"{place}: the data set is damaged ({explain(error)}).") from error

    return Source(folder, spec, str(dataset.spec.dataset_name), trajectories)


def _trajectory(episode: Any, observations: Any, actions: Any, spec: BehaviorSpec) -> Trajectory | None:
    """Return an episode; None of one without steps."""
    count = len(episode.rewards)
    if not count:
        return None
    seen = observations.columns(_rows(episode.observations, count + 1))
    entries = entries_of_steps(spec, [column.dtype for column in seen])
    steps = {name: np.zeros((count, *entry.shape), entry.dtype) for name, entry in entries.items()}
    for number, column in enumerate(seen):
        steps[sensor_name(number)] = column[:-1]
    steps["continuous"], steps["discrete"] = actions.decisions(_rows(episode.actions, count))
    steps["reward"][:] = episode.rewards
    steps["done"][-1] = episode.terminations[-1] or episode.truncations[-1]
    steps["interrupted"][-1] = steps["done"][-1] and not episode.terminations[-1]
    return Trajectory(Columns(steps), Columns({sensor_name(i): column[-1:] for i, column in enumerate(seen)}))


def _rows(values: Any, count: int) -> list[Any]:
    """Return the values of a space step by step, of which a data set holds columns."""
    if isinstance(values, Mapping):
        parts = zip(*(_rows(each, count) for each in values.values()), strict=True)
        return [dict(zip(values, row, strict=True)) for row in parts]
    if isinstance(values, tuple):
        return list(zip(*(_rows(each, count) for each in values), strict=True))
    if len(values) != count:
        raise ValueError(f"it has {len(values)} observations or actions, expected {count}")
    return list(values)
