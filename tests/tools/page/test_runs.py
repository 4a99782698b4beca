"""What the page tells of runs, whatever state their files are in."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.policies.folder.runs import LOG, REWARD, make_run
from trajtrainer import LearnResult, learn
from trajtrainer.core.errors import RunFolderError
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.run_lock import lock_file, stop_file
from trajtrainer.policies.folder.saved_run import SavedRun
from trajtrainer.settings.run import CheckpointSettings
from trajtrainer.tools.page.runs import RunView
from trajtrainer.tools.page.viewer import Viewer

LIMIT_S = 300.0
WRITER = """
import sys
from pathlib import Path

from trajtrainer.tools.page.runs import RunView
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.saved_run import SavedRun

run = RunView(SavedRun(ContainedFolder(Path(sys.argv[1])), ("ball",)))
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    while True:
        seen = run.saved.notes.text
        try:
            run.annotate({"text": f"{seen}{sys.argv[2]}.{number} "}, seen)
        except ValueError:  # another page was faster
            continue
        break
"""


def viewer(results: Path) -> Viewer:
    return Viewer(ContainedFolder(results))


def state(results: Path, run_id: str = "ball") -> str:
    return str({each["id"]: each for each in viewer(results).summaries()}[run_id]["state"])


def test_everything_of_a_run(tmp_path: Path) -> None:
    make_run(tmp_path, "tests/ball")
    seen = viewer(tmp_path)
    (summary,) = seen.summaries()
    assert summary["id"] == "tests/ball"
    (behavior,) = summary["behaviors"]
    assert (behavior["step"], behavior["max_steps"], behavior["reward"], behavior["elo"]) == (2000, 2000, 20.0, 1234.5)
    found = json.loads(json.dumps(seen.details("tests/ball"), allow_nan=False))
    assert found["state"] == "finished"
    assert found["lessons"] == [{"parameter": "mass", "number": 1, "count": 2, "name": "Heavy"}]
    assert found["time"]["kinds"] == {"collect": 6.0, "other": 4.0}
    assert (found["sessions"], found["since"], found["resumed"]) == (1, 1000, None)
    assert found["time"]["blocks"] == [["env_step", 0, 6.0, 5.0, False]]
    assert [(each["kind"], each["text"]) for each in found["records"]] == [
        ("start", "trajtrainer learn ball.yaml"),
        ("restart", "Restarting worker[0] in 0.50 s (restart 1) after: It crashed.\nIts log ends with: <b>boom</b>"),
        ("warning", "The disk is nearly full."),
    ]
    assert ["behaviors.Ball.max_steps", "2000"] in found["settings"]
    assert {each["path"]: each["step"] for each in found["files"]}["Ball/Ball-2000.onnx"] == 2000
    assert found["began"] == 1000
    series = seen.series(["tests/ball", "no"], "Ball", REWARD, 100, (-1e9, 1e9), by_time=False)
    assert series["tests/ball"]["steps"] == list(range(100, 2001, 100))
    assert series["tests/ball"]["mean"] == list(range(1, 21))
    assert seen.tags(["tests/ball"])["tests/ball"] == {"read": 1.0, "tags": {"Ball": [REWARD, "Losses/Policy Loss"]}}


def test_a_folder_name_that_cannot_be_decoded_hides_no_run(tmp_path: Path) -> None:
    make_run(tmp_path, "ball")
    make_run(tmp_path, "odd")
    (tmp_path / "odd" / "Ball").rename(tmp_path / "odd" / "100%FFx")
    seen = viewer(tmp_path)
    found = {each["id"]: [behavior["name"] for behavior in each["behaviors"]] for each in seen.summaries()}
    assert found == {"ball": ["Ball"], "odd": ["100%FFx"]}
    assert {run_id for run_id, _ in seen.table()["rows"]} == {"ball", "odd"}


def test_a_run_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(tmp_path, "ball")
    make_run(tmp_path, "odd")
    read = RunView.behavior_folders

    def fail_for_one(run: RunView) -> list[str]:
        if run.saved.run_id == "odd":
            raise ZeroDivisionError
        return read(run)

    monkeypatch.setattr(RunView, "behavior_folders", fail_for_one)
    seen = viewer(tmp_path)
    assert {each["id"]: each["state"] for each in seen.summaries()} == {"ball": "finished", "odd": "unreadable"}
    assert seen.table()["rows"] == [["ball", "Ball"]]
    assert 'run_state{run="ball",state="finished"} 1' in seen.metrics()
    assert 'runs{state="unreadable"} 1' in seen.metrics()
    assert seen.look(["ball", "odd"])[0].keys() == {"ball", "odd"}
    assert caplog.text.count("The run odd cannot be read.") == 1


def test_a_curve_that_cannot_be_drawn_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, run_id in enumerate(("ball", "odd", "third")):
        make_run(tmp_path, run_id, seed=number)
    seen = viewer(tmp_path)
    both = ["ball", "odd", "third"]
    assert seen.look(both)[1]

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    (odd,) = (run for run in seen.runs.find().values() if run.saved.run_id == "odd")
    monkeypatch.setattr(odd.saved.curves.behaviors["Ball"].curves[REWARD], "series", fail)
    arguments = both, "Ball", REWARD, 100, (-1e9, 1e9)
    assert seen.series(*arguments, by_time=False).keys() == {"ball", "third"}
    (line,) = seen.series_over_seeds(*arguments, by_time=False).values()
    assert line["runs"] == ["ball", "third"]
    monkeypatch.setattr(odd, "behavior_folders", fail)
    assert [each["runs"] for each in seen.groups(both)] == [["ball", "third"]]


def test_a_folder_that_comes_into_being_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with runs in it, and one that is a run."""
    monkeypatch.setattr("trajtrainer.tools.page.runs._SEARCH_S", 0.0)
    monkeypatch.setattr("trajtrainer.tools.page.viewer._LIST_S", 0.0)
    monkeypatch.setattr("trajtrainer.tools.page.viewer._PAUSE_PER_COST", 0)
    monkeypatch.setattr("trajtrainer.tools.page.runs._PAUSE_PER_COST", 0)
    whole, single = viewer(tmp_path / "results"), viewer(tmp_path / "results" / "ball")
    assert whole.summaries() == single.summaries() == []
    make_run(tmp_path / "results", "ball")
    assert [run["id"] for run in whole.summaries()] == ["ball"]
    make_run(tmp_path / "results", "other")
    assert [run["id"] for run in whole.summaries()] == ["ball", "other"]
    assert [run["id"] for run in single.summaries()] == ["ball"]
    assert (whole.runs.only, single.runs.only) == (None, "ball")
    assert single.details("ball")["files"]


