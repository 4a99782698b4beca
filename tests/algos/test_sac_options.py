"""The options of SAC that ML-Agents does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.algos.sac_mlagents import make_sac
from tests.fast.samples import SPECS
from tests.nn.specs import network
from tests.trainers.rig import OffPolicyRig, Trajectory, same, vector_spec, weights
from trajtrainer.algos.sac.values import SeparateEvaluation
from trajtrainer.nn.conditioning import linears
from trajtrainer.nn.critic import Critic
from trajtrainer.settings.convert import trainer_settings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.problems import ConfigurationError
from trajtrainer.settings.trainer import SACHyperparameters, TrainerSettings

GAMMA = 0.99
REGULARIZED = {"layer_norm": True, "dropout_rate": 0.1}


def settings(**hyper: Any) -> TrainerSettings:
    chosen = {"batch_size": 8, "buffer_size": 400, "steps_per_update": 4, **hyper}
    return TrainerSettings(
        trainer_type="sac",
        hyperparameters=SACHyperparameters(**chosen),
        network_settings=NetworkSettings(hidden_units=8, num_layers=1),
    )


@pytest.mark.parametrize("buffer_size", [400, 40])
def test_several_steps_count_until_the_trajectory_ends(buffer_size: int) -> None:
    """Each observation tells its trajectory and step, so that what followed can be told without the replay."""
    lengths, ends = [1, 5, 2, 7, 3, 4, 9, 6, 8, 1, 2], [True, False, True]
    rig = OffPolicyRig(settings(n_step=3, buffer_size=buffer_size), vector_spec(2, 1))
    rewards = []
    for number, length in enumerate(lengths):
        rewards.append(np.random.default_rng(number).normal(size=length).astype(np.float32))
        obs = np.stack((np.full(length + 1, number), np.arange(length + 1)), 1).astype(np.float32)
        columns = {"obs.0": obs, "reward": rewards[-1]}
        rig.put(Trajectory(length, ended=ends[number % 3], agent=number, columns=columns))
    rig.take_in()

    seen = set()
    for block in rig.learner._batches.blocks(40):
        for batch in block:
            rows = batch.obs[0], batch.next_obs[0], batch["rewards"], batch["discount"]
            listed = zip(*(column.tolist() for column in rows), strict=True)
            for (number, step), (same_one, after), (reward,), (discount,) in listed:
                length, own = lengths[int(number)], rewards[int(number)]
                count = min(3, length - int(step))
                seen.add((number, step))
                assert (same_one, after) == (number, step + count)
                assert reward == pytest.approx(sum(GAMMA**i * own[int(step) + i] for i in range(count)), abs=1e-5)
                is_over = step + count == length and ends[int(number) % 3]
                assert discount == pytest.approx(0.0 if is_over else GAMMA**count)
    assert len(seen) > 20


def test_several_steps_need_trajectories_as_long_and_no_memory() -> None:
    with pytest.raises(ConfigurationError, match="n_step: found 5, expected at most time_horizon"):
        trainer_settings({"trainer_type": "sac", "hyperparameters": {"n_step": 5}, "time_horizon": 4})
    with pytest.raises(ConfigurationError, match=r"n_step: found 2, expected 1 with network_settings\.memory"):
        trainer_settings({"trainer_type": "sac", "hyperparameters": {"n_step": 2}, "network_settings": {"memory": {}}})


def test_the_entropy_that_is_aimed_at() -> None:
    gradients = []
    for target in (None, -2.0, 5.0):
        rig = OffPolicyRig(settings(target_entropy=target), vector_spec(2, 2))
        rig.put(Trajectory(30, ended=True))
        rig.take_in()
        (batch,) = next(iter(rig.learner._batches.blocks(1)))
        rig.learner._sac.loss(batch)[0].backward()  # type: ignore[no-untyped-call]
        (gradient,) = rig.learner._sac.log_alpha_continuous.grad.tolist()  # type: ignore[union-attr]
        gradients.append(gradient)

    assert gradients[0] == gradients[1]
    assert gradients[2] == pytest.approx(gradients[1] - 7.0, rel=1e-5)


def test_layers_of_q_networks_are_normalised() -> None:
    options = TrainerSettings(
        trainer_type="sac", hyperparameters=SACHyperparameters(layer_norm=True), network_settings=network(layers=1)
    )
    sac = make_sac(SPECS["continuous"], options)  # asks for stacked networks, which these are not
    critic: Critic = sac.networks.q1
    (linear,) = linears(critic.body.modules())
    obs, actions = [torch.randn(6, 4), torch.randn(6, 3)], torch.randn(6, 2)

    values, _ = critic(obs, actions=actions)

    hidden = F.silu(F.layer_norm(linear(torch.cat([*obs, actions], 1)), (16,)))
    torch.testing.assert_close(values, critic.heads(hidden))
    assert isinstance(sac._evaluate, SeparateEvaluation)


def test_what_is_dropped_goes_on_after_a_checkpoint() -> None:
    def trained(rig: OffPolicyRig, seed: int) -> OffPolicyRig:
        rig.rng = np.random.default_rng(seed)
        rig.put(Trajectory(24, ended=True))
        rig.trainer.advance()
        return rig

    first = trained(OffPolicyRig(settings(**REGULARIZED)), 1)
    state = first.trainer.checkpoint_state()
    again = OffPolicyRig(settings(**REGULARIZED), seed=5)
    again.trainer.restore(state, reset_step=False)

    drawn = [rig.learner.generators()["dropout"].get_state() for rig in (first, again)]
    assert torch.equal(*drawn)
    fresh = OffPolicyRig(settings(**REGULARIZED))
    assert not same(weights(first.trainer), weights(fresh.trainer))
    assert "dropout" not in OffPolicyRig(settings()).learner.generators()
