"""SAC's value networks evaluated together: one batched matrix product per layer instead of one small one per network.

V, Q1, Q2 and the target network are kept in common tensors [4, in, out], in this order, so that those that are trained
are the first three and those that only tell values of the policy's actions and of the next state are the last two:
three calls for six evaluations. The third is Q1's of the policy's actions, alone because only the policy's gradient
goes through it: in one product with the others it would be led back through those, too, for nothing. V and its copy see
no actions; their weights for them are 0 and stay so, because what enters there is 0.

Without V the Q networks are the first two and their copies the last two: three calls of two evaluations each.

Networks of 64 units take a quarter less time for an update, most of which is not arithmetic; at 256 units and batches
of 256 rows a tenth less (measured by ``scripts/benchmarks/sac.py``).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from trajtrainer.algos.sac.values import (
    Considered,
    Estimates,
    Evaluation,
    Networks,
    SeparateEvaluation,
    SeparateTwins,
    TwinEstimates,
    TwinEvaluation,
    TwinNetworks,
    ValueNetworks,
    by_name,
)
from trajtrainer.nn.conditioning import Layer, Mlp, activated_layers, affine, linears
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.fast.adam import Piece
from trajtrainer.nn.minibatch import Minibatch

_LARGEST_HIDDEN = 256  # units, up to which stacking pays


def can_stack(networks: Networks) -> bool:
    """Return whether these networks are MLPs on vectors.

    Their encodings of an observation are the same then, as their normalisers are.
    """
    bodies = [network.body for network in by_name(networks).values()]
    return all(body.is_mlp and body.memory is None for body in bodies)


def value_evaluation(networks: ValueNetworks, encode: nn.Module, stacked: bool | None = None) -> Evaluation:
    """Return the fastest way to evaluate these networks.

    Args:
        networks: on their device; where they are stacked, their parameters move into common tensors.
        encode: the actor's observation encoder.
        stacked: whether to stack them; by default where they can be and it is faster.
    """
    pays = _pays(networks) if stacked is None else stacked
    return StackedEvaluation(networks, encode) if pays else SeparateEvaluation(networks)


def twin_evaluation(networks: TwinNetworks, encode: nn.Module, stacked: bool | None = None) -> TwinEvaluation:
    """Return the fastest way to evaluate these networks; arguments as those of ``value_evaluation``."""
    pays = _pays(networks) if stacked is None else stacked
    return StackedTwins(networks, encode) if pays else SeparateTwins(networks)


def _pays(networks: Networks) -> bool:
    return can_stack(networks) and networks.q1.body.encoding_size <= _LARGEST_HIDDEN


class _Stacked:
    """Four MLPs on vectors (see ``can_stack``), which go on working as modules: their parameters are views."""

    _followed: list[Tensor]
    _followers: list[Tensor]

    def __init__(self, order: tuple[ValueNetwork, ...], encode: nn.Module, num_trained: int) -> None:
        """Move the parameters of these networks, of which the first are trained, into common tensors."""
        q = order[1]
        layers = q.body.layers
        assert isinstance(layers, Mlp)
        self._encode = encode
        self._activation = layers.activation
        self._signals = len(q.signals)
        self._outputs = q.heads.outputs
        self._action_size = q.body.action_size
        for copy in order[num_trained:]:
            copy.requires_grad_(False)
        homes = _Homes(order, num_trained)
        self._tensors = homes.tensors
        self._of_network = homes.pieces
        self.parameters: list[Tensor] = homes.live
        self._live = _pairs(homes.live)

    def follow(self, tau: float) -> None:
        """Move the copies by the fraction ``tau`` towards the networks that they follow."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)

    def _without_gradient(self, begin: int, end: int) -> list[Layer]:
        """Return the layers of some of the networks, as views."""
        return _pairs([tensor.detach()[begin:end] for tensor in self._tensors])

    def _run(self, layers: list[Layer], x: Tensor) -> Tensor:
        """Return what layers with activations between them give: [networks, b, out], or [b, out] of one network."""
        return affine(activated_layers(x, layers[:-1], activation=self._activation), layers[-1])

    def _heads(self, out: Tensor) -> Tensor:
        """View [networks, b, V * P] as [networks, V, b, P]."""
        if self._signals == 1:
            return out.unsqueeze(1)
        return out.view(*out.shape[:2], self._signals, self._outputs).transpose(1, 2)


