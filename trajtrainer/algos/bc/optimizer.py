"""Behavioural cloning: the likelihood of what was recorded, maximised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from trajtrainer.algos.bc.settings import CloningHyperparameters
from trajtrainer.algos.offline.policy import limit_sigma, log_likelihood
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch, masked_mean


class BC:
    """Differentiate the loss by autograd: the reference, for all networks. See ``OfflineStep``."""

    def __init__(self, actor: Actor, hyper: CloningHyperparameters) -> None:
        """Take the policy as it is, on its device."""
        self._actor = actor
        self._hyper = hyper
        self._parameters = list(actor.parameters())
        self._pieces = [whole(parameter) for parameter in self._parameters]
        self._adam = Adam(self._parameters, hyper.learning_rate, weight_decay=hyper.weight_decay)

    def loss(self, batch: Minibatch) -> Tensor:
        """Return the mean of minus the log-probability of what was recorded."""
        return -masked_mean(log_likelihood(self._actor, batch), batch.loss_mask)

    def __call__(self, batch: Minibatch, learning_rates: Sequence[float]) -> dict[str, Tensor]:
        """See ``OfflineStep``."""
        loss = self.loss(batch)
        for parameter in self._parameters:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.param_groups[0]["lr"] = learning_rates[0]
        self._adam.step()
        limit_sigma(self._actor, self._hyper.min_std)
        return {"Losses/Policy Loss": loss.detach()}

    def states(self) -> dict[str, dict[str, Any]]:
        """See ``OfflineStep``."""
        return {"policy": adam_state(self._adam, self._pieces)}

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """See ``OfflineStep``.

        Raises:
            KeyError: there is none of a policy.
            ValueError: it is of another policy.
        """
        load_adam_state(self._adam, self._pieces, states["policy"])
