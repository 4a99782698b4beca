"""XQC against golden steps, which were computed in float64 by another program, and what must hold of any step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.learning.algos.minibatches import minibatch_of
from tests.learning.nn.specs import behavior, vector
from trajtrainer.core.timers import Timers
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.xqc.xqc import XQC
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.trainers.factory import create_algorithm
from trajtrainer.settings.yaml.convert import trainer_settings

PARTS = {
    "bn": "body.layers.norms.",
    "linear": "body.layers.layers.",
    "mean": "head.mu",
    "log_std": "head.log_sigma_layer",
    "atoms": "heads.linears.extrinsic",
}
NETWORKS = {"actor": "actor", "critic0": "q1", "critic1": "q2", "target0": "q1_target", "target1": "q2_target"}


@dataclass
class Golden:
    """A case, and XQC in the state at its start."""

    settings: dict[str, Any]
    arrays: dict[str, Tensor]
    xqc: XQC

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Arrays below a prefix by our names."""
        found = {}
        for name, array in self.arrays.items():
            if name.startswith(f"{prefix}/"):
                part, _, entry = name.removeprefix(f"{prefix}/").partition(".")
                kind = part.rstrip("0123456789")
                found[f"{PARTS[kind]}{part.removeprefix(kind)}.{entry}"] = array
        assert found
        return found

    def batch(self, update: int) -> Minibatch:
        rewards, not_done = (self.arrays[f"update{update}/{name}"] for name in ("scaled_reward", "not_done"))
        nothing = torch.zeros(len(rewards), 0)
        return minibatch_of(
            obs=[self.arrays[f"update{update}/obs"]],
            next_obs=[self.arrays[f"update{update}/next_obs"]],
            continuous=self.arrays[f"update{update}/action"],
            discrete=nothing.long(),
            mask=nothing.bool(),
            next_mask=nothing.bool(),
            rewards=rewards[None],
            discount=(self.settings["gamma"] * not_done)[None],
            noise=self.arrays[f"update{update}/noise"],
            next_noise=self.arrays[f"update{update}/next_noise"],
        )


def make(settings: dict[str, Any], observations: int, actions: int, **context: Any) -> XQC:
    spec = behavior([vector(observations)], actions)
    algorithm = create_algorithm(
        LearningContext(
            behavior="A",
            spec=spec,
            settings=trainer_settings({"trainer_type": "xqc", **settings}),
            obs_dtypes=[np.dtype(np.float32)],
            seed=0,
            device=torch.device("cpu"),
            training=False,
            timers=Timers(),
            is_stopping=lambda: False,
            **context,
        )
    )
    assert isinstance(algorithm, XQC)
    return algorithm


@pytest.fixture(params=["small", "deep"])
def golden(request: pytest.FixtureRequest, shared_data: Path) -> Golden:
    folder, name = shared_data / "golden" / "xqc", request.param
    case = json.loads((folder / f"{name}.json").read_text())
    arrays = {each: torch.from_numpy(np.asarray(array)) for each, array in np.load(folder / f"{name}.npz").items()}
    arrays = {name: array.float() if array.is_floating_point() else array for name, array in arrays.items()}
    settings = {
        "hyperparameters": {
            "tau": case["tau"],
            "target_entropy": case["target_entropy"],
            "critic_hidden_units": case["critic_width"],
            "critic_num_layers": case["critic_depth"],
        },
        "network_settings": {"hidden_units": case["actor_width"], "num_layers": case["actor_depth"]},
        "reward_signals": {"extrinsic": {"gamma": case["gamma"]}},
    }
    found = Golden(case, arrays, make(settings, case["observation"], case["action"]))
    for theirs, ours in NETWORKS.items():
        found.xqc.networks[ours].load_state_dict(found.tensors(f"start/{theirs}"))
    with torch.no_grad():
        found.xqc.log_alpha_continuous.fill_(case["start_log_alpha"])
    return found


def assert_weights(module: nn.Module, expected: dict[str, Tensor], tolerance: float) -> None:
    found = module.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close({name: found[name]}, {name: value}, rtol=0, atol=tolerance)


def steps(golden: Golden) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The updates of a case, and the statistics of each once it is made."""
    for update in range(golden.settings["updates"]):
        yield f"update{update}", golden.xqc.gradient_step(golden.batch(update), golden.settings["learning_rate"])


def test_golden_steps(golden: Golden) -> None:
    for update, statistics in steps(golden):
        for number in (0, 1):
            expected = golden.arrays[f"{update}/critic{number}/loss"]
            torch.testing.assert_close(statistics[f"Losses/Q{number + 1} Loss"], expected, rtol=0, atol=1e-5)
            critic = golden.xqc.networks[f"q{number + 1}"]
            assert_weights(critic, golden.tensors(f"{update}/critic{number}/running"), 1e-5)
            assert_weights(critic, golden.tensors(f"{update}/critic{number}/after"), 5e-5)
            target = golden.xqc.networks[f"q{number + 1}_target"]
            assert_weights(target, golden.tensors(f"{update}/target{number}/after"), 5e-5)
        expected = golden.arrays[f"{update}/actor/loss"]
        torch.testing.assert_close(statistics["Losses/Policy Loss"], expected, rtol=0, atol=1e-5)
        assert_weights(golden.xqc.actor, golden.tensors(f"{update}/actor/running"), 1e-5)
        assert_weights(golden.xqc.actor, golden.tensors(f"{update}/actor/after"), 5e-5)
        expected = golden.arrays[f"{update}/temperature/log_alpha"]
        torch.testing.assert_close(golden.xqc.log_alpha_continuous.detach(), expected, rtol=0, atol=5e-5)


def test_golden_gradients(golden: Golden) -> None:
    update, _ = next(steps(golden))
    for theirs in ("actor", "critic0", "critic1"):
        network = NETWORKS[theirs]
        found = {name: parameter.grad for name, parameter in golden.xqc.networks[network].named_parameters()}
        for name, expected in golden.tensors(f"{update}/{theirs}/gradient").items():
            if name != "body.layers.norms.0.shift":  # is 0, and not trained
                torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-5)
    expected = golden.arrays[f"{update}/temperature/gradient"]
    torch.testing.assert_close(golden.xqc.log_alpha_continuous.grad, expected, rtol=0, atol=1e-5)


def test_golden_acting(golden: Golden) -> None:
    obs, nothing = golden.arrays["act/obs"], np.zeros((len(golden.arrays["act/obs"]), 0), np.float32)
    for _ in steps(golden):
        pass
    policy = golden.xqc.actor.distribution([obs], torch.zeros(len(obs), 0, dtype=torch.bool))[0]
    torch.testing.assert_close(policy.mu, golden.arrays["act/mean"], rtol=0, atol=1e-4)
    torch.testing.assert_close(policy.log_sigma, golden.arrays["act/log_std"], rtol=0, atol=1e-4)
    acting = ActorPolicy(golden.xqc.actor, seed=0, deterministic=True)
    assert acting._fast is not None
    actions = acting.act([obs.numpy()], nothing.astype(bool), nothing)
    expected = golden.arrays["act/deterministic"]
    torch.testing.assert_close(torch.from_numpy(actions.env_continuous), expected, rtol=0, atol=1e-4)
