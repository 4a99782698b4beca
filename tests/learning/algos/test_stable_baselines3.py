"""With ``preset: baselines`` gradient steps are those of Stable-Baselines3, from the same weights on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.learning.algos.minibatches import minibatch_of
from tests.learning.algos.sac_mlagents import make_sac
from tests.learning.algos.samples import learner
from tests.learning.trainers.rig import vector_spec
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import load

sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")

SEEN, ACTIONS, GAMMA = 11, 3, 0.99
NONE_FORBIDDEN = torch.zeros(1, 0, dtype=torch.bool)


class Nothing(gymnasium.Env[Any, Any]):
    """Tells what may be seen and done."""

    def __init__(self, actions: spaces.Space[Any]) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (SEEN,), np.float32)
        self.action_space = actions


CONTINUOUS = Nothing(spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32))
DISCRETE = Nothing(spaces.Discrete(ACTIONS))


def settings(trainer: str, **hyper: Any) -> TrainerSettings:
    text = f"behaviors: {{B: {{trainer_type: {trainer}, preset: baselines, hyperparameters: {hyper}}}}}"
    return load(text, "test").behaviors["B"]


def copy_weights(theirs: Iterable[Tensor], ours: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for theirs_one, ours_one in zip(theirs, ours, strict=True):
            ours_one.copy_(theirs_one)


def assert_same(theirs: Iterable[Tensor], ours: Iterable[Tensor], tolerance: float) -> None:
    for theirs_one, ours_one in zip(theirs, ours, strict=True):
        torch.testing.assert_close(ours_one.detach(), theirs_one.detach(), rtol=0.0, atol=tolerance)


def assert_same_gradient(optimizer: Any, theirs: Iterable[Tensor], ours: dict[str, Any]) -> None:
    """By the first moments of Adam, as its first step tells but the sign.

    Theirs adds 1e-6 to what it takes the logarithm of for squashed actions.
    """
    for one, moments in zip(theirs, ours["state"].values(), strict=True):
        torch.testing.assert_close(moments["exp_avg"], optimizer.state[one]["exp_avg"], rtol=1e-3, atol=1e-6)


# SAC

ROWS = 256


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """What Stable-Baselines3 draws next; all of it must be used up."""
    queue: list[Tensor] = []
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda *_, **__: queue.pop(0))
    yield queue
    assert not queue


def sac_pair(*, stacked: bool) -> tuple[Any, SAC]:
    model = sb3.SAC("MlpPolicy", CONTINUOUS, seed=1, device="cpu")
    model.set_logger(sb3.common.logger.configure(None, []))
    sac = make_sac(vector_spec(SEEN, continuous=ACTIONS), settings("sac"), stacked=stacked)
    copy_weights(model.actor.parameters(), sac.actor.parameters())
    for number, pair in enumerate(pairs(sac)):
        for q, of_theirs in zip(pair, (model.critic, model.critic_target), strict=True):
            copy_weights(of_theirs.q_networks[number].parameters(), q.parameters())
    return model, sac


def pairs(sac: SAC) -> list[tuple[ValueNetwork, ValueNetwork]]:
    """Both Q networks, each with its copy."""
    return [(sac.values[name], sac.values[f"{name}_target"]) for name in ("q1", "q2")]


def sac_step(model: Any, sac: SAC, noise: list[Tensor]) -> None:
    """Make a gradient step of both, on rows of which a tenth end an episode."""
    obs, then = torch.randn(2, ROWS, SEEN)
    did, reward, over = torch.rand(ROWS, ACTIONS) * 2 - 1, torch.randn(ROWS), (torch.rand(ROWS) < 0.1).float()
    now, later = torch.randn(2, ROWS, ACTIONS)
    rows = SimpleNamespace(
        observations=obs,
        actions=did,
        next_observations=then,
        rewards=reward[:, None],
        dones=over[:, None],
        discounts=None,
    )
    model.replay_buffer = SimpleNamespace(sample=lambda *_, **__: rows)
    noise[:] = [now, later]
    model.train(gradient_steps=1, batch_size=ROWS)
    batch = minibatch_of(
        obs=(obs,),
        next_obs=(then,),
        mask=NONE_FORBIDDEN.expand(ROWS, 0),
        next_mask=NONE_FORBIDDEN.expand(ROWS, 0),
        continuous=did,
        discrete=torch.zeros(ROWS, 0, dtype=torch.int64),
        rewards=reward[None],
        discount=GAMMA * (1.0 - over)[None],
        noise=now,
        next_noise=later,
    )
    sac.gradient_step(batch, learning_rate=3e-4)


@pytest.mark.parametrize("stacked", [True, False])
def test_sacs_q_networks_and_entropy_coefficient(noise: list[Tensor], stacked: bool) -> None:
    torch.manual_seed(5)
    model, sac = sac_pair(stacked=stacked)
    sac_step(model, sac, noise)
    assert_same_gradient(model.critic.optimizer, model.critic.parameters(), sac.optimizer_states()["value"])
    for number, (q, copy) in enumerate(pairs(sac)):
        assert_same(model.critic.q_networks[number].parameters(), q.parameters(), 2e-5)
        assert_same(model.critic_target.q_networks[number].parameters(), copy.parameters(), 1e-6)
    torch.testing.assert_close(sac.log_alpha_continuous, model.log_ent_coef, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("stacked", [True, False])
def test_sacs_policy_is_theirs_where_it_follows_the_same_q_networks(noise: list[Tensor], stacked: bool) -> None:
    """Theirs follows those of after the step (docs/benchmarks/learning.md), which is left out for the comparison."""
    torch.manual_seed(5)
    model, sac = sac_pair(stacked=stacked)
    model.critic.optimizer.step = lambda: None
    sac_step(model, sac, noise)
    assert_same_gradient(model.actor.optimizer, model.actor.parameters(), sac.optimizer_states()["policy"])
    assert_same(model.actor.parameters(), sac.actor.parameters(), 2e-5)


# PPO

STEPS, BATCH = 15, 64


def ppo_pair(env: Nothing, spec: BehaviorSpec) -> tuple[Any, PPO]:
    chosen = settings("ppo", beta=0.01)
    hyper = {"ent_coef": 0.01, "batch_size": BATCH, "n_epochs": 1, "normalize_advantage": False}
    model = sb3.PPO("MlpPolicy", env, seed=1, device="cpu", **hyper)
    model.set_logger(sb3.common.logger.configure(None, []))
    actor, critic = Actor(spec, chosen.network_settings), ValueNetwork(spec, chosen.network_settings, ["extrinsic"])
    copy_weights(of_policy(model), actor.parameters())
    copy_weights(of_values(model), critic.parameters())
    return model, learner(spec, actor, critic, chosen)


def of_policy(model: Any) -> list[Tensor]:
    policy = model.policy
    sigma = [policy.log_std[None]] if hasattr(policy, "log_std") else []
    return [*policy.mlp_extractor.policy_net.parameters(), *sigma, *policy.action_net.parameters()]


def of_values(model: Any) -> list[Tensor]:
    return [*model.policy.mlp_extractor.value_net.parameters(), *model.policy.value_net.parameters()]


@pytest.mark.parametrize(
    ("env", "spec", "act"),
    [
        (CONTINUOUS, vector_spec(SEEN, continuous=ACTIONS), lambda: torch.randn(BATCH, ACTIONS)),
        (DISCRETE, vector_spec(SEEN, continuous=0, branches=(ACTIONS,)), lambda: torch.randint(ACTIONS, (BATCH, 1))),
    ],
    ids=["continuous", "discrete"],
)
def test_ppos_networks(env: Nothing, spec: BehaviorSpec, act: Callable[[], Tensor]) -> None:
    """Advantages are given to theirs as ours normalizes them: by the deviation of the population, not of a sample."""
    torch.manual_seed(5)
    model, ppo = ppo_pair(env, spec)
    clipped = 0.0
    for _ in range(STEPS):
        obs, did, advantage, returns = torch.randn(BATCH, SEEN), act(), torch.randn(BATCH) * 3 + 1, torch.randn(BATCH)
        with torch.no_grad():
            _, log_prob, _ = model.policy.evaluate_actions(obs, did.flatten() if env is DISCRETE else did)
        before = log_prob + 0.3 * torch.randn(BATCH)
        clipped = max(clipped, float(((log_prob - before).exp() - 1).abs().gt(0.2).float().mean()))
        rows = SimpleNamespace(
            observations=obs,
            actions=did,
            advantages=(advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8),
            returns=returns,
            old_log_prob=before,
            old_values=None,
        )
        model.rollout_buffer = SimpleNamespace(get=lambda _, rows=rows: [rows], values=np.ones(2), returns=np.ones(2))
        model.train()
        columns = ACTIONS if env is CONTINUOUS else 1
        batch = minibatch_of(
            obs=(obs,),
            mask=torch.zeros(BATCH, 0 if env is CONTINUOUS else ACTIONS, dtype=torch.bool),
            continuous=did if env is CONTINUOUS else torch.zeros(BATCH, 0),
            discrete=did if env is DISCRETE else torch.zeros(BATCH, 0, dtype=torch.int64),
            log_prob=before[:, None] / columns * torch.ones(columns),
            returns=returns[None],
            old_values=torch.zeros(1, BATCH),
            advantage=advantage,
        )
        ppo.gradient_step(batch, ppo.schedule(0))
    assert clipped > 0.2
    assert_same(of_policy(model), ppo.actor.parameters(), 2e-5)
    assert_same(of_values(model), ppo.critic.parameters(), 2e-5)
