"""Behavioral cloning beside the training: some gradient steps on demonstrations after each update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trajtrainer.algos.schedules import MIN_LEARNING_RATE, decayed
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch, masked_mean
from trajtrainer.rewards.demonstrations import DemonstrationRows
from trajtrainer.settings.components import Hyperparameters, ScheduleType
from trajtrainer.settings.trainer import BehavioralCloningSettings


def cloning_loss(actor: Actor, minibatch: Minibatch) -> Tensor:
    """The loss of a policy on demonstrated steps, a 0-d tensor: that of both kinds of actions together.

    Args:
        actor: the policy.
        minibatch: ``obs``, ``mask`` and the actions that are to be imitated, ``continuous`` as the policy gives them
            (see ``ActionHead.from_env``). With ``noise`` f32 [b, C], standard normal, the actions are sampled by it,
            as ML-Agents does; without, they are the means.
    """
    distribution, _ = actor.distribution(minibatch.obs, minibatch["mask"], minibatch.memory, minibatch.sequence_length)
    losses = []
    if actor.head.continuous_size:
        noise = minibatch.rows.get("noise")
        done = distribution.deterministic().continuous if noise is None else distribution.continuous_from_noise(noise)
        losses.append(squared_error(done, minibatch["continuous"], minibatch.loss_mask))
    if distribution.branches:
        found = distribution.all_log_probs
        losses.append(cross_entropy(found, minibatch["discrete"], distribution.branches, minibatch.loss_mask))
    return losses[0] if len(losses) == 1 else losses[0] + losses[1]


def squared_error(actions: Tensor, wanted: Tensor, mask: Tensor | None) -> Tensor:
    """The mean squared difference of continuous actions [b, C], over all of them in the real rows."""
    return masked_mean((actions - wanted).square(), mask)


def cross_entropy(all_log_probs: Tensor, wanted: Tensor, branches: Sequence[int], mask: Tensor | None) -> Tensor:
    """The cross entropy of the actions of each branch, mean over branches and real rows.

    Args:
        all_log_probs: ln(p + 1e-7) of all actions [b, D]. What was added is normalized away again, as in ML-Agents.
        wanted: i64 [b, K].
        branches: their K sizes.
        mask: f32 [b], 0 in padding; None when every row is real.
    """
    parts = zip(all_log_probs.split_with_sizes(list(branches), 1), wanted.unbind(1), strict=True)
    each = torch.stack([F.cross_entropy(found, right, reduction="none") for found, right in parts], 1)
    return masked_mean(each, mask)


DEFAULT_EPOCHS = 3
TAG = "Losses/Pretraining Loss"


class BehavioralCloning:
    """Pull a policy toward demonstrations, with an Adam of its own, while another algorithm trains it.

    The learning rate is the algorithm's first one times ``strength``; with ``steps`` it falls to nothing until then,
    and the demonstrations are left alone afterwards.
    """

    def __init__(
        self,
        actor: Actor,
        demonstrations: DemonstrationRows,
        settings: BehavioralCloningSettings,
        hyper: Hyperparameters,
        seed: int,
    ) -> None:
        """Take the policy as it is, on its device.

        Args:
            actor: the policy.
            demonstrations: at least one sequence.
            settings: of the cloning.
            hyper: of the algorithm: learning rate, and ``batch_size`` unless the cloning has its own.
            seed: of the order of minibatches and the policy's noise.
        """
        self._actor = actor
        self._demonstrations = demonstrations
        self._learning_rate = hyper.learning_rate * settings.strength
        self._steps = settings.steps
        self._schedule = ScheduleType.LINEAR if settings.steps else ScheduleType.CONSTANT
        self._epochs = settings.num_epoch or DEFAULT_EPOCHS
        # Whole sequences, and no more than there are.
        length = demonstrations.sequence_length
        sequences = min(max(1, (settings.batch_size or hyper.batch_size) // length), demonstrations.num_sequences)
        self._batch_size = sequences * length
        self._per_epoch = len(demonstrations) // self._batch_size
        if settings.samples_per_update:
            self._per_epoch = min(self._per_epoch, max(1, settings.samples_per_update // self._batch_size))
        self._parameters = list(actor.parameters())
        self._optimizer = Adam(self._parameters, self._learning_rate)
        self._shuffle = torch.Generator().manual_seed(seed)
        self._noise = torch.Generator(demonstrations.rows["mask"].device).manual_seed(seed ^ 1)

    @property
    def steps_per_update(self) -> int:
        """The number of gradient steps that ``update`` makes."""
        return self._epochs * self._per_epoch

    def update(self, step: int, is_stopping: Callable[[], bool] = lambda: False) -> dict[str, float]:
        """Learn for some epochs, at trainer step ``step``. Return the mean loss by its tag: 0 once it is over."""
        losses: list[Tensor] = []
        learning_rate = decayed(self._schedule, self._learning_rate, MIN_LEARNING_RATE, self._steps, step)
        if learning_rate > MIN_LEARNING_RATE:
            self._optimizer.param_groups[0]["lr"] = learning_rate
            for minibatch in self._minibatches():
                if is_stopping():
                    break
                losses.append(self._descend(minibatch))
        return {TAG: torch.stack(losses).mean().item() if losses else 0.0}

    def _minibatches(self) -> Iterator[Minibatch]:
        demonstrations = self._demonstrations
        used = self._per_epoch * self._batch_size // demonstrations.sequence_length
        for _ in range(self._epochs):
            yield from demonstrations.minibatches(self._order()[:used], self._batch_size)

    def _order(self) -> Tensor:
        """The order of the sequences in one epoch, i64 [Q]."""
        return torch.randperm(self._demonstrations.num_sequences, generator=self._shuffle)

    def _descend(self, minibatch: Minibatch) -> Tensor:
        """Make one gradient step. Return its loss."""
        minibatch = minibatch.with_rows({"noise": self._normal(minibatch["continuous"])})
        loss = cloning_loss(self._actor, minibatch)
        # What zero_grad does, without its profiling hooks.
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def _normal(self, like: Tensor) -> Tensor:
        return torch.empty_like(like).normal_(generator=self._noise)

    def state(self) -> dict[str, Any]:
        """The optimizer's state. Its tensors go on changing."""
        return adam_state(self._optimizer, [whole(parameter) for parameter in self._parameters])

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what ``state`` gave.

        Raises:
            ValueError: it is of another policy.
        """
        load_adam_state(self._optimizer, [whole(parameter) for parameter in self._parameters], state)

    def generators(self) -> dict[str, torch.Generator]:
        """The random generators by their names in the checkpoint."""
        return {"cloning": self._shuffle, "cloning_noise": self._noise}
