"""Evaluates SAC's value networks on minibatches: one by one, or with one batched matrix product per layer.

With a V network (Haarnoja et al. 2018a), there are the Q networks ``q1`` and ``q2``, V as ``critic`` and its target
network ``target``. Without V (2018b), there are ``q1``, ``q2`` and a target network for each, ``q1_target`` and
``q2_target``. Continuous actions are inputs of the Q networks.

Shape legend: V reward signals, b rows of a minibatch, C continuous actions, K discrete branches, P outputs of a Q
network per signal: 1 without discrete actions, else one for each discrete action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trajtrainer.learning.nn.body import NetworkBody, ObservationEncoder
from trajtrainer.learning.nn.conditioning import Layer, Mlp, activated_layers, affine, linears
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.distribution import ActionDistribution
from trajtrainer.learning.nn.minibatch import Minibatch

FOLLOWS = {"target": "critic", "q1_target": "q1", "q2_target": "q2"}
"""Maps each target network to the network that it follows."""

# The output of ``ObservationEncoder``: the encoding, and the part for each sensor of fixed size.
Encoded = tuple[Tensor, list[Tensor]]

# Maximum number of hidden units for which batching pays off. With 64 units, batching makes an update a quarter faster,
# because most of the time is overhead. With 256 units, it takes as long as evaluating the networks one by one (measured
# with scripts/benchmarks/sac.py).
LARGEST = 256


class Decision(NamedTuple):
    """The policy's decisions in b states.

    Attributes:
        encoded: the actor's encoding of the observations.
        policy: the action distribution pi(.|s).
        action: the continuous part of a ~ pi(.|s), [b, C]; None without continuous actions.
        continuous_entropy: ``-ln pi(a|s)``, summed over the dimensions, [b]; None without continuous actions.
        discrete_entropy: ``-sum of p ln p`` for each branch, [b, K]; None without discrete actions.
    """

    encoded: Encoded
    policy: ActionDistribution
    action: Tensor | None
    continuous_entropy: Tensor | None
    discrete_entropy: Tensor | None


class CriticOutputs(NamedTuple):
    """Outputs of the value networks.

    Attributes:
        value: V(s) [V, b]; None without V.
        q: Q1 and Q2 of the batch's actions [2, V, b, P].
        sampled_q: Q1 and Q2 of the sampled actions [2, V, b, P], with gradients to the actions but not to the
            networks. With V, Q2 has no gradients. None if the policy's decisions were not given.
        following: outputs of the target networks, without gradient: V(s') [V, b], or without V, Q1 and Q2 of the
            actions sampled in s' [2, V, b, P].
    """

    value: Tensor | None
    q: Tensor
    sampled_q: Tensor | None
    following: Tensor


class Critics:
    """Evaluates value networks of any architecture one by one. Each network encodes observations once for all actions.

    Attributes:
        parameters: the parameters to optimize.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork]) -> None:
        self._q = networks["q1"], networks["q2"]
        self._has_actions = self._q[0].body.action_size > 0
        self._critic = networks.get("critic")
        self._copies = [networks[name] for name in networks if name in FOLLOWS]
        for copy in self._copies:
            copy.requires_grad_(False)
        self.parameters = _parameters([networks[name] for name in networks if name not in FOLLOWS])
        self._followers = _parameters(self._copies)
        self._followed = _parameters([networks[FOLLOWS[name]] for name in networks if name in FOLLOWS])

    def __call__(self, batch: Minibatch, now: Decision | None, after: Decision | None) -> CriticOutputs:
        """Evaluate all networks.

        Args:
            batch: b rows.
            now: the policy's decisions in the current states. May be None without V if their values are not needed.
            after: the policy's decisions in the next states; None with V.
        """
        length, memory = batch.sequence_length, batch.critic_memory
        value = None if self._critic is None else self._critic(batch.obs, memory, length)[0]
        q, sampled_q = [], []
        for number, network in enumerate(self._q):
            # As in ML-Agents, the Q networks start each sequence with an empty memory.
            seen = network.body.encoder(batch.obs)
            actions = batch["continuous"] if self._has_actions else None
            q.append(_shaped(network.of_encoded(seen, None, length, actions)[0]))
            if now is None:
                continue
            if now.action is None:
                sampled_q.append(q[-1].detach())
                continue
            # With V, only Q1 trains the policy.
            action = now.action.detach() if number and self._critic is not None else now.action
            detached = seen[0].detach(), [part.detach() for part in seen[1]]
            with _frozen(network):
                sampled_q.append(_shaped(network.of_encoded(detached, None, length, action)[0]))
        with torch.no_grad():
            if self._critic is not None:
                memory = second_memory(self._critic.body, batch, memory)
                following = self._copies[0](batch.next_obs, memory, length)[0]
            else:
                assert after is not None
                each = [copy(batch.next_obs, None, length, after.action)[0] for copy in self._copies]
                following = torch.stack([_shaped(one) for one in each])
        return CriticOutputs(value, torch.stack(q), torch.stack(sampled_q) if sampled_q else None, following)

    def follow(self, tau: float) -> None:
        """Move the target networks by the fraction ``tau`` toward the networks that they follow."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)


def second_memory(body: NetworkBody, batch: Minibatch, memory: Tensor | None) -> Tensor | None:
    """Return the memory before each sequence of next observations [Q, H], which is ``memory`` after one step."""
    if memory is None:
        return None
    later: Tensor = body([sensor[:: batch.sequence_length] for sensor in batch.obs], None, memory)[1]
    return later


def _parameters(networks: Sequence[ValueNetwork]) -> list[Tensor]:
    return [parameter for network in networks for parameter in network.parameters()]


def _shaped(q: Tensor) -> Tensor:
    """Return Q values as [V, b, P], even if P is 1."""
    return q if q.dim() == 3 else q.unsqueeze(2)


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """Disable gradients for the network's parameters within the context."""
    parameters = list(network.parameters())
    for parameter in parameters:
        parameter.requires_grad = False
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad = True


