"""Keeps a behavior's best models: ``best.{pt,onnx}`` and, if ``keep_best`` is above 1, a numbered pair per model.

Each ``.pt`` file is an ordinary checkpoint that also holds the model's record, so files and records stay consistent
even if the run is killed during a save. ``training_status.json`` repeats the record of the best model.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trajtrainer.core import atomic
from trajtrainer.core.errors import CheckpointError, TrajtrainerError, first_line
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.mlagents.convert import EXTRA
from trajtrainer.policies.folder.run_folder import BehaviorFolder
from trajtrainer.policies.folder.status import TrainingStatus

logger = logging.getLogger(__name__)

State = Mapping[str, Any]

_RECORD = "best"
_TYPES: dict[str, type] = {
    "steps": int, "reward": float, "by": str, "lesson": int, "training": float, "summary": int, "evaluation": float,
    "creation_time": float,
}  # fmt: skip

EVALUATION, RATING, TRAINING = "evaluation", "elo", "training"
MEASURES = {
    EVALUATION: "mean return of the evaluation",
    RATING: "ELO rating",
    TRAINING: "mean return of the summary",
}
"""Display name of each measure that ``BestModel.by`` can hold."""


@dataclass(frozen=True, slots=True)
class BestModel:
    """The record of one of the best models.

    Attributes:
        steps: the trainer's step at which the model was saved.
        reward: the value that the model is ranked by.
        by: the source of that value: "evaluation", "training" or "elo".
        lesson: the number of lessons that the environment parameters had completed at this step. Training returns
            cannot be compared across lessons, so a model from a later lesson counts as better.
        training: mean return of the latest summary at this step; None if unknown.
        summary: the step of this summary; None if the run was stopped before its first summary, in which case
            ``training`` is the mean over all episodes so far.
        evaluation: mean return of the evaluation that the model is ranked by. A model that was not evaluated because
            the run was stopped inherits this value from the best model that it was compared with.
        creation_time: seconds since 1970.
    """

    steps: int
    reward: float
    by: str
    lesson: int = 0
    training: float | None = None
    summary: int | None = None
    evaluation: float | None = None
    creation_time: float = field(default_factory=time.time, compare=False)

    @property
    def measure(self) -> str:
        """A description of ``reward`` for the user."""
        if self.by == TRAINING and self.is_before_summaries:
            return "mean return of all episodes so far"
        of = f" of step {self.summary}" if self.by == TRAINING and self.summary else ""
        return MEASURES.get(self.by, self.by) + of

    @property
    def is_before_summaries(self) -> bool:
        """True if ``training`` comes from a run that was stopped before its first summary."""
        return self.training is not None and self.summary is None

    @classmethod
    def of_checkpoint(cls, state: State) -> BestModel | None:
        """Return the record in a checkpoint, or None if the checkpoint has no record or a damaged one."""
        extra = state.get(EXTRA)
        plain = extra.get(_RECORD) if isinstance(extra, Mapping) else None
        if not isinstance(plain, Mapping):
            return None
        # Records written by version 0.1.0 have no "evaluation", only the reward.
        given = {"evaluation": plain.get("reward") if plain.get("by") == EVALUATION else None, **plain}
        try:
            return cls(**{name: kind(given[name]) for name, kind in _TYPES.items() if given.get(name) is not None})
        except (TypeError, ValueError, OverflowError):
            return None


class BestModels:
    """Keeps the best models of one behavior.

    Models that were not measured by ``by`` rank below all others. If ``writes`` is False (``--inference``), no models
    are kept.
    """

    def __init__(
        self, folder: BehaviorFolder, status: TrainingStatus, *, keep: int, by: str, writes: bool = True
    ) -> None:
        self.folder = folder
        self._status = status
        self._keep = keep if writes else 0
        self.by = by
        self._models: list[BestModel] = []
        self._unwritten: dict[int, State] = {}  # step -> content of the checkpoint

    @property
    def best(self) -> BestModel | None:
        """The best model; None if there is no model yet."""
        return self._models[0] if self._models else None

    def offer(self, model: BestModel, state: Callable[[], State]) -> bool:
        """Keep a model if it is one of the best, and return whether it is now the best.

        The next call of ``write`` saves it. ``state`` is called only if the model is kept. The checkpoint content that
        it returns must not change afterwards.
        """
        same = next((each for each in self._models if each.steps == model.steps), None)
        is_measured_now = same is not None and same.by != self.by == model.by
        if same is not None and not is_measured_now and self._rank(same) >= self._rank(model):
            return False
        others = [each for each in self._models if each.steps != model.steps]
        kept = sorted([*others, model], key=self._rank, reverse=True)[: self._keep]
        if model not in kept:
            return False
        self._unwritten[model.steps] = state()
        self._unwritten = {each.steps: self._unwritten[each.steps] for each in kept if each.steps in self._unwritten}
        self._models = kept
        return kept[0] is model

    def _rank(self, model: BestModel) -> tuple[bool, float, float, float, float, int]:
        """Return the sort key of a model; higher is better.

        Evaluations always run the same task, regardless of the lesson in training, so their returns are compared first.
        If they are equal, the lesson is compared next, because training returns are comparable only within a lesson.
        """
        # Before the first summary, there are only a few episodes, so a model could stay the best forever by luck.
        is_measured = model.by == self.by and not (model.by == TRAINING and model.is_before_summaries)
        reward = model.reward
        if self.by == EVALUATION and model.evaluation is not None:
            is_measured, reward = True, model.evaluation
        first = 0 if is_measured and self.by == EVALUATION else model.lesson
        training = -math.inf if model.training is None else model.training
        return is_measured, first, reward, model.lesson, training, model.steps

    def write(self, *, saves_status: bool = True) -> None:
        """Save the models that were added since the last call. A failure is logged, and the next call tries again.

        Pass ``saves_status=False`` if the caller is about to save the status itself.
        """
        if not self._unwritten:
            return
        try:
            for model in reversed(self._models):  # the best last, to keep the previous best until then
                if model.steps in self._unwritten:
                    self._write_model(model, self._unwritten[model.steps])
            atomic.sync_folder(self.folder.path)
            kept = {model.steps for model in self._models} if self._keep > 1 else set()
            for step in set(self.folder.best_steps_on_disk()) - kept:
                for suffix in (".onnx", ".pt"):
                    self.folder.best_numbered(step, suffix).unlink(missing_ok=True)
        except OSError as error:
            problem = "The best model of behavior %r could not be written to %s: %s. Saving will be retried later."
            logger.error(problem, self.folder.behavior, self.folder.path, error.strerror or error)
            return
        self._unwritten = {}
        entries = [
            {
                "steps": model.steps,
                "file_path": str(self.folder.best_numbered(model.steps, ".onnx")),
                "reward": model.reward,
                "by": model.by,
                "measure": model.measure,
                "creation_time": model.creation_time,
                "auxillary_file_paths": [str(self.folder.best_numbered(model.steps, ".pt"))],
            }
            for model in self._models
        ]
        exported, checkpoint = str(self.folder.best_exported), str(self.folder.best_checkpoint)
        best = {**entries[0], "file_path": exported, "auxillary_file_paths": [checkpoint]}
        self._status.set_best(self.folder.behavior, best, entries if self._keep > 1 else None)
        if saves_status:
            self._status.save()

    def _write_model(self, model: BestModel, state: State) -> None:
        # Imported here because both import onnx, which is slow.
        from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
        from trajtrainer.policies.onnx.export import export_policy

        buffer = io.BytesIO()
        torch.save({**state, EXTRA: {**state.get(EXTRA, {}), _RECORD: asdict(model)}}, buffer)
        places = [self.folder.best_numbered(model.steps, ".pt")] if self._keep > 1 else []
        places += [self.folder.best_checkpoint] if model is self.best else []
        for path in places:
            atomic.write_bytes(path, buffer.getbuffer(), syncs_folder=False)
            exported = path.with_suffix(".onnx")
            try:
                policy = recover_policy(state, source=str(path))
                export = partial(export_policy, policy.actor, policy.spec, synced=False)
                atomic.write_with(exported, export, syncs_folder=False)
            except TrajtrainerError as error:
                # An existing .onnx file was exported from another model.
                exported.unlink(missing_ok=True)
                logger.error("The best model %s could not be exported: %s", path, first_line(error))

    def restore(self) -> None:
        """Read the run's best models from their files, and complete a save that was interrupted by a kill."""
        if not self._keep:
            return
        folder = self.folder
        best = _read(folder.best_checkpoint)
        others = [_read(folder.best_numbered(step, ".pt")) for step in folder.best_steps_on_disk()]
        states = dict(found for found in (best, *others) if found is not None)
        self._models = sorted(states, key=self._rank, reverse=True)[: self._keep]
        noted = self._status.best_steps(folder.behavior)
        is_up_to_date = best is not None and best[0] == self.best and noted == best[0].steps
        if self._models and not (is_up_to_date and folder.best_exported.is_file()):
            self._unwritten = {model.steps: states[model] for model in self._models}
            self.write()


def _read(path: Path) -> tuple[BestModel, State] | None:
    """Return the model in a file, or None if the file is missing or damaged, or has no record."""
    if not path.is_file():
        return None
    try:
        state = read_checkpoint(path)
    except CheckpointError as error:
        logger.warning("%s", error)
        return None
    model = BestModel.of_checkpoint(state)
    return None if model is None else (model, state)
