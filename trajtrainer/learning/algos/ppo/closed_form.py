"""The gradient of PPO's loss without autograd, for two MLPs on the CPU.

It equals autograd's gradient up to rounding and is several times faster to compute for small networks, where autograd
takes more time than the arithmetic.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, V reward signals.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trajtrainer.core.steps import FloatArray
from trajtrainer.learning.algos.ppo.losses import ratio_statistics
from trajtrainer.learning.algos.ppo.settings import OnPolicy
from trajtrainer.learning.algos.schedules import Schedule
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import AnyCritic, ValueNetwork
from trajtrainer.learning.nn.fast.acting import is_mlp
from trajtrainer.learning.nn.fast.batched_networks import BatchedNetworks
from trajtrainer.learning.nn.fast.distribution import Decisions, RowWeight
from trajtrainer.learning.nn.fast.two_cores import multiply_adds
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.multi_agent import GroupCritic

# The hand-written backward pass of two MLPs is faster than autograd if the forward pass of a minibatch through one body
# takes fewer multiply-adds than this. Above that, arithmetic dominates. This was measured with 128 to 512 units, one to
# three layers and 64 to 2,048 rows, with and without memories.
_HAND_WRITTEN_BELOW = 20_000_000
# torch's LSTM processes all steps of a sequence in one call, whereas the hand-written one processes them one by one.
# With 128 units, autograd takes a fifth less time for sequences of 64 steps, and a fifth more for 16 steps.
_LONGEST_SEQUENCE = 32


def closed_form(
    actor: Actor, critic: AnyCritic | GroupCritic, hyper: OnPolicy, sequence_length: int
) -> PPOClosedForm | None:
    """Return the closed form if it applies and is faster, else None. Both give the same result up to rounding."""
    on_cpu = next(actor.parameters()).device.type == "cpu"
    is_small = (
        multiply_adds(actor.body, hyper.batch_size) < _HAND_WRITTEN_BELOW and sequence_length <= _LONGEST_SEQUENCE
    )
    # A separate critic has the same architecture as the actor, unless it observes more sensors.
    if (
        on_cpu
        and is_small
        and is_mlp(actor)
        and isinstance(critic, ValueNetwork)
        and critic.body.encoder.seen == actor.body.encoder.seen
    ):
        return PPOClosedForm(actor, critic, hyper)
    return None


class PPOClosedForm:
    """Computes the gradient of PPO's loss. The modules remain usable: their parameters become views of a flat tensor.

    Twin of ``trajtrainer.learning.algos.ppo.ppo.PPO.differentiate``.

    Attributes:
        flat: the tensor that Adam updates.
        encoded: function that converts the observations of each sensor [N, *O] to the first layer's input [N, in].
    """

    def __init__(self, actor: Actor, critic: ValueNetwork, hyper: OnPolicy) -> None:
        self._stack = BatchedNetworks(actor, critic)
        self.encoded = self._stack.encoded
        self.flat = self._stack.flat
        self._hyper = hyper
        self._branches = actor.head.branches
        self._entropy_columns = actor.head.continuous_size if hyper.joint_entropy else 1

    def differentiate(self, minibatch: Minibatch, schedule: Schedule, diagnostics: bool) -> dict[str, Tensor]:
        """Write the gradient of the loss into the flat tensor's ``grad``, and return statistics."""
        stack, hyper, epsilon, mask = self._stack, self._hyper, schedule.epsilon, minibatch.loss_mask
        weight = row_weight(len(minibatch), mask)
        encoded = stack.encoded(minibatch.obs) if minibatch.encoded is None else minibatch.encoded
        outputs = stack(encoded, (minibatch.memory, minibatch.critic_memory), minibatch.sequence_length)
        with np.errstate(all="ignore"):  # The trainer checks once per update that the statistics are finite.
            # Gradient of -L^CLIP - c2 S with respect to the outputs of the policy.
            decisions = Decisions(outputs.policy, stack.log_sigma, minibatch, self._branches)
            log_ratio = decisions.log_prob - minibatch["log_prob"].numpy()
            if hyper.joint_ratio:
                log_ratio = np.add.reduce(log_ratio, 1, keepdims=True)
            ratio = np.exp(log_ratio)
            policy_loss, grad = clipped_policy_loss_and_gradient(ratio, minibatch["advantage"].numpy(), epsilon, weight)
            grad_policy, grad_log_sigma = decisions.gradient(
                np.broadcast_to(grad, decisions.log_prob.shape), schedule.beta, weight, self._entropy_columns
            )
            # Gradient of c1 L^VF with respect to the values.
            old_values = minibatch["value"].numpy() if hyper.value_clipping else None
            squared_error, grad_values = value_loss_and_gradient(
                outputs.values, minibatch["returns"].numpy(), old_values, epsilon, weight
            )
            grad_values *= np.float32(hyper.vf_coef)
            stack.backward(outputs, grad_policy, grad_values, grad_log_sigma)
        statistics = {
            "Losses/Policy Loss": torch.tensor(abs(policy_loss)),
            "Losses/Value Loss": torch.tensor(squared_error),
        }
        if diagnostics:
            acted = [minibatch.acted(torch.from_numpy(each)) for each in (log_ratio, ratio)]
            statistics |= ratio_statistics(acted[0], acted[1], epsilon, mask)
        return statistics


