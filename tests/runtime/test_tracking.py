"""Services that follow a run: what they are told, and that training does not wait for them."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from trajtrainer.cli.main import main
from trajtrainer.errors import SettingsError
from trajtrainer.run import tracking
from trajtrainer.run.tracking import Service, Tracked, TrackingWriter, check_tracking, flat, tracking_writers
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.settings.convert import dump, load
from trajtrainer.settings.run import RunSettings
from trajtrainer.stats import StatsReporter, StatsWriter


class Pad(Service):
    """A service that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.breaks_at = -1

    def begin(self, run: Tracked, known: str | None) -> str:
        self.told.append((run.name, known))
        return known or "number 7"

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        self.may_go_on.wait(20)
        if step == self.breaks_at:
            raise ConnectionError("no network")
        self.told.append((behavior, dict(values), step))

    def finish(self) -> None:
        self.told.append("end")


def writer(pad: Pad, folder: Path, *, resume: bool = False) -> TrackingWriter:
    run = Tracked("first", {}, folder, folder)
    return TrackingWriter("pad", pad, run, folder / "tracking.json", resume=resume)


def report(to: StatsWriter, step: int, value: float = 1.0) -> None:
    reporter = StatsReporter("Ball", [to])
    reporter.add_many("Reward", [value, value + 1])
    reporter.set("Is Training", 1.0)
    reporter.set("Odd", float("nan"))
    reporter.write(step)


def test_a_service_is_told_of_every_summary_and_found_again(tmp_path: Path) -> None:
    pad = Pad()
    first = writer(pad, tmp_path)
    report(first, 10)
    report(first, 20, 3.0)
    first.close()
    assert pad.told == [("first", None), ("Ball", {"Reward": 1.5}, 10), ("Ball", {"Reward": 3.5}, 20), "end"]
    assert json.loads((tmp_path / "tracking.json").read_text()) == {"pad": "number 7"}

    again = Pad()
    resumed = writer(again, tmp_path, resume=True)
    report(resumed, 30)
    resumed.close()
    assert again.told[0] == ("first", "number 7")


def test_training_waits_for_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "_FINISH_S", 0.05)
    monkeypatch.setattr(tracking, "_MOST_WAITING", 5)
    pad = Pad()
    pad.may_go_on.clear()
    slow = writer(pad, tmp_path)
    for step in range(20):
        report(slow, step)
    slow.close()
    assert "pad has not taken everything within" in caplog.text
    assert "pad was slower than training: " in caplog.text
    pad.may_go_on.set()


def test_a_service_that_fails_is_told_once_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pad = Pad()
    pad.breaks_at = 2
    failing = writer(pad, tmp_path)
    for step in range(5):
        report(failing, step)
    failing.close()
    assert caplog.text.count("pad failed and is left out from here on: ConnectionError: no network") == 1
    assert [each[2] for each in pad.told[1:]] == [0, 1]


def test_a_run_without_summaries_is_told_to_nobody(tmp_path: Path) -> None:
    pad = Pad()
    writer(pad, tmp_path).close()
    assert pad.told == []


SETTINGS = "{behaviors: {Ball: {max_steps: 7}}, tracking: %s, checkpoint_settings: {results_dir: %s, run_id: first}}"


def settings(folder: Path, services: str) -> RunSettings:
    return load(SETTINGS % (services, json.dumps(str(folder))), "a.yaml")


def test_what_is_not_asked_for_is_not_in_the_configuration(tmp_path: Path) -> None:
    assert "tracking" not in dump(load("{behaviors: {Ball: {}}}", "a.yaml"))
    asked = settings(tmp_path, "{wandb: {mode: offline, tags: [a]}, mlflow: {experiment: x}}")
    assert yaml.safe_load(dump(asked))["tracking"].keys() == {"wandb", "mlflow"}
    assert load(dump(asked), "again").tracking == asked.tracking
    with pytest.raises(SettingsError, match="unknown option; did you mean wandb"):
        settings(tmp_path, "{wandbb: {}}")
    with pytest.raises(SettingsError, match=r"tracking\.mlflow\.experiment: found '', expected a name"):
        settings(tmp_path, "{mlflow: {experiment: ''}}")


@pytest.mark.parametrize("service", ["wandb", "mlflow", "trackio"])
def test_an_extra_that_is_not_installed_is_told_before_anything_starts(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = tmp_path / "a.yaml"
    path.write_text(f"{{behaviors: {{Ball: {{}}}}, tracking: {{{service}: {{}}}}}}")
    assert main(["config", str(path)]) == 1
    assert f"pip install 'trajtrainer[{service}]'" in capsys.readouterr().err


def test_a_folder_of_its_name_is_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio").mkdir()  # as W&B, for one, makes its own where a program runs
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with pytest.raises(SettingsError, match=r"tracking\.trackio needs the package trackio"):
        check_tracking(settings(tmp_path, "{trackio: {}}"))


def test_nobody_is_asked_for_a_key_in_the_midst_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=name))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    online = settings(tmp_path, "{wandb: {}}")
    with pytest.raises(SettingsError, match="Run 'wandb login', put a key into WANDB_API_KEY, or write mode: offline"):
        check_tracking(online)
    check_tracking(settings(tmp_path, "{wandb: {mode: offline}}"))
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    check_tracking(online)


def follow(folder: Path, services: str) -> Path:
    """Tell the real service of a small run, and return the run's folder."""
    asked = settings(folder, services)
    check_tracking(asked)
    run = RunFolder(asked.checkpoint_settings)
    (made,) = tracking_writers(asked, run)
    report(made, 10)
    report(made, 20, 3.0)
    made.close()
    return run.path


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    monkeypatch.setattr(tracking, "_FINISH_S", 200.0)
    run = follow(tmp_path, "{wandb: {mode: offline}}")
    (file,) = run.glob("run_logs/wandb/offline-run-*/*.wandb")
    assert b"Ball/Reward" in file.read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra 'mlflow' is not installed")
    monkeypatch.setattr(tracking, "_FINISH_S", 200.0)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    follow(tmp_path, "{mlflow: {tags: {team: a}}}")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select key, value, step from metrics order by step").fetchall() == [
            ("Ball/Reward", 1.5, 10),
            ("Ball/Reward", 3.5, 20),
        ]
        assert database.execute("select status, name from runs").fetchall() == [("FINISHED", "first")]
        assert ("behaviors.Ball.max_steps", "7") in database.execute("select key, value from params").fetchall()


@pytest.mark.filterwarnings("ignore")
def test_trackio_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio", reason="the extra 'trackio' is not installed")
    monkeypatch.setattr(tracking, "_FINISH_S", 200.0)
    follow(tmp_path, "{trackio: {project: tests}}")
    with sqlite3.connect(tmp_path / "trackio" / "tests.db") as database:
        told = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [(name, step, json.loads(metrics)) for name, step, metrics in told] == [
        ("first", 10, {"Ball/Reward": 1.5}),
        ("first", 20, {"Ball/Reward": 3.5}),
    ]


def test_nested_settings_as_one_level() -> None:
    assert flat({"a": {"b": 1, "c": [1, 2]}, "d": None, "e": {}}) == {"a.b": 1, "a.c": "[1, 2]", "d": None, "e": "{}"}
