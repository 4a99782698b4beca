"""``trajtrainer import``: from a file of another trainer to a model or a run that everything else takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import trajtrainer
from tests.tools.importing.test_onnx_model import model as linear_model
from trajtrainer.cli.main import main
from trajtrainer.gymnasium import UnityVectorEnv
from trajtrainer.tools.importing.command import _ACTIVATIONS
from trajtrainer.tools.importing.policy import ACTIVATIONS

ENV = ["--env", "sim:3DBall"]
TOLD = ["--activation", "tanh", "--clip", "1"]


class Agent(nn.Module):
    """CleanRL's PPO, with two actions."""

    def __init__(self, *, size: int = 8, hidden: int = 16, actions: int = 2) -> None:
        super().__init__()
        self.actor_mean = nn.Sequential(
            nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, actions)
        )
        self.actor_logstd = nn.Parameter(torch.full((1, actions), -1.5))


def agent(path: Path, seed: int = 3, **sizes: int) -> Agent:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Agent(**sizes)
    torch.save(made.state_dict(), path)
    return made


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> None:
    assert main(list(arguments)) == 0


def test_the_activations_are_those_that_are_known() -> None:
    assert set(_ACTIVATIONS) == ACTIVATIONS.keys()


def test_a_model_acts_as_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    made = agent(Path("actor.pt"))
    run("import", "actor.pt", *ENV, "-o", "3DBall.onnx", *TOLD)
    told = capsys.readouterr().err
    assert "actor.pt contains a policy (PPO of CleanRL) after 0 steps of training." in told
    assert "actor.pt does not say whether its observations were normalized" in told
    rows = np.random.default_rng(1).standard_normal((5, 8), np.float32)
    policy = trajtrainer.load_policy("3DBall.onnx")
    with torch.no_grad():
        wanted = made.actor_mean(torch.from_numpy(rows)).clamp(-1, 1).numpy()
    np.testing.assert_allclose(policy.act(rows, deterministic=True).action.continuous, wanted, atol=1e-5)


def test_a_run_is_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    made = agent(Path("actor.pt"))
    Path("results").mkdir()
    run("import", "actor.pt", *ENV, "-o", "results/theirs", *TOLD)
    settings = yaml.safe_load(Path("results/theirs/configuration.yaml").read_text())
    network = settings["behaviors"]["3DBall"]["network_settings"]
    assert (network["hidden_units"], network["num_layers"], network["activation"]) == (16, 2, "tanh")
    assert network["clip_actions"] == 1
    rows = np.random.default_rng(1).standard_normal((5, 8), np.float32)
    with torch.no_grad():
        wanted = made.actor_mean(torch.from_numpy(rows)).clamp(-1, 1).numpy()
    for place in ("results/theirs", "results/theirs/3DBall.onnx"):
        found = trajtrainer.load_policy(place).act(rows, deterministic=True).action.continuous
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    capsys.readouterr()

    settings["behaviors"]["3DBall"] |= {"max_steps": 10, "summary_freq": 1000}
    Path("next.yaml").write_text(yaml.safe_dump(settings))
    run("learn", "next.yaml", "--run-id=next", "--initialize-from=theirs")
    assert (
        "has trainer_type imported: only its policy is loaded, and the rest starts from scratch."
        in capsys.readouterr().out
    )
    found = trajtrainer.load_policy("results/next").act(rows, deterministic=True).action.continuous
    np.testing.assert_allclose(found, wanted, atol=1e-5)  # it has not learned anything yet
    before, after = (torch.load(f"results/{name}/3DBall/checkpoint.pt")["Policy"] for name in ("theirs", "next"))
    sigma = "action_model._continuous_distribution.log_sigma"
    assert torch.equal(before[sigma], after[sigma])
    assert before[sigma].flatten().tolist() == [-1.5, -1.5]


def test_a_run_of_sac() -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    envs = UnityVectorEnv("sim:3DBall").as_stable_baselines3()
    model = sb3.SAC("MlpPolicy", envs, seed=1, device="cpu", policy_kwargs={"net_arch": [32, 32]})
    model.save("ball.zip")
    envs.close()
    run("import", "ball.zip", *ENV, "-o", "theirs")
    settings = yaml.safe_load(Path("theirs/configuration.yaml").read_text())["behaviors"]["3DBall"]
    assert (settings["trainer_type"], settings["network_settings"]["activation"]) == ("sac", "relu")
    rows = np.random.default_rng(1).standard_normal((5, 8), np.float32)
    policy = trajtrainer.load_policy("theirs")
    wanted, _ = model.predict(rows, deterministic=True)
    np.testing.assert_allclose(policy.act(rows, deterministic=True).action.continuous, wanted, atol=1e-5)
    row = np.repeat(rows[:1], 20_000, 0)
    deviation = policy.act(row).action.continuous.std(0)
    np.testing.assert_allclose(deviation, model.predict(row)[0].std(0), rtol=0.05)


def test_statistics_become_a_runs_own(capsys: pytest.CaptureFixture[str]) -> None:
    made = agent(Path("actor.pt"))
    mean, var = np.linspace(-1, 1, 8), np.linspace(0.5, 2, 8)
    whole = {"mean": mean, "var": var, "epsilon": 1e-8, "clip_obs": 2.0}
    np.savez("stats.npz", **whole, count=500.0)  # type: ignore[arg-type]
    options = [*ENV, *TOLD, "--statistics", "stats.npz"]
    run("import", "actor.pt", *options, "-o", "theirs")
    policy = trajtrainer.load_policy("theirs")
    rows = np.random.default_rng(1).standard_normal((5, 8), np.float32) * 3
    normalized = torch.from_numpy(((rows - mean) / np.sqrt(var + 1e-8)).clip(-2, 2).astype(np.float32))
    with torch.no_grad():
        wanted = made.actor_mean(normalized).clamp(-1, 1).numpy()
    np.testing.assert_allclose(policy.act(rows, deterministic=True).action.continuous, wanted, atol=1e-5)
    content = torch.load("theirs/3DBall/checkpoint.pt")["Policy"]
    assert {int(value) for name, value in content.items() if name.endswith("normalization_steps")} == {500}
    np.savez("stats.npz", **whole)  # type: ignore[arg-type]
    run("import", "actor.pt", *options, "-o", "theirs.onnx")
    capsys.readouterr()
    assert main(["import", "actor.pt", *options, "-o", "other"]) == 1
    assert "do not say how many observations they cover (count)" in capsys.readouterr().err
    assert not Path("other").exists()


