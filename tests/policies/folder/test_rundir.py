"""The folder of a run: its layout, and what is refused before anything is written."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from pathlib import Path

import pytest

from trajtrainer.core import atomic
from trajtrainer.core.errors import RunFolderError
from trajtrainer.policies.folder.run_folder import RunFolder, resume_if_begun
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
    path.mkdir(parents=True, exist_ok=True)
    (path / "checkpoint.pt").write_bytes(b"x")
    return path


def files(path: Path) -> list[str]:
    return sorted(p.relative_to(path).as_posix() for p in path.rglob("*"))


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
    assert [path.relative_to(tmp_path).as_posix() for path in paths if path] == [
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
def test_layout_is_that_of_mlagents(shared_data: Path, run: str) -> None:
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
    assert {path.relative_to(mine.path).as_posix() for path in paths} == expected


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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows finds nothing under such a name, which is no error")
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
    with pytest.raises(RunFolderError, match=r"old[/\\]Ball[/\\]checkpoint\.pt: the file does not exist"):
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


def snapshot(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        p.relative_to(path).as_posix(): (p.stat().st_mtime_ns, p.read_bytes()) for p in path.rglob("*") if p.is_file()
    }


def run_with_logs(results: Path) -> Path:
    path = finished_run(results)
    for name in ("Ball.onnx", "Ball/events.out.tfevents.1", "run_logs/Player-0.log", "run_logs/training_status.json"):
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_text(f"old {name}")
    return path.parent


def test_an_overwritten_run_is_untouched_until_the_environment_is_connected(tmp_path: Path) -> None:
    old = run_with_logs(tmp_path)
    before = snapshot(old)
    run = folder(tmp_path, force=True)
    run.check({})
    with run.exclusive():
        run.create()
        log = run.player_log(0)
        assert log is not None
        log.write_text("new")
        run.write_configuration("a: 1")
        run.write_timers("{}")
    assert snapshot(old) == before
    assert log.read_text() == "new", "what tells why the start failed stays"


def test_logs_of_actors_come_to_a_run_that_overwrites_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_with_logs(tmp_path)
    run = folder(tmp_path, force=True)
    run.check({})
    with run.exclusive():
        run.create()
        log = run.open_logs / "actor-0" / "Player-0.log"
        log.parent.mkdir(parents=True)
        with log.open("w") as player:
            player.write("before. ")
            run.begin()
            player.write("after.")
        (run.open_logs / "actor-0").mkdir(exist_ok=True)  # it is started again
    assert (tmp_path / "ppo" / "run_logs" / "actor-0" / "Player-0.log").read_text() == "before. after."
    assert "stay there" not in caplog.text
    assert not (tmp_path / "ppo.start").exists()


def test_a_run_that_begins_sets_the_overwritten_one_aside_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate(("ppo.old", "ppo.old.2", "ppo.old.3")):
        old = run_with_logs(tmp_path)
        (old / "Ball" / "number").write_text(str(number))
        before = snapshot(old)
        run = folder(tmp_path, force=True)
        run.check({})
        with run.exclusive():
            run.create()
            log = run.player_log(0)
            assert log is not None
            with log.open("w") as player:
                player.write("before. ")
                run.begin()
                player.write("after.")
            run.write_configuration("a: 1")
            run.behavior("Ball")
        assert snapshot(tmp_path / name) == before
        assert str(tmp_path / name) in caplog.text
        assert files(tmp_path / "ppo") == ["Ball", "configuration.yaml", "run_logs", "run_logs/Player-0.log"]
        assert (tmp_path / "ppo" / "run_logs" / "Player-0.log").read_text() == "before. after."
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ppo", "ppo.old", "ppo.old.2", "ppo.old.3"]
    assert [(tmp_path / name / "Ball" / "number").read_text() for name in ("ppo.old", "ppo.old.2")] == ["0", "1"]


def test_logs_of_a_forced_run_that_was_killed_are_gathered_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "ppo.start").mkdir()
    (tmp_path / "ppo.start" / "Player-0.log").write_text("killed")
    finished_run(tmp_path)
    run = folder(tmp_path, resume=True)
    with run.exclusive():
        run.create()
    assert files(tmp_path) == ["ppo", "ppo/Ball", "ppo/Ball/checkpoint.pt", "ppo/run_logs", "ppo/run_logs/Player-0.log"]


def test_a_run_that_cannot_be_set_aside_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = run_with_logs(tmp_path)
    before = snapshot(old)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "The process cannot access the file")  # Windows, of an open file

    monkeypatch.setattr(os, "rename", refuse)
    run = folder(tmp_path, force=True)
    with run.exclusive():
        run.create()
        with pytest.raises(RunFolderError, match=r"ppo cannot be moved to .*ppo\.old: The process cannot access.*"):
            run.begin()
    assert snapshot(old) == before


def test_a_run_whose_folder_cannot_be_made_again_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with_logs(tmp_path)
    run = folder(tmp_path, force=True)
    make = Path.mkdir

    def full(path: Path, *arguments: object, **options: object) -> None:
        if path == run.logs:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        make(path, *arguments, **options)  # type: ignore[arg-type]

    with run.exclusive():
        run.create()
        monkeypatch.setattr(Path, "mkdir", full)
        with pytest.raises(RunFolderError, match="No space left on device"):
            run.begin()
    assert (tmp_path / "ppo.old" / "Ball" / "checkpoint.pt").read_bytes() == b"x"


def test_logs_that_cannot_be_moved_stay_and_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = tmp_path / "ppo.start"
    start.mkdir()
    (start / "Player-0.log").write_text("killed")
    run = folder(tmp_path)
    (run.logs / "Player-0.log" / "x").mkdir(parents=True)  # No file replaces a folder.
    with run.exclusive():
        run.create()
    assert f"The logs in {start} could not be moved: " in caplog.text
    assert (start / "Player-0.log").read_text() == "killed"


def test_a_file_where_a_behavior_needs_its_folder(tmp_path: Path) -> None:
    run = folder(tmp_path)
    run.create()
    (run.path / "Ball").write_text("in the way")
    with pytest.raises(RunFolderError, match=r"ppo.Ball of behavior 'Ball' cannot be created: File (already )?exists"):
        run.behavior("Ball")


@pytest.mark.parametrize(
    ("content", "resumes", "forces"),
    [
        ([], False, False),
        (["Ball/checkpoint.pt"], True, False),
        (["Ball/events.out.tfevents.1"], False, True),  # ended before its first checkpoint
    ],
)
def test_a_run_resumes_if_it_has_begun(tmp_path: Path, content: list[str], resumes: bool, forces: bool) -> None:
    for name in content:
        (tmp_path / "ppo" / name).parent.mkdir(parents=True)
        (tmp_path / "ppo" / name).write_text("x")
    given = CheckpointSettings(run_id="ppo", results_dir=str(tmp_path), initialize_from="other")
    settings = resume_if_begun(given)
    assert (settings.resume, settings.force) == (resumes, forces)
    assert settings.initialize_from == (None if resumes else "other")


def test_timers_are_refreshed_only_while_a_run_trains(tmp_path: Path) -> None:
    run = folder(tmp_path)
    assert run.read_timers() == ""
    with run.exclusive():
        run.create()
        run.refresh_timers("early")
        assert run.read_timers() == ""
        run.begin()
        run.refresh_timers("new")
        assert run.read_timers() == "new"
        run.timers.unlink()
        run.timers.mkdir()
        run.refresh_timers("not written")  # The next write_timers reports it.
        assert run.read_timers() == ""
        run.timers.rmdir()
        run.write_timers("last")
    assert run.read_timers() == "last"


@pytest.mark.parametrize("init_path", [None, "Ball-5.pt", "{}/ppo/Ball/Ball-5.pt"])
def test_weights_of_the_very_run_that_is_overwritten(tmp_path: Path, init_path: str | None) -> None:
    old = finished_run(tmp_path)
    (old / "checkpoint.pt").write_text("the old weights")
    (old / "Ball-5.pt").write_text("the old weights")
    path = None if init_path is None else init_path.format(tmp_path)
    run = folder(tmp_path, force=True, initialize_from="ppo")
    run.check({"Ball": path})
    with run.exclusive():
        run.create()
        run.begin()
        behavior = run.behavior("Ball")
        behavior.checkpoint.write_text("the new weights")
        source = run.initial_weights("Ball", path)
        assert source is not None
        assert source.read_text() == "the old weights"


def test_what_a_failed_start_left_is_not_set_aside(tmp_path: Path) -> None:
    (tmp_path / "ppo" / "run_logs").mkdir(parents=True)
    (tmp_path / "ppo" / "run_logs" / "Player-0.log").write_text("x")
    run = folder(tmp_path, force=True)
    with run.exclusive():
        run.create()
        run.begin()
    assert [path.name for path in tmp_path.iterdir()] == ["ppo"]


@pytest.mark.parametrize("option", ["resume", "inference"])
def test_force_beside_another_option_sets_nothing_aside(tmp_path: Path, option: str) -> None:
    finished_run(tmp_path)
    run = folder(tmp_path, force=True, resume=option == "resume", inference=option == "inference")
    run.check({})
    with run.exclusive():
        run.create()
        run.begin()
    assert [path.name for path in tmp_path.iterdir()] == ["ppo"]


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
    assert "2 incomplete files" in caplog.text


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
    (tmp_path / "ppo").write_text("in the way")
    run.write_configuration("a: 1")
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
