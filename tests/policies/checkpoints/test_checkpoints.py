"""Checkpoints: what is saved, kept, and found again."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trajtrainer.core.errors import CheckpointError
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.manager import CheckpointManager
from trajtrainer.policies.checkpoints.mlagents.convert import STEP, STEP_ENTRY
from trajtrainer.policies.folder.run_folder import BehaviorFolder, RunFolder
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.settings.run import CheckpointSettings


class Run:
    """A run folder with one behavior B, and what training code would hand over."""

    def __init__(self, path: Path, *, keep: int = 5, resume: bool = False, behavior: str = "B") -> None:
        self.run = RunFolder(CheckpointSettings(run_id="x", resume=resume, force=not resume, results_dir=str(path)))
        self.run.create()
        self.status = TrainingStatus.load(self.run.status) if resume else TrainingStatus(self.run.status)
        self.folder: BehaviorFolder = self.run.behavior(behavior)
        self.manager = CheckpointManager(self.folder, self.status, keep)

    def save(self, step: int, reward: float | None = None) -> bool:
        return self.manager.save(step, reward, state(step), export(step))

    def save_final(self, step: int, reward: float | None = None) -> None:
        self.manager.save_final(step, reward, state(step), export(step))

    def files(self) -> list[str]:
        return sorted(p.name for p in self.folder.path.iterdir())

    def listed(self) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(self.run.status.read_text())["B"]
        return entry


def state(step: int) -> dict[str, Any]:
    return {"Policy": {"weight": torch.full((2, 3), float(step))}, STEP: {STEP_ENTRY: torch.tensor([step])}}


def export(step: int) -> Callable[[Path], object]:
    return lambda path: path.write_text(f"onnx of {step}")


def step_of(loaded: dict[str, Any]) -> int:
    return int(loaded[STEP][STEP_ENTRY])


def failing(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def hold_open(path: Path, patch: pytest.MonkeyPatch) -> None:
    """What Windows does with a file that another program has open: nobody can replace it."""
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if target == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        replace(source, target)

    patch.setattr(os, "replace", refuse)


def test_a_save_writes_all_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)
    with caplog.at_level(logging.INFO):
        assert run.save(665, 1.5)
    assert run.files() == ["B-665.onnx", "B-665.pt", "checkpoint.pt"]
    assert (run.folder.path / "B-665.pt").read_bytes() == (run.folder.path / "checkpoint.pt").read_bytes()
    assert caplog.messages == [f"Exported {tmp_path}/x/B/B-665.onnx"]
    loaded = read_checkpoint(run.folder.checkpoint)
    assert torch.equal(loaded["Policy"]["weight"], torch.full((2, 3), 665.0))


def test_a_final_save_copies_the_policy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)
    run.save(10, 1.0)
    with caplog.at_level(logging.INFO):
        run.save_final(15, 2.0)
    assert (tmp_path / "x" / "B.onnx").read_text() == "onnx of 15"
    source, target = f"{tmp_path}/x/B/B-15.onnx", f"{tmp_path}/x/B.onnx"
    assert caplog.messages == [f"Exported {source}", f"Copied {source} to {target}."]
    entry = run.listed()
    assert [record["steps"] for record in entry["checkpoints"]] == [10, 15]
    assert entry["final_checkpoint"] == {**entry["checkpoints"][-1], "file_path": target}


def test_rotation_is_that_of_mlagents(shared_data: Path, tmp_path: Path) -> None:
    cases = json.loads((shared_data / "golden" / "schedules" / "checkpoint_rotation.json").read_text())
    for case in cases:
        run = Run(tmp_path / str(case["keep_checkpoints"]), keep=case["keep_checkpoints"])
        for added in case["added"][:-1]:
            run.save(added["step"], added["reward"])
            assert [record.steps for record in run.manager.records] == added["steps_in_list"]
            assert [name for name in run.files() if name != "checkpoint.pt"] == added["files"]
        last = case["added"][-1]
        run.save_final(last["step"], last["reward"])
        assert [name for name in run.files() if name != "checkpoint.pt"] == last["files"]
        entry = run.listed()
        root = f"{tmp_path}/{case['keep_checkpoints']}/x"
        for record in (*entry["checkpoints"], entry["final_checkpoint"]):
            record["creation_time"] = None
            record["file_path"] = os.path.relpath(record["file_path"], root)
            record["auxillary_file_paths"] = [os.path.relpath(p, root) for p in record["auxillary_file_paths"]]
        golden = case["status_at_the_end"]
        for record in (*golden["checkpoints"], golden["final_checkpoint"]):
            record["creation_time"] = None
        assert entry == golden


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_no_reward_is_null(tmp_path: Path, reward: float | None) -> None:
    run = Run(tmp_path)
    run.save(1, reward)
    assert run.listed()["checkpoints"][0]["reward"] is None


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=2)
    for step in (1, 2, 2, 2):
        run.save(step)
    assert [record.steps for record in run.manager.records] == [1, 2]
    assert run.files() == ["B-1.onnx", "B-1.pt", "B-2.onnx", "B-2.pt", "checkpoint.pt"]


def test_an_old_checkpoint_that_cannot_be_removed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, keep=1)
    run.manager.save(1, 1.0, state(1), export(1))

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        run.manager.save(2, 1.0, state(2), export(2))
    assert "could not be removed: Input/output error." in caplog.text
    assert [record.steps for record in run.manager.records] == [1, 2], "it is still there, so it is listed"
    run.manager.save(3, 1.0, state(3), export(3))
    assert [record.steps for record in run.manager.records] == run.folder.steps_on_disk() == [3]


def test_a_failed_export_keeps_the_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)

    def broken(path: Path) -> None:
        path.write_text("half a policy")
        raise RuntimeError("operator Foo is not supported\nlong story")

    assert run.manager.save(7, None, state(7), broken)
    assert run.files() == ["B-7.pt", "checkpoint.pt"]
    assert "could not be exported" in caplog.text
    assert "operator Foo is not supported" in caplog.text
    assert "long story" not in caplog.text
    run.manager.save_final(8, None, state(8), broken)
    assert not run.folder.exported.exists()
    assert run.listed()["final_checkpoint"]["steps"] == 8


def test_a_full_disk_costs_a_checkpoint_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, keep=2)
    run.save(1)
    run.save(2)
    before = {name: (run.folder.path / name).read_bytes() for name in run.files()}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        assert not run.save(3)
    assert "No space left on device. Training continues" in caplog.text
    assert {name: (run.folder.path / name).read_bytes() for name in run.files()} == before
    assert [record.steps for record in run.manager.records] == [1, 2]
    assert run.save(4)
    assert [record.steps for record in run.manager.records] == [2, 4]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(
            CheckpointError, match=r"checkpoint of behavior 'B' at step 5.*No space.*Free some disk space.*--resume"
        ):
            run.save_final(5)
    assert step_of(read_checkpoint(run.folder.checkpoint)) == 4


def test_a_final_policy_that_cannot_be_copied_is_an_error_and_its_checkpoint_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.save(1)
    with monkeypatch.context() as patch:
        hold_open(run.folder.exported, patch)
        with pytest.raises(CheckpointError, match=r"B\.onnx.*Permission denied"):
            run.save_final(2)
    assert run.files() == ["B-1.onnx", "B-1.pt", "B-2.onnx", "B-2.pt", "checkpoint.pt"]
    assert [record["steps"] for record in run.listed()["checkpoints"]] == [1, 2]
    assert "final_checkpoint" not in run.listed()


def test_a_limit_of_the_system_is_noticed(tmp_path: Path) -> None:
    """Not simulated: the system itself refuses to write more than 64 KiB into a file."""
    resource = pytest.importorskip("resource")
    run = Run(tmp_path)
    run.save(1)
    large = {"Policy": {"weight": torch.zeros(100_000)}}
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, former[1]))
        saved = run.manager.save(2, None, large, export(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
    assert not saved
    assert run.files() == ["B-1.onnx", "B-1.pt", "checkpoint.pt"]


def test_a_status_that_cannot_be_written_is_made_up_for_by_the_next_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, keep=2)
    run.save(1)
    with monkeypatch.context() as patch:
        hold_open(run.run.status, patch)
        assert run.save(2)
    assert "training_status.json could not be written: Permission denied" in caplog.text
    assert [record["steps"] for record in run.listed()["checkpoints"]] == [1]
    assert run.save(3)
    assert [record["steps"] for record in run.listed()["checkpoints"]] == [2, 3]


def test_a_newest_that_another_program_has_open_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.save(1)
    with monkeypatch.context() as patch:
        hold_open(run.folder.checkpoint, patch)
        run.save_final(2)
    assert f"{run.folder.checkpoint} could not be written: Permission denied. " in caplog.text
    assert f"{run.folder.numbered(2, '.pt')} has the same" in caplog.text
    assert step_of(read_checkpoint(run.folder.checkpoint)) == 1
    assert step_of(read_checkpoint(run.folder.numbered(2, ".pt"))) == 2
    assert run.listed()["final_checkpoint"]["steps"] == 2
    resumed = Run(tmp_path, resume=True).manager.resume()
    assert resumed is not None
    assert step_of(resumed.state) == 2


def test_an_older_checkpoint_may_be_put_in_the_newests_place(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1)
    run.save(2)
    shutil.copyfile(run.folder.numbered(1, ".pt"), run.folder.checkpoint)
    resumed = Run(tmp_path, resume=True).manager.resume()
    assert resumed is not None
    assert resumed.path == run.folder.checkpoint
    assert step_of(resumed.state) == 1


def test_an_older_newest_is_taken_if_no_other_loads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, keep=1)
    run.save(1)
    with monkeypatch.context() as patch:
        hold_open(run.folder.checkpoint, patch)
        run.save(2)
    run.folder.numbered(2, ".pt").write_bytes(b"damaged")
    resumed = Run(tmp_path, resume=True).manager.resume()
    assert resumed is not None
    assert step_of(resumed.state) == 1


def test_a_state_that_would_not_load_is_noticed_when_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)
    assert not run.manager.save(1, None, {"Module:Plugin": Path("x")}, export(1))
    assert "may only contain tensors" in caplog.text
    assert run.files() == []


def test_inference_saves_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    manager = CheckpointManager(run.folder, TrainingStatus(None), 5, writes=False)
    assert manager.save(1, None, state(1), export(1))
    manager.save_final(1, None, state(1), export(1))
    assert run.files() == []


def test_resume_takes_the_newest_and_the_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Run(tmp_path, keep=2)
    for step in (1, 2, 3):
        first.save(step, 0.5)
    second = Run(tmp_path, keep=2, resume=True)
    with caplog.at_level(logging.INFO):
        loaded = second.manager.resume()
    assert loaded is not None
    assert (step_of(loaded.state), loaded.path) == (3, second.folder.checkpoint)
    assert caplog.messages == [f"Resuming from {tmp_path}/x/B."]
    assert second.manager.records == first.manager.records
    second.save(4)
    assert second.files() == ["B-3.onnx", "B-3.pt", "B-4.onnx", "B-4.pt", "checkpoint.pt"]


@pytest.mark.parametrize("damage", [None, b"", b"PK\x03\x04rubbish", "half", "NaN"])
def test_a_damaged_newest_falls_back_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes | str | None
) -> None:
    run = Run(tmp_path)
    for step in (1, 2, 3):
        run.save(step)
    for path in (run.folder.checkpoint, run.folder.numbered(3, ".pt")):
        content = path.read_bytes()
        if damage is None:
            path.unlink()
        elif damage == "NaN":
            torch.save({"Policy": {"weight": torch.tensor([float("nan")])}}, path)
        else:
            path.write_bytes(damage if isinstance(damage, bytes) else content[: len(content) // 2])
    loaded = Run(tmp_path, resume=True).manager.resume()
    assert loaded is not None
    assert step_of(loaded.state) == 2
    assert "Falling back to the checkpoint" in caplog.text


def test_nothing_that_loads_is_an_error(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1)
    for path in run.folder.path.glob("*.pt"):
        path.write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match=r"No checkpoint of behavior 'B'.*checkpoint\.pt, B-1\.pt.*--force"):
        Run(tmp_path, resume=True).manager.resume()


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Run(tmp_path).status.save()
    run = Run(tmp_path, resume=True)
    assert run.manager.resume() is None
    assert "starts from step 0" in caplog.text
    run.save(1)
    assert [record.steps for record in run.manager.records] == [1]


@pytest.mark.parametrize("damage", [None, b"", b'{"B": 3}'])
def test_a_lost_status_is_rebuilt_from_the_files(tmp_path: Path, damage: bytes | None) -> None:
    run = Run(tmp_path)
    for step in (5, 20, 100):
        run.save(step, 1.0)
    if damage is None:
        run.run.status.unlink()
    else:
        run.run.status.write_bytes(damage)
    again = Run(tmp_path, keep=2, resume=True)
    loaded = again.manager.resume()
    assert loaded is not None
    assert step_of(loaded.state) == 100
    assert [(record.steps, record.reward) for record in again.manager.records] == [(5, None), (20, None), (100, None)]
    again.save(101)
    assert again.files() == ["B-100.onnx", "B-100.pt", "B-101.onnx", "B-101.pt", "checkpoint.pt"]


def test_listed_files_that_are_gone_are_tolerated(tmp_path: Path) -> None:
    run = Run(tmp_path, keep=3)
    for step in (1, 2, 3):
        run.save(step)
    for suffix in (".pt", ".onnx"):
        run.folder.numbered(2, suffix).unlink()
    again = Run(tmp_path, keep=3, resume=True)
    again.manager.resume()
    assert [record.steps for record in again.manager.records] == [1, 3]
    again.save(4)
    assert [record.steps for record in again.manager.records] == [1, 3, 4]


def test_what_was_saved_but_not_listed_is_taken_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, keep=2)
    run.save(1)
    run.save(2)
    hold_open(run.run.status, monkeypatch)
    run.save(3)
    again = Run(tmp_path, keep=2, resume=True)
    loaded = again.manager.resume()
    assert loaded is not None
    assert step_of(loaded.state) == 3
    assert [record.steps for record in again.manager.records] == [2, 3]


def test_a_forced_run_leaves_the_old_checkpoints_out_of_its_rotation(tmp_path: Path) -> None:
    Run(tmp_path).save(9000)
    for suffix in (".pt", ".onnx"):
        os.utime(tmp_path / "x" / "B" / f"B-9000{suffix}", (1e9, 1e9))
    forced = Run(tmp_path, keep=1)
    forced.save(10)
    again = Run(tmp_path, keep=1, resume=True)
    loaded = again.manager.resume()
    assert loaded is not None
    assert step_of(loaded.state) == 10
    again.save(20)
    assert again.files() == ["B-20.onnx", "B-20.pt", "B-9000.onnx", "B-9000.pt", "checkpoint.pt"]


def test_a_hostile_status_removes_nothing_outside(tmp_path: Path) -> None:
    precious = tmp_path / "precious.pt"
    precious.write_text("x")
    run = Run(tmp_path, keep=1)
    run.save(1)
    content = json.loads(run.run.status.read_text())
    content["B"]["checkpoints"][0] |= {"file_path": str(precious), "auxillary_file_paths": [str(precious)]}
    run.run.status.write_text(json.dumps(content))
    again = Run(tmp_path, keep=1, resume=True)
    again.manager.resume()
    again.save(2)
    assert precious.exists()
    assert again.files() == ["B-2.onnx", "B-2.pt", "checkpoint.pt"]


def test_a_behavior_with_a_hostile_name(tmp_path: Path) -> None:
    run = Run(tmp_path, behavior="../../Team/Red")
    run.save_final(3)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert "../../Team/Red" in json.loads(run.run.status.read_text())
    loaded = Run(tmp_path, behavior="../../Team/Red", resume=True).manager.resume()
    assert loaded is not None
    assert step_of(loaded.state) == 3


class Bomb:
    """Runs code when it is unpickled by a loader that allows it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