def test_several_sensors_have_an_order(capsys: pytest.CaptureFixture[str]) -> None:
    agent(Path("actor.pt"), size=6)
    run("import", "actor.pt", "--env", "python:tests.cli.two_sensors:Two", "-o", "two.onnx", *TOLD)
    assert "The inputs of the policy: 0 to 1 are a, 2 to 5 are b." in capsys.readouterr().err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    before = sorted(Path.cwd().rglob("*"))
    assert main(["import", *arguments]) == 1
    assert sorted(Path.cwd().rglob("*")) == before
    error = capsys.readouterr().err
    assert "error: " in error
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.zip", *ENV, "-o", "x.onnx"], "There is no file none.zip."),
        (["actor.pt", *ENV, "-o", "x.onnx"], "Pass --activation, one of tanh"),
        (
            ["actor.pt", *ENV, "-o", "x.onnx", "--activation", "tanh"],
            "cannot be imported for '3DBall': it does not say",
        ),
        (
            ["actor.pt", "--env", "sim:Basic", "-o", "x.onnx", *TOLD],
            "cannot be imported for 'Basic': its layers do not",
        ),
        (["actor.pt", *ENV, "-o", "there.onnx", *TOLD], "there.onnx already exists"),
        (["actor.pt", *ENV, "-o", "no/such.onnx", *TOLD], "is in the folder no, which does not exist"),
        (["actor.pt", *ENV, "-o", "folder", *TOLD], "folder already exists. Expected the folder of a new run"),
        (["actor.pt", *ENV, "-o", "no/run", *TOLD], "no/run is in a folder that does not exist"),
        (["actor.pt", *ENV, "-o", "x.onnx", *TOLD, "--behavior", "Ball"], "no behavior 'Ball'"),
        (
            ["actor.pt", *ENV, "-o", "x", "--activation", "elu", "--clip", "1"],
            "its activation is not one of swish, tanh",
        ),
        (["uneven.pt", *ENV, "-o", "x", *TOLD], "its layers (16, 9) are not linear layers of the same size"),
        (["model.onnx", *ENV, "-o", "x", *TOLD], "model.onnx can only be converted to a model"),
        (["damaged.zip", *ENV, "-o", "x.onnx"], "it is damaged, or not a file of weights"),
    ],
)
def test_what_it_cannot_do(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    agent(Path("actor.pt"))
    uneven = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 9), nn.Tanh(), nn.Linear(9, 2))
    torch.save({f"actor_mean.{name}": value for name, value in uneven.state_dict().items()}, "uneven.pt")
    Path("model.onnx").write_bytes(linear_model().SerializeToString())
    Path("there.onnx").write_text("mine")
    Path("damaged.zip").write_bytes(b"PK\x03\x04" + b"x" * 100)
    Path("folder").mkdir()
    assert message in refused(capsys, *arguments)


def test_all_that_is_wrong_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "none.zip", "--env", "sim:3DBal", "-o", "no/x.onnx", "--statistics", "none.npz")
    for part in ("There is no file none.zip.", "Did you mean '3DBall'?", "is in the folder no", "no file none.npz"):
        assert part in error


@pytest.mark.parametrize("option", ["--clip=0", "--clip=2:1", "--clip=x", "--image-scale=-1", "--activation=gelu"])
def test_wrong_usage(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "x.pt", "-o", "x.onnx", option]) == 2
    assert option.split("=")[0] in capsys.readouterr().err


def returns(act: Any, episodes: int) -> list[list[float]]:
    """What the agents of 3DBall earn, episode by episode."""
    envs = UnityVectorEnv("sim:3DBall", seed=11).as_stable_baselines3()
    observations, totals = envs.reset(), np.zeros(envs.num_envs)
    found: list[list[float]] = [[] for _ in range(envs.num_envs)]
    while min(map(len, found)) < episodes:
        observations, rewards, dones, _ = envs.step(act(observations))
        totals += rewards
        for agent_ in np.flatnonzero(dones):
            found[agent_].append(float(totals[agent_]))
            totals[agent_] = 0
    envs.close()
    return [each[:episodes] for each in found]


MODELS: dict[str, dict[str, Any]] = {
    "PPO": {"n_steps": 64, "batch_size": 256},
    "SAC": {"learning_starts": 100, "train_freq": 8, "policy_kwargs": {"net_arch": [32, 32]}},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_same_is_earned_episode_by_episode(name: str) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    envs = UnityVectorEnv("sim:3DBall").as_stable_baselines3()
    model = getattr(sb3, name)("MlpPolicy", envs, seed=1, device="cpu", **MODELS[name]).learn(600)
    model.save("ball.zip")
    envs.close()
    run("import", "ball.zip", *ENV, "-o", "3DBall.onnx")
    policy = trajtrainer.load_policy("3DBall.onnx")
    theirs = returns(lambda seen: model.predict(seen, deterministic=True)[0], 1)
    ours = returns(lambda seen: policy.act(seen, deterministic=True).action.continuous, 1)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
