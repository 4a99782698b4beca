"""The folder of a run: its layout, and what is refused before anything is written."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from trajtrainer.errors import RunFolderError
from trajtrainer.runtime import atomic
from trajtrainer.runtime.rundir import RunFolder
from trajtrainer.settings.run import CheckpointSettings


def folder(
    results: Path,
    *,
    run_id: str = "ppo",
    initialize_from: str | None = None,
    resume: bool = False,
    force: bool = False,
    inference: bool = False,
) -> RunFolder:
    return RunFolder(
        CheckpointSettings(
            run_id=run_id,
            initialize_from=initialize_from,
            resume=resume,
            force=force,
            inference=inference,
            results_dir=str(results),
        )
    )


def finished_run(results: Path, run_id: str = "ppo", behavior: str = "Ball") -> Path:
    path = results / run_id / behavior
    path.mkdir(parents=True)
    (path / "checkpoint.pt").write_bytes(b"x")
    return path


def files(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def test_layout(tmp_path: Path) -> None:
    run = folder(tmp_path, run_id="x")
    run.check({})
    run.create()
    behavior = run.behavior("Ball")
    paths = [
        run.configuration,
        run.timers,
        run.status,
        run.player_log(3),
        behavior.exported,
        behavior.checkpoint,
        behavior.numbered(665, ".onnx"),
        behavior.numbered(665, ".pt"),
    ]
    assert [str(path.relative_to(tmp_path)) for path in paths if path] == [
        "x/configuration.yaml",
        "x/run_logs/timers.json",
        "x/run_logs/training_status.json",
        "x/run_logs/Player-3.log",
        "x/Ball.onnx",
        "x/Ball/checkpoint.pt",
        "x/Ball/Ball-665.onnx",
        "x/Ball/Ball-665.pt",
    ]
    assert files(tmp_path) == ["x", "x/Ball", "x/run_logs"]


@pytest.mark.parametrize("run", ["ppo_continuous", "ppo_discrete_two_behaviors"])
def test_layout_is_the_peers(shared_data: Path, run: str) -> None:
    recorded = json.loads((shared_data / "golden" / "runs" / run / "run.json").read_text())
    expected = set(recorded["files_written_by_the_peer"])
    mine = folder(Path("results"), run_id=run)
    behaviors = {path.split("/")[0] for path in expected if "/" in path} - {"run_logs"}
    paths = {mine.configuration, mine.timers, mine.status}
    for name in behaviors:
        steps = {
            int(path.split("-")[-1][:-3]) for path in expected if path.startswith(f"{name}/{name}-") and ".pt" in path
        }
        its = RunFolder(CheckpointSettings(run_id=run, inference=True)).behavior(name)
        paths |= {its.exported, its.checkpoint, its.path / "events.out.tfevents.*"}
        paths |= {its.numbered(step, suffix) for step in steps for suffix in (".pt", ".onnx")}
    assert {str(path.relative_to(mine.path)) for path in paths} == expected


def test_a_taken_run_id_is_refused(tmp_path: Path) -> None:
    finished_run(tmp_path)
    with pytest.raises(RunFolderError, match=r"Previous data from this run ID was found.*--resume.*--force"):
        folder(tmp_path).check({})
    folder(tmp_path, force=True).check({})
    folder(tmp_path, resume=True).check({})


def test_what_a_failed_start_leaves_is_in_nobodys_way(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.check({})
    run.create()
    run.write_configuration("a: 1\n")
    run.write_timers("{}")
    folder(tmp_path).check({})
    (run.behavior("Ball").path / "events.out.tfevents.1").write_bytes(b"x")
    with pytest.raises(RunFolderError, match="Previous data"):
        folder(tmp_path).check({})


def test_resuming_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"was not found.*removing the --resume flag"):
        folder(tmp_path, resume=True).check({})


def test_the_deprecated_load_flag_resumes(tmp_path: Path) -> None:
    run = RunFolder(CheckpointSettings(load_model=True, results_dir=str(tmp_path)))
    assert run.resume


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ppo").write_text("x")
    with pytest.raises(RunFolderError, match="is a file"):
        folder(tmp_path, force=True).check({})


def test_a_name_that_the_file_system_refuses_is_a_clear_error(tmp_path: Path) -> None:
    run = folder(tmp_path / ("x" * 300))
    with pytest.raises(RunFolderError, match="cannot be read"):
        run.check({})
    with pytest.raises(RunFolderError, match="cannot be written"):
        run.create()


def test_initializing_from_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"Could not initialize from .*old.*Make sure models"):
        folder(tmp_path, initialize_from="old").check({})
    (tmp_path / "old").mkdir()
    with pytest.raises(RunFolderError, match=r"old/Ball/checkpoint\.pt: the file does not exist"):
        folder(tmp_path, initialize_from="old").check({"Ball": None})


@pytest.mark.parametrize(
    ("init_path", "expected"),
    [(None, "old/Ball/checkpoint.pt"), ("Ball-100.pt", "old/Ball/Ball-100.pt"), ("{}/other.pt", "other.pt")],
)
def test_initial_weights(tmp_path: Path, init_path: str | None, expected: str) -> None:
    old = finished_run(tmp_path, "old")
    (old / "Ball-100.pt").write_bytes(b"x")
    (tmp_path / "other.pt").write_bytes(b"x")
    path = init_path.format(tmp_path) if init_path else None
    run = folder(tmp_path, initialize_from="old")
    run.check({"Ball": path})
    assert run.initial_weights("Ball", path) == tmp_path / expected


def test_an_init_path_alone_and_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"x")
    (tmp_path / "a.onnx").write_bytes(b"x")
    run = folder(tmp_path)
    assert run.initial_weights("Ball", None) is None
    assert run.initial_weights("Ball", f"{tmp_path}/a.pt") == tmp_path / "a.pt"
    for wrong in ("a.onnx", "missing.pt"):
        with pytest.raises(RunFolderError, match="Could not initialize from"):
            run.check({"Ball": f"{tmp_path}/{wrong}"})


def test_resuming_wins_over_other_weights(tmp_path: Path) -> None:
    finished_run(tmp_path)
    finished_run(tmp_path, "old")
    run = folder(tmp_path, initialize_from="old", resume=True)
    run.check({"Ball": "missing.pt"})
    assert run.initial_weights("Ball", "missing.pt") is None


def test_a_behavior_that_the_other_run_does_not_know_starts_afresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished_run(tmp_path, "old")
    run = folder(tmp_path, initialize_from="old")
    assert run.initial_weights("New", None, listed=False) is None
    assert "starts from scratch" in caplog.text


def test_inference_writes_nothing(tmp_path: Path) -> None:
    finished_run(tmp_path)
    before = files(tmp_path)
    run = folder(tmp_path, resume=True, inference=True)
    run.check({})
    run.create()
    run.behavior("Ball")
    run.behavior("New")
    run.write_configuration("a: 1")
    run.write_timers("{}")
    assert run.player_log(0) is None
    assert files(tmp_path) == before


def test_a_new_start_removes_old_events_with_a_warning_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = finished_run(tmp_path)
    for number in (1, 2):
        (path / f"events.out.tfevents.{number}").write_bytes(b"x")
    run = folder(tmp_path, force=True)
    run.behavior("Ball")
    run.behavior("Ball")
    assert files(path) == ["checkpoint.pt"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "Deleting TensorBoard data" in caplog.text
    assert "events.out.tfevents.2 that was left over from a previous run." in caplog.text


def test_a_resumed_run_keeps_its_events(tmp_path: Path) -> None:
    path = finished_run(tmp_path)
    (path / "events.out.tfevents.1").write_bytes(b"x")
    folder(tmp_path, resume=True).behavior("Ball")
    assert files(path) == ["checkpoint.pt", "events.out.tfevents.1"]


def test_half_written_files_are_removed_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = finished_run(tmp_path)
    (path / ".Ball-9.0011aabb.partial.pt").write_bytes(b"half")
    (tmp_path / "ppo" / ".configuration.0011aabb.partial.yaml").write_bytes(b"half")
    with caplog.at_level(logging.INFO):
        folder(tmp_path, resume=True).create()
    assert files(tmp_path / "ppo") == ["Ball", "Ball/checkpoint.pt", "run_logs"]
    assert "2 half-written files" in caplog.text


def test_an_unwritable_folder_is_a_clear_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(RunFolderError, match=r"results.*cannot be written.*--results-dir"):
        folder(tmp_path / "results").create()


def test_a_full_disk_is_a_clear_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic, "_sync", full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        folder(tmp_path).create()
    assert files(tmp_path) == ["ppo", "ppo/run_logs"]


def test_a_failed_configuration_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = folder(tmp_path)
    run.write_configuration("a: 1")  # the folder was never made
    assert "could not be written" in caplog.text


def test_hostile_behavior_names_stay_inside(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.create()
    for name in ("../../x", "/etc/x", "a/b", "..", "run_logs", "configuration.yaml"):
        its = run.behavior(name)
        assert its.path.resolve().parent == run.path.resolve()
        assert its.exported.parent == run.path
        assert its.numbered(1, ".pt").parent == its.path
        assert its.behavior == name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ppo"]


def test_behaviors_that_share_a_folder_are_refused(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.create()
    first = run.behavior("Ball")
    (run.path / "ball").symlink_to(first.path.name)  # what a file system that ignores case would show
    with pytest.raises(RunFolderError, match=r"'Ball' and 'ball' have the same folder"):
        run.behavior("ball")


def test_steps_on_disk(tmp_path: Path) -> None:
    its = folder(tmp_path).behavior("Ball")
    for name in ("Ball-20.pt", "Ball-3.pt", "Ball-3.onnx", "Box-7.pt", "Ball-x.pt", "Ball-9.pt.bak", ".Ball-8.pt"):
        (its.path / name).write_bytes(b"x")
    assert its.steps_on_disk() == [3, 20]
