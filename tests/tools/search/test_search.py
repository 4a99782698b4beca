"""Searches whose runs are played: what is tried, pruned, left out, resumed and found best."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from trajtrainer.cli.main import main
from trajtrainer.core.errors import RunFolderError, SettingsError
from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile
from trajtrainer.policies.folder.run_lock import FileLock, stop_file
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.monitoring import MonitoringSettings
from trajtrainer.settings.run import CheckpointSettings, RunSettings
from trajtrainer.settings.search import Plan, make_plan
from trajtrainer.settings.yaml.convert import load, read_document
from trajtrainer.tools.search import trial

pytest.importorskip("optuna", reason="the extra 'tune' is not installed")

from trajtrainer.tools.search.search import Search
from trajtrainer.tools.search.study import Study

REWARD = "Environment/Cumulative Reward"
RATE = "behaviors.Ball.hyperparameters.learning_rate"
SIZE = "behaviors.Ball.hyperparameters.batch_size"
CONFIGURATION: dict[str, Any] = {
    "behaviors": {"Ball": {"trainer_type": "ppo", "max_steps": 1000, "summary_freq": 100}},
    "env_settings": {"env_path": "gym:CartPole-v1"},
}
SEARCH: dict[str, Any] = {
    "trials": 8,
    "parallel": 1,
    "sampler": "random",
    "pruner": "none",
    "ranges": {RATE: {"low": 0.001, "high": 0.1, "log": True}, SIZE: {"choices": [64, 128]}},
}


def make(search: dict[str, Any], results: Path) -> Plan:
    checkpoints = {"run_id": "study", "results_dir": str(results)}
    text = yaml.safe_dump({**CONFIGURATION, "checkpoint_settings": checkpoints, "search": {**SEARCH, **search}})
    root, problems = read_document(text, "search.yaml")
    return make_plan(root, {}, problems)


Point = tuple[int, float] | None
Play = Callable[[RunSettings], Iterator[Point]]


class Player:
    """Stands in for the process of a trial: writes the points that a function yields, one whenever it is looked at.

    None stands for a run that goes on until it is asked to end. Text that is raised is how the run fails.
    """

    def __init__(self, configuration: Path, play: Play) -> None:
        self.settings = load(configuration.read_text(encoding="utf-8"), str(configuration))
        checkpoints = self.settings.checkpoint_settings
        self.run = Path(checkpoints.results_dir, checkpoints.run_id)
        self.is_stopped = False
        self._points = play(self.settings)
        self._failure = ""
        self._events = EventFile(self.run / "Ball")

    def is_running(self) -> bool:
        self.is_stopped = self.is_stopped or stop_file(self.run).exists()
        try:
            point = None if self.is_stopped else next(self._points)
        except StopIteration:
            self.is_stopped, point = True, None
        except ValueError as error:
            self.is_stopped, point, self._failure = True, None, str(error)
        if point is not None:
            self._events.add([event_file.scalar(REWARD, point[1])], point[0])
            self._events.flush()
        if self.is_stopped:
            self._events.close()
        return not self.is_stopped

    def kill(self) -> None:
        self.is_stopped = True

    def end(self) -> str:
        return self._failure


def rate_of(settings: RunSettings) -> float:
    return float(settings.behaviors["Ball"].hyperparameters.learning_rate)


def good(settings: RunSettings) -> Iterator[Point]:
    """The nearer the learning rate is to 0.01, the better."""
    yield 1000, -abs(np.log10(rate_of(settings)) + 2)


def forever() -> Iterator[Point]:
    yield from itertools.repeat(None)


class Stage:
    """A results folder, in which searches are made one after the other."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "results"
        self.runs: list[RunSettings] = []
        self.stop = StopRequest()

    def search(self, play: Play = good, *, resume: bool | None = False, force: bool = False, **search: Any) -> Search:
        self.stop = StopRequest()

        def start(configuration: Path) -> Player:
            player = Player(configuration, play)
            self.runs.append(player.settings)
            return player

        study = Study(make(search, self.path))
        with study.opened(resume=resume, force=force):
            made = Search(study, start, self.stop)
            made.run()
        return made

    @property
    def best(self) -> RunSettings:
        return load((self.path / "study" / "best.yaml").read_text(encoding="utf-8"), "best.yaml")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.tools.search.search.POLL_S", 0.0)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def states(search: Search) -> list[str]:
    return [trial.state.name for trial in search.study.trials]


