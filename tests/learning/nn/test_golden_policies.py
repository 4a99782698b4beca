"""Our networks with ML-Agents' weights give ML-Agents' numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.experience.groups import padded_groups
from tests.learning.nn.golden import POCA_CASES, PPO_CASES, SAC_CASES, Case, policy_case
from trajtrainer.learning.algos.poca.groups import gathered, moments_of
from trajtrainer.learning.nn.critic import SharedCritic, ValueNetwork
from trajtrainer.learning.nn.heads import ActionDistribution
from trajtrainer.learning.nn.multi_agent import GroupRows, flat_actions

TOLERANCE = 1e-5
SEQUENCES = ("ppo_lstm", "ppo_shared_critic_lstm", "sac_lstm", "poca_lstm")


@pytest.fixture(params=PPO_CASES + SAC_CASES + POCA_CASES)
def case(request: pytest.FixtureRequest, shared_data: Path) -> Case:
    return policy_case(shared_data, request.param)


@pytest.fixture(params=POCA_CASES)
def groups(request: pytest.FixtureRequest, shared_data: Path) -> Case:
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
        close(distribution.scale.entropy.expand(len(continuous)), case[f"{prefix}entropy_each"][:, 0])
        parts.append(case[f"{prefix}log_probs_continuous"])
    if discrete.shape[1]:
        # Forbidden actions stand at -1e8, where a float's next neighbor is 8 away.
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


@pytest.mark.parametrize("name", PPO_CASES + SAC_CASES)
@torch.no_grad()
def test_values(shared_data: Path, name: str) -> None:
    case = policy_case(shared_data, name)
    critic = case.critic(case.actor())
    values, memory = critic(case.obs(), case.critic_memory())
    for value, signal in zip(values, case.signals, strict=True):
        close(value, case[f"value_{signal}"])
    if case.critic_memory() is not None:
        close(memory, case["critic_memory_out"].squeeze(0))


def group_rows(case: Case, count: Tensor) -> GroupRows:
    """The rows with the first ``count`` of their groupmates."""
    mates = padded_groups(
        [sensor.numpy() for sensor in case.obs("group_")],
        case["group_continuous"].numpy(),
        case["group_discrete"].numpy(),
        count.numpy(),
    )
    rows = len(count)
    moments = moments_of(np.arange(rows), mates.mates)
    others = mates.others.map(torch.from_numpy)
    obs = [torch.cat(pair) for pair in zip(case.obs(), others.obs, strict=True)]
    continuous = torch.cat((case["action_continuous"], others["continuous"]))
    actions = flat_actions(continuous, torch.cat((case["action_discrete"], others["discrete"])), case.spec.action_spec)
    return gathered(
        torch.from_numpy(moments.members),
        torch.from_numpy(moments.of_step),
        torch.arange(rows),
        lambda numbers: ([sensor[numbers] for sensor in obs], actions[numbers]),
    )


@pytest.mark.parametrize("tag", ["first", "again", "alone"])
@torch.no_grad()
def test_values_and_baselines_of_groups(groups: Case, tag: str) -> None:
    case, critic = groups, groups.group_critic()
    count = case["group_count"] if tag != "alone" else torch.zeros_like(case["group_count"])
    before = case[f"max_group_before_{tag}" if tag != "alone" else "max_group_after"]
    critic.body.max_group_size.copy_(before)
    memory = case.critic_memory()
    values, baselines, memories = critic(group_rows(case, count), (memory, memory))
    for value, baseline, signal in zip(values, baselines, case.signals, strict=True):
        close(value, case[f"value_{signal}_{tag}"])
        close(baseline, case[f"baseline_{signal}_{tag}"])
    if memory is not None and tag != "alone":
        close(memories[0], case[f"value_memory_out_{tag}"].squeeze(0))
        close(memories[1], case[f"baseline_memory_out_{tag}"].squeeze(0))
    assert critic.body.max_group_size == case["max_group_after"]


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
    if case.name in POCA_CASES:
        return  # the values of sequences of groups are not among the golden numbers
    values, memory_out = case.critic(actor)(obs, case["seq_critic_memory_in"].squeeze(0), length)
    close(values[0], case["seq_value_extrinsic"])
    close(memory_out, case["seq_critic_memory_out"].squeeze(0))


@torch.no_grad()
def test_sampling_with_the_noise_that_mlagents_drew(case: Case) -> None:
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
        assert isinstance(network, ValueNetwork)
        actions = case["action_continuous"] if action.continuous_size else None
        values, _ = network(case.obs(), case.critic_memory(), actions=actions)
        for value, signal in zip(values, case.signals, strict=True):
            close(value, case[f"{q}_{signal}"])
