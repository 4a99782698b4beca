"""What earlier versions wrote goes on: it is resumed, evaluated, displayed and learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.upgrade.corpus import (
    ONLINE,
    behavior_of,
    checkpoint,
    command,
    configuration,
    log,
    status,
    step_of,
    step_of_new,
)
from tests.upgrade.writing import KINDS, RUNS
from trajtrainer.cli.main import main
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.trainers.trainer import Trainer
from trajtrainer.policies.play.loaded_policy import load_policy

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / RUNS).is_dir())
LARGEST_FILE = 500_000
LARGEST_CORPUS = 1_000_000
REWARD = "Environment/Cumulative Reward"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of steps that trainers take in from here on."""
    taken: list[int] = []
    count = Trainer._count

    def counting(self: Trainer, packed: PackedSteps) -> bool:
        taken.append(len(packed))
        return count(self, packed)

    monkeypatch.setattr(Trainer, "_count", counting)
    return taken


def test_there_is_a_corpus() -> None:
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_corpus_is_small_and_tells_nothing_of_the_machine(version: str) -> None:
    files = [path for path in (HERE / version).rglob("*") if path.is_file()]
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) < LARGEST_FILE
    assert sum(sizes) < LARGEST_CORPUS
    for path in files:
        content = path.read_bytes()
        assert not [place for place in (b"/home/", b"/root/", b"/tmp/", b"/Users/", b":\\") if place in content], path


@pytest.mark.parametrize("name", ONLINE)
def test_a_run_goes_on_where_it_stopped(name: str, corpus: Path, counted: list[int]) -> None:
    before, begin = status(name), step_of(name)
    known = checkpoint(name)["trajtrainer"]
    more = configuration(name, max_steps=begin + 40, summary_freq=20)
    assert command("learn", more, f"--run-id={name}", f"--env={KINDS[name][0]}", "--resume") == 0
    assert sum(counted) >= 40
    assert step_of(name) == begin + sum(counted)
    session = log(name).split("Resuming from")[-1]
    assert "ERROR" not in session
    assert "Traceback" not in session
    assert checkpoint(name)["global_step"]["_GlobalSteps__global_step"].item() == step_of(name)
    parameters = {key: entry["lesson_num"] for key, entry in before.items() if "lesson_num" in entry}
    assert {key: status(name)[key]["lesson_num"] for key in parameters} == parameters
    events = EventAccumulator(str(Path(RUNS, name, behavior_of(name))), size_guidance={"scalars": 0})
    events.Reload()
    steps = [event.step for event in events.Scalars("Policy/Entropy")]
    assert min(steps) <= begin < max(steps), "the old event file is there, and the new one follows it"
    if name == "sac":
        with np.load(corpus / RUNS / name / behavior_of(name) / "last_replay_buffer.npz") as replay:
            assert "Loaded" in session
            assert len(replay["start"])
    if name == "selfplay":
        now = checkpoint(name)["trajtrainer"]["self_play"]
        assert now["counters"] != known["self_play"]["counters"]
        assert {each["name"] for each in known["self_play"]["snapshots"]} & {each["name"] for each in now["snapshots"]}
        assert abs(status(name)["Duel"]["elo"] - before["Duel"]["elo"]) < 50
    if name == "evaluated":
        assert "best" in status(name)["3DBall"]


@pytest.mark.skipif("offline" not in KINDS, reason="there is no algorithm that learns from recordings alone")
def test_offline_learning_goes_on(corpus: Path) -> None:
    begin = step_of("offline")
    assert command("learn", configuration("offline", max_steps=begin + 15), "--run-id=offline", "--resume") == 0
    assert step_of("offline") == begin + 15
    assert "ERROR" not in log("offline")


@pytest.mark.parametrize("name", KINDS)
def test_the_weights_start_a_new_run(name: str, corpus: Path) -> None:
    given = configuration(name, max_steps=20, summary_freq=10, keep_best=0)
    env = KINDS[name][0]
    where = [] if env is None else [f"--env={env}"]
    assert command("learn", given, "--run-id=new", f"--initialize-from={name}", *where) == 0
    assert step_of_new(name) >= 20
    assert f"Initializing from {Path(RUNS, name, behavior_of(name), 'checkpoint.pt')}" in log("new")


def test_every_model_loads_and_acts(corpus: Path) -> None:
    models = sorted(path for suffix in ("*.pt", "*.onnx") for path in (corpus / RUNS).rglob(suffix))
    assert len(models) > 30
    for path in models:
        assert load_policy(path).spec.observation_specs


def test_unity_loads_every_policy(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = sorted(map(str, (corpus / RUNS).rglob("*.onnx")))
    assert main(["inspect", *models]) == 0
    assert capsys.readouterr().out.count("Unity loads it: yes") == len(models)


def test_a_recording_is_imitated(corpus: Path) -> None:
    gail = {"strength": 1.0, "demo_path": "recordings/Toy.demo", "network_settings": {"hidden_units": 8}}
    given = configuration("ppo", max_steps=64, reward_signals={"gail": gail}, keep_best=0)
    assert command("learn", given, "--run-id=new", "--env=sim:Toy") == 0
    assert step_of_new("ppo") >= 64
