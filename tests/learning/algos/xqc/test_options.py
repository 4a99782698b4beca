"""What XQC does where the golden steps say nothing: scales, discounts, discrete actions, every kind of agent."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.learning.nn.specs import behavior, camera, entities, vector
from tests.learning.trainers.rig import OffPolicyRig, Trajectory, checkpoint_of, restore, same, vector_spec, weights
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.algos.xqc import losses
from trajtrainer.learning.algos.xqc.xqc import XQC, EpisodeLengths, gamma_for
from trajtrainer.learning.nn.normalization import projected_weights
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import load, trainer_settings

SAC_FILES = sorted((Path(__file__).parents[3] / "config" / "sac").glob("*.yaml"))
SPECS = {
    "continuous": vector_spec(3, 2),
    "branches": vector_spec(3, 0, (3, 2)),
    "hybrid": vector_spec(3, 2, (3,)),
    "everything": behavior([camera(1, 20, 20), entities(4, 3), vector(4), vector(2, "goal", goal=True)], 2, (3,)),
}


def settings(memory: int = 0, gamma: float | None = 0.9, **hyper: Any) -> TrainerSettings:
    network: dict[str, Any] = {"hidden_units": 8, "num_layers": 1}
    if memory:
        network["memory"] = {"memory_size": memory, "sequence_length": 4}
    chosen = {"batch_size": 8, "buffer_size": 400, "steps_per_update": 4, "policy_delay": 1, "learning_starts": 8}
    extrinsic = {} if gamma is None else {"gamma": gamma}
    return trainer_settings(
        {
            "trainer_type": "xqc",
            "hyperparameters": {**chosen, "critic_hidden_units": 8, "critic_num_layers": 2, **hyper},
            "network_settings": network,
            "reward_signals": {"extrinsic": extrinsic},
        }
    )


def xqc_of(rig: OffPolicyRig) -> XQC:
    assert isinstance(rig.learner, XQC)
    return rig.learner


def learned(rig: OffPolicyRig, *lengths: int, scale: float = 1.0) -> OffPolicyRig:
    for length in lengths:
        rewards = (scale * rig.rng.normal(size=length)).astype(np.float32)
        rig.put(Trajectory(length, ended=True, columns={"reward": rewards}))
        rig.trainer.advance()
    return rig


@pytest.mark.parametrize(
    ("spec", "width"),
    [
        (vector_spec(50, 2), 64),
        (vector_spec(51, 2), 128),
        (behavior([vector(60), vector(41, "more")], 2, ()), 256),
        (behavior([camera(1, 20, 20)], 2, ()), 256),
    ],
)
def test_critics_are_as_wide_as_what_agents_see_wants(spec: BehaviorSpec, width: int) -> None:
    """The policy keeps its own width."""
    learner = xqc_of(OffPolicyRig(settings(critic_hidden_units=None), spec))
    assert [len(weight) for weight in projected_weights(learner.values["q1"].body.layers)] == [width, width]
    assert [len(weight) for weight in projected_weights(learner.actor.body.layers)] == [8]


# Distributions


def test_a_shifted_distribution_is_shared_between_neighboring_atoms() -> None:
    """One atom after the other, as the definition has it."""
    generator = torch.Generator().manual_seed(4)
    distribution = torch.rand(1, 6, losses.ATOMS, generator=generator).softmax(-1)
    rewards = torch.tensor([[0.0, 0.33, -7.0, 2.0, 9.0, 0.05]])
    discount = torch.tensor([[1.0, 0.9, 0.9, 0.0, 0.5, 1.0]])
    bonus = torch.tensor([0.0, 0.2, -0.1, 3.0, 0.0, 0.0])
    atoms = losses.atoms_like(distribution)
    expected = torch.zeros_like(distribution)
    for row in range(6):
        for atom, probability in zip(atoms.tolist(), distribution[0, row].tolist(), strict=True):
            value = float(rewards[0, row] + discount[0, row] * (atom + bonus[row]))
            place = (min(max(value, -5.0), 5.0) + 5.0) / 0.1
            below = min(int(place), 99)
            expected[0, row, below] += probability * (1 - (place - below))
            expected[0, row, below + 1] += probability * (place - below)
    found = losses.projected(distribution, rewards, discount, bonus, atoms)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 6))


def test_branches_are_mixed_by_the_policy() -> None:
    """Of two branches of 2 and 3 actions."""
    probs = torch.rand(2, 1, 4, 5, losses.ATOMS).softmax(-1)
    policy = torch.cat((torch.rand(4, 2).softmax(1), torch.rand(4, 3).softmax(1)), 1)
    found = losses.expected_distribution(probs, policy, 2)
    expected = sum(policy[:, a, None] * probs[:, :, :, a] for a in range(5)) / 2
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 1, 4))


def test_the_critic_that_expects_less_is_chosen_row_by_row() -> None:
    distributions = torch.rand(2, 2, 30, losses.ATOMS).mul(9).softmax(-1)
    atoms = losses.atoms_like(distributions)
    found = losses.smaller(distributions, atoms) @ atoms
    torch.testing.assert_close(found, (distributions @ atoms).amin(0))


# Rewards


@pytest.mark.parametrize("name", ["continuous", "hybrid"])
def test_the_unit_of_rewards_does_not_matter(name: str) -> None:
    one, other = (learned(OffPolicyRig(settings(), SPECS[name]), 30, 20, scale=scale) for scale in (1.0, 64.0))
    assert xqc_of(one).gradient_steps > 5
    for mine, theirs in zip(weights(one.trainer), weights(other.trainer), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    values = [rig.statistics()["Policy/Extrinsic Value"][-1] for rig in (one, other)]
    assert values[1] == pytest.approx(64 * values[0], rel=1e-3)


def test_rewards_are_divided_by_the_deviation_of_returns_of_each_agent() -> None:
    rig = OffPolicyRig(settings(gamma=0.5), SPECS["continuous"])
    rewards = [np.array(each, np.float32) for each in ([1, 2, 3], [4, 0, 1], [5, 6])]
    rig.put(
        Trajectory(3, ended=False, agent=1, columns={"reward": rewards[0]}),
        Trajectory(3, ended=True, agent=2, columns={"reward": rewards[1]}),
    )
    rig.put(Trajectory(2, ended=True, agent=1, columns={"reward": rewards[2]}))
    rig.take_in()
    returns = [1, 2.5, 4.25, 4, 2, 2, 7.125, 9.5625]  # agent 1 goes on
    assert xqc_of(rig).deviations.tolist() == pytest.approx([np.std(returns)])
    learned(rig, 3)
    again = OffPolicyRig(settings(gamma=0.5), SPECS["continuous"], seed=3)
    restore(again.trainer, checkpoint_of(rig.trainer), reset_step=False)
    assert torch.equal(xqc_of(again).deviations, xqc_of(rig).deviations)


# The discount


def test_the_discount_looks_a_fifth_of_an_episode_ahead() -> None:
    assert [gamma_for(length) for length in (1, 100, 250, 1000, 5000)] == [0.95, 0.95, 0.98, 0.995, 0.995]
    rig = OffPolicyRig(settings(), SPECS["continuous"])
    lengths = EpisodeLengths()
    for agent, length, ended in ((1, 30, False), (2, 40, True), (1, 25, False), (2, 10, False)):
        rig.put(Trajectory(length, ended=ended, agent=agent))
    for item in rig.source.drain_into(lambda _: None, hold=False):
        lengths.add(item)  # type: ignore[arg-type]
    assert lengths.longest == 55


def test_the_discount_of_the_file_goes_before_that_of_episodes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        given = learned(OffPolicyRig(settings(gamma=0.9), SPECS["continuous"]), 300)
        assert "gamma is" not in caplog.text
        found = OffPolicyRig(settings(gamma=None, learning_starts=250), SPECS["continuous"])
        learned(found, 200)
        assert found.trainer.algorithm.gradient_steps == 0
        learned(found, 60)
        assert "gamma is 0.975, because the longest episode so far has 200 steps" in caplog.text
        learned(found, 390)  # too late
    assert given.learner.signals[0].gamma == 0.9
    assert found.learner.signals[0].gamma == 0.975
    again = OffPolicyRig(settings(gamma=None), SPECS["continuous"])
    restore(again.trainer, checkpoint_of(found.trainer), reset_step=False)
    learned(again, 390)
    assert again.learner.signals[0].gamma == 0.975


# Every kind of agent


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("memory", [0, 8])
def test_every_kind_of_agent_learns_and_its_policy_is_exported(name: str, memory: int, tmp_path: Path) -> None:
    rig = OffPolicyRig(settings(memory), SPECS[name])
    before = weights(rig.trainer)
    learned(rig, 22, 3, 15)
    assert rig.learner.gradient_steps > 5
    assert not same(weights(rig.trainer), before)
    assert all(bool(torch.isfinite(each).all()) for each in weights(rig.trainer))
    for network in (rig.learner.actor.body.layers, rig.learner.actor.head, rig.learner.values["q1"].heads):
        for weight in projected_weights(network):
            torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
    policy = recover_policy(checkpoint_of(rig.trainer), source="checkpoint.pt")
    assert same([*policy.actor.state_dict().values()], [*rig.learner.actor.state_dict().values()])
    export_policy(policy.actor, policy.spec, tmp_path / "policy.onnx")  # which compares both


@pytest.mark.parametrize("name", ["continuous", "hybrid"])
def test_a_run_repeats_bit_for_bit(name: str) -> None:
    one, other = (learned(OffPolicyRig(settings(), SPECS[name]), 30, 20) for _ in range(2))
    assert xqc_of(one).gradient_steps > 5
    assert same(weights(one.trainer), weights(other.trainer))


@pytest.mark.parametrize("name", ["continuous", "everything"])
def test_padding_leaves_no_trace(name: str) -> None:
    """Sequences of 3 and 4 steps: what their fourth rows hold does not matter."""
    rig = OffPolicyRig(settings(8), SPECS[name])
    for _ in range(4):
        rig.put(Trajectory(7, ended=True))
    rig.take_in()
    (batch,) = next(iter(rig.learner._batches.blocks(1)))
    assert batch.loss_mask is not None
    found = []
    for noise in (0.0, 100.0):
        one = OffPolicyRig(settings(8), SPECS[name])
        padding = (1.0 - batch.loss_mask) * noise
        columns = {
            column: batch[column] + padding.view(-1, *[1] * (batch[column].dim() - 1))
            for column in batch.rows
            if column.startswith(("obs", "next_obs", "continuous", "rewards")) and batch[column].is_floating_point()
        }
        one.learner.gradient_step(batch.with_rows(columns), 1e-3)
        found.append(weights(one.trainer))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["continuous", "hybrid"])
def test_what_is_saved_goes_on_alike(name: str) -> None:
    """A replay is saved by another file: here both go on with new experience."""
    first = learned(OffPolicyRig(settings(gamma=None), SPECS[name]), 30)
    again = OffPolicyRig(settings(gamma=None), SPECS[name], seed=9)
    restore(again.trainer, checkpoint_of(first.trainer), reset_step=False)
    assert same(weights(first.trainer), weights(again.trainer))
    (batch,) = next(iter(first.learner._batches.blocks(1)))
    for rig in (first, again):
        rig.learner.gradient_step(batch, 1e-3)
    assert same(weights(first.trainer), weights(again.trainer))


def test_a_fixed_entropy_coefficient_stays() -> None:
    rig = learned(OffPolicyRig(settings(ent_coef=0.25), SPECS["hybrid"]), 40)
    statistics = rig.statistics()
    for kind in ("Continuous", "Discrete"):
        assert statistics[f"Policy/{kind} Entropy Coeff"] == pytest.approx([0.25] * xqc_of(rig).gradient_steps)


def test_the_learning_rate_falls_to_a_tenth() -> None:
    xqc = xqc_of(OffPolicyRig(settings(learning_rate=1e-3), SPECS["continuous"]))
    last = xqc.context.settings.max_steps
    assert [xqc.learning_rate(step) for step in (0, last // 2, last, 2 * last)] == pytest.approx(
        [1e-3, 5.5e-4, 1e-4, 1e-4]
    )


# Configurations of SAC


@pytest.mark.parametrize("path", SAC_FILES, ids=lambda path: path.stem)
def test_a_configuration_of_sac_trains(path: Path) -> None:
    settings = load(path.read_text().replace("trainer_type: sac", "trainer_type: xqc"), path.name)
    (found,) = settings.behaviors.values()
    assert found.trainer_type == "xqc"
    learned(OffPolicyRig(found, SPECS["hybrid"]), 5)


def test_what_has_no_effect_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    found = trainer_settings(
        {
            "trainer_type": "xqc",
            "hyperparameters": {"value_network": True, "layer_norm": True},
            "network_settings": {"normalize": True, "activation": "tanh"},
        }
    )
    spec: BehaviorSpec = SPECS["everything"]
    with caplog.at_level(logging.INFO):
        rig = OffPolicyRig(found, spec)
    assert "trainer_type xqc ignores value_network, layer_norm, normalize, activation," in caplog.text
    assert "trainer_type xqc treats the goal signal 'goal' like any other observation" in caplog.text
    assert "ML-Agents cannot read the checkpoints of trainer_type xqc" in caplog.text
    assert not rig.learner.actor.body.encoder.normalizers()
