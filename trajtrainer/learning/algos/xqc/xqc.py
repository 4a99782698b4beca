"""XQC (Palenicek et al. 2026): soft actor-critic with batch normalization and weights that are normalized to length 1.

The critics' outputs are distributions over returns (Bellemare et al. 2017, arXiv:1707.06887). The critics evaluate
(s, a) and (s', a') in one pass (Bhatt et al. 2024, arXiv:1902.05605), and rewards are scaled so that returns fit into
the range of the atoms. docs/explanation/algorithms.md#xqc explains what the paper does not specify: discrete actions,
memory and several reward signals.

The symbols are those of ``trajtrainer.learning.algos.sac.sac``.

Shape legend: V reward signals, b rows of a minibatch, P distributions from a critic per signal, Z atoms.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from attrs import evolve
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import LearningContext, Statistics
from trajtrainer.learning.algos.sac.losses import entropy_target, expected_q, mean_of_rows
from trajtrainer.learning.algos.sac.networks import second_memory
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.algos.schedules import decayed
from trajtrainer.learning.algos.xqc import losses
from trajtrainer.learning.algos.xqc.networks import FOLLOWS, CategoricalCritics
from trajtrainer.learning.algos.xqc.settings import XQCHyperparameters, width_for
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.fast.adam import Adam
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import CheckpointLayout
from trajtrainer.learning.nn.normalization import batch_statistics, project, projected_weights
from trajtrainer.learning.rewards.signal import ExtrinsicReward, RewardSignal
from trajtrainer.learning.rewards.trained import OfAgents, RunningReturns
from trajtrainer.settings.network import ConditioningType, NetworkSettings

_EXTRA = "xqc"  # key in a checkpoint
_LAST_LEARNING_RATE = 0.1  # final learning rate as a fraction of the initial one
_LOWEST, _HIGHEST = 0.95, 0.995  # range of gamma_for

logger = logging.getLogger(__name__)


def gamma_for(length: int) -> float:
    """Return the discount factor whose effective horizon is a fifth of an episode.

    >>> gamma_for(40), gamma_for(500), gamma_for(100_000)
    (0.95, 0.99, 0.995)
    """
    return min(max(1.0 - 5.0 / max(length, 1), _LOWEST), _HIGHEST)


class EpisodeLengths:
    """Tracks the length of the longest episode, including unfinished episodes.

    Attributes:
        longest: length of the longest episode in steps.
        of_agent: number of steps in each agent's current episode.
    """

    def __init__(self, longest: int = 0) -> None:
        self.longest = longest
        self.of_agent = OfAgents()

    def add(self, packed: PackedSteps) -> None:
        for agent, length, ended in zip(packed.agent.tolist(), packed.lengths.tolist(), packed.ended, strict=True):
            steps = self.of_agent.get(agent, 0) + length
            self.longest = max(self.longest, steps)
            self.of_agent.keep(agent, 0 if ended else steps)


class XQC(SAC):
    """SAC with different networks, targets and losses. Experience is stored and sampled as in SAC.

    Attributes:
        critics: evaluates the critics and their target networks.
        deviations: [V], running standard deviation of each signal's discounted returns. Rewards are divided by it.
    """

    wanted_entropy: ClassVar[float] = -0.5
    critics: CategoricalCritics  # type: ignore[assignment]

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, XQCHyperparameters)
        self._auto_gamma = hyper.auto_gamma
        if context.training:
            _report_what_differs(context, hyper)
        hyper = evolve(hyper, value_network=False, layer_norm=False, dropout_rate=0.0)
        context = replace(context, settings=evolve(context.settings, hyperparameters=hyper))
        super().__init__(context, networks, signals)
        self.checkpoint_layout = CheckpointLayout()
        self._projected = projected_weights(self.actor.body.layers, self.actor.head)
        trained = [*self.actor.parameters(), self.log_alpha_discrete, self.log_alpha_continuous]
        self._policy_parameters = [parameter for parameter in trained if parameter.requires_grad]
        self._optimizer = Adam([*self.critics.parameters, *self._policy_parameters], hyper.learning_rate)

        # Discount factor and reward scale.
        self._extrinsic = next((signal for signal in signals if isinstance(signal, ExtrinsicReward)), None)
        self._lengths: EpisodeLengths | None = None  # set only while the discount factor can still change
        if self._auto_gamma and self._extrinsic is not None:
            self._lengths = EpisodeLengths(context.episode_limit or 0)
            self._extrinsic.gamma = gamma_for(self._lengths.longest)
            if context.episode_limit is not None:
                self._fix_gamma(f"episodes end after {context.episode_limit} steps")
        self._returns = [RunningReturns(one.gamma, episodic=not one.ignore_done) for one in signals]
        self._update_deviations()

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Create SAC's policy, two critics and their target networks, all with batch normalization."""
        spec, network, hyper = context.spec, context.settings.network_settings, context.settings.hyperparameters
        assert isinstance(hyper, XQCHyperparameters)
        actor = Actor(spec, network, conditional_sigma=True, tanh_squash=True, batch_norm=True)
        width = hyper.critic_hidden_units or width_for(sum(math.prod(one.shape) for one in spec.observation_specs))
        shape = evolve(network, hidden_units=width, num_layers=hyper.critic_num_layers)
        values = {
            name: ValueNetwork(
                spec,
                shape,
                list(context.settings.reward_signals),
                action_size=int(spec.action_spec.continuous_size),
                outputs=max(1, sum(spec.action_spec.discrete_branches)) * losses.ATOMS,
                batch_norm=True,
            )
            for name in (*FOLLOWS.values(), *FOLLOWS)
        }
        for copy, followed in FOLLOWS.items():
            values[copy].load_state_dict(values[followed].state_dict())
        return {"actor": actor, **values}

    def make_critics(self) -> CategoricalCritics:  # type: ignore[override]
        return CategoricalCritics(self.values)

    # Experience

    def add(self, packed: PackedSteps, rewards: FloatArray) -> Statistics:
        if self._lengths is not None and self._extrinsic is not None:
            self._lengths.add(packed)
            self._extrinsic.gamma = gamma_for(self._lengths.longest)
            self._returns[self.signals.index(self._extrinsic)].gamma = self._extrinsic.gamma
        for returns, row in zip(self._returns, rewards, strict=True):
            returns.add(packed, row)
        self._update_deviations()
        return super().add(packed, rewards)

    def reset_worker(self, worker: int | None) -> None:
        super().reset_worker(worker)
        for returns in self._returns:
            returns.of_agent.reset_worker(worker)
        if self._lengths is not None:
            self._lengths.of_agent.reset_worker(worker)

    def _update_deviations(self) -> None:
        deviations = [returns.deviation for returns in self._returns]
        self.deviations = torch.tensor(deviations, device=self.context.device)

    def _fix_gamma(self, reason: str) -> None:
        assert self._extrinsic is not None
        self._lengths = None
        logger.info("Behavior %r: gamma is %.4g, because %s.", self.context.behavior, self._extrinsic.gamma, reason)

    # Update

    def learning_rate(self, step: int) -> float:
        hyper, last = self._hyper, self.context.settings.max_steps
        least = _LAST_LEARNING_RATE * hyper.learning_rate
        return decayed(hyper.learning_rate_schedule, hyper.learning_rate, least, last, step)

    def clone(self, step: int) -> dict[str, float]:
        statistics = super().clone(step)
        if self.cloning is not None:
            project(self._projected)
        return statistics

    def gradient_step(self, batch: Minibatch, learning_rate: float, of_policy: bool = True) -> dict[str, Tensor]:
        """Update the critics, then the policy and the entropy coefficients, and move the target networks.

        The rewards in ``batch`` are unscaled. See ``SAC.gradient_step`` for the arguments and the result.
        """
        if self._lengths is not None:
            self._fix_gamma(f"the longest episode so far has {self._lengths.longest} steps")
        if self._symmetry is not None:
            batch = self._symmetry(batch)
        statistics = self._critic_step(batch, learning_rate)
        if of_policy:
            statistics |= self._policy_step(batch, learning_rate)
        self.critics.follow(self._hyper.tau)
        with torch.no_grad():
            statistics["Policy/Discrete Entropy Coeff"] = self.log_alpha_discrete.exp().mean()
            statistics["Policy/Continuous Entropy Coeff"] = self.log_alpha_continuous.exp().squeeze(0)
        return statistics

    def _critic_step(self, batch: Minibatch, learning_rate: float) -> dict[str, Tensor]:
        head, mask = self.actor.head, batch.loss_mask

        # Sample a' ~ pi(.|s') using running statistics, and evaluate (s, a) and (s', a') in one pass.
        with torch.no_grad():
            memory = second_memory(self.actor.body, batch, batch.memory)
            after = self.decide(batch.next_obs, batch["next_mask"], batch["next_noise"], memory, batch.sequence_length)
        logits, following = self.critics.joint(batch, after.action)

        # Target: r + gamma (Z' + alpha H), where Z' comes from the target network with the smaller expected return.
        with torch.no_grad():
            atoms = losses.atoms_like(following)
            policy_probs = after.policy.probs if head.branches else None
            target = losses.projected(
                losses.smaller(losses.expected_distribution(following, policy_probs, len(head.branches)), atoms),
                batch["rewards"].t() / self.deviations[:, None],
                batch["discount"].t(),
                self.entropy_bonus(after.continuous_entropy, after.discrete_entropy),
                atoms,
            )

        # Critic loss: the cross-entropy between each critic's distribution and the target.
        taken = losses.taken(logits, batch["discrete"], head.branch_starts) if head.branches else logits
        loss_q1, loss_q2 = (losses.cross_entropy(one, target, mask) for one in taken)
        self._optimizer.descend(loss_q1 + loss_q2, learning_rate, self.critics.parameters)
        self.critics.project()

        with torch.no_grad():
            means = (taken.softmax(-1) @ atoms).mean(-1)
            values = mean_of_rows(means.amin(0).t(), mask) * self.deviations
        return {
            "Losses/Q1 Loss": loss_q1.detach(),
            "Losses/Q2 Loss": loss_q2.detach(),
            **{f"Policy/{s.title} Value": one for s, one in zip(self.signals, values.unbind(), strict=True)},
        }

    def _policy_step(self, batch: Minibatch, learning_rate: float) -> dict[str, Tensor]:
        head, mask = self.actor.head, batch.loss_mask

        # Sample a ~ pi(.|s) using the minibatch's statistics, and evaluate a with the critics' running statistics.
        # Multiplying by the deviations weights the signals as if their rewards were unscaled.
        with batch_statistics(self.actor, mask=mask):
            now = self.decide(batch.obs, batch["mask"], batch["noise"], batch.memory, batch.sequence_length)
        q = self.critics.means(batch, now.action).amin(0)
        expected = expected_q(q, now.policy.probs, len(head.branches)) if head.branches else q.squeeze(2)
        share = self.deviations / self.deviations.sum()

        # Policy loss: -(min(Q1, Q2) + alpha H).
        gain = mean_of_rows(share @ expected + self.entropy_bonus(now.continuous_entropy, now.discrete_entropy), mask)
        loss = -gain

        # Loss of the entropy coefficients: alpha (H - target).
        if now.continuous_entropy is not None:
            surplus = mean_of_rows(now.continuous_entropy.detach(), mask) - self._target_entropy
            loss = loss + self.log_alpha_continuous.exp().squeeze(0) * surplus
        if now.discrete_entropy is not None:
            wanted = entropy_target(batch["mask"], self._sum_by_branch, mask)
            loss = loss + self.log_alpha_discrete.exp() @ (mean_of_rows(now.discrete_entropy.detach(), mask) - wanted)
        self._optimizer.descend(loss, learning_rate, self._policy_parameters)
        project(self._projected)
        return {"Losses/Policy Loss": -gain.detach()}

    def entropy_bonus(self, continuous: Tensor | None, discrete: Tensor | None) -> Tensor:
        """Return the entropy bonus in each state, alpha H [b], averaged over branches.

        The entropy coefficients receive no gradient.
        """
        bonus = torch.zeros((), device=self.context.device)
        if continuous is not None:
            bonus = bonus + continuous * self.log_alpha_continuous.detach().exp()
        if discrete is not None:
            bonus = bonus + discrete @ self.log_alpha_discrete.detach().exp() / len(self.actor.head.branches)
        return bonus

    # Checkpoints

    def extra_state(self) -> dict[str, Any]:
        mine: dict[str, Any] = {"returns": [returns.state() for returns in self._returns]}
        if self._auto_gamma and self._extrinsic is not None:
            mine["gamma"] = self._extrinsic.gamma
            mine["longest"] = None if self._lengths is None else self._lengths.longest
        return {**super().extra_state(), _EXTRA: mine}

    def load_extra_state(self, extra: Mapping[str, Any], step: int) -> None:
        """Restore the state returned by ``extra_state``. A discount factor from the settings is not replaced."""
        super().load_extra_state(extra, step)
        mine = extra.get(_EXTRA, {})
        for returns, state in zip(self._returns, mine.get("returns", ()), strict=False):
            returns.load_state(state)
        if self._auto_gamma and self._extrinsic is not None and "gamma" in mine:
            self._extrinsic.gamma = float(mine["gamma"])
            self._returns[self.signals.index(self._extrinsic)].gamma = self._extrinsic.gamma
            self._lengths = None if mine["longest"] is None else EpisodeLengths(int(mine["longest"]))
        self._update_deviations()


def _report_what_differs(context: LearningContext, hyper: XQCHyperparameters) -> None:
    """Log the differences from SAC that may surprise users."""
    network, usual = context.settings.network_settings, NetworkSettings()
    logger.info(
        "Behavior %r: ML-Agents cannot read the checkpoints of trainer_type xqc, but Unity can load the .onnx.",
        context.behavior,
    )
    without_effect = [name for name in ("value_network", "layer_norm") if getattr(hyper, name)]
    without_effect += ["dropout_rate"] if hyper.dropout_rate else []
    without_effect += [
        name for name in ("normalize", "activation", "initialization") if getattr(network, name) != getattr(usual, name)
    ]
    if without_effect:
        logger.info(
            "Behavior %r: trainer_type xqc ignores %s, because its layers always use batch normalization, followed by "
            "ReLU.",
            context.behavior,
            ", ".join(without_effect),
        )
    goals = [sensor.name for sensor in context.spec.observation_specs if sensor.observation_type.name == "GOAL_SIGNAL"]
    if goals and network.goal_conditioning_type is ConditioningType.HYPER:
        logger.info(
            "Behavior %r: trainer_type xqc treats the goal signal %s like any other observation.",
            context.behavior,
            ", ".join(map(repr, goals)),
        )
