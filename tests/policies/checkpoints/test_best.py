"""The best models of a behavior: which are kept, and what a kill leaves of them."""

from __future__ import annotations

import errno
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.learning.trainers.rig import Rig
from trajtrainer.core import atomic
from trajtrainer.core.errors import CheckpointError, ExportError
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.policies.checkpoints.best import TRAINING, BestModel, BestModels
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.state import copied, to_checkpoint
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.saved_policies import find_policies
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.run import CheckpointSettings
from trajtrainer.settings.trainer import TrainerSettings

BIAS = "action_model._continuous_distribution.mu.bias"


@cache
def checkpoint() -> dict[str, Any]:
    rig = Rig(TrainerSettings(network_settings=NetworkSettings(hidden_units=4, num_layers=1)))
    return to_checkpoint(rig.trainer, ActorPolicy(rig.trainer.actor, seed=0))


def state(step: int) -> dict[str, Any]:
    """A checkpoint whose policy does what tells its step."""
    content = copied(checkpoint())
    for name, entry in content["Policy"].items():
        if "." in name:  # the others tell the sizes of the actions
            entry[...] = 0
    content["Policy"][BIAS][...] = step / 100
    return content


class Run:
    def __init__(
        self, path: Path, *, keep: int = 1, by: str = "training", resume: bool = False, name: str = "B"
    ) -> None:
        self.run = RunFolder(CheckpointSettings(run_id="x", resume=resume, force=not resume, results_dir=str(path)))
        self.run.create()
        self.status = TrainingStatus.load(self.run.status) if resume else TrainingStatus(self.run.status)
        self.folder = self.run.behavior(name)
        self.models = BestModels(self.folder, self.status, keep=keep, by=by)
        if resume:
            self.models.restore()

    def offer(self, step: int, reward: float, lesson: int = 0, by: str = "training") -> bool:
        return self.models.offer(BestModel(step, reward, by, lesson), lambda: state(step))

    def save(self, step: int, reward: float, lesson: int = 0, by: str = "training") -> bool:
        is_best = self.offer(step, reward, lesson, by)
        self.models.write()
        return is_best

    def files(self, pattern: str = "*") -> dict[str, int]:
        """Name -> the step of the model in it, whole and readable."""
        return {path.name: step_in(path) for path in self.folder.path.glob(pattern)}

    def listed(self) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(self.run.status.read_text())[self.folder.behavior]
        return entry


def step_in(path: Path) -> int:
    if path.suffix == ".pt":
        return round(100 * float(read_checkpoint(path)["Policy"][BIAS][0]))
    session = onnxruntime.InferenceSession(path)
    feeds = {"obs_0": np.zeros((1, 4), np.float32)}
    (actions,) = session.run(["deterministic_continuous_actions"], feeds)
    return round(300 * float(actions[0, 0]))  # Unity's actions are a third


def test_the_best_stays_when_what_follows_is_worse(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert [run.save(step, reward) for step, reward in ((10, 1.0), (20, 3.0), (30, 3.0), (40, 2.0))] == [
        True,
        True,
        True,
        False,
    ]
    assert run.files() == {"best.pt": 30, "best.onnx": 30}, "of equal models the later"
    best = run.listed()["best"]
    assert (best["steps"], best["reward"], best["by"]) == (30, 3.0, "training")
    assert best["measure"] == "mean return of the summary"
    assert [Path(path).name for path in (best["file_path"], *best["auxillary_file_paths"])] == ["best.onnx", "best.pt"]


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.integers(0, 1)), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_the_best_few_are_kept_over_a_resume(
    tmp_path_factory: pytest.TempPathFactory, measures: list[tuple[float, int]], keep: int, resumed_after: int
) -> None:
    path = tmp_path_factory.mktemp("run")
    run = Run(path, keep=keep)
    offered = []
    lesson = 0
    for number, (reward, more) in enumerate(measures):
        lesson += more
        step = 10 * (number + 1)
        offered.append((lesson, reward, step))
        assert run.save(step, reward, lesson) == (offered[-1] == max(offered))
        if number == resumed_after:
            run = Run(path, keep=keep, resume=True)
    best = [step for *_, step in sorted(offered, reverse=True)[:keep]]
    expected = {"best": best[0]} | ({f"best-{step}": step for step in best} if keep > 1 else {})
    assert run.files("*.pt") == {f"{name}.pt": step for name, step in expected.items()}
    assert {path.stem for path in run.folder.path.glob("*.onnx")} == expected.keys()
    if keep > 1:
        assert [entry["steps"] for entry in run.listed()["best_models"]] == best


