"""SAC's value networks evaluated together: one batched matrix product per layer instead of one small one per network.

V, Q1, Q2 and the target network are kept in common tensors [4, in, out], in this order, so that those that are trained
are the first three and those that only tell values of the policy's actions and of the next state are the last two:
three calls for six evaluations. The third is Q1's of the policy's actions, alone because only the policy's gradient
goes through it: in one product with the others it would be led back through those, too, for nothing. V and its copy see
no actions; their weights for them are 0 and stay so, because what enters there is 0.

Networks of 64 units take a quarter less time for an update, most of which is not arithmetic; at 256 units and batches
of 256 rows a tenth less (measured by ``scripts/benchmarks/sac.py``).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.algos.sac.values import Encoded, Estimates, Evaluation, SeparateEvaluation, ValueNetworks
from trajtrainer.fast.adam import Piece
from trajtrainer.nn.conditioning import Layer, Mlp, activated_layers, affine, linears
from trajtrainer.nn.critic import Critic

_LARGEST_HIDDEN = 256  # units, up to which stacking pays


def can_stack(networks: ValueNetworks) -> bool:
    """Return whether these networks are MLPs on vectors.

    Their encodings of an observation are the same then, as their normalisers are.
    """
    bodies = (networks.critic.body, networks.q1.body)
    return all(body.is_mlp and body.memory is None for body in bodies)


def value_evaluation(networks: ValueNetworks, encode: nn.Module, stacked: bool | None = None) -> Evaluation:
    """Return the fastest way to evaluate these networks.

    Args:
        networks: on their device; where they are stacked, their parameters move into common tensors.
        encode: the actor's observation encoder.
        stacked: whether to stack them; by default where they can be and it is faster.
    """
    if stacked is None:
        stacked = can_stack(networks) and networks.critic.body.encoding_size <= _LARGEST_HIDDEN
    return StackedEvaluation(networks, encode) if stacked else SeparateEvaluation(networks)


class StackedEvaluation:
    """Evaluate MLPs on vectors (see ``can_stack``). The four modules go on working: their parameters are views.

    Twin of ``trajtrainer.algos.sac.values.SeparateEvaluation``.
    """

    def __init__(self, networks: ValueNetworks, encode: nn.Module) -> None:
        """Move the networks' parameters into common tensors.

        Args:
            networks: on their device.
            encode: the actor's observation encoder.
        """
        self._encode = encode
        layers = networks.critic.body.layers
        assert isinstance(layers, Mlp)
        self._activation = layers.activation
        self._signals = len(networks.critic.signals)
        self._outputs = networks.q1.heads.outputs
        self._action_size = networks.q1.body.action_size
        order = (networks.critic, networks.q1, networks.q2, networks.target)
        networks.target.requires_grad_(False)
        homes = _Homes(order)
        self.parameters: list[Tensor] = homes.live
        self._live = _pairs(homes.live)
        self.pieces = [piece for index in (1, 2, 0) for piece in homes.pieces[index]]
        self._first_q = _pairs([tensor.detach()[1] for tensor in homes.tensors])
        self._frozen = _pairs([tensor.detach()[2:] for tensor in homes.tensors])
        self._target = _pairs([tensor.detach()[3:] for tensor in homes.tensors])
        self._followed = [tensor.detach()[0] for tensor in homes.tensors]
        self._followers = [tensor.detach()[3] for tensor in homes.tensors]

    def __call__(self, batch: Minibatch, encoded: Encoded, sampled: Tensor | None) -> Estimates:
        """Return estimates for a batch: see ``SacValues``."""
        x = encoded[0]
        following = self._encode(batch.next_obs)[0]
        if sampled is None:
            out = self._heads(self._run(self._live, x.expand(3, -1, -1)))
            next_value = self._heads(self._run(self._target, following.unsqueeze(0)))
            return Estimates(out[0, :, :, 0], out[1:], out[1:].detach(), next_value[0, :, :, 0])
        nothing = x.new_zeros(len(x), self._action_size)
        wanted = torch.cat((x, sampled), 1)
        after = torch.cat((following, nothing), 1)
        with torch.no_grad():
            frozen = self._heads(self._run(self._frozen, torch.stack((wanted, after))))
        first_q = self._heads(self._run(self._first_q, wanted).unsqueeze(0))
        stored = torch.cat((x, batch["continuous"]), 1)
        live = self._heads(self._run(self._live, torch.stack((torch.cat((x, nothing), 1), stored, stored))))
        return Estimates(live[0, :, :, 0], live[1:], torch.cat((first_q, frozen[:1])), frozen[1, :, :, 0])

    def follow(self, tau: float) -> None:
        """Move the target network by the fraction ``tau`` towards V."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)

    def _run(self, layers: list[Layer], x: Tensor) -> Tensor:
        """Return what layers with activations between them give: [networks, b, out], or [b, out] of one network."""
        return affine(activated_layers(x, layers[:-1], activation=self._activation), layers[-1])

    def _heads(self, out: Tensor) -> Tensor:
        """View [networks, b, V * P] as [networks, V, b, P]."""
        if self._signals == 1:
            return out.unsqueeze(1)
        return out.view(*out.shape[:2], self._signals, self._outputs).transpose(1, 2)


