"""Policies on their way to the acting side."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from torch import Tensor

from trajtrainer.algos.acting import PolicyDivergedError
from trajtrainer.algos.algorithm import Statistics
from trajtrainer.core.queues import PolicyQueue, PolicyUpdate
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.normalizer import Normalizer


class PolicyPublisher:
    """Puts copies of an actor's weights into the policy queue.

    Attributes:
        version: of the policy; grows with every one that has learned since the last.
    """

    def __init__(self, policy: str, actor: Actor, policies: PolicyQueue[Tensor]) -> None:
        """Find the weights once.

        Args:
            policy: its name in the queue.
            actor: the network that acts.
            policies: on the way to the acting side.
        """
        self.version = 0
        self._policy = policy
        self._policies = policies
        # Entries share memory with the weights, which optimizers and normalisers change in place.
        self._all: dict[str, Tensor] = actor.state_dict()
        self._normalizers = {
            f"{name}.{entry}": tensor
            for name, module in actor.named_modules()
            if isinstance(module, Normalizer)
            for entry, tensor in module.named_buffers()
        }

    def publish(self) -> None:
        """Publish all weights as they are now."""
        self._put(self._all, partial=False)

    def publish_next(self) -> None:
        """Publish all weights as the next version."""
        self.version += 1
        self.publish()

    def publish_normalizers(self) -> None:
        """Publish what changes with every trajectory, if there is any."""
        if self._normalizers:
            self._put(self._normalizers, partial=True)

    def _put(self, entries: dict[str, Tensor], *, partial: bool) -> None:
        weights = {name: tensor.clone() for name, tensor in entries.items()}
        self._policies.put(self._policy, PolicyUpdate(self.version, weights, partial=partial))


def check_finite(behavior: str, step: int, statistics: Statistics, may_be_nan: Container[str]) -> None:
    """Look at the statistics of an update.

    Args:
        behavior: of the trainer, for the error.
        step: likewise.
        statistics: of the update.
        may_be_nan: tags that need not have a value.

    Raises:
        PolicyDivergedError: the mean of one of them is not a finite number.
    """
    means = {tag: values.mean() for tag, values in statistics.items() if len(values) and tag not in may_be_nan}
    diverged = [tag for tag, mean in means.items() if not np.isfinite(mean)]
    if diverged:
        raise PolicyDivergedError(
            f"Behavior {behavior!r}: {', '.join(diverged)} of the update at step {step} is not a finite number, so the "
            "weights have diverged. Lower learning_rate, or look for extreme rewards or observations (normalize: true "
            "limits the latter), and resume from an earlier checkpoint."
        )
