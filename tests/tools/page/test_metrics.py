"""The page's metrics, over real HTTP."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra 'page' is not installed")

from tests.policies.folder.runs import make_run
from tests.prometheus import parsed
from tests.tools.page.serving import serving
from trajtrainer.cli.main import main
from trajtrainer.core.metrics import HELP
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.folder.run_lock import RunLock, lock_file
from trajtrainer.tools.page.viewer import Viewer

TOKEN = "secret-secret-secret"


def with_gauges(run: Path, behavior: str = "Ball") -> Path:
    """The run with what it knows at its end."""
    path = run / "run_logs" / "timers.json"
    timers = json.loads(path.read_text())
    values = {"Environment.CumulativeReward": 19.5, "Perf.CPU": 1.5, "Perf.Memory": 0.25, "Policy.Entropy": 0.75}
    timers["gauges"] = {f"{behavior}.{tag}.mean": {"value": value, "min": 0, "max": 0} for tag, value in values.items()}
    path.write_text(json.dumps(timers))
    return run


def age(run: Path, seconds: float) -> None:
    """Let the run look as if it had ended this long ago."""
    then = time.time() - seconds
    for path in [*run.rglob("*"), run]:
        os.utime(path, (then, then))


def test_runs_and_their_behaviors(tmp_path: Path) -> None:
    with_gauges(make_run(tmp_path, "a"))
    with_gauges(make_run(tmp_path, "deep/b"))
    with serving(tmp_path) as served:
        status, headers, body = served.ask("/metrics")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(body.decode())
    assert {name.removeprefix("trajtrainer_") for name in found} <= HELP.keys()
    a, b = ({"run": run, "behavior": "Ball"} for run in ("a", "deep/b"))
    assert found["trajtrainer_step"] == [(a, 2000), (b, 2000)]
    assert found["trajtrainer_max_steps"] == [(a, 2000), (b, 2000)]
    assert found["trajtrainer_mean_reward"] == [(a, 19.5), (b, 19.5)]
    assert found["trajtrainer_cpu_cores"] == [(a, 1.5), (b, 1.5)]
    assert found["trajtrainer_memory_bytes"] == [(a, 1 << 28), (b, 1 << 28)]
    assert found["trajtrainer_run_start_time_seconds"] == [({"run": "a"}, 1000), ({"run": "deep/b"}, 1000)]
    assert found["trajtrainer_runs"] == [({"state": "finished"}, 2)]


def test_a_run_that_ended_long_ago_is_only_counted(tmp_path: Path) -> None:
    make_run(tmp_path, "new")
    age(make_run(tmp_path, "old"), 25 * 3600)
    locked = make_run(tmp_path, "locked")
    age(locked, 25 * 3600)
    lock = RunLock(lock_file(locked), locked)
    lock.acquire()
    try:
        found = parsed(Viewer(ContainedFolder(tmp_path)).metrics())
    finally:
        lock.release()
    states = {labels["run"]: labels["state"] for labels, _ in found["trajtrainer_run_state"]}
    assert states == {"new": "finished", "locked": "running"}
    counts = {labels["state"]: value for labels, value in found["trajtrainer_runs"]}
    assert counts == {"finished": 2, "running": 1}


def test_damaged_files_and_odd_names_do_no_harm(tmp_path: Path) -> None:
    run = make_run(tmp_path, 'a "b"', behavior="Ball")
    (run / "run_logs" / "timers.json").write_text('{"gauges": [1, 2], "metadata": 7}')
    (run / "run_logs" / "training_status.json").write_text("[]")
    found = parsed(Viewer(ContainedFolder(tmp_path)).metrics())
    assert found["trajtrainer_run_state"][0][0]["run"] == 'a "b"'


def test_without_runs(tmp_path: Path) -> None:
    assert parsed(Viewer(ContainedFolder(tmp_path)).metrics()).keys() == {"trajtrainer_build_info"}


def test_there_is_a_limit_for_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.tools.page.viewer._MOST_MEASURED", 3)
    for number in range(5):
        age(make_run(tmp_path, f"run{number}"), 100 * number)
    found = parsed(Viewer(ContainedFolder(tmp_path)).metrics())
    assert {labels["run"] for labels, _ in found["trajtrainer_run_state"]} == {"run0", "run1", "run2"}
    assert found["trajtrainer_runs"] == [({"state": "finished"}, 5)]


def test_scrapes_share_what_was_read(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    viewer = Viewer(ContainedFolder(tmp_path))
    first = viewer.metrics()
    assert viewer.metrics() is first


class TestToken:
    def test_metrics_need_it_like_everything_else(self, tmp_path: Path) -> None:
        make_run(tmp_path, "a")
        with serving(tmp_path, "0.0.0.0", TOKEN) as served:
            assert served.ask("/metrics")[0] == 401
            assert served.ask("/metrics", {"Authorization": "Bearer wrong"})[0] == 401
            status, _, body = served.ask("/metrics", {"Authorization": f"Bearer {TOKEN}"})
        assert status == 200
        assert "trajtrainer_run_state" in parsed(body.decode())

    @pytest.mark.parametrize(
        "content", ["short", "with space in the midst of it", "", "two-lines-are-one-too\nmany", "ä" * 20]
    )
    def test_a_file_without_a_token(self, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "token").write_text(content, encoding="utf-8")
        assert main(["page", str(tmp_path), "--port=0", f"--token-file={tmp_path / 'token'}"]) == 1
        assert f"--token-file {tmp_path / 'token'}: " in capsys.readouterr().err

    def test_a_file_that_is_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["page", str(tmp_path), f"--token-file={tmp_path / 'none'}"]) == 1
        assert "the file cannot be read: No such file or directory" in capsys.readouterr().err

    def test_a_file_is_no_results_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "results").write_text("x")
        assert main(["page", str(tmp_path / "results"), "--port=0"]) == 1
        assert f"The results folder {tmp_path / 'results'} is a file. Pass the folder" in capsys.readouterr().err

    def test_a_token_of_a_file_is_needed_on_this_machine_too(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        found: list[str | None] = []

        class Server:
            def run(self, sockets: object) -> None:
                pass

        def make(_viewer: object, access: object) -> Server:
            found.append(access.token)  # type: ignore[attr-defined]
            return Server()

        monkeypatch.setattr("trajtrainer.tools.page.server.make_server", make)
        assert main(["page", str(tmp_path), "--port=0", f"--token-file={tmp_path / 'token'}"]) == 0
        assert found == [TOKEN]
        told = capsys.readouterr().out
        assert f"/?token={TOKEN}" in told
        assert "unencrypted" not in told
