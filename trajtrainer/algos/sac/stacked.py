"""SAC's value networks evaluated together: one batched matrix product per layer instead of one small one per network.

All four are kept in common tensors [4, in, out], those that are trained first. With V the order is V, Q1, Q2 and the
target network, so that three calls do for six evaluations: the trained three; the last two without gradient (Q2 of the
policy's actions, and the target); and Q1 of the policy's actions, alone because only the policy's gradient goes through
it: in one product with the others it would be led back through those, too, for nothing. V and its copy see no actions;
their weights for them are 0 and stay so, because what enters there is 0. Without V the order is Q1, Q2 and their
copies: three calls of two evaluations each.

Networks of 64 units take a quarter less time for an update, most of which is not arithmetic; those of 256 units take as
long as one by one (measured by ``scripts/benchmarks/sac.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from trajtrainer.algos.sac.networks import Critics, Decision, Estimates
from trajtrainer.nn.body import ObservationEncoder
from trajtrainer.nn.conditioning import Layer, Mlp, activated_layers, affine, linears
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.fast.adam import Piece
from trajtrainer.nn.minibatch import Minibatch

LARGEST = 256  # hidden units, up to which stacking pays


def can_stack(networks: Mapping[str, ValueNetwork]) -> bool:
    """Return whether these networks are MLPs on vectors.

    Their encodings of an observation are the same then, as their normalizers are.
    """
    bodies = [network.body for network in networks.values()]
    return all(body.is_mlp and body.memory is None for body in bodies)


def fastest(networks: Mapping[str, ValueNetwork], encode: ObservationEncoder) -> Critics | StackedCritics:
    """Return the fastest way to evaluate these networks. Those that are stacked move into common tensors.

    Args:
        networks: by name, on their device.
        encode: the actor's observation encoder.
    """
    pays = can_stack(networks) and networks["q1"].body.encoding_size <= LARGEST
    return StackedCritics(networks, encode) if pays else Critics(networks)


class StackedCritics:
    """Twin of ``trajtrainer.algos.sac.networks.Critics`` for MLPs on vectors (see ``can_stack``).

    The modules go on working: their parameters are views.

    Attributes:
        parameters: the first networks of each common tensor, as leaves.
        pieces: as those of ``Critics``.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork], encode: ObservationEncoder) -> None:
        """Move the networks' parameters into common tensors.

        Args:
            networks: by name, on their device.
            encode: the actor's observation encoder.
        """
        names = ("critic", "q1", "q2", "target") if "critic" in networks else ("q1", "q2", "q1_target", "q2_target")
        order = [networks[name] for name in names]
        trained = 3 if "critic" in networks else 2
        for copy in order[trained:]:
            copy.requires_grad_(False)
        q, layers = networks["q1"], networks["q1"].body.layers
        assert isinstance(layers, Mlp)
        # The actor's encoding serves the critics, too, unless they see more.
        self._shares_encoding = encode.seen == q.body.encoder.seen
        self._encode = encode if self._shares_encoding else q.body.encoder
        self._has_value = "critic" in networks
        self._activation = layers.activation
        self._signals, self._outputs = len(q.signals), q.heads.outputs
        self._action_size = q.body.action_size

        # Weight [4, in, out] and bias [4, 1, out] of each layer in turn; the heads of all signals are the last one.
        self._tensors: list[Tensor] = []
        self.parameters: list[Tensor] = []
        pieces: dict[str, list[Piece]] = {name: [] for name in names}
        columns = [*zip(*([[one] for one in _linears(network)] for network in order), strict=True)]
        for layer in (*columns, [linears(network.heads.linears.values()) for network in order]):
            self._place(layer, trained, pieces)
        self.pieces = [piece for name in ("q1", "q2", "critic") for piece in pieces.get(name, ())]

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

    def _place(self, layer: Sequence[Sequence[nn.Linear]], trained: int, pieces: Mapping[str, list[Piece]]) -> None:
        """Add one layer: for each network the linears that are side by side in it."""
        inputs = max(linear.in_features for side in layer for linear in side)
        width = max(linear.out_features for side in layer for linear in side)
        sample = layer[0][0].weight
        weight = sample.new_zeros(len(layer), inputs, width * len(layer[0]))
        bias = sample.new_zeros(len(layer), 1, width * len(layer[0]))
        leaves = [tensor.detach()[:trained].requires_grad_() for tensor in (weight, bias)]
        self._tensors += [weight, bias]
        self.parameters += leaves
        for network, (side, of_network) in enumerate(zip(layer, pieces.values(), strict=True)):
            for number, linear in enumerate(side):
                begin = number * width
                views = (
                    partial(_weight, network=network, begin=begin, shape=(linear.out_features, linear.in_features)),
                    partial(_bias, network=network, begin=begin, size=linear.out_features),
                )
                for tensor, leaf, view, parameter in zip(
                    (weight, bias), leaves, views, (linear.weight, linear.bias), strict=True
                ):
                    place = view(tensor)
                    place.copy_(parameter.detach())
                    parameter.data = place
                    if network < trained:
                        of_network.append(Piece(leaf, view))

    def __call__(self, batch: Minibatch, now: Decision | None, after: Decision | None) -> Estimates:
        """Evaluate all networks."""
        if self._has_value:
            assert now is not None
            return self._with_value(batch, now)
        assert after is not None
        return self._without_value(batch, now, after)

    def _with_value(self, batch: Minibatch, now: Decision) -> Estimates:
        x = self._seen(batch.obs, now)
        following = self._encode(batch.next_obs)[0]
        if now.action is None:
            out = self._heads(self._run(self._trained, x.expand(3, -1, -1)))
            next_value = self._heads(self._run(self._target, following.unsqueeze(0)))
            return Estimates(out[0, :, :, 0], out[1:], out[1:].detach(), next_value[0, :, :, 0])
        nothing = x.new_zeros(len(x), self._action_size)
        wanted = torch.cat((x, now.action), 1)
        after = torch.cat((following, nothing), 1)
        with torch.no_grad():
            frozen = self._heads(self._run(self._second_q_and_target, torch.stack((wanted, after))))
        first_q = self._heads(self._run(self._first_q, wanted).unsqueeze(0))
        stored = torch.cat((x, batch["continuous"]), 1)
        out = self._heads(self._run(self._trained, torch.stack((torch.cat((x, nothing), 1), stored, stored))))
        return Estimates(out[0, :, :, 0], out[1:], torch.cat((first_q, frozen[:1])), frozen[1, :, :, 0])

    def _without_value(self, batch: Minibatch, now: Decision | None, after: Decision) -> Estimates:
        seen = self._seen(batch.obs, now)
        q = self._both(self._trained, seen, batch["continuous"])
        with torch.no_grad():
            following = self._both(self._copies, self._seen(batch.next_obs, after), after.action)
        if now is None:
            return Estimates(None, q, None, following)
        sampled_q = q.detach() if now.action is None else self._both(self._frozen_q, seen, now.action)
        return Estimates(None, q, sampled_q, following)

    def _seen(self, obs: Sequence[Tensor], decision: Decision | None) -> Tensor:
        """Return what the critics take of observations about which the policy may have decided: [b, in]."""
        if decision is not None and self._shares_encoding:
            return decision.encoded[0]
        return self._encode(obs)[0]  # type: ignore[no-any-return]

    def _both(self, layers: list[Layer], seen: Tensor, actions: Tensor | None) -> Tensor:
        """Return what two networks say of the same actions [2, V, b, P]."""
        x = seen if actions is None else torch.cat((seen, actions), 1)
        return self._heads(self._run(layers, x.expand(2, -1, -1)))

    def _run(self, layers: list[Layer], x: Tensor) -> Tensor:
        """Layers with activations between them: [networks, b, out], or [b, out] of one network."""
        return affine(activated_layers(x, layers[:-1], activation=self._activation), layers[-1])

    def _heads(self, out: Tensor) -> Tensor:
        """View [networks, b, V * P] as [networks, V, b, P]."""
        if self._signals == 1:
            return out.unsqueeze(1)
        return out.view(*out.shape[:2], self._signals, self._outputs).transpose(1, 2)

    def _without_gradient(self, begin: int, end: int) -> list[Layer]:
        return _pairs([tensor.detach()[begin:end] for tensor in self._tensors])

    def follow(self, tau: float) -> None:
        """Move the slow copies by the fraction ``tau`` toward the networks that they follow."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)


def _pairs(tensors: list[Tensor]) -> list[Layer]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


def _linears(network: ValueNetwork) -> list[nn.Linear]:
    layers = network.body.layers
    assert isinstance(layers, Mlp)
    return layers.linears


def _weight(tensor: Tensor, network: int, begin: int, shape: tuple[int, int]) -> Tensor:
    """Return a linear's weight [out, in] within [networks, in, out]."""
    return tensor[network, : shape[1], begin : begin + shape[0]].t()


def _bias(tensor: Tensor, network: int, begin: int, size: int) -> Tensor:
    return tensor[network, 0, begin : begin + size]