def _pairs(tensors: list[Tensor]) -> list[Layer]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


class _Homes:
    """The common tensors of four networks, and where in them each network's parameters are.

    Attributes:
        tensors: weight [4, in, out] and bias [4, 1, out] of each layer in turn, the heads of all signals as the last.
        live: their first three networks, as leaves to be trained.
        pieces: for each network its parameters, in the module's order, as parts of the live leaves (of the fourth
            network: of nothing, so it has none).
    """

    def __init__(self, order: tuple[Critic, ...]) -> None:
        self.tensors: list[Tensor] = []
        self.live: list[Tensor] = []
        self.pieces: list[list[Piece]] = [[] for _ in order]
        depth = len(_linears(order[0]))
        for index in range(depth):
            self._add([[_linears(network)[index]] for network in order])
        self._add([linears(network.heads.linears.values()) for network in order])

    def _add(self, layer: list[list[nn.Linear]]) -> None:
        """Add one layer: for each network the linears that stand side by side in it."""
        inputs = max(linear.in_features for side in layer for linear in side)
        width = max(linear.out_features for side in layer for linear in side)
        sample = layer[0][0].weight
        weight = sample.new_zeros(len(layer), inputs, width * len(layer[0]))
        bias = sample.new_zeros(len(layer), 1, width * len(layer[0]))
        live = [tensor.detach()[: len(layer) - 1].requires_grad_() for tensor in (weight, bias)]
        self.tensors += [weight, bias]
        self.live += live
        for network, side in enumerate(layer):
            for number, linear in enumerate(side):
                begin = number * width
                views = (
                    partial(_weight, network=network, begin=begin, shape=(linear.out_features, linear.in_features)),
                    partial(_bias, network=network, begin=begin, size=linear.out_features),
                )
                for tensor, leaf, view, parameter in zip(
                    (weight, bias), live, views, (linear.weight, linear.bias), strict=True
                ):
                    place = view(tensor)
                    place.copy_(parameter.detach())
                    parameter.data = place
                    if network < len(layer) - 1:
                        self.pieces[network].append(Piece(leaf, view))


def _linears(network: Critic) -> list[nn.Linear]:
    layers = network.body.layers
    assert isinstance(layers, Mlp)
    return layers.linears


def _weight(tensor: Tensor, network: int, begin: int, shape: tuple[int, int]) -> Tensor:
    """Return a linear's weight [out, in] within [networks, in, out]."""
    return tensor[network, : shape[1], begin : begin + shape[0]].t()


def _bias(tensor: Tensor, network: int, begin: int, size: int) -> Tensor:
    return tensor[network, 0, begin : begin + size]
