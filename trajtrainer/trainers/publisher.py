"""Policies on their way to the acting side."""

from __future__ import annotations

from torch import Tensor

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
