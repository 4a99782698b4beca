"""Whole runs with self-play: what is learned, said and saved, and what outlives a kill."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import trajtrainer
from tests.envs.duel import Duel
from tests.run import fives
from tests.run.api.test_learn_api import Lamp
from tests.run.fives import SPEC, Fives
from tests.run.runs import FinishedRun, LearnProcess, behaviors_settings, ppo
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import EnvironmentEvent

DUEL = "--env=python:tests.envs.duel:Duel"
SELF_PLAY = {
    "save_steps": 300,
    "team_change": 1000,
    "swap_steps": 100,
    "window": 3,
    "play_against_latest_model_ratio": 0.25,
}
SAC = {"batch_size": 32, "buffer_size": 1000, "buffer_init_steps": 64, "learning_rate": 3e-3, "steps_per_update": 20}


def settings(max_steps: int, *names: str, self_play: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    trainer = ppo(max_steps, self_play={**SELF_PLAY, **(self_play or {})}, **{"summary_freq": 500, **changes})
    return behaviors_settings(**dict.fromkeys(names or ("Duel",), trainer))


def learn(tmp_path: Path, given: dict[str, Any], **options: Any) -> trajtrainer.LearnResult:
    return trajtrainer.learn(given, Duel, **{"results_dir": tmp_path, "verbose": False, "run_id": "run", **options})


def finished(tmp_path: Path, run_id: str = "run") -> FinishedRun:
    return FinishedRun(0, "", tmp_path / run_id)


def saved(run: Path, behavior: str = "Duel") -> dict[str, Any]:
    """What the newest checkpoint knows of self-play."""
    content = torch.load(run / behavior / "checkpoint.pt", weights_only=True)
    found: dict[str, Any] = content["trajtrainer"]["self_play"]
    return found


def plain(state: object) -> object:
    """The same with lists for tensors, so that it can be compared."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, list):
        return [plain(value) for value in state]
    return state.tolist() if isinstance(state, Tensor) else state


def test_a_team_learns_to_beat_what_it_was(tmp_path: Path) -> None:
    """The first team learns all the time; its rating rises above that of its snapshots."""
    given = settings(6000, self_play={"team_change": 10**6, "window": 20})
    result = learn(tmp_path, given, env_args={"size": 2}).behaviors["Duel"]
    run = finished(tmp_path)
    state = saved(tmp_path / "run")
    assert state["rotation"] == {"learning": 0, "waiting": [1], "changes": 0}
    assert [int(each["name"].split()[1]) // 300 for each in state["snapshots"]] == pytest.approx(range(19), abs=1)
    assert state["elo"] > 1240 > 1180 > state["snapshots"][0]["elo"]
    assert state["counters"]["opponent_steps"] == pytest.approx(result.steps, rel=0.02), "as many act as learn"
    scalars = run.scalars("Duel")
    steps, ratings = zip(*scalars["Self-play/ELO"], strict=True)
    assert list(steps) == list(range(500, 6001, 500))
    assert ratings[0] < ratings[-1] <= state["elo"] + 20
    assert run.status()["Duel"]["elo"] == state["elo"]
    assert scalars["Environment/Episode Length"][0][1] == pytest.approx(8.5, abs=0.3), "of all teams, less one"


KINDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("threaded", {"threaded": True}, {"size": 2}),
    ("groups", {}, {"size": 2, "grouped": True}),
    ("three teams", {}, {"teams": 3}),
    ("a memory", {"network_settings": {"memory": {"sequence_length": 4, "memory_size": 8}}}, {}),
    ("sac", {"trainer_type": "sac"}, {}),
]


@pytest.mark.parametrize(("changes", "env_args"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS])
def test_all_teams_learn_in_turn(tmp_path: Path, changes: dict[str, Any], env_args: dict[str, Any]) -> None:
    given = settings(2500, **changes)
    if changes.get("trainer_type") == "sac":
        given["behaviors"]["Duel"]["hyperparameters"] = SAC
    learn(tmp_path, given, env_args=env_args, num_envs=2)
    state = saved(tmp_path / "run")
    teams = env_args.get("teams", 2)
    assert state["rotation"]["changes"] >= 2
    assert sorted([state["rotation"]["learning"], *state["rotation"]["waiting"]]) == list(range(teams))
    assert len(state["teams"]) == teams - 1
    assert state["elo"] != 1200.0
    assert len(state["snapshots"]) == 3
    assert "Policy/Entropy" in finished(tmp_path).scalars("Duel")


