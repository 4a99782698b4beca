"""Recordings in any form, as trajectories one after another: so they are converted, merged and cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.demos.demo_file import SUFFIX, demo_paths, open_demo
from trajtrainer.demos.pairing import Trajectory, check_spec, trajectories
from trajtrainer.demos.writer import DemoWriter


@dataclass(frozen=True, slots=True)
class Source:
    """Trajectories of one behaviour.

    Attributes:
        path: where they stand; for messages.
        spec: what was observed and done.
        name: of the behaviour.
        trajectories: begins to read them anew.
    """

    path: Path
    spec: BehaviorSpec
    name: str
    trajectories: Callable[[], Iterator[Trajectory]]


def demo_source(path: Path, raw_image_order: RawImageOrder = RawImageOrder.AUTO) -> Source:
    """Return what a ``.demo`` file holds; its PNGs stay as they are. ``raw_image_order`` as of ``open_demo``.

    Raises:
        DemonstrationError: it cannot be read, is no recording, or holds no step.
    """
    file = open_demo(path, raw_image_order)
    return Source(path, file.behavior.spec, file.behavior.id, lambda: trajectories(file, decode=False))


def demo_sources(paths: Sequence[str | Path], raw_image_order: RawImageOrder = RawImageOrder.AUTO) -> list[Source]:
    """Return what some ``.demo`` files, and all in some folders, hold. ``raw_image_order`` as of ``open_demo``.

    Raises:
        DemonstrationError: one is missing, or no recording.
    """
    return [demo_source(path, raw_image_order) for path in demo_paths(paths)]


def joined(sources: Sequence[Source]) -> Source:
    """Return the trajectories of one or more sources, one after another.

    Raises:
        DemonstrationError: they are not of the same observations and actions.
    """
    first = sources[0]
    for source in sources:
        check_spec(source.spec, first.spec, source.path, str(first.path))
    return replace(first, trajectories=lambda: (each for source in sources for each in source.trajectories()))


def part(source: Source, start: int, stop: int | None) -> Source:
    """Return the trajectories from number ``start`` up to ``stop``, exclusive."""

    def chosen() -> Iterator[Trajectory]:
        for number, trajectory in enumerate(source.trajectories()):
            if stop is not None and number >= stop:
                return
            if number >= start:
                yield trajectory

    return replace(source, trajectories=chosen)


def write_source(path: Path, source: Source) -> None:
    """Write a ``.demo`` file.

    Raises:
        OSError: it could not be written.
        DemonstrationError: a trajectory could not be read, or there is none.
    """
    with DemoWriter(path, source.spec, source.name) as writer:
        for trajectory in source.trajectories():
            writer.write(trajectory)
    if not writer.num_records:
        raise DemonstrationError(f"{source.path} holds no step that could be written to a {SUFFIX} file.")