def test_each_trial_is_a_run_of_its_own_and_the_best_is_written(stage: Stage) -> None:
    found = stage.search(parallel=3)
    assert [trial.number for trial in found.study.trials] == list(range(8))
    assert sorted(run.checkpoint_settings.run_id for run in stage.runs) == [f"study/trial-{n:04d}" for n in range(8)]
    rates = {rate_of(run) for run in stage.runs}
    assert len(rates) == 8
    assert all(0.001 <= rate <= 0.1 for rate in rates)
    assert rate_of(stage.best) == min(rates, key=lambda rate: abs(np.log10(rate) + 2))
    assert found.study.completed[0].params[RATE] == rate_of(stage.best)
    assert stage.best.checkpoint_settings == CheckpointSettings()  # nothing of the trial's own
    assert found.study.importances()[RATE] > 0.5


@pytest.mark.filterwarnings("error")
def test_one_trial_tells_no_importance(stage: Stage) -> None:
    assert stage.search(trials=1).study.importances() == {}


@pytest.mark.parametrize(("given", "expected"), [({}, {5005}), ({"base_port": 7000, "num_envs": 3}, {7000, 7006})])
def test_trials_at_once_have_ports_of_their_own(
    given: dict[str, int], expected: set[int], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGURATION, "env_settings", {**CONFIGURATION["env_settings"], **given})
    stage.search(parallel=2, trials=6)
    assert {run.env_settings.base_port for run in stage.runs} == expected  # by default they choose free ones


def test_trials_do_not_share_a_port_for_metrics_and_the_best_settings_keep_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGURATION, "monitoring", {"metrics_port": 9464})
    stage.search(parallel=2, trials=4)
    assert [run.monitoring for run in stage.runs] == [None] * 4
    assert stage.best.monitoring == MonitoringSettings(metrics_port=9464)


def test_less_may_be_better(stage: Stage) -> None:
    stage.search(direction="minimize")
    assert rate_of(stage.best) == max(map(rate_of, stage.runs), key=lambda rate: abs(np.log10(rate) + 2))


@pytest.mark.parametrize(("combined", "expected"), [("mean", 26.0), ("iqm", 2.5)])
def test_seeds_of_a_trial_are_runs_whose_values_become_one(stage: Stage, combined: str, expected: float) -> None:
    values = {5: 1.0, 6: 100.0, 7: 2.0, 8: 3.0, 9: 3.0, 10: 2.0, 11: 95.0, 12: 2.0}

    def by_seed(settings: RunSettings) -> Iterator[Point]:
        yield 1000, values[settings.env_settings.seed]

    found = stage.search(by_seed, trials=1, seed=5, seeds=8, combined=combined)
    assert found.study.trials[0].value == expected
    assert [run.checkpoint_settings.run_id for run in stage.runs[:2]] == [
        "study/trial-0000-seed-5",
        "study/trial-0000-seed-6",
    ]
    assert len({rate_of(run) for run in stage.runs}) == 1


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_trials_that_go_badly_are_ended_early(stage: Stage, pruner: str) -> None:
    told: list[tuple[float, int]] = []

    def course(settings: RunSettings) -> Iterator[Point]:
        for number in range(1, 10):
            told.append((rate_of(settings), number))
            yield number * 111, rate_of(settings) * number

    found = stage.search(course, trials=12, pruner=pruner, startup=2, warmup=2, reports=9)
    pruned = [trial for trial in found.study.trials if trial.state.name == "PRUNED"]
    assert pruned
    assert {"PRUNED", "COMPLETE"} == set(states(found))
    assert found.study.completed[0].params[RATE] > max(trial.params[RATE] for trial in pruned)
    assert max(number for rate, number in told if rate == pruned[-1].params[RATE]) < 9
    assert rate_of(stage.best) == found.study.completed[0].params[RATE]


