"""MA-POCA: PPO for agents in groups, with a critic that sees all of a group.

Shape legend: V reward signals, B packed steps, S trajectories, Q sequences of the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from trajtrainer.algos.algorithm import LearningContext, Statistics
from trajtrainer.algos.poca.optimizer import POCA
from trajtrainer.algos.poca.update_buffer import GroupBuffer, GroupTargets
from trajtrainer.algos.poca.values import GroupValueEstimator
from trajtrainer.algos.ppo.learner import LAYOUT as PPO_LAYOUT
from trajtrainer.algos.ppo.learner import PPOLearner
from trajtrainer.algos.ppo.update_buffer import Targets
from trajtrainer.algos.ppo.weights import WEIGHT_TAG
from trajtrainer.algos.returns import lambda_return, v_trace
from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.mlagents import OptimizerPlace
from trajtrainer.nn.multi_agent import GroupCritic

LAYOUT = replace(PPO_LAYOUT, optimizers={"adam": OptimizerPlace("Optimizer:adam", ("actor", "critic"))})


class POCALearner(PPOLearner):
    """Multi-agent posthumous credit assignment (Cohen et al. 2021).

    Values are of the whole group, so an agent whose episode has ended earns what the others still reach. An agent's
    advantage is what the group reaches beyond its baseline, the value without knowing what the agent does.
    """

    needs_groups = True
    counts_group_rewards = True
    optimizer_class = POCA
    estimator_class = GroupValueEstimator
    buffer_class = GroupBuffer
    timer = "TorchPOCAOptimizer.update"
    checkpoint_layout = LAYOUT

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """See ``Algorithm``: PPO's actor, and a critic of groups."""
        network = context.settings.network_settings
        critic = GroupCritic(context.spec, network, list(context.settings.reward_signals))
        return {"actor": Actor(context.spec, network), "critic": critic}

    def _targets(
        self,
        packed: PackedSteps,
        rewards: FloatArray,
        obs: Sequence[Tensor],
        bootstrap_obs: Sequence[Tensor],  # noqa: ARG002
    ) -> tuple[Targets, Statistics]:
        assert packed.groups is not None
        estimates = self._values.estimate(packed, self.context.spec.action_spec, self.context.device)
        bootstrap = self._bootstrap(estimates.bootstrap, packed.terminated & packed.groups.all_done)
        gammas = [signal.gamma for signal in self.signals]
        followed = rewards, estimates.values, bootstrap, packed.offset, gammas, self._hyper.lambd
        statistics = self._means("Baseline Estimate", estimates.baselines, packed)
        statistics |= self._means("Value Estimate", estimates.values, packed)
        weights, baseline_returns = None, None
        if self._weights is None:
            returns = actions = lambda_return(*followed)
        else:
            weights = self._weights.of(packed, obs)
            returns, actions = v_trace(*followed, weights.rho, weights.trace)
            # The others' actions are known to the baseline: its only correction is that of the agent's own.
            baseline_returns = estimates.baselines + weights.rho * (actions - estimates.baselines)
            statistics[WEIGHT_TAG] = weights.rho
        targets = GroupTargets(
            value=estimates.values,
            returns=returns,
            advantage=(actions - estimates.baselines).mean(0),
            critic_memory=estimates.memory,
            baseline=estimates.baselines,
            baseline_memory=estimates.baseline_memory,
            moments=estimates.moments,
            baseline_returns=baseline_returns,
            weights=weights,
        )
        return targets, statistics

    def _epoch_order(self, num_sequences: int) -> Tensor:  # noqa: ARG002
        """Return the order of the sequences in one epoch, i64 [Q]: those of a moment beside one another.

        A minibatch of whole groups has a tenth of the agents to encode where groups are of ten, whereas a row alone
        brings all its groupmates with it.
        """
        buffer = self._buffer
        assert isinstance(buffer, GroupBuffer)
        return buffer.moments_in_order(torch.randperm(buffer.num_moments, generator=self._shuffle))
