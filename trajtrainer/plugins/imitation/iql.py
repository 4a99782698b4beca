"""Implicit Q-learning (IQL; Kostrikov et al. 2021, arXiv:2110.06169), with and without autograd.

It learns values of recorded actions only, and a policy that imitates the best of them. Symbols are the paper's.

Shape legend: b rows of a batch, K branches, W widest output. ``mask`` is f32 [b], 1 for a real row and 0 for padding,
or None when every row is real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.sac.losses import taken_q
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.learning.nn.fast.batched_mlps import BatchedMlps
from trajtrainer.learning.nn.minibatch import Minibatch, masked_mean
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.plugins.imitation.bc import Likelihood, has_closed_form
from trajtrainer.plugins.imitation.offline import Offline, limit_sigma, log_likelihood, make_actor
from trajtrainer.plugins.imitation.settings import IQLHyperparameters

_POLICY, _Q, _VALUE = 0, slice(1, 3), 3
_TRAINED, _ALL = 4, 6


def value_loss(advantage: Tensor, expectile: float, mask: Tensor | None) -> Tensor:
    """Expectile regression: squares of ``Q - V`` [b] weigh ``expectile`` if positive, ``1 - expectile`` if negative."""
    weight = torch.where(advantage < 0, 1.0 - expectile, expectile)
    return masked_mean(weight * advantage.square(), mask)


def q_losses(q: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """The mean squared error of each of n networks [n], for values [n, b] and their target [b]."""
    return torch.stack([masked_mean((one - target).square(), mask) for one in q])


def advantage_weight(advantage: Tensor, temperature: float, largest: float) -> Tensor:
    """The weight of each step for the policy [b]: ``exp(temperature * (Q - V))``, at most ``largest``."""
    return (temperature * advantage).exp().clamp(max=largest)


def policy_loss(log_likelihood: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Minus the weighted log-probability of the recorded actions [b] (advantage-weighted regression)."""
    return -masked_mean(weight * log_likelihood, mask)


class IQL(Offline):
    """Learns to do better than the data set without evaluating actions that were never tried.

    Attributes:
        closed_form: differentiates the losses by hand; None for autograd.
    """

    needs_next: ClassVar[bool] = True
    timer: ClassVar[str] = "IQL.update"

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, IQLHyperparameters)
        self.hyper: IQLHyperparameters = hyper
        names = ("q1", "q2", "value", "target_q1", "target_q2")
        q1, q2, v, target_q1, target_q2 = (cast("ValueNetwork", networks[name]) for name in names)
        self._q, self._v, self._target_q = [q1, q2], v, [target_q1, target_q2]
        for target in self._target_q:
            target.requires_grad_(False)
        self._followers: list[Tensor] = [*target_q1.parameters(), *target_q2.parameters()]
        self._followed: list[Tensor] = [*q1.parameters(), *q2.parameters()]
        self.closed_form = closed_form(self.actor, [q1, q2, v], self._target_q, hyper)
        if self.closed_form is None:
            values = [parameter for network in (q1, q2, v) for parameter in network.parameters()]
            self._pieces = {"policy": list(map(whole, self.actor.parameters())), "value": list(map(whole, values))}
        else:
            self._pieces = self.closed_form.pieces
        self._leaves = {
            name: list(dict.fromkeys(piece.leaf for piece in pieces)) for name, pieces in self._pieces.items()
        }
        self._adam = Adam(
            [*self._leaves["policy"], *self._leaves["value"]], hyper.learning_rate, weight_decay=hyper.weight_decay
        )

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Make an actor, two Q networks with their slow copies, and V."""
        hyper, settings, spec = context.settings.hyperparameters, context.settings.network_settings, context.spec
        assert isinstance(hyper, IQLHyperparameters)
        names = list(context.settings.reward_signals)
        continuous, discrete = int(spec.action_spec.continuous_size), sum(spec.action_spec.discrete_branches)
        q1, q2, target_q1, target_q2 = (
            ValueNetwork(spec, settings, names, action_size=continuous, outputs=max(1, discrete)) for _ in range(4)
        )
        target_q1.load_state_dict(q1.state_dict())
        target_q2.load_state_dict(q2.state_dict())
        return {
            "actor": make_actor(spec, settings, hyper),
            "q1": q1,
            "q2": q2,
            "value": ValueNetwork(spec, settings, names),
            "target_q1": target_q1,
            "target_q2": target_q2,
        }

    def gradient_step(self, batch: Minibatch, step: int) -> dict[str, Tensor]:
        hyper = self.hyper
        statistics = self.differentiate(batch) if self.closed_form is None else self.closed_form.differentiate(batch)
        rates = {"policy": hyper.learning_rate, "value": hyper.critic_learning_rate}
        for name, leaves in self._leaves.items():
            self._adam.param_groups[0]["lr"] = self.decayed(rates[name], step)
            self._adam.step(leaves)

        # The copies follow: Q' = (1 - tau) Q' + tau Q.
        if self.closed_form is not None:
            self.closed_form.follow(hyper.tau)
        else:
            with torch.no_grad():
                torch._foreach_lerp_(self._followers, self._followed, hyper.tau)
        limit_sigma(self.actor, hyper.min_std)
        return statistics

    def differentiate(self, batch: Minibatch) -> dict[str, Tensor]:
        """Differentiate all losses by autograd. Returns statistics as 0-d tensors.

        No parameter receives gradients from two losses, so one backward pass differentiates their sum.
        """
        hyper, mask = self.hyper, batch.loss_mask

        # L_V (equation 5): V(s) is an expectile of min Q'(s, a) over the recorded actions.
        value = self._v(batch.obs, None, batch.sequence_length)[0][0]
        with torch.no_grad():
            seen = torch.stack([self._of_taken(one, batch) for one in self._target_q]).min(0).values
        loss_v = value_loss(seen - value, hyper.expectile, mask)

        # L_Q (equation 6): Q(s, a) is r + gamma V(s').
        with torch.no_grad():
            memory = None
            if self._v.memory_size:  # that of one step later
                _, memory = self._v([sensor[:: batch.sequence_length] for sensor in batch.obs], None)
            following = self._v(batch.next_obs, memory, batch.sequence_length)[0][0]
            target = torch.addcmul(batch["rewards"], batch["discount"], following)
        q = torch.stack([self._of_taken(one, batch) for one in self._q])
        loss_q = q_losses(q, target, mask)

        # L_pi (equation 7): cloning, weighted by exp(beta (Q' - V)).
        with torch.no_grad():
            weight = advantage_weight(seen - value, hyper.temperature, hyper.max_weight)
        loss_pi = policy_loss(log_likelihood(self.actor, batch), weight, mask)

        for leaf in (*self._leaves["policy"], *self._leaves["value"]):
            leaf.grad = None
        (loss_pi + loss_v + loss_q.sum()).backward()  # type: ignore[no-untyped-call]
        return {
            "Losses/Policy Loss": loss_pi.detach(),
            "Losses/Value Loss": loss_v.detach(),
            "Losses/Q1 Loss": loss_q[0].detach(),
            "Losses/Q2 Loss": loss_q[1].detach(),
            "Policy/Extrinsic Value": masked_mean(value.detach(), mask),
            "Policy/Advantage Weight": masked_mean(weight, mask),
        }

    def _of_taken(self, network: ValueNetwork, batch: Minibatch) -> Tensor:
        """Q of the recorded actions [b]; with discrete actions, the mean over the branches."""
        head = self.actor.head
        actions = batch["continuous"] if head.continuous_size else None
        q: Tensor = network(batch.obs, None, batch.sequence_length, actions)[0][0]
        if not head.branches:
            return q
        return taken_q(q if q.dim() == 2 else q.unsqueeze(1), batch["discrete"], head.branch_starts)

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Those of ``policy``, and of ``value`` (Q1, Q2 and V)."""
        return {name: adam_state(self._adam, pieces) for name, pieces in self._pieces.items()}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        for name, pieces in self._pieces.items():
            load_adam_state(self._adam, pieces, states[name])