class StackedEvaluation(_Stacked):
    """Evaluate MLPs on vectors. Twin of ``trajtrainer.algos.sac.values.SeparateEvaluation``."""

    def __init__(self, networks: ValueNetworks, encode: nn.Module) -> None:
        """Move the networks' parameters into common tensors.

        Args:
            networks: on their device.
            encode: the actor's observation encoder.
        """
        super().__init__((networks.critic, networks.q1, networks.q2, networks.target), encode, num_trained=3)
        self.pieces = [piece for index in (1, 2, 0) for piece in self._of_network[index]]
        self._first_q = _pairs([tensor.detach()[1] for tensor in self._tensors])
        self._frozen, self._target = self._without_gradient(2, 4), self._without_gradient(3, 4)
        self._followed = [tensor.detach()[0] for tensor in self._tensors]
        self._followers = [tensor.detach()[3] for tensor in self._tensors]

    def __call__(self, batch: Minibatch, now: Considered) -> Estimates:
        """Return estimates for a batch."""
        x = now.encoded[0]
        following = self._encode(batch.next_obs)[0]
        if now.sampled is None:
            out = self._heads(self._run(self._live, x.expand(3, -1, -1)))
            next_value = self._heads(self._run(self._target, following.unsqueeze(0)))
            return Estimates(out[0, :, :, 0], out[1:], out[1:].detach(), next_value[0, :, :, 0])
        nothing = x.new_zeros(len(x), self._action_size)
        wanted = torch.cat((x, now.sampled), 1)
        after = torch.cat((following, nothing), 1)
        with torch.no_grad():
            frozen = self._heads(self._run(self._frozen, torch.stack((wanted, after))))
        first_q = self._heads(self._run(self._first_q, wanted).unsqueeze(0))
        stored = torch.cat((x, batch["continuous"]), 1)
        live = self._heads(self._run(self._live, torch.stack((torch.cat((x, nothing), 1), stored, stored))))
        return Estimates(live[0, :, :, 0], live[1:], torch.cat((first_q, frozen[:1])), frozen[1, :, :, 0])


class StackedTwins(_Stacked):
    """Evaluate MLPs on vectors. Twin of ``trajtrainer.algos.sac.values.SeparateTwins``."""

    def __init__(self, networks: TwinNetworks, encode: nn.Module) -> None:
        """Move the networks' parameters into common tensors; arguments as those of ``StackedEvaluation``."""
        super().__init__((networks.q1, networks.q2, networks.q1_target, networks.q2_target), encode, num_trained=2)
        self.pieces = [piece for index in (0, 1) for piece in self._of_network[index]]
        self._frozen, self._copies = self._without_gradient(0, 2), self._without_gradient(2, 4)
        self._followed = [tensor.detach()[:2] for tensor in self._tensors]
        self._followers = [tensor.detach()[2:] for tensor in self._tensors]

    def __call__(self, batch: Minibatch, now: Considered | None, after: Considered) -> TwinEstimates:
        """Return estimates for a batch."""
        seen = (self._encode(batch.obs) if now is None else now.encoded)[0]
        stored = self._q(self._live, seen, batch["continuous"])
        with torch.no_grad():
            next_q = self._q(self._copies, after.encoded[0], after.sampled)
        if now is None:
            return TwinEstimates(stored, None, next_q)
        sampled = stored.detach() if now.sampled is None else self._q(self._frozen, seen, now.sampled)
        return TwinEstimates(stored, sampled, next_q)

    def _q(self, layers: list[Layer], seen: Tensor, actions: Tensor | None) -> Tensor:
        """Return what two networks tell of the same actions [2, V, b, P]."""
        x = seen if actions is None else torch.cat((seen, actions), 1)
        return self._heads(self._run(layers, x.expand(2, -1, -1)))


def _pairs(tensors: list[Tensor]) -> list[Layer]:
    return list(zip(tensors[::2], tensors[1::2], strict=True))


class _Homes:
    """The common tensors of four networks, and where in them each network's parameters are.

    Attributes:
        tensors: weight [4, in, out] and bias [4, 1, out] of each layer in turn, the heads of all signals as the last.
        live: the first networks of each, as leaves to be trained.
        pieces: for each network its parameters, in the module's order, as parts of the live leaves (of those that are
            not trained: of nothing, so they have none).
    """

    def __init__(self, order: tuple[ValueNetwork, ...], num_trained: int) -> None:
        self._num_trained = num_trained
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
        live = [tensor.detach()[: self._num_trained].requires_grad_() for tensor in (weight, bias)]
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
                    if network < self._num_trained:
                        self.pieces[network].append(Piece(leaf, view))


def _linears(network: ValueNetwork) -> list[nn.Linear]:
    layers = network.body.layers
    assert isinstance(layers, Mlp)
    return layers.linears


def _weight(tensor: Tensor, network: int, begin: int, shape: tuple[int, int]) -> Tensor:
    """Return a linear's weight [out, in] within [networks, in, out]."""
    return tensor[network, : shape[1], begin : begin + shape[0]].t()


def _bias(tensor: Tensor, network: int, begin: int, size: int) -> Tensor:
    return tensor[network, 0, begin : begin + size]
