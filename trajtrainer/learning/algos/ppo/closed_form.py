"""The gradient of PPO's loss without autograd, for two MLPs on the CPU.

It is the same as autograd's up to rounding, and several times faster with small networks, where autograd takes more
time than arithmetic. Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, V reward signals.
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

# The hand-written backward pass of two MLPs is fastest as long as one body's forward pass of a minibatch takes fewer
# multiply-adds than this: measured with 128 to 512 units, one to three layers, 64 to 2,048 rows, with and without
# memories. Beyond that, arithmetic dominates.
_HAND_WRITTEN_BELOW = 20_000_000
# Torch's LSTM takes all steps of a sequence in one call, ours takes them one by one: with 128 units autograd needs a
# fifth less time for 64 steps, and a fifth more for 16 steps.
_LONGEST_SEQUENCE = 32


def closed_form(
    actor: Actor, critic: AnyCritic | GroupCritic, hyper: OnPolicy, sequence_length: int
) -> PPOClosedForm | None:
    """The closed form for two MLPs on the CPU, if it is faster. The choice changes numbers by rounding at most."""
    on_cpu = next(actor.parameters()).device.type == "cpu"
    is_small = (
        multiply_adds(actor.body, hyper.batch_size) < _HAND_WRITTEN_BELOW and sequence_length <= _LONGEST_SEQUENCE
    )
    # A critic's own body has the actor's kind and shapes, unless the critic sees more.
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
    """The gradient of PPO's loss. The modules remain usable: their parameters become views of one flat tensor.

    Twin of ``trajtrainer.learning.algos.ppo.ppo.PPO.differentiate``.

    Attributes:
        flat: the tensor that Adam updates.
        encoded: turns observations, per sensor [N, *O], into the first layer's input [N, in].
    """

    def __init__(self, actor: Actor, critic: ValueNetwork, hyper: OnPolicy) -> None:
        self._stack = BatchedNetworks(actor, critic)
        self.encoded = self._stack.encoded
        self.flat = self._stack.flat
        self._hyper = hyper
        self._branches = actor.head.branches
        self._entropy_columns = actor.head.continuous_size if hyper.joint_entropy else 1

    def differentiate(self, minibatch: Minibatch, schedule: Schedule, diagnostics: bool) -> dict[str, Tensor]:
        """Write the gradient of the loss into the flat tensor's ``grad``. Returns statistics."""
        stack, hyper, epsilon, mask = self._stack, self._hyper, schedule.epsilon, minibatch.loss_mask
        weight = row_weight(len(minibatch), mask)
        encoded = stack.encoded(minibatch.obs) if minibatch.encoded is None else minibatch.encoded
        outputs = stack(encoded, (minibatch.memory, minibatch.critic_memory), minibatch.sequence_length)
        with np.errstate(all="ignore"):  # The trainer looks for numbers that are not finite, once per update.
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
    """The loss, and its gradient with respect to the log-probabilities [b, C + K].

    Twin of ``trajtrainer.learning.algos.ppo.losses.clipped_policy_loss``.
    """
    advantage = advantage[:, None]
    plain = ratio * advantage
    clipped = np.minimum(np.maximum(ratio, 1.0 - epsilon), 1.0 + epsilon)
    clipped *= advantage
    loss = -_mean(np.minimum(plain, clipped), weight)
    # d(r A) / d(log r) = r A. Where the clipped term is smaller, r is out of range, and the gradient is 0.
    gradient: FloatArray = (plain <= clipped) * plain
    gradient *= weight * np.float32(-1.0 / plain.shape[1])
    return loss, gradient


def value_loss_and_gradient(
    values: FloatArray, returns: FloatArray, old_values: FloatArray | None, epsilon: float, weight: RowWeight
) -> tuple[np.float32, FloatArray]:
    """The loss, and its gradient with respect to the values. All arguments are [b, V], unlike the twin's.

    Twin of ``trajtrainer.learning.algos.ppo.losses.value_loss``.
    """
    gradient: FloatArray = values - returns
    squared = gradient * gradient
    if old_values is not None:
        moved = values - old_values
        clipped = old_values + np.clip(moved, -epsilon, epsilon) - returns
        clipped *= clipped
        # Inside the range both errors are the same up to rounding; outside, the clipped value does not move.
        gradient *= (np.abs(moved) <= epsilon) | (squared >= clipped)
        squared = np.maximum(squared, clipped)
    gradient *= weight * np.float32(2.0 / values.shape[1])  # d(V - R)^2 / dV = 2 (V - R)
    return _mean(squared, weight), gradient


def row_weight(num_rows: int, mask: Tensor | None) -> RowWeight:
    """Each row's weight in a mean over the real rows (mask [b], 0 in padding): a number, or [b, 1]."""
    if mask is None:
        return 1.0 / num_rows
    real: FloatArray = mask.numpy()
    weight: FloatArray = real / np.maximum(real.sum(), np.float32(1.0))
    return weight[:, None]


def _mean(values: FloatArray, weight: RowWeight) -> np.float32:
    """The mean over the rows, and within a row over all columns."""
    total: np.float32 = np.add.reduce(values if isinstance(weight, float) else values * weight, None)
    return total * np.float32((weight if isinstance(weight, float) else 1.0) / values.shape[1])
