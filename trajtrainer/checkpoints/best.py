"""The best models of a behaviour: ``best.{pt,onnx}``, and with ``keep_best`` above 1 each of them under its step.

Each ``.pt`` is a checkpoint like any other, there whole or not at all, with its record in it, so that files and records
cannot contradict each other, whatever is killed in between; ``training_status.json`` repeats the record of the best.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from trajtrainer.checkpoints.file import first_line, read_checkpoint
from trajtrainer.checkpoints.mlagents.layout import EXTRA
from trajtrainer.checkpoints.recovered_policy import recover_policy
from trajtrainer.core import atomic
from trajtrainer.core.errors import CheckpointError, TrajtrainerError
from trajtrainer.rundir.folder import BehaviorFolder
from trajtrainer.rundir.status import TrainingStatus

logger = logging.getLogger(__name__)

State = Mapping[str, Any]

_RECORD = "best"

EVALUATION, RATING, TRAINING = "evaluation", "elo", "training"
MEASURES = {
    EVALUATION: "mean return of the evaluation",
    RATING: "ELO rating",
    TRAINING: "mean return of the summary",
}
"""What models are measured by -> the name of the measure, wherever it is shown."""


@dataclass(frozen=True, slots=True)
class BestModel:
    """One of the best models.

    Attributes:
        steps: the trainer's step when it was what was trained.
        reward: what it is measured by.
        by: where that comes from: "evaluation", "training" or "elo".
        lesson: how many lessons the environment's parameters had gone on by then. Returns of training in other lessons
            are no measure, so that models of later ones are better.
        training: mean return of the newest summary by then; None where nothing tells.
        summary: the step that labels this summary; None where ``training`` is not of one.
        evaluation: mean return of the evaluation that it is ranked with. A model that was not evaluated, as the run was
            stopped, has that of the model which it replaced.
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
        """What ``reward`` is, in words."""
        if self.by == TRAINING and self.is_before_summaries:
            return "mean return of all so far"
        of = f" of step {self.summary}" if self.by == TRAINING and self.summary else ""
        return MEASURES.get(self.by, self.by) + of

    @property
    def is_before_summaries(self) -> bool:
        """Whether ``training`` is of all episodes of a run that was stopped before its first summary."""
        return self.training is not None and self.summary is None


