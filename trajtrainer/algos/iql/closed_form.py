"""The losses of implicit Q-learning, differentiated by hand.

Through two layers of 128 units on 256 rows an update takes a third less time than by autograd (measured by
``scripts/benchmarks/offline.py``).

Shapes: b rows, K branches, W widest output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajtrainer.algos.bc.closed_form import Likelihood, has_closed_form
from trajtrainer.algos.iql.settings import IQLHyperparameters
from trajtrainer.core.steps import FloatArray
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.fast.stacked_mlps import StackedMlps
from trajtrainer.nn.minibatch import Minibatch

_POLICY, _Q, _VALUE = 0, slice(1, 3), 3
_TRAINED, _ALL = 4, 6


def closed_form(
    actor: Actor, values: list[ValueNetwork], targets: list[ValueNetwork], hyper: IQLHyperparameters
) -> ClosedForm | None:
    """Return the closed form where there is one. The choice changes numbers by rounding at most."""
    return ClosedForm(actor, values, targets, hyper) if has_closed_form(actor) else None


class ClosedForm:
    """All losses and their gradient. The modules still work: their parameters become parts of others.

    The networks are stacked in the order policy, Q1, Q2, V, and the copies of Q1 and Q2. The first four are trained;
    the last three give their targets.

    Twin of ``trajtrainer.algos.iql.iql.IQL.differentiate``.

    Attributes:
        pieces: optimizer -> the parameters that it trains, as parts of what is trained.
    """

    def __init__(
        self, actor: Actor, values: list[ValueNetwork], targets: list[ValueNetwork], hyper: IQLHyperparameters
    ) -> None:
        self._hyper = hyper
        self._encoder = actor.body.encoder  # the value networks' normalizers are the same
        self._stack = StackedMlps([actor, *values, *targets], [1, 3])
        self._likelihood = Likelihood(actor)
        parameters = [parameter for network in values for parameter in network.parameters()]
        self.pieces = {"policy": self._likelihood.pieces(self._stack), "value": self._stack.pieces(parameters)}
        self._starts = actor.head.branch_starts.numpy()
        self._sizes = actor.head.continuous_size, len(actor.head.branches)

    def follow(self, tau: float) -> None:
        """Move the copies of the Q networks towards these."""
        self._stack.follow(slice(_ALL - 2, _ALL), _Q, tau)

    @torch.no_grad()
    def differentiate(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the statistics of a batch, and write the gradient of all losses into the leaves."""
        hyper, rows = self._hyper, len(batch)
        plain, acted, after = self._inputs(batch)
        frozen = self._stack(torch.stack((after, acted, acted)), _VALUE, _ALL).outputs.numpy()
        run = self._stack(torch.stack((plain, acted, acted, plain)), 0, _TRAINED)
        outputs: FloatArray = run.outputs.numpy()
        with np.errstate(all="ignore"):  # the trainer looks for what is not finite
            taken = self._taken(batch)
            seen = _of(frozen[1:], taken).min(0)
            value = outputs[_VALUE, :, 0]
            advantage = seen - value
            target = batch["rewards"].numpy() + batch["discount"].numpy() * frozen[0, :, 0]
            error = _of(outputs[_Q], taken) - target
            asymmetric = np.where(advantage < 0, np.float32(1.0 - hyper.expectile), np.float32(hyper.expectile))
            weight = np.minimum(np.exp(hyper.temperature * advantage), np.float32(hyper.max_weight))
            log_prob, decisions = self._likelihood(outputs[_POLICY], batch)
            grad: FloatArray = np.zeros(outputs.shape, np.float32)
            self._likelihood.gradient(decisions, weight * np.float32(-1.0 / rows), grad[_POLICY])
            grad[_VALUE, :, 0] = asymmetric * advantage * np.float32(-2.0 / rows)
            share = np.float32(2.0 / (rows * taken.shape[1]))
            np.put_along_axis(grad[_Q], np.broadcast_to(taken, (2, *taken.shape)), (error * share)[:, :, None], 2)
            q_losses = np.square(error).mean(1)
            statistics = {
                "Losses/Policy Loss": -(weight * log_prob).mean(),
                "Losses/Value Loss": (asymmetric * np.square(advantage)).mean(),
                "Losses/Q1 Loss": q_losses[0],
                "Losses/Q2 Loss": q_losses[1],
                "Policy/Extrinsic Value": value.mean(),
                "Policy/Advantage Weight": weight.mean(),
            }
        self._stack.backward(run, torch.from_numpy(grad))
        return {tag: torch.tensor(value) for tag, value in statistics.items()}

    def _inputs(self, batch: Minibatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return observations, observations with actions, and next observations, all as wide as the second."""
        encode = self._encoder
        seen, after = encode(batch.obs)[0], encode(batch.next_obs)[0]
        if not self._sizes[0]:
            return seen, seen, after
        actions = batch["continuous"]
        nothing = torch.zeros_like(actions)
        return torch.cat((seen, nothing), 1), torch.cat((seen, actions), 1), torch.cat((after, nothing), 1)

    def _taken(self, batch: Minibatch) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the outputs of a Q network whose mean is the value of what was done [b, max(1, K)]."""
        if not self._sizes[1]:
            return np.zeros((len(batch), 1), np.int64)
        taken: np.ndarray[Any, np.dtype[np.int64]] = batch["discrete"].numpy() + self._starts
        return taken


def _of(q: FloatArray, taken: np.ndarray[Any, np.dtype[np.int64]]) -> FloatArray:
    """Return the values [n, b] of what was done, from outputs [n, b, W]."""
    if taken.shape[1] == 1:
        found: FloatArray = q[:, np.arange(len(taken)), taken[:, 0]]
        return found
    mean: FloatArray = np.take_along_axis(q, taken[None], 2).mean(2)
    return mean