def test_the_step_is_that_of_what_was_saved_last(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    path = run / "run_logs" / "training_status.json"
    status = json.loads(path.read_text())
    status["Ball"]["final_checkpoint"]["steps"] = 2533  # behind the last summary
    path.write_text(json.dumps(status))
    seen = viewer(tmp_path)
    seen.series(["ball"], "Ball", REWARD, 100, (-1e9, 1e9), by_time=False)
    assert seen.summaries()[0]["behaviors"][0]["step"] == 2533


def test_how_a_run_ended(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    assert state(tmp_path) == "finished"
    settings = (run / "configuration.yaml").read_text()
    (run / "configuration.yaml").write_text(settings.replace("2000", "9000"))
    assert state(tmp_path) == "stopped"
    error = "2026-01-01 10:03:00 ERROR [logs.py:0] The run ends: Disk full.\n  Traceback\n"
    (run / "run_logs" / "trainer.log").write_text(LOG + error)
    assert state(tmp_path) == "failed"
    (run / "run_logs" / "trainer.log").write_text(LOG + error + LOG)
    assert state(tmp_path) == "stopped"
    lock_file(run).write_text("1 somewhere")  # which nobody holds
    assert state(tmp_path) == "killed"
    status = json.loads((run / "run_logs" / "training_status.json").read_text())
    status["Ball"]["final_checkpoint"]["creation_time"] = time.time() + 1
    (run / "run_logs" / "training_status.json").write_text(json.dumps(status))
    assert state(tmp_path) == "stopped", "the lock was left behind by one that had saved everything"
    (run / "run_logs" / "training_status.json").write_text("{}")
    lock_file(run).unlink()
    assert state(tmp_path) == "ended"
    (run / "run_logs" / "trainer.log").unlink()  # ML-Agents writes none
    assert state(tmp_path) == "active"
    for path in run.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert state(tmp_path) == "ended"


def test_only_a_run_of_this_machine_that_holds_its_lock_is_stopped(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    seen = viewer(tmp_path)
    for text in (None, f"{os.getpid()} {os.uname().nodename}"):  # the number of a process that lives, but holds nothing
        if text is not None:
            lock_file(run).write_text(text)
        with pytest.raises(RunFolderError, match="is not running"):
            seen.stop("ball")
    assert not stop_file(run).exists()
    lock_file(run).unlink()
    folder = RunFolder(CheckpointSettings(run_id="ball", resume=True, results_dir=str(tmp_path)))
    with folder.exclusive():
        assert seen.details("ball")["can_stop"]
        lock_file(run).write_text("123 another-machine")
        with pytest.raises(RunFolderError, match="another machine"):
            seen.stop("ball")
        lock_file(run).write_text(f"{os.getpid()} {os.uname().nodename}")
        seen.stop("ball")
        details = seen.details("ball")
        assert (details["state"], details["can_stop"]) == ("stopping", False)
        assert folder.take_stop()


def test_half_written_and_damaged_files_cost_no_more_than_themselves(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    seen = viewer(tmp_path)
    whole = seen.details("ball")
    timers = run / "run_logs" / "timers.json"
    content = timers.read_text()
    timers.write_text(content[: len(content) // 2])
    assert seen.details("ball")["time"] == whole["time"], "what was read before stays"
    for path in ("run_logs/timers.json", "run_logs/training_status.json", "configuration.yaml"):
        for rubbish in (b"", b"{", b"[1]", b"\xff\x00", b'{"Ball": 3, "gauges": [], "total": "x", "children": 5}'):
            (run / path).write_bytes(rubbish)
            assert viewer(tmp_path).details("ball")["behaviors"][0]["name"] == "Ball"
    wrong: dict[str, Any] = {
        "checkpoints": 5,
        "final_checkpoint": [],
        "best": "x",
        "evaluation": {"mean": "NaN"},
        "elo": {},
    }
    (run / "run_logs" / "training_status.json").write_text(json.dumps({"Ball": {**wrong, "lesson_num": float("nan")}}))
    (run / "run_logs" / "timers.json").write_text(
        '{"total": NaN, "self": 1e999, "metadata": {"start_time_seconds": "x"}}'
    )
    (run / "configuration.yaml").write_text("behaviors: {Ball: {max_steps: .nan}}")
    json.dumps(viewer(tmp_path).details("ball"), allow_nan=False)
    (events,) = (run / "Ball").glob("events*")
    events.write_bytes(events.read_bytes()[:200] + bytes(300))
    details = viewer(tmp_path).details("ball")
    assert details["is_damaged"]
    assert details["read"] == 1.0


def test_a_run_that_is_deleted_while_it_is_looked_at(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    seen = viewer(tmp_path)
    assert seen.look(["ball"])[1]
    run.rename(tmp_path.parent / f"{tmp_path.name}-gone")
    seen.series(["ball"], "Ball", REWARD, 100, (0, 1e9), by_time=False)  # perhaps what was there a second ago
    deadline = time.monotonic() + 60
    while seen.look(["ball"])[0]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    with pytest.raises(RunFolderError, match="The run 'ball' does not exist"):
        seen.details("ball")


def test_of_a_log_of_ten_gigabytes_the_end_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ball")
    for name in ("trainer.log", "Player-0.log"):
        with (run / "run_logs" / name).open("wb") as log:
            log.truncate(10 * 10**9)  # takes no room on the disk
            log.seek(0, os.SEEK_END)
            log.write(b"\n2026-01-01 10:02:00 ERROR [loop.py:2] The end.\n")
    seen = viewer(tmp_path)
    found = seen.log("ball", "Player-0.log")
    assert found["text"].endswith("The end.\n")
    assert len(found["text"]) <= 1 << 18
    assert found["is_cut"]
    assert seen.details("ball")["records"][-1]["text"] == "The end."


@pytest.mark.parametrize("name", ["../../secret", "..", "/etc/passwd", "", "gone.log", "../../../secret.txt"])
def test_no_log_is_read_from_elsewhere(tmp_path: Path, name: str) -> None:
    make_run(tmp_path / "results", "ball")
    (tmp_path / "secret.txt").write_text("secret")
    with pytest.raises(RunFolderError):
        viewer(tmp_path / "results").log("ball", name)


def test_runs_of_ml_agents(shared_data: Path) -> None:
    """As it left them, without event files here."""
    found = {each["id"]: each for each in viewer(shared_data / "golden" / "runs").summaries()}
    run = found["ppo_discrete_two_behaviors"]
    assert run["state"] in ("ended", "active", "stopped", "finished")
    details = viewer(shared_data / "golden" / "runs").details("ppo_discrete_two_behaviors")
    assert details["versions"]["ML-Agents"]
    assert details["time"]["seconds"] > 0
    assert details["settings"]


def test_a_run_at_work_is_watched_and_stopped(tmp_path: Path) -> None:
    """In a thread, as in a notebook, where there are no handlers of signals."""
    results: list[LearnResult] = []

    def train() -> None:
        settings = {"behaviors": {"CartPole-v1": {"trainer_type": "ppo", "max_steps": 10**7, "summary_freq": 100}}}
        results.append(learn(settings, "gym:CartPole-v1", run_id="pole", results_dir=tmp_path, verbose=False))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    seen, deadline = viewer(tmp_path), time.monotonic() + 60
    while not (behaviors := [each for run in seen.summaries() for each in run["behaviors"] if each["step"]]):
        assert thread.is_alive()
        assert time.monotonic() < deadline
        seen.look(["pole"])
        time.sleep(0.05)
    assert behaviors[0]["name"] == "CartPole-v1"
    assert seen.details("pole")["can_stop"]
    seen.stop("pole")
    thread.join(60)
    assert not thread.is_alive()
    result = results[0].behaviors["CartPole-v1"]
    assert result.checkpoint is not None
    assert 100 <= result.steps < 10**7
    assert f"CartPole-v1: {result.steps:,} steps, mean return {result.mean_reward:.3f}" in repr(results[0])
    assert len(repr(results[0])) < 400
    details = seen.details("pole")
    assert (details["state"], details["can_stop"]) == ("stopped", False)
    assert "CartPole-v1.onnx" in {file["path"] for file in details["files"]}
    assert not stop_file(tmp_path / "pole").exists()


def test_two_pages_lose_no_note_that_they_say_is_saved(tmp_path: Path) -> None:
    (tmp_path / "ball").mkdir()
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, str(tmp_path), str(number)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(3)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("begin\n")
            writer.stdin.flush()
        assert [writer.wait(LIMIT_S) for writer in writers] == [0] * 3
    kept = SavedRun(ContainedFolder(tmp_path), ("ball",)).notes.text.split()
    assert sorted(kept) == sorted(f"{number}.{note}" for number in range(3) for note in range(20))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ball.notes.json", "ball"]