def test_roles_of_two_behaviors_take_turns(tmp_path: Path) -> None:
    result = learn(tmp_path, settings(2500, "Role0", "Role1"), env_args={"roles": True})
    status = finished(tmp_path).status()
    for role in ("Role0", "Role1"):
        assert result.behaviors[role].steps > 2500
        assert saved(tmp_path / "run", role)["elo"] == status[role]["elo"] != 1200.0
    states = [saved(tmp_path / "run", role) for role in ("Role0", "Role1")]
    assert states[0]["rotation"] == states[1]["rotation"]
    assert states[0]["rotation"]["changes"] >= 4


def test_a_seed_repeats_a_run(tmp_path: Path) -> None:
    for run_id in ("a", "b"):
        learn(tmp_path, settings(1500), run_id=run_id, num_envs=2)
    first, second = saved(tmp_path / "a"), saved(tmp_path / "b")
    assert plain(first) == plain(second)
    assert first["rotation"]["changes"] == 1


def killed(tmp_path: Path, given: dict[str, Any], num_checkpoints: int) -> LearnProcess:
    """A run that is begun or gone on with, and killed some time after so many checkpoints."""
    run = LearnProcess(tmp_path, given, DUEL, *(("--resume",) if (tmp_path / "results").exists() else ()))
    checkpoint = run.folder / "Duel" / "checkpoint.pt"
    seen = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    def has_saved() -> bool:
        return checkpoint.exists() and checkpoint.stat().st_mtime_ns > seen

    for _ in range(num_checkpoints):
        run.wait_for(has_saved)
        seen = checkpoint.stat().st_mtime_ns
    run.send(signal.SIGKILL)
    run.finish()
    return run


def test_a_killed_run_goes_on_with_the_same_opponents_and_rating(tmp_path: Path) -> None:
    """A resumed run that has nothing left to learn, and no change that is due at once, saves what it began with."""
    nothing_due = dict.fromkeys(("save_steps", "team_change", "swap_steps"), 10**9)
    given = settings(10**6, checkpoint_interval=200)
    for num_checkpoints in (1, 3, 6):
        run = killed(tmp_path, given, num_checkpoints)
        state = saved(run.folder)
        learn(tmp_path / "results", settings(1, self_play=nothing_due), resume=True)
        again = saved(run.folder)
        assert plain(again) == plain(state)
        assert json.loads((run.folder / "run_logs" / "training_status.json").read_text())["Duel"]["elo"] == state["elo"]
    assert state["counters"]["save"] > 0
    assert state["elo"] != 1200.0


def test_lessons_by_rating(tmp_path: Path) -> None:
    criteria = {"behavior": "Duel", "measure": "elo", "threshold": 1201.0, "min_lesson_length": 5}
    lessons = [{"name": "easy", "value": 1.0, "completion_criteria": criteria}, {"name": "hard", "value": 2.0}]
    never = [{**lessons[0], "completion_criteria": {**criteria, "threshold": 9000.0}}, lessons[1]]
    given = settings(2500, self_play={"team_change": 10**6})
    given["environment_parameters"] = {"speed": {"curriculum": lessons}, "size": {"curriculum": never}}
    learn(tmp_path, given)
    status = finished(tmp_path).status()
    assert (status["speed"]["lesson_num"], status["size"]["lesson_num"]) == (1, 0)


def test_inference_plays_without_self_play(tmp_path: Path) -> None:
    learn(tmp_path, settings(300))
    before = (tmp_path / "run" / "Duel" / "checkpoint.pt").read_bytes()
    result = learn(tmp_path, settings(300), resume=True, inference=True, episodes=20)
    assert result.behaviors["Duel"].num_episodes >= 20
    assert (tmp_path / "run" / "Duel" / "checkpoint.pt").read_bytes() == before


