"""Recordings of any format as sources of trajectories, which can be joined, split, written and summarized."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec, spec_to_plain
from trajtrainer.core.stats import Distribution
from trajtrainer.experience.recordings.demo_file import SUFFIX, open_demo
from trajtrainer.experience.recordings.pairing import Trajectory, check_spec, trajectories
from trajtrainer.experience.recordings.writer import DemoWriter

_BINS = np.linspace(-1, 1, 11)


@dataclass(frozen=True, slots=True)
class DemonstrationSource:
    """A source of one behavior's trajectories.

    Attributes:
        path: path of the recording, for messages.
        spec: observations and actions.
        name: name of the behavior.
        trajectories: function that reads the trajectories. Each call starts from the first one.
    """

    path: Path
    spec: BehaviorSpec
    name: str
    trajectories: Callable[[], Iterator[Trajectory]]


def demo_source(path: Path, raw_image_order: RawImageOrder = RawImageOrder.AUTO) -> DemonstrationSource:
    """Return the source for a ``.demo`` file. PNGs are not decoded. ``raw_image_order`` is as in ``open_demo``.

    Raises:
        DemonstrationError: the file cannot be read, is not a recording, or has no steps.
    """
    file = open_demo(path, raw_image_order)
    return DemonstrationSource(path, file.behavior.spec, file.behavior.id, lambda: trajectories(file, decode=False))


def joined(sources: Sequence[DemonstrationSource]) -> DemonstrationSource:
    """Return a single source with the trajectories of one or more sources in order.

    Raises:
        DemonstrationError: the sources have different observations or actions.
    """
    first = sources[0]
    for source in sources:
        check_spec(source.spec, first.spec, source.path, str(first.path))
    return replace(first, trajectories=lambda: (each for source in sources for each in source.trajectories()))


def part(source: DemonstrationSource, start: int, stop: int | None) -> DemonstrationSource:
    """Return a source with only the trajectories ``start`` to ``stop`` (exclusive; None for all that follow)."""

    def chosen() -> Iterator[Trajectory]:
        for number, trajectory in enumerate(source.trajectories()):
            if stop is not None and number >= stop:
                return
            if number >= start:
                yield trajectory

    return replace(source, trajectories=chosen)


def write_source(path: Path, source: DemonstrationSource) -> None:
    """Write a ``.demo`` file.

    Raises:
        OSError: the file could not be written.
        DemonstrationError: a trajectory could not be read, or there are no trajectories.
    """
    with DemoWriter(path, source.spec, source.name) as writer:
        for trajectory in source.trajectories():
            writer.write(trajectory)
    if not writer.num_records:
        raise DemonstrationError(f"{source.path} has no steps to write to a {SUFFIX} file.")


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of a recording.

    Attributes:
        path: path of the file.
        behavior: name of the behavior.
        spec: observations and actions.
        steps: number of decisions.
        episodes: number of episodes that ended, including those that ended at the step limit.
        interrupted: number of episodes that ended at the step limit.
        unfinished: number of incomplete trajectories.
        returns: distribution of the trajectories' returns; None if there are no trajectories.
        group_returns: distribution of the trajectories' sums of group rewards; None if no agent has a group.
        lengths: distribution of the trajectories' lengths in steps; None if there are no trajectories.
        discrete: for each branch, the number of times that each choice was made.
        continuous: for each continuous action, the distribution of its values.
        histogram: for each continuous action, the number of values in ten equal bins from -1 to 1. Values outside this
            range are counted in the outermost bins.
        masked: whether any action was ever masked.
    """

    path: Path
    behavior: str
    spec: BehaviorSpec
    steps: int
    episodes: int
    interrupted: int
    unfinished: int
    returns: Distribution | None
    group_returns: Distribution | None
    lengths: Distribution | None
    discrete: list[list[int]]
    continuous: list[Distribution]
    histogram: list[list[int]]
    masked: bool

    def to_plain(self) -> dict[str, Any]:
        """Return the summary as data that can be written as JSON."""
        counts = {name: getattr(self, name) for name in ("steps", "episodes", "interrupted", "unfinished", "masked")}
        distributions = {name: _plain(getattr(self, name)) for name in ("returns", "group_returns", "lengths")}
        return {
            "file": str(self.path),
            "behavior": self.behavior,
            **counts,
            **distributions,
            **spec_to_plain(self.spec),
            "discrete": self.discrete,
            "continuous": [_plain(each) for each in self.continuous],
            "histogram": self.histogram,
        }


def summarize(source: DemonstrationSource) -> Summary:
    """Read a whole recording and summarize it.

    Raises:
        DemonstrationError: a step cannot be read.
    """
    actions = source.spec.action_spec
    size = actions.continuous_size
    returns: list[float] = []
    group_returns: list[float] = []
    lengths: list[int] = []
    num_ended = num_interrupted = 0
    is_grouped = is_masked = False
    discrete = [np.zeros(branch, np.int64) for branch in actions.discrete_branches]
    histogram = np.zeros((size, len(_BINS) - 1), np.int64)
    sums, squares = np.zeros(size), np.zeros(size)
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    for steps, _ in source.trajectories():
        lengths.append(len(steps))
        returns.append(float(steps["reward"].sum(dtype=np.float64)))
        group_returns.append(float(steps["group_reward"].sum(dtype=np.float64)))
        num_ended += bool(steps["done"][-1])
        num_interrupted += bool(steps["interrupted"][-1])
        is_grouped |= bool(steps["group"].any())
        is_masked |= bool(steps["mask"].any())
        for branch, counts in enumerate(discrete):
            counts += np.bincount(steps["discrete"][:, branch], minlength=len(counts))
        values = steps["continuous"].astype(np.float64)
        sums += values.sum(0)
        squares += (values**2).sum(0)
        low = np.minimum(low, values.min(0, initial=np.inf))
        high = np.maximum(high, values.max(0, initial=-np.inf))
        for counts, column in zip(histogram, values.T, strict=True):
            counts += np.histogram(np.clip(column, -1, 1), _BINS)[0]
    count, has_any = sum(lengths), bool(lengths)
    means = sums / max(1, count)
    deviations = np.sqrt(np.maximum(0, squares / max(1, count) - means**2))
    of_actions = zip(means, deviations, low, high, strict=True)
    return Summary(
        path=source.path,
        behavior=source.name,
        spec=source.spec,
        steps=count,
        episodes=num_ended,
        interrupted=num_interrupted,
        unfinished=len(lengths) - num_ended,
        returns=Distribution.of(returns) if has_any else None,
        group_returns=Distribution.of(group_returns) if has_any and is_grouped else None,
        lengths=Distribution.of(lengths) if has_any else None,
        discrete=[counts.tolist() for counts in discrete],
        continuous=[Distribution(count, *map(float, each)) for each in of_actions] if has_any else [],
        histogram=histogram.tolist(),
        masked=is_masked,
    )


def _plain(distribution: Distribution | None) -> dict[str, float] | None:
    if distribution is None:
        return None
    return {name: getattr(distribution, name) for name in ("mean", "std", "min", "max")}