def clipped_policy_loss_and_gradient(
    ratio: FloatArray, advantage: FloatArray, epsilon: float, weight: RowWeight
) -> tuple[np.float32, FloatArray]:
    """Return the clipped surrogate loss, and its gradient with respect to the log-probabilities [b, C + K].

    Twin of ``trajtrainer.learning.algos.ppo.losses.clipped_policy_loss``.
    """
    advantage = advantage[:, None]
    plain = ratio * advantage
    clipped = np.minimum(np.maximum(ratio, 1.0 - epsilon), 1.0 + epsilon)
    clipped *= advantage
    loss = -_mean(np.minimum(plain, clipped), weight)
    # d(r A) / d(log r) = r A. Where the clipped term is smaller, r is outside the clipping range, so the gradient is 0.
    gradient: FloatArray = (plain <= clipped) * plain
    gradient *= weight * np.float32(-1.0 / plain.shape[1])
    return loss, gradient


def value_loss_and_gradient(
    values: FloatArray, returns: FloatArray, old_values: FloatArray | None, epsilon: float, weight: RowWeight
) -> tuple[np.float32, FloatArray]:
    """Return the value loss, and its gradient with respect to the values. Arguments are [b, V], not [V, b].

    Twin of ``trajtrainer.learning.algos.ppo.losses.value_loss``.
    """
    gradient: FloatArray = values - returns
    squared = gradient * gradient
    if old_values is not None:
        moved = values - old_values
        clipped = old_values + np.clip(moved, -epsilon, epsilon) - returns
        clipped *= clipped
        # Inside the clipping range, both errors are equal up to rounding. Outside, the clipped value has no gradient.
        gradient *= (np.abs(moved) <= epsilon) | (squared >= clipped)
        squared = np.maximum(squared, clipped)
    gradient *= weight * np.float32(2.0 / values.shape[1])  # d(V - R)^2 / dV = 2 (V - R)
    return _mean(squared, weight), gradient


def row_weight(num_rows: int, mask: Tensor | None) -> RowWeight:
    """Return the weight of each row in a mean over the real rows (mask [b], 0 for padding): a number, or [b, 1]."""
    if mask is None:
        return 1.0 / num_rows
    real: FloatArray = mask.numpy()
    weight: FloatArray = real / np.maximum(real.sum(), np.float32(1.0))
    return weight[:, None]


def _mean(values: FloatArray, weight: RowWeight) -> np.float32:
    """Return the weighted mean over all rows and columns."""
    total: np.float32 = np.add.reduce(values if isinstance(weight, float) else values * weight, None)
    return total * np.float32((weight if isinstance(weight, float) else 1.0) / values.shape[1])
