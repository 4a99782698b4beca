"""Behavioral cloning in addition to another algorithm: gradient steps on demonstrations as part of each update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trajtrainer.learning.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.fast.adam import Adam
from trajtrainer.learning.nn.minibatch import Minibatch, masked_mean
from trajtrainer.learning.rewards.demonstrations import DemonstrationRows
from trajtrainer.settings.components import Hyperparameters, ScheduleType
from trajtrainer.settings.trainer import BehavioralCloningSettings

DEFAULT_EPOCHS = 3
TAG = "Losses/Pretraining Loss"


def cloning_loss(actor: Actor, minibatch: Minibatch) -> Tensor:
    """Return a policy's loss on demonstrated steps, summed over continuous and discrete actions, 0-d.

    Args:
        actor: the policy.
        minibatch: ``obs``, ``mask`` and the actions to imitate; ``continuous`` has raw actions (see
            ``ActionHead.from_env``). With standard normal ``noise``, f32 [b, C], the policy's actions are sampled, as
            in ML-Agents; without it, they are the means.
    """
    distribution, _ = actor.distribution(minibatch.obs, minibatch["mask"], minibatch.memory, minibatch.sequence_length)
    losses = []
    if actor.head.continuous_size:
        noise = minibatch.rows.get("noise")
        done = distribution.deterministic().continuous if noise is None else distribution.continuous_from_noise(noise)
        losses.append(masked_mean((done - minibatch["continuous"]).square(), minibatch.loss_mask))
    if distribution.branches:
        # As in ML-Agents, cross_entropy normalizes ln(p + 1e-7) again.
        parts = distribution.all_log_probs.split_with_sizes(list(distribution.branches), 1)
        pairs = zip(parts, minibatch["discrete"].unbind(1), strict=True)
        each = torch.stack([F.cross_entropy(found, wanted, reduction="none") for found, wanted in pairs], 1)
        losses.append(masked_mean(each, minibatch.loss_mask))
    return losses[0] if len(losses) == 1 else losses[0] + losses[1]


class BehavioralCloning:
    """Pulls a policy toward demonstrations, with its own Adam optimizer, while another algorithm trains the policy.

    The learning rate is the algorithm's initial learning rate times ``strength``. With ``steps``, it decays linearly to
    0 at that step, where cloning stops.
    """

    def __init__(
        self,
        actor: Actor,
        demonstrations: DemonstrationRows,
        settings: BehavioralCloningSettings,
        hyper: Hyperparameters,
        seed: int,
    ) -> None:
        """Prepare cloning.

        Args:
            actor: the policy, on its device.
            demonstrations: the demonstrated steps, at least one sequence.
            settings: the settings in ``behavioral_cloning``.
            hyper: the algorithm's hyperparameters, for the learning rate, and for ``batch_size`` if the settings have
                none.
            seed: seed for the order of the sequences and for the policy's noise.
        """
        self._actor = actor
        self._demonstrations = demonstrations
        self._learning_rate = hyper.learning_rate * settings.strength
        self._steps = settings.steps
        self._schedule = ScheduleType.LINEAR if settings.steps else ScheduleType.CONSTANT
        self._epochs = settings.num_epoch or DEFAULT_EPOCHS
        # A minibatch consists of whole sequences and contains each sequence at most once.
        length = demonstrations.sequence_length
        sequences = min(max(1, (settings.batch_size or hyper.batch_size) // length), demonstrations.num_sequences)
        self._batch_size = sequences * length
        self._per_epoch = len(demonstrations) // self._batch_size
        if settings.samples_per_update:
            self._per_epoch = min(self._per_epoch, max(1, settings.samples_per_update // self._batch_size))
        self._optimizer = Adam(actor.parameters(), self._learning_rate)
        self._shuffle = torch.Generator().manual_seed(seed)
        self._noise = torch.Generator(demonstrations.rows["mask"].device).manual_seed(seed ^ 1)

    @property
    def steps_per_update(self) -> int:
        """The number of gradient steps in each call of ``update``."""
        return self._epochs * self._per_epoch

    def update(
        self, step: int, until_stop: Callable[[Iterator[Minibatch]], Iterator[Minibatch]] = iter
    ) -> dict[str, float]:
        """Train for the configured number of epochs.

        Args:
            step: the trainer step, for the learning rate.
            until_stop: see ``Algorithm.until_stop``.

        Returns:
            The mean loss by tag; 0 after cloning has stopped.
        """
        losses: list[Tensor] = []
        learning_rate = decayed(self._schedule, self._learning_rate, MIN_LEARNING_RATE, self._steps, step)
        if learning_rate > MIN_LEARNING_RATE:
            self._optimizer.param_groups[0]["lr"] = learning_rate
            losses = [self.gradient_step(minibatch) for minibatch in until_stop(self._minibatches())]
        return {TAG: torch.stack(losses).mean().item() if losses else 0.0}

    def _minibatches(self) -> Iterator[Minibatch]:
        demonstrations = self._demonstrations
        used = self._per_epoch * self._batch_size // demonstrations.sequence_length
        for _ in range(self._epochs):
            yield from demonstrations.minibatches(self._epoch_order()[:used], self._batch_size)

    def _epoch_order(self) -> Tensor:
        return torch.randperm(self._demonstrations.num_sequences, generator=self._shuffle)

    def gradient_step(self, minibatch: Minibatch) -> Tensor:
        """Make one gradient step and return the loss, 0-d."""
        loss = cloning_loss(self._actor, minibatch.with_rows({"noise": self._normal(minibatch["continuous"])}))
        self._optimizer.descend(loss)
        return loss.detach()

    def _normal(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=self._noise)

    def state(self) -> dict[str, Any]:
        """Return the optimizer's state. Tensors are not copied."""
        return self._optimizer.state_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``state``.

        Raises:
            ValueError: the state belongs to another policy.
        """
        self._optimizer.load_state_dict(state)

    def generators(self) -> dict[str, torch.Generator]:
        """Return the random generators by their names in the checkpoint."""
        return {"cloning": self._shuffle, "cloning_noise": self._noise}
