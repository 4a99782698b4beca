"""Services that follow a run: what they are told, and that training does not wait for them."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.ports import free_ports
from trajtrainer.cli.main import main
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.stats import StatsReporter, StatsWriter
from trajtrainer.plugins.tracking import writer
from trajtrainer.plugins.tracking.services import SERVICES, Record, flat
from trajtrainer.plugins.tracking.writer import TrackingWriter, check_tracking, tracking_writers
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import dump, load


class Pad:
    """A service that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.breaks_at = -1
        self.takes_s = 0.0

    def begin(self, known: str | None) -> Record:
        self.told.append(known)
        return Record(known or "number 7", self.log, self.finish)

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        self.has_begun.set()
        self.may_go_on.wait(120)
        time.sleep(self.takes_s)
        if step == self.breaks_at:
            raise ConnectionError("no network")
        self.told.append((behavior, dict(values), step))

    def finish(self) -> None:
        self.told.append("end")


def writer_of(pad: Pad, folder: Path, *, resume: bool = False) -> TrackingWriter:
    return TrackingWriter("pad", pad.begin, folder / "tracking.json", resume=resume)


def report(to: StatsWriter, step: int, value: float = 1.0) -> None:
    reporter = StatsReporter("Ball", [to])
    reporter.add_settings({})
    reporter.add_many("Reward", [value, value + 1])
    reporter.set("Is Training", 1.0)
    reporter.set("Odd", float("nan"))
    reporter.write(step)


def test_a_service_is_told_of_every_summary_and_found_again(tmp_path: Path) -> None:
    pad = Pad()
    first = writer_of(pad, tmp_path)
    report(first, 10)
    report(first, 20, 3.0)
    first.close()
    assert pad.told == [None, ("Ball", {"Reward": 1.5}, 10), ("Ball", {"Reward": 3.5}, 20), "end"]
    assert json.loads((tmp_path / "tracking.json").read_text()) == {"pad": "number 7"}

    again = Pad()
    resumed = writer_of(again, tmp_path, resume=True)
    report(resumed, 30)
    resumed.close()
    assert again.told[0] == "number 7"


def test_training_waits_for_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "STALLED_S", 0.05)
    monkeypatch.setattr(writer, "_QUIET_S", 0.1)
    monkeypatch.setattr(writer, "_MOST_WAITING", 5)
    pad = Pad()
    pad.may_go_on.clear()
    slow = writer_of(pad, tmp_path)
    for step in range(20):
        report(slow, step)
    assert pad.has_begun.wait(120)
    slow.close()
    assert "pad does not have all data of this run: it did not save a summary within" in caplog.text
    assert slow.missing is not None
    pad.may_go_on.set()


def test_summaries_that_found_no_room_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "_MOST_WAITING", 5)
    pad = Pad()
    pad.may_go_on.clear()
    slow = writer_of(pad, tmp_path)
    for step in range(20):
        report(slow, step)
    pad.may_go_on.set()
    slow.close()
    left_out = 20 - len([told for told in pad.told if isinstance(told, tuple)])
    assert left_out >= 14
    assert f"so {left_out} summaries were dropped" in caplog.text


def test_the_end_waits_while_a_service_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All together takes longer than any single call may."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(writer, "STALLED_S", 5.0)
    monkeypatch.setattr(writer, "_QUIET_S", 0.1)
    monkeypatch.setattr(writer, "_AGAIN_S", 0.05)
    pad = Pad()
    pad.takes_s = 0.75
    slow = writer_of(pad, tmp_path)
    for step in range(8):
        report(slow, step)
    slow.close()
    assert len(pad.told) == 10
    assert slow.missing is None
    assert re.search(r"Waiting for pad to save a summary; \d summaries remain", caplog.text)


def test_a_service_begins_with_the_run(tmp_path: Path) -> None:
    """So that a store which takes long to make is there in time."""
    pad = Pad()
    short = writer_of(pad, tmp_path)
    short.add_settings("Ball", {})
    short.close()
    assert pad.told == [None, "end"]


def test_a_service_that_fails_is_told_once_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pad = Pad()
    pad.breaks_at = 2
    failing = writer_of(pad, tmp_path)
    for step in range(5):
        report(failing, step)
    failing.close()
    assert caplog.text.count("pad failed and is no longer used: ConnectionError: no network") == 1
    assert [each[2] for each in pad.told[1:]] == [0, 1]
    assert "pad does not have all data of this run: ConnectionError: no network" in caplog.text


