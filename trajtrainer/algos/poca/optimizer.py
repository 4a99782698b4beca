"""MA-POCA (Cohen et al. 2021): PPO's policy loss, and a critic that knows the whole group."""

from __future__ import annotations

from dataclasses import replace

from trajtrainer.algos.poca.losses import critic_loss
from trajtrainer.algos.ppo.gradient_step import Loss, Objective
from trajtrainer.algos.ppo.optimizer import PPO
from trajtrainer.algos.schedules import Coefficients
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.fast.halves import HalvedGroups, group_encoding
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.nn.multi_agent import GroupCritic
from trajtrainer.settings.trainer import TrainerSettings


class POCA(PPO):
    """The losses of actor and ``GroupCritic``, and their schedules. Minibatches have ``groups``."""

    critic: GroupCritic

    def __init__(self, actor: Actor, critic: GroupCritic, settings: TrainerSettings) -> None:
        """See ``PPO``."""
        self._encode = group_encoding(critic, settings.hyperparameters.batch_size)
        super().__init__(actor, critic, settings)

    def objectives(self) -> list[Objective]:
        """See ``PPO``."""
        actor, critic = super().objectives()
        return [actor, replace(critic, takes_two_cores=isinstance(self._encode, HalvedGroups))]

    def _critic_loss(self, minibatch: Minibatch, coefficients: Coefficients, _diagnostics: bool) -> Loss:
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
            epsilon=coefficients.epsilon,
            vf_coef=self._hyper.vf_coef,
        )
        statistics = {"Losses/Value Loss": loss.value.detach(), "Losses/Baseline Loss": loss.baseline.detach()}
        return loss.total, statistics