def can_batch(networks: Mapping[str, ValueNetwork]) -> bool:
    """Return whether all networks are MLPs on vectors without a memory, so that they can share encoded observations."""
    bodies = [network.body for network in networks.values()]
    return all(body.is_mlp and body.memory is None for body in bodies)


def fastest(networks: Mapping[str, ValueNetwork], encode: ObservationEncoder) -> Critics | BatchedCritics:
    """Return the faster evaluator for these networks. ``BatchedCritics`` moves their parameters to shared tensors."""
    pays = can_batch(networks) and networks["q1"].body.encoding_size <= LARGEST
    return BatchedCritics(networks, encode) if pays else Critics(networks)


class BatchedCritics:
    """Evaluates critics that are MLPs on vectors, with one matrix product per layer for several networks.

    Twin of ``trajtrainer.learning.algos.sac.networks.Critics``.

    Shared tensors [4, in, out] contain all four networks, the trained ones first. The modules remain usable: their
    parameters become views.

    With V, the order is V, Q1, Q2 and the target network, and there are three calls: one for the three trained
    networks; one without gradient for Q2 of the policy's actions and the target network; and one for Q1 of the policy's
    actions. The last one is separate because only the policy's gradient passes through it; in a product with the other
    networks, the gradient would also be propagated through them for nothing. V and the target network do not depend on
    actions: their weights for actions are 0 and stay 0, because these inputs are always 0. Without V, the order is Q1,
    Q2 and their target networks, and there are three calls for two networks each.

    Attributes:
        parameters: the trained networks' part of each shared tensor, as leaf tensors.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork], encode: ObservationEncoder) -> None:
        names = ("critic", "q1", "q2", "target") if "critic" in networks else ("q1", "q2", "q1_target", "q2_target")
        order = [networks[name] for name in names]
        trained = 3 if "critic" in networks else 2
        for copy in order[trained:]:
            copy.requires_grad_(False)
        q, layers = networks["q1"], networks["q1"].body.layers
        assert isinstance(layers, Mlp)
        # The critics share the actor's encoding, unless they observe more sensors.
        self._shares_encoding = encode.seen == q.body.encoder.seen
        self._encode = encode if self._shares_encoding else q.body.encoder
        self._has_value = "critic" in networks
        self._activation = layers.activation
        self._signals, self._outputs = len(q.signals), q.heads.outputs
        self._action_size = q.body.action_size

        # Weight [4, in, out] and bias [4, 1, out] of each layer in order. The heads of all signals form the last layer.
        self._tensors: list[Tensor] = []
        self.parameters: list[Tensor] = []
        mlps = [network.body.layers for network in order]
        columns = [*zip(*([[one] for one in mlp.linears] for mlp in mlps if isinstance(mlp, Mlp)), strict=True)]
        for layer in (*columns, [linears(network.heads.linears.values()) for network in order]):
            self._place(layer, trained)

        self._trained = _pairs(self.parameters)
        if self._has_value:
            self._first_q = _pairs([tensor.detach()[1] for tensor in self._tensors])
            self._second_q_and_target = self._without_gradient(2, 4)
            self._target = self._without_gradient(3, 4)
        else:
            self._frozen_q = self._without_gradient(0, 2)
            self._copies = self._without_gradient(2, 4)
        self._followed = [tensor.detach()[: 4 - trained] for tensor in self._tensors]
        self._followers = [tensor.detach()[trained:] for tensor in self._tensors]

    def _place(self, layer: Sequence[Sequence[nn.Linear]], trained: int) -> None:
        """Add one layer. Each network provides one or more linear modules, whose outputs are concatenated.

        The weights are copied to a shared tensor, and the modules' parameters become views of it.
        """
        inputs = max(linear.in_features for side in layer for linear in side)
        width = max(linear.out_features for side in layer for linear in side)
        sample = layer[0][0].weight
        weight = sample.new_zeros(len(layer), inputs, width * len(layer[0]))
        bias = sample.new_zeros(len(layer), 1, width * len(layer[0]))
        self._tensors += [weight, bias]
        self.parameters += [tensor.detach()[:trained].requires_grad_() for tensor in (weight, bias)]
        for network, side in enumerate(layer):
            for number, linear in enumerate(side):
                columns = slice(number * width, number * width + linear.out_features)
                places = weight[network, : linear.in_features, columns].t(), bias[network, 0, columns]
                for parameter, place in zip((linear.weight, linear.bias), places, strict=True):
                    place.copy_(parameter.detach())
                    parameter.data = place

    def __call__(self, batch: Minibatch, now: Decision | None, after: Decision | None) -> CriticOutputs:
        if self._has_value:
            assert now is not None
            return self._with_value(batch, now)
        assert after is not None
        return self._without_value(batch, now, after)

    def _with_value(self, batch: Minibatch, now: Decision) -> CriticOutputs:
        x = self._seen(batch.obs, now)
        following = self._encode(batch.next_obs)[0]
        if now.action is None:
            out = self._heads(self._run(self._trained, x.expand(3, -1, -1)))
            next_value = self._heads(self._run(self._target, following.unsqueeze(0)))
            return CriticOutputs(out[0, :, :, 0], out[1:], out[1:].detach(), next_value[0, :, :, 0])
        nothing = x.new_zeros(len(x), self._action_size)
        wanted = torch.cat((x, now.action), 1)
        after = torch.cat((following, nothing), 1)
        with torch.no_grad():
            frozen = self._heads(self._run(self._second_q_and_target, torch.stack((wanted, after))))
        first_q = self._heads(self._run(self._first_q, wanted).unsqueeze(0))
        stored = torch.cat((x, batch["continuous"]), 1)
        out = self._heads(self._run(self._trained, torch.stack((torch.cat((x, nothing), 1), stored, stored))))
        return CriticOutputs(out[0, :, :, 0], out[1:], torch.cat((first_q, frozen[:1])), frozen[1, :, :, 0])

    def _without_value(self, batch: Minibatch, now: Decision | None, after: Decision) -> CriticOutputs:
        seen = self._seen(batch.obs, now)
        q = self._both(self._trained, seen, batch["continuous"])
        with torch.no_grad():
            following = self._both(self._copies, self._seen(batch.next_obs, after), after.action)
        if now is None:
            return CriticOutputs(None, q, None, following)
        sampled_q = q.detach() if now.action is None else self._both(self._frozen_q, seen, now.action)
        return CriticOutputs(None, q, sampled_q, following)

    def _seen(self, obs: Sequence[Tensor], decision: Decision | None) -> Tensor:
        """Return the critics' encoding [b, in]. Reuse that of the decision if the actor observes the same sensors."""
        if decision is not None and self._shares_encoding:
            return decision.encoded[0]
        return self._encode(obs)[0]  # type: ignore[no-any-return]

    def _both(self, layers: list[Layer], seen: Tensor, actions: Tensor | None) -> Tensor:
        """Evaluate two networks on the same actions, [2, V, b, P]."""
        x = seen if actions is None else torch.cat((seen, actions), 1)
        return self._heads(self._run(layers, x.expand(2, -1, -1)))

    def _run(self, layers: list[Layer], x: Tensor) -> Tensor:
        """Apply layers with activations between them. Returns [networks, b, out], or [b, out] for a single network."""
        return affine(activated_layers(x, layers[:-1], activation=self._activation), layers[-1])

    def _heads(self, out: Tensor) -> Tensor:
        """View [networks, b, V * P] as [networks, V, b, P]."""
        if self._signals == 1:
            return out.unsqueeze(1)
        return out.view(*out.shape[:2], self._signals, self._outputs).transpose(1, 2)

    def _without_gradient(self, begin: int, end: int) -> list[Layer]:
        return _pairs([tensor.detach()[begin:end] for tensor in self._tensors])

    def follow(self, tau: float) -> None:
        """Move the target networks by the fraction ``tau`` toward the networks that they follow."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)


def _pairs(tensors: list[Tensor]) -> list[Layer]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))