def test_opponents_of_other_runs_and_files(tmp_path: Path) -> None:
    """A run, a checkpoint and an exported model, whose networks may be others."""
    learn(tmp_path, settings(600, network_settings={"hidden_units": 24}), run_id="old")
    files = [str(tmp_path / "old" / name) for name in ("Duel/checkpoint.pt", "Duel.onnx")]
    given = settings(1500, self_play={"opponents": ["old", *files], "window": 1})
    learn(tmp_path, given, run_id="new")
    state = saved(tmp_path / "new")
    assert set(state["ratings"]) == {"latest", "old", "checkpoint.pt", "Duel.onnx"}
    assert {games > 0 for _, games, _ in state["ratings"].values()} == {True}
    learn(tmp_path, settings(1, self_play={**given["behaviors"]["Duel"]["self_play"]}), run_id="new", resume=True)
    again = saved(tmp_path / "new")
    assert again["ratings"] == state["ratings"]
    entropy = finished(tmp_path, "new").scalars("Duel")["Policy/Entropy"]
    assert all(value > 0 for _, value in entropy), "models tell none"


def test_opponents_of_other_agents_are_refused(tmp_path: Path) -> None:
    learn(tmp_path, settings(100, network_settings={"memory": {"memory_size": 8, "sequence_length": 4}}), run_id="old")
    for opponent in ("old", str(tmp_path / "old" / "Duel.onnx")):
        with pytest.raises(CheckpointError, match=r"cannot play against behavior 'Duel': its memory_size is 8, not 0"):
            learn(tmp_path, settings(900, self_play={"opponents": [opponent]}), run_id=f"new{len(opponent)}")
    lamp = {"behaviors": {"Lamp": ppo(100)}, "torch_settings": {"device": "cpu"}}
    trajtrainer.learn(lamp, Lamp, results_dir=tmp_path, run_id="lamp", verbose=False)
    for name in ("Lamp/checkpoint.pt", "Lamp.onnx"):
        given = settings(900, self_play={"opponents": [str(tmp_path / "lamp" / name)]})
        with pytest.raises(CheckpointError, match=rf"{name} cannot play against behavior 'Duel': its? .*actions"):
            learn(tmp_path, given, run_id=name.replace("/", ""))


def test_files_that_are_not_there_are_told_at_once(tmp_path: Path) -> None:
    given = settings(900, self_play={"opponents": ["missing", "policy.onnx"]})
    with pytest.raises(CheckpointError) as caught:
        learn(tmp_path, given)
    first, second = str(caught.value).splitlines()
    assert first.startswith("behaviors.Duel.self_play.opponents: There is no file or folder missing")
    assert second.startswith("behaviors.Duel.self_play.opponents: There is no file or folder policy.onnx")
    assert not (tmp_path / "run").exists()


def test_a_scene_with_one_team_trains_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = learn(tmp_path, settings(900), env_args={"teams": 1})
    assert result.behaviors["Duel"].steps > 900
    (warning,) = [record.getMessage() for record in caplog.records if "there is only one" in record.getMessage()]
    assert warning.startswith("Behavior 'Duel' has self_play, but after ")


class LateTeam(Fives):
    """Its second team appears after 16 episodes."""

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        events = super().wait(timeout_s)
        for event in events:
            (step,) = event.steps.values()
            num_teams = 1 if self.steps < 80 else 2
            event.steps = {f"Les?team={team}": replace(step, agent=step.agent + team) for team in range(num_teams)}
            event.new_specs = dict.fromkeys(event.steps, SPEC)
        return events


def test_a_team_that_appears_late_plays_from_then_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rules = {"save_steps": 100, "team_change": 200, "swap_steps": 50, "window": 3}
    given = fives.settings(tmp_path, {}, self_play=rules, max_steps=900, summary_freq=100)
    session = fives.played(given, LateTeam())
    assert session.exit_code == 0
    assert "there is only one team (team 0)" in caplog.text
    assert session.run.teams.num_changes >= 2, "both have learned"
    rated = FinishedRun(0, "", tmp_path / "run").scalars("Les")["Self-play/ELO"]
    assert rated[0][0] > 80
