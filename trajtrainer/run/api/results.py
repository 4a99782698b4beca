"""The result of a run that was started from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trajtrainer.core.filenames import behavior_file_name
from trajtrainer.learning.trainers.episodes import MeanReturn
from trajtrainer.run.assembly import Session
from trajtrainer.settings.run import RunSettings

if TYPE_CHECKING:
    from trajtrainer.policies.folder.series import Series


@dataclass(frozen=True, slots=True, repr=False)
class BehaviorResult:
    """The result of one behavior.

    Attributes:
        name: name of the behavior.
        steps: number of agent steps, including earlier sessions.
        mean_reward: mean return of the episodes in the last summary, including group rewards. Before the first summary
            and with ``inference``, it is the mean over all episodes. None if no episode has ended.
        num_episodes: number of episodes in ``mean_reward``.
        summary_step: the step of that summary; None if ``mean_reward`` is over all episodes.
        checkpoint: the checkpoint that ``resume`` and ``initialize_from`` read; None with ``inference``.
        onnx: the exported policy; None if it was not written or could not be exported.
    """

    name: str
    steps: int
    mean_reward: float | None
    num_episodes: int
    checkpoint: Path | None
    onnx: Path | None
    summary_step: int | None = None

    def __repr__(self) -> str:
        return f"<BehaviorResult {self._in_short}>"

    def _repr_html_(self) -> str:
        return _table([self])

    @property
    def _in_short(self) -> str:
        reward = "no episode"
        if self.mean_reward is not None:
            reward = str(MeanReturn(self.mean_reward, self.num_episodes, self.summary_step))
        return f"{self.name}: {self.steps:,} steps, {reward}"


@dataclass(frozen=True, slots=True, repr=False)
class LearnResult:
    """The result of ``learn``.

    Attributes:
        behaviors: name -> result, in order of appearance.
        run_folder: the folder that contains all files. All paths in a result are absolute.
        settings: settings of the run, with all defaults and the seed filled in.
    """

    behaviors: Mapping[str, BehaviorResult]
    run_folder: Path
    settings: RunSettings

    def __repr__(self) -> str:
        # A single line, without the settings, which are long.
        parts = [str(self.run_folder), *(each._in_short for each in self.behaviors.values())]
        return f"<LearnResult {'; '.join(parts)}>"

    def _repr_html_(self) -> str:
        return f"{_table(list(self.behaviors.values()))}<p>{escape(str(self.run_folder))}</p>"

    def curves(self) -> dict[str, dict[str, Series]]:
        """Return the TensorBoard statistics of the run, including earlier sessions, as behavior -> tag -> ``Series``.

        A ``Series`` has the arrays ``steps`` and ``values``. If there are more than 8,192 summaries, neighboring
        summaries are merged: ``values`` contains their means, ``low`` and ``high`` their minimum and maximum.

        Raises:
            OSError: an event file cannot be read.
        """
        from trajtrainer.policies.folder.series import read_scalars  # lazy import: not needed for training

        folders = {name: self.run_folder / behavior_file_name(name) for name in self.behaviors}
        return {name: read_scalars(folder) for name, folder in folders.items()}


def _table(results: Sequence[BehaviorResult]) -> str:
    rows = [
        (
            each.name,
            f"{each.steps:,}",
            "–" if each.mean_reward is None else f"{each.mean_reward:.3f}",
            f"{each.num_episodes:,}",
            each.onnx.name if each.onnx else "–",
        )
        for each in results
    ]
    titles = ("behavior", "steps", "mean reward", "episodes", "policy")
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def result_of(run: Session) -> LearnResult:
    """Return the current result of a run."""

    def written(path: Path) -> Path | None:
        return path.absolute() if run.folder.writes and path.is_file() else None

    results = {}
    for name, behavior in run.behaviors.items():
        mean_return, files = behavior.mean_return, behavior.checkpoints.folder
        results[name] = BehaviorResult(
            name=name,
            steps=behavior.trainer.step,
            mean_reward=None if mean_return is None else mean_return.mean,
            num_episodes=0 if mean_return is None else mean_return.episodes,
            summary_step=None if mean_return is None else mean_return.step,
            checkpoint=written(files.checkpoint),
            onnx=written(files.exported),
        )
    return LearnResult(MappingProxyType(results), run.folder.path.absolute(), run.settings)