def test_nothing_is_copied_that_is_not_kept(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.offer(10, 5.0)
    assert not run.models.offer(BestModel(20, 4.0, "training"), lambda: pytest.fail("copied in vain"))
    none = Run(tmp_path / "none", keep=0)
    assert not none.models.offer(BestModel(10, 4.0, "training"), lambda: pytest.fail("copied in vain"))
    none.models.write()
    assert none.files() == {}


def test_another_measure_begins_anew(tmp_path: Path) -> None:
    Run(tmp_path).save(10, 500.0)
    run = Run(tmp_path, by="evaluation", resume=True)
    assert run.models.best == BestModel(10, 500.0, "training")
    assert run.save(20, -3.0, by="evaluation")
    assert run.files() == {"best.pt": 20, "best.onnx": 20}


def test_a_lucky_episode_before_the_first_summary_is_not_the_best_for_good(tmp_path: Path) -> None:
    models = Run(tmp_path).models
    assert models.offer(BestModel(35, 1.0, TRAINING, training=1.0), dict)
    assert models.best is not None
    assert models.best.measure == "mean return of all episodes so far"
    assert models.offer(BestModel(200, 0.4, TRAINING, training=0.4, summary=200), dict)
    assert models.best.measure == "mean return of the summary of step 200"
    assert not models.offer(BestModel(235, 1.0, TRAINING, training=1.0), dict)


class KilledError(BaseException):
    """Stands for a kill: nothing is handled."""


@pytest.mark.parametrize("writes", range(7))
def test_a_kill_between_two_files_leaves_a_whole_best_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    run = Run(tmp_path, keep=2)
    run.save(10, 1.0)
    run.save(20, 2.0)
    publish, left = atomic.publish, [writes]

    def killing(temporary: Path, path: Path, **options: bool) -> None:
        if not left[0]:
            raise KilledError
        left[0] -= 1
        publish(temporary, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "publish", killing)
        try:
            run.save(30, 3.0)
        except KilledError:
            pass
        else:
            assert writes > 4  # two files of its own, those of the best, the status
    assert {step_in(run.folder.best_checkpoint), step_in(run.folder.best_exported)} <= {20, 30}

    again = Run(tmp_path, keep=2, resume=True)

    best = again.models.best
    assert best is not None
    names = {f"best{suffix}": best.steps for suffix in (".pt", ".onnx")}
    kept = (20, 30) if best.steps == 30 else (10, 20)
    names |= {f"best-{step}{suffix}": step for step in kept for suffix in (".pt", ".onnx")}
    assert {name: step for name, step in again.files().items() if not name.startswith(".")} == names
    assert again.listed()["best"]["steps"] == best.steps
    assert (best.steps == 30) == (writes > 0)


def test_a_full_disk_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    run.save(10, 1.0)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write_bytes", full)
        run.save(20, 2.0)
    assert "could not be written" in caplog.text
    assert run.files() == {"best.pt": 10, "best.onnx": 10}
    run.models.write()
    assert run.files() == {"best.pt": 20, "best.onnx": 20}


def test_a_best_model_that_cannot_be_exported_leaves_no_other_model_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    run.save(10, 1.0)

    def fail(*_: object, **__: object) -> None:
        raise ExportError("operator Foo is not supported\nlong story")

    with monkeypatch.context() as patch:
        patch.setattr("trajtrainer.policies.onnx.export.export_policy", fail)
        run.save(20, 2.0)
    assert run.files() == {"best.pt": 20}
    assert f"The best model {run.folder.best_checkpoint} could not be exported" in caplog.text
    assert "operator Foo" in caplog.text
    assert "long story" not in caplog.text


def test_files_of_others_and_damaged_ones_are_no_best_models(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, keep=2)
    run.save(10, 1.0)
    run.save(20, 2.0)
    torch.save(state(99), run.folder.best_numbered(99, ".pt"))
    run.folder.best_checkpoint.write_bytes(run.folder.best_checkpoint.read_bytes()[:300])
    again = Run(tmp_path, keep=2, resume=True)
    assert "best.pt" in caplog.text
    assert again.models.best == BestModel(20, 2.0, "training")
    assert step_in(again.folder.best_checkpoint) == 20


def test_a_behavior_called_best_has_checkpoints_and_best_models(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=2, name="best")
    run.save(10, 1.0)
    run.save(20, 2.0)
    assert run.folder.steps_on_disk() == []
    assert run.folder.best_steps_on_disk() == [10, 20]


def test_a_run_is_named_with_at_best(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(CheckpointError, match="There is no best model"):
        find_policies(Path("x@best"), tmp_path, None)
    run.save(10, 1.0)
    (found,) = find_policies(Path("x@best"), tmp_path, None)
    assert (found.name, found.checkpoint) == ("B", run.folder.best_checkpoint)
    assert find_policies(tmp_path / "x" / "B@best", tmp_path, "B") == [found]
    started = RunFolder(CheckpointSettings(run_id="y", initialize_from="x@best", results_dir=str(tmp_path)))
    started.check({"B": None})
    assert started.initial_weights("B", None) == run.folder.best_checkpoint
    assert started.initial_weights("B", "best.pt") == run.folder.best_checkpoint


def test_models_are_ranked_by_measure_lesson_evaluation_training_and_step(tmp_path: Path) -> None:
    """Each is better than all before it, in this order; those of training do not count against an evaluation."""
    ascending = [
        BestModel(90, 500.0, "training", lesson=0, training=500.0),
        BestModel(80, 2.0, "training", lesson=1, training=2.0),
        BestModel(70, 1.0, "evaluation", lesson=1, training=9.0, evaluation=1.0),
        BestModel(60, 3.0, "evaluation", lesson=0, training=9.0, evaluation=3.0),
        BestModel(50, 3.0, "evaluation", lesson=1, training=4.0, evaluation=3.0),
        BestModel(40, 3.0, "evaluation", lesson=1, training=5.0, evaluation=3.0),
        BestModel(45, 3.0, "evaluation", lesson=1, training=5.0, evaluation=3.0),
        BestModel(46, 5.0, "training", lesson=1, training=5.0, evaluation=3.0),
    ]
    forward, backward = (Run(tmp_path / name, keep=8, by="evaluation") for name in ("a", "b"))
    for model in ascending:
        assert forward.models.offer(model, lambda: state(1))
    assert [backward.models.offer(model, lambda: state(1)) for model in reversed(ascending)] == [True] + [False] * 7
    forward.models.write()
    again = Run(tmp_path / "a", keep=8, by="evaluation", resume=True)
    assert again.models.best == ascending[-1], "all that ranks it outlasts a resume"


def test_an_evaluation_that_is_made_up_for_counts_for_the_model(tmp_path: Path) -> None:
    run = Run(tmp_path, by="evaluation")
    run.models.offer(BestModel(10, 7.0, "training", training=7.0, evaluation=100.0), lambda: state(10))
    run.models.offer(BestModel(10, 3.0, "evaluation", training=7.0, evaluation=3.0), lambda: state(10))
    assert run.models.best == BestModel(10, 3.0, "evaluation", training=7.0, evaluation=3.0)


def test_a_best_model_of_0_1_0_still_counts(tmp_path: Path) -> None:
    run = Run(tmp_path, by="evaluation")
    extra = {"best": {"steps": 20, "reward": 5.0, "by": "evaluation", "lesson": 0, "creation_time": 1.0}}
    torch.save({**state(20), "trajtrainer": extra}, run.folder.best_checkpoint)
    again = Run(tmp_path, by="evaluation", resume=True)
    assert again.models.best == BestModel(20, 5.0, "evaluation", evaluation=5.0)
    assert not again.save(30, 4.0, by="evaluation")
    assert again.save(40, 5.0, by="evaluation")
