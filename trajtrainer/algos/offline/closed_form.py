"""A gradient step of the offline trainers by a hand-written backward pass, and the choice of it.

Through two layers of 128 units on 256 rows cloning takes an eighth and implicit Q-learning a third less time than by
autograd (measured by ``scripts/benchmarks/offline.py``).

Shapes: b rows, C continuous actions, K branches, D sum of branch sizes, P numbers of a Q network, W widest output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajtrainer.algos.bc.optimizer import BC
from trajtrainer.algos.bc.settings import CloningHyperparameters
from trajtrainer.algos.iql.optimizer import IQL, IQLNetworks
from trajtrainer.algos.iql.settings import IQLHyperparameters
from trajtrainer.algos.offline.policy import limit_sigma
from trajtrainer.core.steps import FloatArray
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.fast.acting import is_mlp
from trajtrainer.nn.fast.adam import Adam, Piece, adam_state, load_adam_state
from trajtrainer.nn.fast.distribution import Decisions
from trajtrainer.nn.fast.stacked_mlps import StackedMlps
from trajtrainer.nn.minibatch import Minibatch

_POLICY, _Q, _VALUE = 0, slice(1, 3), 3
_TRAINED, _ALL = 4, 6


def cloning_step(actor: Actor, hyper: CloningHyperparameters) -> BC | FastBC:
    """Return the fastest gradient step of cloning. The choice changes numbers by rounding at most."""
    return FastBC(actor, hyper) if can_be_fast(actor) else BC(actor, hyper)


def iql_step(networks: IQLNetworks, hyper: IQLHyperparameters) -> IQL | FastIQL:
    """Return the fastest gradient step of implicit Q-learning; see ``cloning_step``."""
    return FastIQL(networks, hyper) if can_be_fast(networks.actor) else IQL(networks, hyper)


def can_be_fast(actor: Actor) -> bool:
    """Return whether it is an MLP on the CPU whose standard deviation does not depend on the state."""
    on_cpu = next(actor.parameters()).device.type == "cpu"
    return on_cpu and is_mlp(actor) and not actor.memory_size and not actor.head.conditional_sigma


class _Likelihood:
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


class FastBC:
    """Make gradient steps of cloning by a hand-written backward pass. The policy's module goes on working.

    Twin of ``trajtrainer.algos.bc.optimizer.BC``.
    """

    def __init__(self, actor: Actor, hyper: CloningHyperparameters) -> None:
        """Move the parameters into common tensors."""
        self._actor = actor
        self._hyper = hyper
        self._stack = StackedMlps([actor], [1])
        self._likelihood = _Likelihood(actor)
        self._pieces = self._likelihood.pieces(self._stack)
        leaves = [*self._stack.groups[0], *self._likelihood.leaves]
        self._adam = Adam(leaves, hyper.learning_rate, weight_decay=hyper.weight_decay)

    @torch.no_grad()
    def __call__(self, batch: Minibatch, learning_rates: Sequence[float]) -> dict[str, Tensor]:
        """See ``OfflineStep``."""
        loss = self.differentiate(batch)
        self._adam.param_groups[0]["lr"] = learning_rates[0]
        self._adam.step()
        limit_sigma(self._actor, self._hyper.min_std)
        return {"Losses/Policy Loss": torch.tensor(loss)}

    @torch.no_grad()
    def differentiate(self, batch: Minibatch) -> float:
        """Return the loss of a batch, and write its gradient into the leaves."""
        run = self._stack(self._actor.body.encoder(batch.obs)[0].unsqueeze(0), 0, 1)
        with np.errstate(all="ignore"):  # the trainer looks for what is not finite
            log_prob, decisions = self._likelihood(run.outputs[0].numpy(), batch)
            grad: FloatArray = np.empty(run.outputs.shape, np.float32)
            rows = np.full(len(batch), -1.0 / len(batch), np.float32)
            self._likelihood.gradient(decisions, rows, grad[0])
        self._stack.backward(run, torch.from_numpy(grad))
        return -float(log_prob.mean())

    def states(self) -> dict[str, dict[str, Any]]:
        """See ``OfflineStep``."""
        return {"policy": adam_state(self._adam, self._pieces)}

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """See ``OfflineStep``."""
        load_adam_state(self._adam, self._pieces, states["policy"])


class FastIQL:
    """Make gradient steps of implicit Q-learning by a hand-written backward pass. The modules go on working.

    The networks stand in the order policy, Q1, Q2, V, and the copies of Q1 and Q2: the first four are trained, the last
    three tell what those should become.

    Twin of ``trajtrainer.algos.iql.optimizer.IQL``.
    """

    def __init__(self, networks: IQLNetworks, hyper: IQLHyperparameters) -> None:
        """Move the parameters into common tensors."""
        self._networks = networks
        self._hyper = hyper
        actor = networks.actor
        order = [actor, *networks.values, networks.target_q1, networks.target_q2]
        self._stack = StackedMlps(order, [1, 3])
        self._likelihood = _Likelihood(actor)
        values = [parameter for network in networks.values for parameter in network.parameters()]
        self._pieces = {"policy": self._likelihood.pieces(self._stack), "value": self._stack.pieces(values)}
        policy, value = self._stack.groups
        self._groups = [*policy, *self._likelihood.leaves], value
        self._adam = Adam([*self._groups[0], *value], hyper.learning_rate, weight_decay=hyper.weight_decay)
        self._starts = actor.head.branch_starts.numpy()
        self._sizes = actor.head.continuous_size, len(actor.head.branches)

    @torch.no_grad()
    def __call__(self, batch: Minibatch, learning_rates: Sequence[float]) -> dict[str, Tensor]:
        """See ``OfflineStep``."""
        statistics = self.differentiate(batch)
        for group, rate in zip(self._groups, learning_rates, strict=True):
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step(group)
        self._stack.follow(slice(_ALL - 2, _ALL), _Q, self._hyper.tau)
        limit_sigma(self._networks.actor, self._hyper.min_std)
        return statistics

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
        encode = self._networks.actor.body.encoder  # the value networks' normalisers are the same
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

    def states(self) -> dict[str, dict[str, Any]]:
        """See ``OfflineStep``."""
        return {name: adam_state(self._adam, pieces) for name, pieces in self._pieces.items()}

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """See ``OfflineStep``."""
        for name, pieces in self._pieces.items():
            load_adam_state(self._adam, pieces, states[name])


def _of(q: FloatArray, taken: np.ndarray[Any, np.dtype[np.int64]]) -> FloatArray:
    """Return the values [n, b] of what was done, from outputs [n, b, W]."""
    if taken.shape[1] == 1:
        found: FloatArray = q[:, np.arange(len(taken)), taken[:, 0]]
        return found
    mean: FloatArray = np.take_along_axis(q, taken[None], 2).mean(2)
    return mean
