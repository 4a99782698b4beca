"""XQC's networks and the policy's loss, differentiated by hand. The definitions are in ``networks`` and ``xqc``.

Shape legend: V reward signals, b rows of a batch, I inputs, C continuous actions, K discrete branches, D sum of branch
sizes, P distributions that a critic gives per signal: 1 without discrete actions, else D; Z atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trajtrainer.learning.algos.sac.losses import expected_q
from trajtrainer.learning.algos.sac.networks import Decision, decision
from trajtrainer.learning.algos.xqc.losses import ATOMS, PolicyLoss, atoms_like
from trajtrainer.learning.algos.xqc.networks import FOLLOWS, Joint, OneCritic
from trajtrainer.learning.algos.xqc.normalized import Normalized, NormalizedNetwork, NormalizedNetworks, normalize
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.conditioning import linears
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.distribution import EPSILON, ActionDistribution, GaussianScale
from trajtrainer.learning.nn.heads import masked
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.normalization import MAX_INPUT


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """The critics and the policy of one agent."""

    critics: CriticsClosedForm
    policy: PolicyClosedForm


def closed_form(actor: Actor, values: Mapping[str, ValueNetwork]) -> ClosedForm | None:
    """The closed form for networks on vectors without a memory, on the CPU. It changes numbers by rounding at most."""
    bodies = [actor.body, *(network.body for network in values.values())]
    on_cpu = all(parameter.device.type == "cpu" for parameter in actor.parameters())
    if not on_cpu or actor.head.use_sde or not all(body.encoder.is_plain and body.memory is None for body in bodies):
        return None
    return ClosedForm(CriticsClosedForm(values), PolicyClosedForm(actor))


class Means(NamedTuple):
    """What critics expect.

    Attributes:
        each: by both critics [2, V, b, P].
        by_action: from the gradient with respect to ``each`` to that with respect to the action [b, C].
    """

    each: Tensor
    by_action: Callable[[Tensor], Tensor]


class CriticsClosedForm:
    """Twin of ``trajtrainer.learning.algos.xqc.networks.CategoricalCritics`` for critics on vectors without a memory.

    Attributes:
        parameters: one leaf with those of both critics.
        pieces: as those of ``CategoricalCritics``.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork]) -> None:
        order = [networks[name] for name in (*FOLLOWS.values(), *FOLLOWS)]
        for copy in order[2:]:
            copy.requires_grad_(False)
        self._signals = len(order[0].signals)
        self._all = NormalizedNetworks(order, [linears(network.heads.modules()) for network in order], trained=2)
        self._critics, self._copies = self._all.networks[:2], self._all.networks[2:]
        self.parameters, self.pieces = [self._all.leaf], self._all.pieces
        self.project, self.follow = self._all.project, self._all.follow

    @torch.no_grad()
    def joint(self, batch: Minibatch, next_action: Tensor | None) -> Joint:
        size = len(batch)
        columns = [torch.cat(pair) for pair in zip(batch.obs, batch.next_obs, strict=True)]
        if next_action is not None:
            columns.append(torch.cat((batch["continuous"], next_action)))
        entered = normalize(torch.cat(columns, 1).clamp_(-MAX_INPUT, MAX_INPUT).t().contiguous())
        following = [copy.heads(copy.by_batch(entered)[:, size:].contiguous()) for copy in self._copies]
        probs = self._by_signal(torch.stack(following)).softmax(-1)
        return Joint(probs, (self._evaluated(critic, entered, size) for critic in self._critics))

    @torch.no_grad()
    def _evaluated(self, critic: NormalizedNetwork, entered: Normalized, size: int) -> OneCritic:
        encoding = critic.by_batch(entered, remember=True)[:, :size].contiguous()
        logits = self._by_signal(critic.heads(encoding))
        return OneCritic(logits, lambda grad: critic.backward(encoding, grad.transpose(0, 1).flatten(1)))

    @torch.no_grad()
    def means(self, batch: Minibatch, action: Tensor | None) -> Means:
        """Expected returns of an action by running statistics."""
        x = torch.cat(batch.obs if action is None else (*batch.obs, action), 1).clamp_(-MAX_INPUT, MAX_INPUT)
        networks = [critic.folded() for critic in self._critics]
        probs = self._by_signal(torch.stack([network(x) for network in networks])).softmax(-1)
        atoms = atoms_like(probs)
        means = probs @ atoms

        def by_action(grad: Tensor) -> Tensor:
            assert action is not None
            by_logits = (atoms - means.unsqueeze(-1)).mul_(probs).mul_(grad.unsqueeze(-1)).transpose(1, 2).flatten(2)
            first, second = (network.by_input(one) for network, one in zip(networks, by_logits, strict=True))
            return (first + second)[:, -action.shape[1] :]

        return Means(means, by_action)

    def _by_signal(self, outputs: Tensor) -> Tensor:
        """[..., b, V * P * Z] to [..., V, b, P, Z]."""
        return outputs.view(*outputs.shape[:-1], self._signals, -1, ATOMS).movedim(-3, -4)


