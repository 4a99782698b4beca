"""Our networks with ML-Agents' weights give ML-Agents' numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.nn.golden import PPO_CASES, SAC_CASES, Case, policy_case
from trajtrainer.nn.critic import Critic, SharedCritic
from trajtrainer.nn.heads import ActionDistribution

TOLERANCE = 1e-5
SEQUENCES = ("ppo_lstm", "ppo_shared_critic_lstm", "sac_lstm")


@pytest.fixture(params=PPO_CASES + SAC_CASES)
def case(request: pytest.FixtureRequest, shared_data: Path) -> Case:
    return policy_case(shared_data, request.param)


@pytest.fixture(params=SEQUENCES)
def recurrent(request: pytest.FixtureRequest, shared_data: Path) -> Case:
    return policy_case(shared_data, request.param)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def check_distribution(case: Case, distribution: ActionDistribution, prefix: str = "") -> None:
    continuous, discrete = case[f"{prefix}action_continuous"], case[f"{prefix}action_discrete"]
    parts = []
    if continuous.shape[1]:
        close(distribution.mu, case[f"{prefix}mu"])
        close(distribution.sigma.expand_as(distribution.mu), case[f"{prefix}sigma"])
        close(distribution.log_sigma.expand_as(distribution.mu), case[f"{prefix}log_sigma"])
        close(distribution.continuous_log_prob(continuous), case[f"{prefix}log_probs_continuous"])
        close(distribution.continuous_entropy().expand(len(continuous)), case[f"{prefix}entropy_each"][:, 0])
        parts.append(case[f"{prefix}log_probs_continuous"])
    if discrete.shape[1]:
        # Forbidden actions stand at -1e8, where a float's next neighbour is 8 away.
        torch.testing.assert_close(
            distribution.masked_logits, case[f"{prefix}logits_masked"], atol=TOLERANCE, rtol=1e-6
        )
        close(distribution.probs, case[f"{prefix}probs"])
        close(distribution.all_log_probs, case[f"{prefix}all_log_probs"])
        close(distribution.discrete_log_prob(discrete), case[f"{prefix}log_probs_discrete"])
        parts.append(case[f"{prefix}log_probs_discrete"])
    close(distribution.log_prob(continuous, discrete), torch.cat(parts, 1))
    close(distribution.entropy(), case[f"{prefix}entropy"])
    best = distribution.deterministic()
    if continuous.shape[1]:
        expected = case[f"{prefix}deterministic_sample_continuous"]
        close(best.continuous, expected.tanh() if case.is_sac else expected)
    if discrete.shape[1]:
        assert torch.equal(best.discrete, case[f"{prefix}deterministic_sample_discrete"].long())


@torch.no_grad()
def test_actor(case: Case) -> None:
    actor = case.actor()
    encoder_out, _ = actor.body.encoder(case.obs())
    close(encoder_out, case["encoder_out"])
    encoding, memory = actor.body(case.obs(), None, case.memory())
    close(encoding, case["body_out"])
    if case.memory() is not None:
        close(memory, case["memory_out"].squeeze(0))
    distribution, _ = actor.distribution(case.obs(), case.mask(), case.memory())
    check_distribution(case, distribution)


@torch.no_grad()
def test_values(case: Case) -> None:
    critic = case.critic(case.actor())
    values, memory = critic(case.obs(), case.critic_memory())
    for value, signal in zip(values, case.signals, strict=True):
        close(value, case[f"value_{signal}"])
    if case.critic_memory() is not None:
        close(memory, case["critic_memory_out"].squeeze(0))


@torch.no_grad()
def test_sequences(recurrent: Case) -> None:
    case = recurrent
    actor = case.actor()
    length = case.described["sequence"]["length"]
    obs, memory = case.obs("seq_"), case["seq_memory_in"].squeeze(0)
    encoding, memory_out = actor.body(obs, None, memory, length)
    close(encoding, case["seq_body_out"])
    close(memory_out, case["seq_memory_out"].squeeze(0))
    distribution, _ = actor.distribution(obs, case.mask("seq_"), memory, length)
    check_distribution(case, distribution, "seq_")
    values, memory_out = case.critic(actor)(obs, case["seq_critic_memory_in"].squeeze(0), length)
    close(values[0], case["seq_value_extrinsic"])
    close(memory_out, case["seq_critic_memory_out"].squeeze(0))


@torch.no_grad()
def test_sampling_with_the_noise_that_the_peer_drew(case: Case) -> None:
    distribution, _ = case.actor().distribution(case.obs(), case.mask(), case.memory())
    expected = []
    discrete = case["sample_discrete"].long() if "sample_discrete" in case else torch.empty(len(case.obs()[0]), 0)
    continuous = distribution.mu
    if "sample_continuous" in case:
        noise = case["sample_draw_0_randn_like"]
        continuous = distribution.continuous_from_noise(noise)
        close(continuous, case["sample_continuous"])
        close(distribution.to_env(continuous), case["sample_env_continuous"])
        expected.append(case["sample_log_probs_continuous"])
    if "sample_discrete" in case:
        expected.append(case["sample_log_probs_discrete"])
    close(distribution.log_prob(continuous, discrete), torch.cat(expected, 1))


@pytest.mark.parametrize("name", ["ppo_shared_critic", "ppo_shared_critic_lstm", "ppo_buffer_vector"])
@torch.no_grad()
def test_one_pass_of_a_shared_critic_is_the_same(shared_data: Path, name: str) -> None:
    case = policy_case(shared_data, name)
    actor = case.actor()
    critic = case.critic(actor)
    assert isinstance(critic, SharedCritic)
    distribution, values, memory = critic.actor_and_values(case.obs(), case.mask(), case.memory())
    check_distribution(case, distribution)
    alone, memory_alone = critic(case.obs(), case.memory())
    close(values, alone)
    close(memory, memory_alone)


@pytest.mark.parametrize("name", SAC_CASES)
@torch.no_grad()
def test_q_and_target_networks(shared_data: Path, name: str) -> None:
    case = policy_case(shared_data, name)
    target = case.value_network("Optimizer:target_network")
    values, _ = target(case.obs(), case.critic_memory())
    for value, signal in zip(values, case.signals, strict=True):
        close(value, case[f"target_value_{signal}"])
    action = case.spec.action_spec
    outputs = max(1, sum(action.discrete_branches))
    for q in ("q1", "q2"):
        network = case.value_network(
            "Optimizer:q_network", f"{q}_network.", action_size=action.continuous_size, outputs=outputs
        )
        assert isinstance(network, Critic)
        actions = case["action_continuous"] if action.continuous_size else None
        values, _ = network(case.obs(), case.critic_memory(), actions=actions)
        for value, signal in zip(values, case.signals, strict=True):
            close(value, case[f"{q}_{signal}"])
