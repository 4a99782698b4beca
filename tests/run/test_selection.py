"""The model selector of a behavior: which model is best, and when training ends."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.learning.trainers.rig import Rig, Trajectory, checkpoint_of, restore
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.policies.checkpoints.best import EVALUATION, RATING, TRAINING, BestModel, BestModels
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.run.selection import Candidate, ModelSelector
from trajtrainer.settings.evaluation import StopSettings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.run import CheckpointSettings
from trajtrainer.settings.trainer import TrainerSettings

MIXED = (29 * 3.0 + 1.0) / 30
SMALL = NetworkSettings(hidden_units=4, num_layers=1)


class Court:
    """A trainer whose episodes are one step long, and its selector."""

    def __init__(self, path: Path, by: str = TRAINING, **stop: Any) -> None:
        settings = TrainerSettings(
            network_settings=SMALL,
            hyperparameters=PPOHyperparameters(batch_size=30, buffer_size=100, num_epoch=2),
            summary_freq=30,
            stop=StopSettings(**stop) if stop else None,
        )
        self.rig = Rig(settings)
        self.trainer = self.rig.trainer
        folder = RunFolder(CheckpointSettings(run_id="x", results_dir=str(path), force=True))
        folder.create()
        self.status = TrainingStatus(folder.status)
        self.rating = 1200.0
        self.copied: list[int] = []
        self.selector = ModelSelector(
            self.trainer,
            self.trainer.episodes,
            BestModels(folder.behavior("B"), self.status, keep=1, by=by),
            self.status,
            rating=lambda: self.rating,
            copied_state=self._state,
        )

    def _state(self) -> dict[str, Any]:
        self.copied.append(self.trainer.step)
        return {}

    def play(self, rewards: Sequence[float]) -> None:
        """Take in an episode of each reward, without an update."""
        if rewards:
            self.rig.put(*(Trajectory(1, ended=True, agent=i, columns={"reward": [r]}) for i, r in enumerate(rewards)))  # type: ignore[dict-item]
        self.rig.take_in()
        self.selector.observe()
        self.selector.end_if_enough()

    def candidate(self, step: int, training: float | None = None, summary: int | None = None) -> Candidate:
        return Candidate(BestModel(step, math.nan, EVALUATION, 0, training, summary), self.trainer.actor, {})

    def stopped(self) -> str | None:
        return self.selector.stopped_by

    def best(self) -> tuple[int, float] | None:
        best: BestModel | None = self.selector.best_models.best
        return None if best is None else (best.steps, best.reward)


def test_by_training_the_mean_return_of_each_summary_counts(tmp_path: Path) -> None:
    """A summary of 30 steps is written ahead of the step that would reach it, so it has 29 or 30 episodes."""
    court = Court(tmp_path)
    court.play([1.0] * 29)
    assert court.best() is None, "no summary yet"
    court.play([3.0] * 29)
    assert court.best() == (58, 1.0), "those before step 30"
    court.play([1.0] * 30)
    assert court.best() == (88, MIXED), "those from 30 to 59"
    best = court.selector.best_models.best
    assert best is not None
    assert (best.summary, best.measure) == (60, "mean return of the summary of step 60")
    court.play([1.0] * 60)
    assert court.best() == (88, MIXED)
    assert court.copied == [58, 88], "the state is copied only if it is kept"


def test_of_equal_models_the_later_is_the_best_and_no_improvement(tmp_path: Path) -> None:
    court = Court(tmp_path, patience=3)
    for number in range(1, 4):
        court.play([2.0] * 30)
        assert court.best() == (30 * number, 2.0)
    assert court.stopped() is None
    court.play([2.0] * 30)
    assert court.stopped() == "patience"


def test_a_mean_of_few_episodes_ends_no_training(tmp_path: Path) -> None:
    court = Court(tmp_path, reward=8.0)
    court.rig.put(Trajectory(25, agent=99))
    court.play([9.0] * 9)
    assert court.best() == (34, 9.0)
    assert court.selector.measure is None
    court.rig.put(Trajectory(21, agent=99))
    court.play([9.0] * 10)
    assert court.stopped() is None
    court.play([9.0] * 30)
    assert court.stopped() == "reward", "of twenty episodes"


def test_a_new_lesson_begins_anew_and_its_models_are_better(tmp_path: Path) -> None:
    court = Court(tmp_path, patience=2)
    court.play([5.0] * 31)
    court.play([4.0] * 31)
    court.trainer.episodes.begin_lesson(1)
    court.play([1.0] * 31)
    assert court.best() == (93, 1.0)
    assert court.stopped() is None
    court.play([0.5] * 31)
    court.play([0.5] * 31)
    assert court.stopped() == "patience"
    assert court.best() == (93, 1.0)


def test_with_self_play_the_rating_counts(tmp_path: Path) -> None:
    court = Court(tmp_path, by=RATING, reward=1300)
    court.play([0.0] * 31)
    court.rating = 1301.0
    court.play([0.0] * 31)
    assert court.best() == (62, 1301.0)
    assert court.stopped() == "reward"


@pytest.mark.parametrize(
    ("stop", "measures", "stopped_at"),
    [
        ({"reward": 3.0}, [1.0, 2.9, 3.0, 9.0], 3),
        ({"patience": 2}, [1.0, 2.0, 1.0, 3.0, 3.0, 2.0, 9.0], 6),
        ({"patience": 1, "reward": 5.0}, [1.0, 5.0], 2),
        ({"patience": 3}, [1.0, 0.0, 0.0], None),
    ],
)
def test_measures_end_the_training(
    tmp_path: Path, stop: dict[str, Any], measures: list[float], stopped_at: int | None
) -> None:
    court = Court(tmp_path, by=EVALUATION, **stop)
    ended = None
    for number, measure in enumerate(measures, 1):
        court.selector.add_evaluation(court.candidate(number), measure)
        court.selector.end_if_enough()
        if court.stopped() is not None:
            ended = number
            break
    assert ended == stopped_at
    assert court.trainer.should_still_train == (ended is None)
    assert court.trainer.has_enough == (ended is not None)


def test_episodes_gradient_steps_and_time_end_the_training_and_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    court = Court(tmp_path / "a", episodes=40)
    court.play([0.0] * 39)
    assert court.stopped() is None
    court.play([0.0])
    assert court.stopped() == "episodes"
    assert "Behavior 'B' stopped training at step 40: 40 episodes have ended (stop.episodes)." in caplog.text
    court.status.save()
    entry = json.loads((tmp_path / "a" / "x" / "run_logs" / "training_status.json").read_text())["B"]
    assert entry["stopped"] == {"by": "episodes", "steps": 40}
    weights = [entry.clone() for entry in court.trainer.actor.parameters()]
    court.rig.put(*(Trajectory(1, ended=True) for _ in range(200)))
    court.trainer.advance()
    assert all(map(bool, (a.equal(b) for a, b in zip(weights, court.trainer.actor.parameters(), strict=True))))

    court = Court(tmp_path / "b", gradient_steps=7)
    for wanted in (6, 12):
        court.selector.end_if_enough()
        assert court.stopped() is None
        court.rig.put(*(Trajectory(1) for _ in range(101)))
        court.trainer.advance()
        assert court.trainer.algorithm.gradient_steps == wanted
    court.selector.end_if_enough()
    assert court.stopped() == "gradient_steps"

    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    court = Court(tmp_path / "c", time=60)
    now[0] += 59
    court.selector.end_if_enough()
    assert court.stopped() is None
    state = court.selector.state()
    court = Court(tmp_path / "d", time=60)
    court.selector.restore(state)
    now[0] += 1
    court.selector.end_if_enough()
    assert court.stopped() == "time"


def test_what_it_knows_outlasts_a_resume(tmp_path: Path) -> None:
    court = Court(tmp_path / "a", patience=3)
    for reward in (5.0, 4.0, 3.0):
        court.play([reward] * 100)
    assert court.stopped() is None
    again = Court(tmp_path / "b", patience=3)
    restore(again.trainer, checkpoint_of(court.trainer), reset_step=False)
    again.selector.restore(court.selector.state())
    again.selector.observe()
    assert again.selector.measure == court.selector.measure
    again.play([4.5] * 31)
    assert again.stopped() == "patience"
    other = Court(tmp_path / "c", by=EVALUATION, patience=1)
    other.selector.restore(court.selector.state())
    assert other.selector.measure is None, "measures of another kind count no more"


@pytest.mark.parametrize(("training", "is_best"), [(1.9, True), (2.0, True), (2.1, False)])
def test_a_last_model_without_an_evaluation_is_compared_by_its_return_in_training(
    tmp_path: Path, training: float, is_best: bool
) -> None:
    court = Court(tmp_path, by=EVALUATION)
    court.selector.add_evaluation(court.candidate(7, training, 30), 100.0)
    court.play([2.0] * 31)
    court.selector.add_last()
    best = court.selector.best_models.best
    assert best is not None
    assert (best.steps == 31) == is_best
    if is_best:
        assert (best.by, best.reward, best.evaluation) == (TRAINING, 2.0, 100.0)
    later = court.candidate(99, 9.0, 90)
    assert not court.selector.add_evaluation(later, 99.0)
    assert court.selector.add_evaluation(later, 101.0)


def test_a_last_model_by_training_is_as_good_as_its_last_summary(tmp_path: Path) -> None:
    court = Court(tmp_path)
    court.play([2.0] * 31)
    court.play([9.0] * 5)
    court.selector.add_last()
    assert court.best() == (36, 2.0), "as good, and later"


def test_the_mean_return_that_a_run_ends_with_has_the_rewards_of_groups(tmp_path: Path) -> None:
    """As of a group whose members are rewarded together only: the last line and the best model tell the same."""
    court = Court(tmp_path)
    columns: dict[str, Any] = {"reward": [0.25], "group_reward": [0.5]}
    court.rig.put(*(Trajectory(1, ended=True, agent=i, columns=columns) for i in range(31)))
    court.play([])
    assert court.best() == (31, 0.75)
    assert str(court.trainer.episodes.newest) == "mean return 0.750 of the summary of step 30 (29 episodes)"
