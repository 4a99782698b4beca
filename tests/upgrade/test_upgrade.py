"""What earlier versions wrote goes on: it is resumed, evaluated, displayed and learned from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.ports import free_ports
from tests.upgrade.writing import KINDS, RUNS
from trajtrainer.cli.main import main
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.trainers.trainer import Trainer
from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.policies.play.loaded_policy import load_policy
from trajtrainer.tools.page.viewer import Viewer

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / RUNS).is_dir())
LARGEST_FILE = 500_000
LARGEST_CORPUS = 1_000_000
ONLINE = [name for name, (env, _) in KINDS.items() if env is not None]
REWARD = "Environment/Cumulative Reward"


@pytest.fixture(params=VERSIONS)
def corpus(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a version wrote, as the working folder."""
    shutil.copytree(HERE / request.param, tmp_path / "corpus")
    monkeypatch.chdir(tmp_path / "corpus")
    return tmp_path / "corpus"


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


def behavior_of(name: str) -> str:
    (behavior,) = KINDS[name][1]["behaviors"]
    return str(behavior)


def configuration(name: str, **changes: Any) -> str:
    """The configuration of a run with other settings of its behavior."""
    content = yaml.safe_load(Path("configurations", f"{name}.yaml").read_text(encoding="utf-8"))
    content["behaviors"][behavior_of(name)] |= changes
    path = Path("changed.yaml")
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def command(*words: str) -> int:
    return main([words[0], *words[1:], f"--results-dir={RUNS}", f"--base-port={free_ports(4)}"])


def status(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(RUNS, name, "run_logs", "training_status.json").read_text())
    return content


def checkpoint(name: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(Path(RUNS, name, behavior_of(name), "checkpoint.pt"), weights_only=True)
    return state


def step_of(name: str) -> int:
    return int(status(name)[behavior_of(name)]["final_checkpoint"]["steps"])


def log(name: str) -> str:
    return Path(RUNS, name, "run_logs", "trainer.log").read_text(encoding="utf-8")


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


def step_of_new(name: str) -> int:
    return int(status("new")[behavior_of(name)]["final_checkpoint"]["steps"])


@pytest.mark.parametrize("name", [*KINDS, "ppo@best", "selfplay@best", "evaluated@best"])
def test_a_run_is_evaluated(name: str, corpus: Path) -> None:
    env = KINDS[name.partition("@")[0]][0] or "sim:Toy"
    assert command("evaluate", name, "--episodes=2", f"--env={env}", "--json=found.json") == 0
    (found,) = json.loads(Path("found.json").read_text())["results"]
    assert found["behaviors"][behavior_of(name.partition("@")[0])]["episodes"] >= 2


def test_every_model_loads_and_acts(corpus: Path) -> None:
    models = sorted(path for suffix in ("*.pt", "*.onnx") for path in (corpus / RUNS).rglob(suffix))
    assert len(models) > 30
    for path in models:
        assert load_policy(path).spec.observation_specs


def test_unity_loads_every_policy(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = sorted(map(str, (corpus / RUNS).rglob("*.onnx")))
    assert main(["inspect", *models]) == 0
    assert capsys.readouterr().out.count("Unity loads it: yes") == len(models)


def test_runs_are_reported(corpus: Path) -> None:
    assert main(["report", *KINDS, f"--results-dir={RUNS}", "-o", "report.html"]) == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert all(name in page for name in KINDS)


def test_runs_are_shown_on_the_page(corpus: Path) -> None:
    seen = Viewer(ContainedFolder(corpus / RUNS))
    shown = {each["id"]: each for each in seen.summaries()}
    assert {*KINDS, "search/trial-0000", "search/trial-0001"} <= set(shown)
    for name in KINDS:
        assert shown[name]["state"] == "finished"
        (behavior,) = shown[name]["behaviors"]
        assert behavior["step"] == step_of(name)
        details = json.loads(json.dumps(seen.details(name), allow_nan=False))
        assert {"configuration.yaml", f"{behavior_of(name)}/checkpoint.pt"} <= {
            each["path"] for each in details["files"]
        }
    seen.series(["ppo"], "Toy", REWARD, 100, (-1e9, 1e9), by_time=False)
    series = seen.series(["ppo"], "Toy", REWARD, 100, (-1e9, 1e9), by_time=False)
    assert series["ppo"]["steps"] == [600, 1200]
    (lesson,) = seen.details("ppo")["lessons"]
    assert (lesson["parameter"], lesson["count"]) == ("distance", 3)


@pytest.mark.parametrize(
    "path", ["recordings/Toy.demo", "recordings/Toy.npz", f"{RUNS}/sac/Toy/last_replay_buffer.npz"]
)
def test_recordings_are_summarized_and_learned_from(
    path: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "info", path]) == 0
    said = capsys.readouterr().out
    assert "behavior Toy" in said
    if path.startswith("recordings"):
        assert "12 episodes, 396 steps" in said
    assert main(["demo", "convert", path, "-o", "converted.demo"]) == 0
    if "offline" in KINDS:
        given = configuration("offline", max_steps=10, dataset=["converted.demo"])
        assert command("learn", given, "--run-id=new") == 0
        assert step_of_new("offline") == 10


def test_a_recording_is_imitated(corpus: Path) -> None:
    gail = {"strength": 1.0, "demo_path": "recordings/Toy.demo", "network_settings": {"hidden_units": 8}}
    given = configuration("ppo", max_steps=64, reward_signals={"gail": gail}, keep_best=0)
    assert command("learn", given, "--run-id=new", "--env=sim:Toy") == 0
    assert step_of_new("ppo") >= 64


def test_a_search_goes_on(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    journal = Path(RUNS, "search", "study.journal")
    before = journal.read_bytes()
    words = ["search", "configurations/search.yaml", "--run-id=search", "--resume", "--trials=3"]
    assert main([*words, f"--results-dir={RUNS}"]) == 0
    assert journal.read_bytes().startswith(before), "what is in the journal stays"
    assert "3 trials: 3 went to the end" in capsys.readouterr().out
    assert Path(RUNS, "search", "trial-0002", "Toy", "checkpoint.pt").is_file()