class BestModels:
    """Keeps the best models of one behaviour."""

    def __init__(
        self, folder: BehaviorFolder, status: TrainingStatus, *, keep: int, by: str, writes: bool = True
    ) -> None:
        """Begin without any.

        Args:
            folder: where the files are.
            status: the run's status file.
            keep: how many; 0 for none.
            by: what models are measured by. Those that were measured by something else are worse.
            writes: False never writes (``--inference``).
        """
        self.folder = folder
        self._status = status
        self._keep = keep if writes else 0
        self._by = by
        self._models: list[BestModel] = []
        self._unwritten: dict[int, State] = {}  # steps -> the state

    @property
    def best(self) -> BestModel | None:
        """The best model; None before the first."""
        return self._models[0] if self._models else None

    def offer(self, model: BestModel, state: Callable[[], State]) -> bool:
        """Take a model if it is among the best. It is in files after the next ``write``.

        Args:
            model: measured as ``by`` says.
            state: gives the content of a checkpoint that nobody changes any more; called only if it is taken.

        Returns:
            Whether it is the best.
        """
        same = next((each for each in self._models if each.steps == model.steps), None)
        makes_up = same is not None and same.by != self._by == model.by
        if same is not None and not makes_up and self._rank(same) >= self._rank(model):
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
        """Return what compares models, the higher the better: measure, lesson, evaluation or rating, training, step.

        Evaluations are all of one task, whatever the lesson of the training, which then only tells whether returns of
        training can be compared.
        """
        # Before the first summary there are few episodes, so that one that was lucky would be the best for good.
        is_measured = model.by == self._by and not (model.by == TRAINING and model.is_before_summaries)
        reward = model.reward
        if self._by == EVALUATION and model.evaluation is not None:
            is_measured, reward = True, model.evaluation
        first = 0 if is_measured and self._by == EVALUATION else model.lesson
        training = -math.inf if model.training is None else model.training
        return is_measured, first, reward, model.lesson, training, model.steps

    def write(self, *, saves_status: bool = True) -> None:
        """Write what was taken since the last call. A failure is logged, and tried again at the next one.

        ``saves_status`` is False where the caller saves the status next.
        """
        if not self._unwritten:
            return
        try:
            for model in reversed(self._models):  # the best last: until then the one before is there
                if model.steps in self._unwritten:
                    self._write(model, self._unwritten[model.steps])
            atomic.sync_folder(self.folder.path)
            self._remove_surplus()
        except OSError as error:
            logger.error(
                "The best model of behavior %r could not be written to %s: %s. It is tried again later.",
                self.folder.behavior,
                self.folder.path,
                error.strerror or error,
            )
            return
        self._unwritten = {}
        self._note()
        if saves_status:
            self._status.save()

    def restore(self) -> None:
        """Take over what the files of the run tell, and put right what a kill left half done."""
        if not self._keep:
            return
        folder = self.folder
        best = _read(folder.best_checkpoint)
        others = [_read(folder.best_numbered(step, ".pt")) for step in folder.best_steps_on_disk()]
        states = dict(found for found in (best, *others) if found is not None)
        self._models = sorted(states, key=self._rank, reverse=True)[: self._keep]
        if self._models and not (best is not None and self._is_settled(best[0])):
            self._unwritten = {model.steps: states[model] for model in self._models}
            self.write()

    def _is_settled(self, first: BestModel) -> bool:
        """Return whether ``best.pt``, whose model this is, is all that it should be."""
        noted = self._status.best_steps(self.folder.behavior)
        return first == self.best and noted == first.steps and self.folder.best_exported.is_file()

    def _write(self, model: BestModel, state: State) -> None:
        buffer = io.BytesIO()
        extra = {**state.get(EXTRA, {}), _RECORD: asdict(model)}
        torch.save({**state, EXTRA: extra}, buffer)
        places = [self.folder.best_numbered(model.steps, ".pt")] if self._keep > 1 else []
        places += [self.folder.best_checkpoint] if model is self.best else []
        for path in places:
            atomic.write_bytes(path, buffer.getbuffer(), syncs_folder=False)
            self._export(state, path)

    def _export(self, state: State, path: Path) -> None:
        # Late: it takes long to import.
        from trajtrainer.export.onnx import export_policy

        exported = path.with_suffix(".onnx")
        try:
            policy = recover_policy(state, source=str(path))
            atomic.write_with(
                exported,
                lambda temporary: export_policy(policy.actor, policy.spec, temporary, synced=False),
                syncs_folder=False,
            )
        except TrajtrainerError as error:
            # What is there is of another model.
            exported.unlink(missing_ok=True)
            logger.error("The best model %s could not be exported (%s).", path, first_line(error))

    def _remove_surplus(self) -> None:
        kept = {model.steps for model in self._models} if self._keep > 1 else set()
        for step in set(self.folder.best_steps_on_disk()) - kept:
            for suffix in (".onnx", ".pt"):
                self.folder.best_numbered(step, suffix).unlink(missing_ok=True)

    def _note(self) -> None:
        """Write the records into the status."""
        entries = [self._entry(model) for model in self._models]
        files = {
            "file_path": str(self.folder.best_exported),
            "auxillary_file_paths": [str(self.folder.best_checkpoint)],
        }
        self._status.set_best(self.folder.behavior, {**entries[0], **files}, entries if self._keep > 1 else None)

    def _entry(self, model: BestModel) -> dict[str, Any]:
        return {
            "steps": model.steps,
            "file_path": str(self.folder.best_numbered(model.steps, ".onnx")),
            "reward": model.reward,
            "by": model.by,
            "measure": model.measure,
            "creation_time": model.creation_time,
            "auxillary_file_paths": [str(self.folder.best_numbered(model.steps, ".pt"))],
        }


def _read(path: Path) -> tuple[BestModel, State] | None:
    """Return the model in a file; None if there is none: damaged, or put there by somebody else."""
    if not path.is_file():
        return None
    try:
        state = read_checkpoint(path)
    except CheckpointError as error:
        logger.warning("%s", error)
        return None
    model = _record_of(state)
    return None if model is None else (model, state)


def _record_of(state: State) -> BestModel | None:
    extra = state.get(EXTRA)
    plain = extra.get(_RECORD) if isinstance(extra, Mapping) else None
    if not isinstance(plain, Mapping):
        return None
    try:
        return BestModel(
            steps=int(plain["steps"]),
            reward=float(plain["reward"]),
            by=str(plain["by"]),
            lesson=int(plain["lesson"]),
            training=_number(plain.get("training")),
            summary=None if plain.get("summary") is None else int(plain["summary"]),
            # What 0.1.0 wrote has only the reward.
            evaluation=_number(plain.get("evaluation", plain["reward"] if plain["by"] == EVALUATION else None)),
            creation_time=float(plain["creation_time"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]
