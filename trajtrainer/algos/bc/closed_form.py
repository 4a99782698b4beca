"""The loss of cloning, differentiated by hand.

Through two layers of 128 units on 256 rows cloning takes an eighth less time than by autograd (measured by
``scripts/benchmarks/offline.py``).

Shapes: b rows, W widest output.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trajtrainer.core.steps import FloatArray
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.fast.acting import is_mlp
from trajtrainer.nn.fast.adam import Piece
from trajtrainer.nn.fast.distribution import Decisions
from trajtrainer.nn.fast.stacked_mlps import StackedMlps
from trajtrainer.nn.minibatch import Minibatch


def has_closed_form(actor: Actor) -> bool:
    """Return whether it is an MLP on the CPU whose standard deviation does not depend on the state."""
    on_cpu = next(actor.parameters()).device.type == "cpu"
    return on_cpu and is_mlp(actor) and not actor.memory_size and not actor.head.conditional_sigma


def closed_form(actor: Actor) -> ClosedForm | None:
    """Return the closed form where there is one. The choice changes numbers by rounding at most."""
    return ClosedForm(actor) if has_closed_form(actor) else None


class Likelihood:
    """How likely a policy does what was recorded, and the gradient of that."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._width = actor.head.continuous_size + sum(actor.head.branches)
        parameter = actor.head.log_sigma
        self.leaves: list[Tensor] = []
        self._log_sigma: FloatArray = np.zeros((1, 0), np.float32)
        if parameter is not None:
            leaf = parameter.detach()
            leaf.grad = torch.zeros_like(leaf)
            self._log_sigma, self._gradient = leaf.numpy(), leaf.grad
            self.leaves.append(leaf)

    def __call__(self, outputs: FloatArray, batch: Minibatch) -> tuple[FloatArray, Decisions]:
        """Return the log-probability of each row [b], and what ``gradient`` needs. Outputs are [b, W]."""
        head = self._actor.head
        raw = batch.with_rows({"continuous": head.from_env(batch["continuous"])})
        decisions = Decisions(outputs[:, : self._width], self._log_sigma, raw, head.branches)
        return decisions.log_prob.sum(1), decisions

    def gradient(self, decisions: Decisions, grad_rows: FloatArray, out: FloatArray) -> None:
        """Write the gradient, given that by the log-probability of each row [b], into ``out`` [b, W] and the leaf."""
        grad_log_prob = np.repeat(grad_rows[:, None], decisions.log_prob.shape[1], 1)
        grad_outputs, grad_log_sigma = decisions.gradient(grad_log_prob, 0.0, 1.0)
        out[:, : self._width] = grad_outputs
        if self.leaves:
            self._gradient.copy_(torch.from_numpy(grad_log_sigma))

    def pieces(self, stack: StackedMlps) -> list[Piece]:
        """Return the policy's parameters, in the module's order, as parts of what is trained."""
        own = self._actor.head.log_sigma
        pieces = stack.pieces(list(self._actor.parameters()))
        return [Piece(self.leaves[0], piece.view) if piece.leaf is own else piece for piece in pieces]


class ClosedForm:
    """The loss of cloning and its gradient. The policy's module still works: its parameters become parts of others.

    Twin of ``trajtrainer.algos.bc.bc.Cloner.differentiate``.

    Attributes:
        pieces: the policy's parameters, as parts of what is trained.
    """

    def __init__(self, actor: Actor) -> None:
        self._encoder = actor.body.encoder
        self._stack = StackedMlps([actor], [1])
        self._likelihood = Likelihood(actor)
        self.pieces = self._likelihood.pieces(self._stack)

    @torch.no_grad()
    def differentiate(self, batch: Minibatch) -> Tensor:
        """Write the gradient of the loss into the leaves. Return the loss."""
        run = self._stack(self._encoder(batch.obs)[0].unsqueeze(0), 0, 1)
        with np.errstate(all="ignore"):  # the trainer looks for what is not finite
            log_prob, decisions = self._likelihood(run.outputs[0].numpy(), batch)
            grad: FloatArray = np.empty(run.outputs.shape, np.float32)
            rows = np.full(len(batch), -1.0 / len(batch), np.float32)
            self._likelihood.gradient(decisions, rows, grad[0])
        self._stack.backward(run, torch.from_numpy(grad))
        return torch.tensor(-float(log_prob.mean()))
