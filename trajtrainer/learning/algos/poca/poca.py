"""MA-POCA (Cohen et al. 2021, arXiv:2111.05992): PPO for agents in groups, with a critic that observes the whole group.

Shape legend: V reward signals, B packed steps, S trajectories, Q sequences in the buffer, b rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import LearningContext, Statistics
from trajtrainer.learning.algos.poca.groups import GroupBuffer, GroupValueEstimator
from trajtrainer.learning.algos.ppo.losses import value_loss
from trajtrainer.learning.algos.ppo.ppo import LAYOUT as PPO_LAYOUT
from trajtrainer.learning.algos.ppo.ppo import PPO, WEIGHT_TAG, Loss
from trajtrainer.learning.algos.ppo.update_buffer import Memories
from trajtrainer.learning.algos.schedules import Schedule
from trajtrainer.learning.algos.values import lambda_return, v_trace
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.fast.two_cores import HalvedGroups, group_encoding
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import OptimizerPlace
from trajtrainer.learning.nn.multi_agent import GroupCritic
from trajtrainer.learning.rewards.signal import RewardSignal

LAYOUT = replace(PPO_LAYOUT, optimizers={"adam": OptimizerPlace("Optimizer:adam", ("actor", "critic"))})


class POCA(PPO):
    """Multi-agent posthumous credit assignment (MA-POCA; Cohen et al. 2021, arXiv:2111.05992).

    The critic estimates the value of the whole group, so an agent whose episode has ended still receives credit for
    what the others achieve. An agent's advantage is the group's return minus the agent's baseline b(s): the value given
    the actions of the other agents, but not the agent's own action.
    """

    needs_groups = True
    counts_group_rewards = True
    estimator_class = GroupValueEstimator
    buffer_class = GroupBuffer
    timer = "TorchPOCAOptimizer.update"
    checkpoint_layout = LAYOUT
    critic: GroupCritic

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        self._encode = group_encoding(self.critic, self._hyper.batch_size)
        if isinstance(self._encode, HalvedGroups):
            self._threads = None  # HalvedGroups already uses both cores.

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        network = context.settings.network_settings
        critic = GroupCritic(context.spec, network, list(context.settings.reward_signals))
        return {"actor": Actor(context.spec, network), "critic": critic}

    def targets(
        self,
        packed: PackedSteps,
        rewards: FloatArray,
        obs: Sequence[Tensor],
        bootstrap_obs: Sequence[Tensor],  # noqa: ARG002
    ) -> tuple[dict[str, NDArray[Any]], Memories, Statistics]:
        assert packed.groups is not None
        # V(s) of the group at each step and of its remaining members after each trajectory, and baselines b(s).
        estimates = self._values.estimate(packed, self.context.spec.action_spec, self.context.device)
        values, baselines = estimates.values, estimates.baselines
        statistics = self._means("Baseline Estimate", baselines, packed) | self._means("Value Estimate", values, packed)
        bootstrap = self._bootstrap(estimates.bootstrap, packed.terminated & packed.groups.all_done)
        gammas = [signal.gamma for signal in self.signals]
        trajectories = rewards, values, bootstrap, packed.offset, gammas, self._hyper.lambd
        columns: dict[str, NDArray[Any]] = {"value": values.T, "baseline": baselines.T}
        if not self._corrects:
            # TD(lambda): lambda-returns are the target of values and baselines.
            returns = actions = lambda_return(*trajectories)
        else:
            columns["log_prob"], rho, trace = self._importance_weights(packed, obs)
            returns, actions = v_trace(*trajectories, rho, trace)
            # The baseline depends on the others' actual actions, so only the agent's own action needs a correction.
            columns["baseline_returns"] = (baselines + rho * (actions - baselines)).T
            columns["weight"] = statistics[WEIGHT_TAG] = rho
        # A = R - b(s).
        columns |= {"returns": returns.T, "advantage": (actions - baselines).mean(0)}
        return columns, {"critic_memory": estimates.memory, "baseline_memory": estimates.baseline_memory}, statistics

    def _epoch_order(self, num_sequences: int) -> Tensor:  # noqa: ARG002
        """Shuffle the moments and keep the sequences of each moment together.

        A row needs the encodings of all its groupmates. With groups of ten, keeping groups together means that only a
        tenth as many agents have to be encoded per minibatch.
        """
        buffer = self._buffer
        assert isinstance(buffer, GroupBuffer)
        return buffer.moments_in_order(torch.randperm(buffer.num_moments, generator=self._shuffle))

    def _critic_loss(self, minibatch: Minibatch, schedule: Schedule, _diagnostics: bool) -> Loss:
        memories = minibatch.critic_memory, minibatch.baseline_memory
        groups, baseline_returns = minibatch.groups, minibatch.rows.get("baseline_returns")
        assert groups is not None
        values, baselines, _ = self.critic.of_encoding(
            self._encode(groups), groups, memories, minibatch.sequence_length
        )
        loss = critic_loss(
            values,
            baselines,
            minibatch["returns"].t(),
            minibatch.loss_mask,
            old_values=minibatch["value"].t() if self._hyper.value_clipping else None,
            old_baselines=minibatch["baseline"].t(),
            baseline_returns=None if baseline_returns is None else baseline_returns.t(),
            epsilon=schedule.epsilon,
            vf_coef=self._hyper.vf_coef,
        )
        statistics = {"Losses/Value Loss": loss.value.detach(), "Losses/Baseline Loss": loss.baseline.detach()}
        return loss.total, statistics


class CriticLoss(NamedTuple):
    """The critic's total loss and its two parts."""

    total: Tensor
    value: Tensor
    baseline: Tensor


def critic_loss(
    values: Tensor,
    baselines: Tensor,
    returns: Tensor,
    mask: Tensor | None,
    *,
    old_values: Tensor | None,
    old_baselines: Tensor,
    baseline_returns: Tensor | None = None,
    epsilon: float,
    vf_coef: float = 0.5,
) -> CriticLoss:
    """Return the squared errors of values and baselines, where baselines count half as much as values.

    Baselines are always clipped to within ``epsilon`` of the baselines at collection time, values only if
    ``old_values`` is given (docs/explanation/mlagents-behavior.md#poca).

    Args:
        values: [V, b].
        baselines: [V, b].
        returns: [V, b], the target of values and baselines.
        mask: [b], or None if all rows are real.
        old_values: [V, b], the values at collection time, or None.
        old_baselines: [V, b], the baselines at collection time.
        baseline_returns: [V, b], the target of the baselines, if it differs from ``returns``.
        epsilon: half the width of the clipping range.
        vf_coef: coefficient of the total loss.
    """
    of_values = value_loss(values, returns, mask, old_values=old_values, epsilon=epsilon)
    target = returns if baseline_returns is None else baseline_returns
    of_baselines = value_loss(baselines, target, mask, old_values=old_baselines, epsilon=epsilon)
    return CriticLoss(vf_coef * (of_values + 0.5 * of_baselines), of_values, of_baselines)