class PolicyClosedForm:
    """The policy, its loss and the gradient of that.

    Twin of ``trajtrainer.learning.algos.xqc.xqc.XQC.differentiate_policy``.

    Attributes:
        parameters: one leaf.
        pieces: the actor's parameters.
    """

    def __init__(self, actor: Actor) -> None:
        self._head, self._encode = actor.head, actor.body.encoder
        self._all = NormalizedNetworks([actor], [linears(actor.head.modules())], trained=1)
        (self._network,) = self._all.networks
        self.parameters, self.pieces = [self._all.leaf], self._all.pieces
        self.project = self._all.project

    @torch.no_grad()
    def decide(self, obs: Sequence[Tensor], mask: Tensor, noise: Tensor, sum_by_branch: Tensor) -> Decision:
        """Decide by running statistics; arguments as in ``SAC.decide``, and ``differentiate``."""
        encoded = self._encode(obs)
        policy = self._distribution(self._network.folded()(encoded[0]), mask)
        return decision(encoded, policy, noise, sum_by_branch)

    def _distribution(self, outputs: Tensor, mask: Tensor) -> ActionDistribution:
        """Of the heads' outputs [b, 2 * C + D]."""
        size = self._head.continuous_size
        mu, log_sigma, logits = torch.split(outputs, [size, size, outputs.shape[1] - 2 * size], 1)
        scale = GaussianScale(log_sigma.clamp(*self._head.log_sigma_range))
        return self._head.distribution(mu, scale, masked(logits, mask) if self._head.branches else logits)

    @torch.no_grad()
    def differentiate(
        self,
        batch: Minibatch,
        critics: CriticsClosedForm,
        share: Tensor,
        alphas: tuple[Tensor, Tensor],
        sum_by_branch: Tensor,
    ) -> PolicyLoss:
        """Write the gradient of the policy's loss.

        Args:
            batch: without padding.
            critics: that value its actions.
            share: weights of the signals [V].
            alphas: entropy coefficients, of continuous [1] and of discrete actions [K].
            sum_by_branch: [D, K], 1 where a column belongs to a branch.
        """
        rows, branches, noise = len(batch), len(self._head.branches), batch["noise"]

        # a ~ pi(.|s) by the batch's statistics, valued by the critics' running ones.
        encoded = self._encode(batch.obs)
        encoding = self._network.by_batch(
            normalize(encoded[0].clamp(-MAX_INPUT, MAX_INPUT).t().contiguous()), remember=True
        )
        outputs = self._network.heads(encoding)
        policy = self._distribution(outputs, batch["mask"])
        now = decision(encoded, policy, noise, sum_by_branch)
        means = critics.means(batch, now.action)
        first_is_smaller = means.each[0] <= means.each[1]
        q = torch.where(first_is_smaller, means.each[0], means.each[1])
        gain = (share @ (expected_q(q, policy.probs, branches) if branches else q.squeeze(2))).mean()

        gradients = []
        if now.action is not None and now.continuous_entropy is not None:
            gain = gain + alphas[0].squeeze(0) * now.continuous_entropy.mean()
            # Through the smaller of both critics to the action, a = tanh(mu + sigma noise).
            by_q = (share / -rows).view(-1, 1, 1).expand_as(q)
            if branches:
                by_q = by_q * (policy.probs / branches)
            by_first = torch.where(first_is_smaller, by_q, 0.0)
            by_action = means.by_action(torch.stack((by_first, by_q - by_first)))
            # H = -ln pi(a|s) with d H / d raw = -2 tanh(raw), as the derivative of the density itself is 0 there.
            by_entropy = alphas[0] / -rows
            by_raw = by_action * (1.0 - now.action.square()) - (2.0 * by_entropy) * now.action
            sigma, double_variance = policy.sigma, policy.scale.double_variance
            direct = 1.0 / (sigma + EPSILON) + 2.0 * EPSILON * sigma * (noise / double_variance).square()
            by_log_sigma = (by_raw * noise + by_entropy * direct) * sigma
            size = self._head.continuous_size
            unclamped = policy.log_sigma == outputs[:, size : 2 * size]
            gradients += [by_raw, torch.where(unclamped, by_log_sigma, 0.0)]
        if now.discrete_entropy is not None:
            gain = gain + (now.discrete_entropy @ alphas[1]).mean() / branches
            # To the probabilities, and through the softmax of each branch to the logits.
            probs = policy.probs
            by_entropy = policy.all_log_probs + probs / (probs + EPSILON)
            by_probs = torch.tensordot(share, q, 1) - by_entropy * (sum_by_branch @ alphas[1])
            weighted = probs * by_probs.div_(-rows * branches)
            by_logits = weighted - probs * (weighted @ sum_by_branch @ sum_by_branch.t())
            gradients.append(by_logits.masked_fill_(batch["mask"], 0.0))
        self._network.backward(encoding, torch.cat(gradients, 1))
        return PolicyLoss(gain, now.continuous_entropy, now.discrete_entropy)