def test_a_trial_that_is_ended_early_has_no_further_seeds(stage: Stage) -> None:
    def course(settings: RunSettings) -> Iterator[Point]:
        yield 100, rate_of(settings)
        yield 1000, rate_of(settings)

    found = stage.search(course, trials=6, pruner="median", startup=1, warmup=0, seeds=3)
    ended = [trial.number for trial in found.study.trials if trial.state.name == "PRUNED"]
    assert ended
    for number in ended:
        assert [f"trial-{number:04d}" in run.checkpoint_settings.run_id for run in stage.runs].count(True) == 1


def test_failures_are_told_and_left_out(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    def fragile(settings: RunSettings) -> Iterator[Point]:
        number = int(settings.checkpoint_settings.run_id[-1])
        if number == 1:
            raise ValueError("NaN in the rewards")
        if number != 3:  # which measures nothing
            yield from good(settings)

    found = stage.search(fragile)
    assert [number for number, state in enumerate(states(found)) if state == "FAIL"] == [1, 3]
    assert states(found).count("COMPLETE") == 6
    assert "NaN in the rewards" in caplog.text
    assert "behavior 'Ball' has not written 'Environment/Cumulative Reward'; it has: nothing" in caplog.text


def test_a_search_without_hope_ends(stage: Stage) -> None:
    def broken(_: RunSettings) -> Iterator[Point]:
        yield from ()
        raise ValueError("There is no environment.")

    with pytest.raises(
        SettingsError, match=r"The first 3 trials have all failed\. The last one: There is no environment"
    ):
        stage.search(broken)
    assert len(stage.runs) == 3


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_search_that_was_interrupted_goes_on_with_the_same_trials(stage: Stage, parallel: int) -> None:
    whole = Stage(stage.path.parent / "whole")
    whole.search(parallel=parallel)

    def until_stopped(settings: RunSettings) -> Iterator[Point]:
        if int(settings.checkpoint_settings.run_id[-1]) < 3:
            yield from good(settings)
            return
        yield 50, 0.5
        stage.stop.request(signal.SIGINT)
        yield from forever()

    found = stage.search(until_stopped, parallel=parallel)
    assert found.study.is_unfinished
    left = [number for number, state in enumerate(states(found)) if state == "RUNNING"]
    assert 1 <= len(left) <= parallel

    before = len(stage.runs)
    found = stage.search(resume=True, parallel=parallel)
    assert set(states(found)) == {"COMPLETE"}
    assert len(found.study.trials) == 8
    assert not found.study.is_unfinished
    again = [run.checkpoint_settings.run_id for run in stage.runs[before:]]
    assert again[: len(left)] == [f"study/trial-{n:04d}" for n in left]
    assert not list((stage.path / "study").glob(".*"))
    assert [trial.params for trial in found.study.trials] == [
        trial.params for trial in sorted(whole.search(resume=True).study.trials, key=lambda each: each.number)
    ]


def test_what_a_killed_search_leaves_in_its_journal_is_mended(stage: Stage) -> None:
    stage.search(trials=3)
    journal = stage.path / "study" / "study.journal"
    with journal.open("a") as file:
        file.write('{"op_code":5,"worker_id"')
    found = stage.search(resume=True, trials=4)
    assert states(found) == ["COMPLETE"] * 4
    stage.search(resume=True, trials=5)


def _on_the_journal(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let the line with this number fail to reach the disk once it is written."""
    lines, sync = itertools.count(), os.fsync

    def failing(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}").endswith("study.journal") and next(lines) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", failing)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the journal by /proc")
@pytest.mark.parametrize("number", range(2, 12))
def test_a_journal_that_cannot_be_written_is_told_and_goes_on(
    stage: Stage, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of the first lines once: the trial's beginning, its values, its reports, its end."""

    def reporting(settings: RunSettings) -> Iterator[Point]:
        yield 50, 1.0
        yield from good(settings)

    whole = Stage(tmp_path / "undisturbed").search(reporting, trials=3)
    with monkeypatch.context() as patch:
        _on_the_journal(patch, number)
        with pytest.raises(RunFolderError, match=r"No space left .* continue with --resume"):
            stage.search(reporting, trials=3)
    lines = (stage.path / "study" / "study.journal").read_bytes()
    assert lines.endswith(b"\n")
    assert not list(stage.path.rglob("*.lock*"))
    found = stage.search(reporting, resume=True, trials=3)
    assert states(found) == ["COMPLETE"] * 3
    assert [trial.params for trial in found.study.trials] == [trial.params for trial in whole.study.trials]


def test_the_best_is_written_by_the_search_that_goes_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have ended between a trial's end and the file."""
    found = stage.search(trials=3)
    best = stage.path / "study" / "best.yaml"
    wanted = best.read_text()
    best.write_text("of an earlier trial")
    half = best.with_name(".best.0123abcd.partial.yaml")
    half.touch()
    stage.search(resume=True, trials=3)
    assert not half.exists()
    assert best.read_text() == wanted
    assert rate_of(stage.best) == found.study.completed[0].params[RATE]


def test_a_run_that_is_under_way_ends_when_the_journal_cannot_be_written(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []

    def play(settings: RunSettings) -> Iterator[Point]:
        yield 50, 1.0
        yield from forever()

    def end(player: Player) -> str:
        ended.append(player.is_stopped)
        return ""

    monkeypatch.setattr(Player, "end", end)

    def refuse(*_: object) -> bool:
        raise RunFolderError("no room")

    monkeypatch.setattr("trajtrainer.tools.search.study.Study.report", refuse)
    with pytest.raises(RunFolderError, match="no room"):
        stage.search(play, trials=1)
    assert ended == [True]


def test_several_processes_work_on_one_search(stage: Stage) -> None:
    """The second begins while the first has a trial; what the first leaves, the second continues."""
    others: list[Search] = []

    def first(settings: RunSettings) -> Iterator[Point]:
        if settings.checkpoint_settings.run_id.endswith("2"):
            mine = stage.stop
            with pytest.raises(RunFolderError, match=r"Process \d+ .* right now"):
                stage.search(force=True)
            others.append(stage.search(resume=None, trials=6))
            stage.stop = mine
            mine.request(signal.SIGINT)
            yield None
        yield from good(settings)

    mine = stage.search(first, resume=None, trials=6)
    assert states(others[0]) == ["COMPLETE"] * 2 + ["RUNNING"] + ["COMPLETE"] * 3
    assert mine.study.is_unfinished
    last = stage.search(resume=None, trials=6)
    assert states(last) == ["COMPLETE"] * 6
    assert stage.runs[-1].checkpoint_settings.run_id == "study/trial-0002"
    assert rate_of(stage.best) == last.study.completed[0].params[RATE]


def test_two_processes_never_add_to_half_a_line(stage: Stage) -> None:
    """One is killed while it writes, and the other goes on."""
    journal = stage.path / "study" / "study.journal"

    def play(settings: RunSettings) -> Iterator[Point]:
        with journal.open("a") as file:
            file.write('{"op_code":5,"worker_id"')
        yield from good(settings)

    assert states(stage.search(play, trials=3)) == ["COMPLETE"] * 3
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_trials_that_others_run_are_left_to_them(stage: Stage) -> None:
    stage.search(trials=2)
    study = Study(make({"trials": 3}, stage.path))
    with study.opened(resume=True, force=False):
        begun = study.next()
        assert begun is not None
        assert begun.number == 2
        assert stage.search(resume=True, trials=3).study.is_unfinished
        assert not stage.search(resume=True, trials=4).study.trials[2].state.is_finished()
    claim = FileLock(stage.path / "study" / ".trial-0002.claim.lock", 0.0)
    claim.acquire()
    claim.release()


@pytest.mark.parametrize(
    "damage",
    ["{", "[" * 100_000, "[]", "5", "null", "{}", '{"op_code": 99}', '{"op_code": [], "worker_id": {}}', "\xff"],
)
def test_a_journal_that_is_damaged_is_told(stage: Stage, damage: str) -> None:
    stage.search(trials=3)
    journal = stage.path / "study" / "study.journal"
    lines = journal.read_bytes().splitlines()
    journal.write_bytes(b"\n".join([lines[0], damage.encode("latin-1"), *lines[1:]]) + b"\n")
    with pytest.raises(RunFolderError, match=r"study\.journal is damaged: .* start over with --force"):
        stage.search(resume=True)


def test_a_folder_is_used_again_only_if_that_is_asked_for(stage: Stage) -> None:
    with pytest.raises(RunFolderError, match="There is no search to resume"):
        stage.search(resume=True)
    stage.search(trials=2)
    with pytest.raises(RunFolderError, match="has been used before"):
        stage.search()
    stage.search(force=True, trials=1)
    assert len(list((stage.path / "study.old").glob("trial-*.yaml"))) == 2
    assert len(stage.search(resume=None, trials=2).study.trials) == 2
    ranges = {**SEARCH["ranges"], RATE: {"low": 0.001, "high": 0.2}}
    with pytest.raises(SettingsError, match=r"other settings. They differ in: search\.metric, .*learning_rate\.high"):
        stage.search(resume=True, metric="Policy/Entropy", ranges=ranges)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_command_tells_what_came_out_and_a_signal_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def course(settings: RunSettings) -> Iterator[Point]:
        if settings.checkpoint_settings.run_id.endswith("5"):
            os.kill(os.getpid(), signal.SIGTERM)
            yield from forever()
        yield from good(settings)

    monkeypatch.setattr(trial, "TrialProcess", lambda path: Player(path, course))
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump({**CONFIGURATION, "search": SEARCH}), encoding="utf-8")
    command = ["search", str(path), "--run-id=found", f"--results-dir={tmp_path / 'results'}"]

    assert main(command) == 143

    told = capsys.readouterr().out
    assert "6 trials: 5 completed, 1 unfinished." in told
    assert "To continue, run the same command with --resume." in told
    monkeypatch.setattr(trial, "TrialProcess", lambda path: Player(path, good))
    assert main([*command, "--resume", "--trials=7"]) == 0
    told = capsys.readouterr().out
    lines = told.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith(" trial "))
    values = [float(line.split()[1]) for line in lines[head + 2 : head + 9]]
    assert values == sorted(values, reverse=True)
    assert RATE in told
    folder = tmp_path / "results" / "found"
    assert f"trajtrainer learn {folder / 'best.yaml'} --run-id=NAME" in told
    assert (folder / "search.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_one_trial_is_no_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def course(_settings: RunSettings) -> Iterator[Point]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield from forever()

    monkeypatch.setattr(trial, "TrialProcess", lambda path: Player(path, course))
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump({**CONFIGURATION, "search": SEARCH}), encoding="utf-8")
    assert main(["search", str(path), "--run-id=one", f"--results-dir={tmp_path}", "--trials=1"]) == 143
    told = capsys.readouterr().out
    assert "with 1 trial, 1 at a time" in told
    assert "1 trial: 1 unfinished." in told


def test_the_extra_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SettingsError, match=r"pip install 'trajtrainer\[tune\]'"):
        Stage(tmp_path).search()