def closed_form(
    actor: Actor, values: list[ValueNetwork], targets: list[ValueNetwork], hyper: IQLHyperparameters
) -> IQLClosedForm | None:
    """The closed form if there is one. The choice changes numbers by rounding at most."""
    return IQLClosedForm(actor, values, targets, hyper) if has_closed_form(actor) else None


class IQLClosedForm:
    """The gradient of all losses. The modules remain usable: their parameters become parts of larger tensors.

    The networks are batched in the order policy, Q1, Q2, V, and the copies of Q1 and Q2. The first four are trained; V
    and the copies compute their targets.

    Twin of ``trajtrainer.plugins.imitation.iql.IQL.differentiate``. With two layers of 128 units and 256 rows an
    update takes a third less time than with autograd.

    Attributes:
        pieces: optimizer -> the parameters that it trains, as views of the leaves.
    """

    def __init__(
        self, actor: Actor, values: list[ValueNetwork], targets: list[ValueNetwork], hyper: IQLHyperparameters
    ) -> None:
        self._hyper = hyper
        self._encoder = actor.body.encoder  # The value networks have the same normalizers.
        self._stack = BatchedMlps([actor, *values, *targets], [1, 3])
        self._likelihood = Likelihood(actor)
        parameters = [parameter for network in values for parameter in network.parameters()]
        self.pieces = {"policy": self._likelihood.pieces(self._stack), "value": self._stack.pieces(parameters)}
        self._starts = actor.head.branch_starts.numpy()
        self._sizes = actor.head.continuous_size, len(actor.head.branches)

    def follow(self, tau: float) -> None:
        """Move the copies toward the Q networks."""
        self._stack.follow(slice(_ALL - 2, _ALL), _Q, tau)

    @torch.no_grad()
    def differentiate(self, batch: Minibatch) -> dict[str, Tensor]:
        """Write the gradient of all losses into the leaves. Returns statistics."""
        hyper, rows = self._hyper, len(batch)
        plain, acted, after = self._inputs(batch)
        frozen = self._stack(torch.stack((after, acted, acted)), _VALUE, _ALL).outputs.numpy()
        run = self._stack(torch.stack((plain, acted, acted, plain)), 0, _TRAINED)
        outputs: FloatArray = run.outputs.numpy()
        with np.errstate(all="ignore"):  # The trainer looks for numbers that are not finite.
            # The outputs of a Q network whose mean is the value of the recorded action [b, max(1, K)].
            taken = batch["discrete"].numpy() + self._starts if self._sizes[1] else np.zeros((rows, 1), np.int64)
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
        """Observations, observations with actions, and next observations, all padded to the width of the second."""
        encode = self._encoder
        seen, after = encode(batch.obs)[0], encode(batch.next_obs)[0]
        if not self._sizes[0]:
            return seen, seen, after
        actions = batch["continuous"]
        nothing = torch.zeros_like(actions)
        return torch.cat((seen, nothing), 1), torch.cat((seen, actions), 1), torch.cat((after, nothing), 1)


def _of(q: FloatArray, taken: np.ndarray[Any, np.dtype[np.int64]]) -> FloatArray:
    """The values [n, b] of the recorded actions, out of outputs [n, b, W]."""
    if taken.shape[1] == 1:
        found: FloatArray = q[:, np.arange(len(taken)), taken[:, 0]]
        return found
    mean: FloatArray = np.take_along_axis(q, taken[None], 2).mean(2)
    return mean