def test_a_hostile_newest_is_refused_and_an_older_one_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)
    run.save(1)
    torch.save({"Policy": Bomb(tmp_path / "pwned")}, run.folder.checkpoint)
    loaded = Run(tmp_path, resume=True).manager.resume()
    assert loaded is not None
    assert step_of(loaded.state) == 1
    assert f"{run.folder.checkpoint} was rejected" in caplog.text
    assert not (tmp_path / "pwned").exists()


class CrashError(BaseException):
    """The end of the process, as far as the code under test can tell."""


def test_a_crash_at_any_call_of_the_system_leaves_a_run_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes the disk is the last one once; afterwards none works, so that nothing is tidied up."""
    names = ("open", "fsync", "replace", "unlink", "link")
    original = {name: getattr(os, name) for name in names}
    for last_call in itertools.count():
        path = tmp_path / str(last_call)
        run = Run(path, keep=2)
        for step in (1, 2):
            run.save(step)
        calls = 0

        def counting(name: str, last: int = last_call) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > last:
                    raise CrashError
                return original[name](*arguments, **options)

            return call

        crashed = False
        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(os, name, counting(name))
            try:
                run.save(3)
            except CrashError:
                crashed = True
        again = Run(path, keep=2, resume=True)
        assert not list((path / "x").rglob(".*")), "half-written files are gone"
        loaded = again.manager.resume()
        assert loaded is not None
        assert step_of(loaded.state) in (2, 3)
        assert again.save(4)
        assert [record.steps for record in again.manager.records][-1] == 4
        assert len([name for name in again.files() if name.endswith(".pt")]) == 3, "two are kept, and checkpoint.pt"
        if not crashed:
            assert step_of(loaded.state) == 3
            assert last_call > 15
            return


def test_a_state_that_stops_being_finite_is_reported_at_each_checkpoint_and_the_last_good_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path)
    assert run.save(1)
    for step in (2, 3):
        broken = state(step) | {"Optimizer": {"state": {0: {"exp_avg_sq": torch.tensor([1.0, math.inf])}}}}
        assert not run.manager.save(step, None, broken, export(step))
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert "Optimizer/state/0/exp_avg_sq contains NaN or infinite numbers" in record.getMessage()
        assert "The newest checkpoint is from step 1" in record.getMessage()
    assert step_of(read_checkpoint(run.folder.checkpoint)) == 1
    with pytest.raises(CheckpointError, match="exp_avg_sq") as refused:
        run.manager.save_final(4, None, broken, export(4))
    assert "disk" not in str(refused.value)
    assert run.files() == ["B-1.onnx", "B-1.pt", "checkpoint.pt"]


def test_the_first_checkpoint_that_cannot_be_saved_says_that_there_is_no_other(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no earlier checkpoint"):
        Run(tmp_path).manager.save_final(1, None, {"Policy": {"bias": torch.tensor([math.nan])}}, export(1))
