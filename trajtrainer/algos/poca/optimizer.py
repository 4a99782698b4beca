"""MA-POCA (Cohen et al. 2021): PPO's policy loss, and a critic that knows the whole group."""

from __future__ import annotations

from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.algos.poca.losses import critic_loss
from trajtrainer.algos.ppo.optimizer import PPO
from trajtrainer.algos.schedules import Coefficients
from trajtrainer.fast.gradient_step import Loss


class POCA(PPO):
    """The losses of actor and ``GroupCritic``, and their schedules. Minibatches have ``groups``."""

    def _critic_loss(self, minibatch: Minibatch, coefficients: Coefficients, _diagnostics: bool) -> Loss:
        memories = minibatch.critic_memory, minibatch.baseline_memory
        values, baselines, _ = self.critic(minibatch.groups, memories, minibatch.sequence_length)
        loss = critic_loss(
            values,
            baselines,
            minibatch["returns"].t(),
            minibatch.loss_mask,
            old_values=minibatch["value"].t() if self._hyper.value_clipping else None,
            old_baselines=minibatch["baseline"].t(),
            epsilon=coefficients.epsilon,
        )
        statistics = {"Losses/Value Loss": loss.value.detach(), "Losses/Baseline Loss": loss.baseline.detach()}
        return loss.total, statistics
