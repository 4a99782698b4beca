"""PPO's losses as pure functions of tensors, and their gradients without autograd.

The functions of numpy arrays, and ``PPOClosedForm`` made of them, are twins of those of torch tensors: the same up to
rounding, and several times faster with small networks, where autograd takes more time than arithmetic.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, V reward signals. ``mask`` is f32 [b], 1
for a real row and 0 for the padding of a sequence, or None when every row is real (which saves the arithmetic).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trajtrainer.core.steps import FloatArray
from trajtrainer.learning.algos.ppo.settings import OnPolicy
from trajtrainer.learning.algos.schedules import Schedule
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import AnyCritic, ValueNetwork
from trajtrainer.learning.nn.fast.acting import is_mlp
from trajtrainer.learning.nn.fast.batched_networks import BatchedNetworks
from trajtrainer.learning.nn.fast.distribution import Decisions, RowWeight
from trajtrainer.learning.nn.fast.two_cores import multiply_adds
from trajtrainer.learning.nn.minibatch import Minibatch, masked_mean
from trajtrainer.learning.nn.multi_agent import GroupCritic

# The hand-written backward pass of two MLPs is fastest as long as one body's forward pass of a minibatch takes fewer
# multiply-adds than this: measured with 128 to 512 units, one to three layers, 64 to 2,048 rows, with and without
# memories. Beyond that, arithmetic dominates.
_HAND_WRITTEN_BELOW = 20_000_000
# Torch's LSTM takes all steps of a sequence in one call, ours takes them one by one: with 128 units autograd needs a
# fifth less time for 64 steps, and a fifth more for 16 steps.
_LONGEST_SEQUENCE = 32


def clipped_policy_loss(ratio: Tensor, advantage: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
    """The clipped surrogate loss of PPO (Schulman et al. 2017).

    Like ML-Agents, this takes one ratio per continuous action and branch instead of summing log-probabilities over
    them first, which shapes the learning curves (docs/explanation/mlagents-behavior.md#update).

    Args:
        ratio: new probability over old, [b, C + K] or, for the whole action, [b, 1].
        advantage: [b].
        epsilon: half the width of the clipping range.
        mask: [b] or None.
    """
    advantage = advantage[:, None]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * advantage)
    return -masked_mean(surrogate, mask)


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


def value_loss(
    values: Tensor, returns: Tensor, mask: Tensor | None, *, old_values: Tensor | None = None, epsilon: float = 0.0
) -> Tensor:
    """The squared error of the value estimates, mean over reward signals and real rows.

    Args:
        values: [V, b].
        returns: [V, b].
        mask: [b] or None.
        old_values: [V, b], the estimates at collection time. If given, the loss is the larger of two errors: the plain
            one, and that of the estimate clipped to within ``epsilon`` of the old one. ML-Agents intends this but
            compares with the returns by mistake, which yields the plain error
            (docs/explanation/mlagents-behavior.md#update). epsilon: half the width of the clipping range.
    """
    error = (values - returns).square()
    if old_values is not None:
        clipped = old_values + (values - old_values).clamp(-epsilon, epsilon)
        error = torch.maximum(error, (clipped - returns).square())
    # Signals have the same rows, so the mean over all entries is the mean over signals of their means.
    return masked_mean(error.t(), mask)


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


def approximate_kl(log_ratio: Tensor, ratio: Tensor, mask: Tensor | None) -> Tensor:
    """KL(old || new) of the whole action, estimated from the actions taken.

    The mean of ``ratio - 1 - log ratio``, which is never negative and has a low variance (Schulman 2020, "Approximating
    KL Divergence"), summed over dimensions and branches, which are independent given the state.
    """
    return masked_mean((ratio - 1.0 - log_ratio).sum(1), mask)


def clip_fraction(ratio: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
    """The fraction of the ratios outside the clipping range."""
    return masked_mean(((ratio - 1.0).abs() > epsilon).float(), mask)


def ratio_statistics(log_ratio: Tensor, ratio: Tensor, epsilon: float, mask: Tensor | None) -> dict[str, Tensor]:
    """Tag -> statistic of the probability ratios."""
    return {
        "Policy/Approximate KL": approximate_kl(log_ratio, ratio, mask),
        "Policy/Clip Fraction": clip_fraction(ratio, epsilon, mask),
    }


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """``1 - Var(returns - values) / Var(returns)`` over all entries.

    1 for a perfect critic, 0 for one no better than a constant, NaN or -inf if the returns do not vary.
    """
    return 1.0 - (returns - values).var(correction=0) / returns.var(correction=0)


def normalized(advantage: Tensor, mask: Tensor | None, weight: Tensor | None = None) -> Tensor:
    """Advantages with mean 0 and population standard deviation 1 over the real rows, times ``weight``; 0 in padding.

    ML-Agents counts the padding of LSTM sequences as advantages of 0 (docs/explanation/mlagents-behavior.md#ppo).
    """
    std, mean = torch.std_mean(advantage if mask is None else advantage[mask > 0], correction=0)
    found = (advantage - mean) / (std + 1e-10)
    if mask is not None:
        found = torch.where(mask > 0, found, torch.zeros_like(found))
    return found if weight is None else found * weight


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
        pieces: the parameters of actor and critic, as slices of the flat tensor that Adam updates.
        encoded: turns observations, per sensor [N, *O], into the first layer's input [N, in].
    """

    def __init__(self, actor: Actor, critic: ValueNetwork, hyper: OnPolicy) -> None:
        self._stack = BatchedNetworks(actor, critic)
        self.encoded = self._stack.encoded
        self.pieces = self._stack.pieces
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