def test_a_run_without_summaries_is_told_to_nobody(tmp_path: Path) -> None:
    pad = Pad()
    writer_of(pad, tmp_path).close()
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


def test_it_is_told_together_with_all_other_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    path = tmp_path / "a.yaml"
    path.write_text("{behaviors: {Ball: {}}, tracking: {trackio: {}}, torch_settings: {device: abacus}}")
    assert main(["learn", str(path), "--env=sim:3DBal", f"--results-dir={tmp_path / 'results'}"]) == 1
    head, *lines = capsys.readouterr().err.splitlines()
    assert head.endswith("3 problems were found, and nothing was started:")
    expected = ("tracking.trackio needs the package trackio", "'3DBall'?", "torch_settings.device is 'abacus'")
    assert all(part in line for line, part in zip(lines, expected, strict=True))
    assert not (tmp_path / "results").exists()


def test_a_folder_of_its_name_is_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio").mkdir()  # as W&B, for one, makes its own where a program runs
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with pytest.raises(SettingsError, match=r"tracking\.trackio needs the package trackio"):
        check_tracking(settings(tmp_path, "{trackio: {}}"))


RUN = """
behaviors:
  Basic:
    trainer_type: ppo
    max_steps: 300
    summary_freq: 20
    hyperparameters: {batch_size: 16, buffer_size: 32}
    network_settings: {hidden_units: 8, num_layers: 1}
tracking: {wandb: {mode: offline}}
"""


class Unreachable(Pad):
    """A service that is there when the run begins, and never again."""

    def log(self, behavior: str, values: Mapping[str, float], step: int) -> None:
        raise ConnectionError("no network")


@pytest.mark.parametrize("kind", [Pad, Unreachable])
def test_the_exit_code_tells_whether_a_service_has_everything(
    kind: type[Pad], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pad, has_everything = kind(), kind is Pad
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=name))
    monkeypatch.setitem(SERVICES, "wandb", lambda own, run, known: pad.begin(known))
    (tmp_path / "a.yaml").write_text(RUN)
    learn = [
        "learn",
        str(tmp_path / "a.yaml"),
        "--env=sim:Basic",
        "--seed=1",
        f"--results-dir={tmp_path}",
        "--run-id=run",
    ]
    assert main([*learn, f"--base-port={free_ports(1)}"]) == (0 if has_everything else 1)
    told = capsys.readouterr()
    lacking = "wandb does not have all data of this run: ConnectionError: no network. The event files"
    assert (lacking in told.out + told.err) == (not has_everything)
    assert (tmp_path / "run" / "Basic.onnx").is_file()
    assert ("end" in pad.told) == has_everything


def follow(folder: Path, services: str) -> Path:
    """Tell the real service of a small run, and return the run's folder."""
    asked = settings(folder, services)
    check_tracking(asked)
    (made,) = tracking_writers(asked)
    report(made, 10)
    report(made, 20, 3.0)
    made.close()
    return RunFolder(asked.checkpoint_settings).path


@pytest.mark.filterwarnings("ignore")
def test_nobody_is_asked_for_a_key_during_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    follow(tmp_path, "{wandb: {}}")
    assert "wandb failed and is no longer used: UsageError: No API key configured" in caplog.text


def test_the_log_has_no_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def begin(_known: str | None) -> Record:
        raise ValueError("unsupported URI 'postgresql+none://me:secret@host/db'")

    refusing = TrackingWriter("mlflow", begin, tmp_path / "tracking.json", resume=False)
    report(refusing, 10)
    refusing.close()
    assert "unsupported URI 'postgresql+none://...@host/db'" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra 'wandb' is not installed")
    run = follow(tmp_path, "{wandb: {mode: offline}}")
    (file,) = run.glob("run_logs/wandb/offline-run-*/*.wandb")
    assert b"Ball/Reward" in file.read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="the extra 'mlflow' is not installed")
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
    follow(tmp_path, "{trackio: {project: tests}}")
    with sqlite3.connect(tmp_path / "trackio" / "tests.db") as database:
        told = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
    assert [(name, step, json.loads(metrics)) for name, step, metrics in told] == [
        ("first", 10, {"Ball/Reward": 1.5}),
        ("first", 20, {"Ball/Reward": 3.5}),
    ]


def test_nested_settings_as_one_level() -> None:
    assert flat({"a": {"b": 1, "c": [1, 2]}, "d": None, "e": {}}) == {"a.b": 1, "a.c": "[1, 2]", "d": None, "e": "{}"}
