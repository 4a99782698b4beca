"""XQC's critics, whose outputs are distributions over returns, evaluated one by one or side by side without autograd.

There are two, ``q1`` and ``q2``, and a slow copy of each, ``q1_target`` and ``q2_target``.

Shape legend: V reward signals, b rows of a batch, P distributions that a critic gives per signal: 1 without discrete
actions, else one for each of them; Z atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from trajtrainer.algos.xqc.losses import ATOMS, atoms_like
from trajtrainer.nn.conditioning import Layer, activated_layers, linears
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.fast.adam import ParameterView, whole
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.nn.normalization import (
    EPSILON,
    MOMENTUM,
    BatchNorm,
    NormalizedMlp,
    batch_statistics,
    project,
    projected_weights,
)
from trajtrainer.settings.network import Activation

FOLLOWS = {"q1_target": "q1", "q2_target": "q2"}
"""Slow copy -> the critic that it follows."""


class Joint(NamedTuple):
    """Outputs of one pass: of the critics for (s, a), and of their slow copies for (s', a').

    Attributes:
        logits: of (s, a) [2, V, b, P, Z].
        following: probabilities of (s', a'), without gradient [2, V, b, P, Z].
        backward: takes the gradient with respect to the logits and writes that of the critics' parameters.
    """

    logits: Tensor
    following: Tensor
    backward: Callable[[Tensor], None]


class CategoricalCritics:
    """Evaluates any critics, one call after the other.

    Attributes:
        parameters: the leaves that an optimizer trains.
        pieces: the parameters of ``q1`` and ``q2``, one critic after the other.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork]) -> None:
        self._critics = [networks[name] for name in FOLLOWS.values()]
        self._copies = [networks[name] for name in FOLLOWS]
        self.parameters = [parameter for critic in self._critics for parameter in critic.parameters()]
        self.pieces = [whole(parameter) for parameter in self.parameters]
        self._projected = [w for critic in self._critics for w in projected_weights(critic.body.layers, critic.heads)]
        self._followers = [tensor for copy in self._copies for tensor in copy.state_dict().values()]
        self._followed = [tensor for critic in self._critics for tensor in critic.state_dict().values()]
        for copy in self._copies:
            copy.requires_grad_(False)

    def joint(self, batch: Minibatch, next_action: Tensor | None) -> Joint:
        """Evaluate (s, a) and (s', a') in one pass, so that both are normalized by the same statistics."""
        size, length, mask = len(batch), batch.sequence_length, batch.loss_mask
        obs = [torch.cat(pair) for pair in zip(batch.obs, batch.next_obs, strict=True)]
        actions = None if next_action is None else torch.cat((batch["continuous"], next_action))
        mask = None if mask is None else torch.cat((mask, mask))
        with batch_statistics(*self._critics, mask=mask):
            logits = torch.stack([_logits(critic, obs, length, actions)[:, :size] for critic in self._critics])
        with torch.no_grad(), batch_statistics(*self._copies, mask=mask, remember=False):
            following = torch.stack([_logits(copy, obs, length, actions)[:, size:] for copy in self._copies])

        def backward(gradient: Tensor) -> None:
            trained = [parameter for parameter in self.parameters if parameter.requires_grad]
            found = torch.autograd.grad(logits, trained, gradient, allow_unused=True)
            for parameter, one in zip(trained, found, strict=True):
                parameter.grad = one

        return Joint(logits.detach(), following.softmax(-1), backward)

    def means(self, batch: Minibatch, action: Tensor | None) -> Tensor:
        """Expected returns of an action by running statistics [2, V, b, P], with gradients to the action."""
        length = batch.sequence_length
        logits = torch.stack([_logits(critic, batch.obs, length, action) for critic in self._critics])
        return logits.softmax(-1) @ atoms_like(logits)

    def project(self) -> None:
        """Bring the incoming weights of every unit to the length 1."""
        project(self._projected)

    def follow(self, tau: float) -> None:
        """Move the slow copies by the fraction ``tau`` toward the critics, running statistics included."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)


def _logits(critic: ValueNetwork, obs: Sequence[Tensor], length: int, actions: Tensor | None) -> Tensor:
    """[V, b, P, Z]. Every sequence starts with an empty memory, as with SAC's Q networks."""
    out, _ = critic(obs, None, length, actions)
    logits: Tensor = out.unflatten(-1, (-1, ATOMS))
    return logits


_normalize = torch.ops.aten.native_batch_norm
_normalize_backward = torch.ops.aten.native_batch_norm_backward
_relu_backward = torch.ops.aten.threshold_backward


def fastest(networks: Mapping[str, ValueNetwork]) -> CategoricalCritics | BatchedCategoricalCritics:
    """Choose how to evaluate critics. ``BatchedCategoricalCritics`` moves their parameters into common tensors."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in networks["q1"].parameters())
    can_batch = all(one.body.encoder.is_plain and one.body.memory is None for one in networks.values())
    return BatchedCategoricalCritics(networks) if can_batch and on_cpu else CategoricalCritics(networks)


class _Normalized(NamedTuple):
    """A linear layer and the normalization of its outputs, of two critics: [2, H, in], [2 * H], [2 * H]."""

    weight: Tensor
    scale: Tensor
    shift: Tensor


class _Critics(NamedTuple):
    """Two critics, or the gradients of their parameters.

    Attributes:
        input_scale: [2, 1, I].
        input_shift: [2, I, 1], which is not trained.
        layers: from the first to the last.
        weight: of all heads side by side [2, V * P * Z, H].
        bias: [2, V * P * Z].
    """

    input_scale: Tensor
    input_shift: Tensor
    layers: list[_Normalized]
    weight: Tensor
    bias: Tensor


class _Tape(NamedTuple):
    """Numbers that the gradient of a layer needs.

    Attributes:
        total: outputs of the linear layer [N, 2 * H].
        mean: their mean [2 * H].
        inverse: 1 / their standard deviation [2 * H].
        out: outputs after normalization and ReLU [N, 2 * H].
    """

    total: Tensor
    mean: Tensor
    inverse: Tensor
    out: Tensor


class BatchedCategoricalCritics:
    """Twin of ``trajtrainer.algos.xqc.networks.CategoricalCritics`` for critics on vectors without a memory.

    The modules remain usable: their parameters and running statistics become parts of common tensors, with the critics
    in the first half and the slow copies in the second. Activations of one critic are [N, H], those of both [N, 2 * H],
    so that one operation normalizes them; for layers of 128 units it takes an eighth of the time of the matrix
    products.

    Shapes, besides those of the module: N = 2 * b rows of a joint pass, I inputs, H hidden units, R normalized numbers
    of a critic.

    Attributes:
        parameters: one leaf for each layer of both critics.
        pieces: as those of ``CategoricalCritics``.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork]) -> None:
        order = [networks[name] for name in (*FOLLOWS.values(), *FOLLOWS)]
        for copy in order[2:]:
            copy.requires_grad_(False)
        self._signals = len(order[0].signals)
        self._pieces_of: dict[int, ParameterView] = {}  # by id of the parameter
        self.parameters: list[Tensor] = []

        mlps = [one.body.layers for one in order if isinstance(one.body.layers, NormalizedMlp)]
        norms = [[module for module in one.modules() if isinstance(module, BatchNorm)] for one in order]
        scales = self._placed([[norm[0].scale] for norm in norms])
        layers = []
        for number, layer in enumerate(zip(*(linears(mlp.layers) for mlp in mlps), strict=True), start=1):
            weight = self._placed([[linear.weight] for linear in layer])
            scale, shift = (self._placed([[getattr(norm[number], n)] for norm in norms]) for n in ("scale", "shift"))
            layers.append((weight, scale, shift))
        heads = [linears(network.heads.modules()) for network in order]
        weights, biases = (
            self._placed([[getattr(linear, name) for linear in side] for side in heads]) for name in ("weight", "bias")
        )
        shifts = self._placed([[norm[0].shift] for norm in norms], trained=False)
        self._all = [shifts, scales, *(tensor for layer in layers for tensor in layer), weights, biases]
        self._online, self._copies = (_critics([tensor[half] for tensor in self._all]) for half in _HALVES)
        gradients = [leaf.grad for leaf in self.parameters if leaf.grad is not None]
        self._gradient = _critics([torch.zeros_like(shifts[:2]), *gradients])

        # Means and variances of everything that is normalized [4, R].
        sizes = [len(norm.mean) for norm in norms[0]]
        self._bounds = list(pairwise(accumulate(sizes, initial=0)))
        self._statistics = []
        for name in ("mean", "var"):
            statistic = torch.stack([torch.cat([getattr(norm, name) for norm in each]) for each in norms])
            for number, each in enumerate(norms):
                for norm, (begin, end) in zip(each, self._bounds, strict=True):
                    setattr(norm, name, statistic[number, begin:end])
            self._statistics.append(statistic)
        of_critics = [parameter for network in order[:2] for parameter in network.parameters()]
        self.pieces = [self._pieces_of.get(id(parameter), whole(parameter)) for parameter in of_critics]

    def _placed(self, layer: Sequence[Sequence[Tensor]], *, trained: bool = True) -> Tensor:
        """Move parameters into a common tensor [4, ...], given for each network as those that form it side by side."""
        common = torch.stack([torch.cat([one.detach() for one in side]) for side in layer])
        leaf = common[:2].requires_grad_()
        if trained:
            leaf.grad = torch.zeros_like(leaf)
            self.parameters.append(leaf)
        for number, side in enumerate(layer):
            bounds = pairwise(accumulate((len(one) for one in side), initial=0))
            for parameter, (begin, end) in zip(side, bounds, strict=True):
                parameter.data = common[number, begin:end]
                if number < 2 and trained:
                    self._pieces_of[id(parameter)] = ParameterView(
                        leaf, partial(_part, number=number, begin=begin, end=end)
                    )
        return common

    @torch.no_grad()
    def joint(self, batch: Minibatch, next_action: Tensor | None) -> Joint:
        """Evaluate (s, a) and (s', a') in one pass."""
        size = len(batch)
        columns = [torch.cat(pair) for pair in zip(batch.obs, batch.next_obs, strict=True)]
        if next_action is not None:
            columns.append(torch.cat((batch["continuous"], next_action)))
        x, mean, inverse = _normalize(torch.cat(columns, 1), None, None, None, None, True, 0.0, EPSILON)
        tapes: list[_Tape] = []
        seen = _encoded(self._online, x, tapes)[:size]
        # Move the critics' running statistics toward those of the batch.
        means = torch.cat([mean.expand(2, -1), *(tape.mean.view(2, -1) for tape in tapes)], 1)
        inverses = torch.cat([inverse.expand(2, -1), *(tape.inverse.view(2, -1) for tape in tapes)], 1)
        variances = inverses.pow_(-2.0).sub_(EPSILON).clamp_(min=0.0)
        for statistic, found in zip(self._statistics, (means, variances), strict=True):
            statistic[:2].lerp_(found, 1.0 - MOMENTUM)
        logits = self._unstacked(_heads(self._online, seen))
        following = self._unstacked(_heads(self._copies, _encoded(self._copies, x)[size:]))
        return Joint(logits, following.softmax(-1), lambda gradient: self._backward(gradient, x, tapes))

    def _unstacked(self, out: Tensor) -> Tensor:
        """[2, b, V * P * Z] to [2, V, b, P, Z]."""
        return out.view(*out.shape[:2], self._signals, -1, ATOMS).transpose(1, 2)

    @torch.no_grad()
    def _backward(self, gradient: Tensor, x: Tensor, tapes: Sequence[_Tape]) -> None:
        """Write the gradients of the parameters, given the one with respect to the logits [2, V, b, P, Z]."""
        critics, found, size = self._online, self._gradient, gradient.shape[2]
        gradient = gradient.transpose(1, 2).flatten(2)
        last = tapes[-1].out[:size]
        torch.bmm(gradient.transpose(1, 2), _halves(last), out=found.weight)
        torch.sum(gradient, 1, out=found.bias)
        # Only (s, a) has a loss, but its numbers depend on (s', a') through the statistics.
        of_out = torch.empty_like(tapes[-1].out)
        torch.bmm(gradient, critics.weight, out=_halves(of_out[:size]))
        of_out[size:] = 0.0
        for number in reversed(range(len(tapes))):
            tape, layer, place = tapes[number], critics.layers[number], found.layers[number]
            of_total, of_scale, of_shift = _normalize_backward(
                _relu_backward(of_out, tape.out, 0),
                tape.total,
                layer.scale,
                None,
                None,
                tape.mean,
                tape.inverse,
                True,
                EPSILON,
                [True, True, True],
            )
            place.scale.copy_(of_scale)
            place.shift.copy_(of_shift)
            of_total = _halves(of_total)
            if number:
                torch.bmm(of_total.transpose(1, 2), _halves(tapes[number - 1].out), out=place.weight)
                of_out = torch.empty_like(of_out)
                torch.bmm(of_total, layer.weight, out=_halves(of_out))
            else:
                by_input = torch.matmul(of_total.transpose(1, 2), x)
                torch.mul(by_input, critics.input_scale, out=place.weight)
                torch.sum(by_input.mul_(layer.weight), 1, keepdim=True, out=found.input_scale)

    def means(self, batch: Minibatch, action: Tensor | None) -> Tensor:
        """Expected returns of an action by running statistics [2, V, b, P], with gradients to the action."""
        with torch.no_grad():
            layers = self._folded()
        x = torch.cat(batch.obs if action is None else (*batch.obs, action), 1)
        encoded = activated_layers(x.expand(2, -1, -1), layers, activation=Activation.RELU)
        weight, bias = self._online.weight.transpose(1, 2), self._online.bias.unsqueeze(1)
        probs = self._unstacked(torch.baddbmm(bias, encoded, weight)).softmax(-1)
        return probs @ atoms_like(probs)

    def _folded(self) -> list[Layer]:
        """Layers [2, in, out], each to be followed by ReLU, into which running normalizations are folded."""
        means, variances = (statistic[:2] for statistic in self._statistics)
        inverses = (variances + EPSILON).rsqrt_()
        (begin, end), *bounds = self._bounds
        before = self._online.input_scale.squeeze(1) * inverses[:, begin:end]
        summand = self._online.input_shift.squeeze(2) - means[:, begin:end] * before
        found: list[Layer] = []
        for layer, (begin, end) in zip(self._online.layers, bounds, strict=True):
            factor = layer.scale.view(2, -1) * inverses[:, begin:end]
            shift = torch.addcmul(layer.shift.view(2, -1), means[:, begin:end], factor, value=-1.0)
            weight = layer.weight
            if not found:
                shift.addcmul_(factor, torch.bmm(weight, summand.unsqueeze(2)).squeeze(2))
                weight = weight * before.unsqueeze(1)
            found.append(((weight * factor.unsqueeze(2)).transpose(1, 2), shift.unsqueeze(1)))
        return found

    def project(self) -> None:
        """Bring the incoming weights of every unit to the length 1."""
        project([*(layer.weight for layer in self._online.layers), self._online.weight])

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move the slow copies by the fraction ``tau`` toward the critics, running statistics included."""
        common = [*self._all, *self._statistics]
        torch._foreach_lerp_([tensor[2:] for tensor in common], [tensor[:2] for tensor in common], tau)


_HALVES = slice(0, 2), slice(2, 4)


def _part(tensor: Tensor, number: int, begin: int, end: int) -> Tensor:
    return tensor[number, begin:end]


def _critics(tensors: Sequence[Tensor]) -> _Critics:
    """Sort the tensors of two critics, listed in the order of ``_all``, into their roles. They remain views."""
    tensors = [tensor.detach() for tensor in tensors]
    shift, scale, *of_layers, weight, bias = tensors
    layers = [
        _Normalized(of_layers[i], of_layers[i + 1].view(-1), of_layers[i + 2].view(-1))
        for i in range(0, len(of_layers), 3)
    ]
    return _Critics(scale.unsqueeze(1), shift.unsqueeze(2), layers, weight, bias)


def _encoded(critics: _Critics, x: Tensor, tapes: list[_Tape] | None = None) -> Tensor:
    """Run the layers on inputs [N, I] that are normalized but not yet scaled and shifted: [N, 2 * H]."""
    for number, layer in enumerate(critics.layers):
        if number:
            total = torch.empty_like(x)
            torch.bmm(_halves(x), layer.weight.transpose(1, 2), out=_halves(total))
        else:
            bias = torch.bmm(layer.weight, critics.input_shift).flatten()
            total = torch.addmm(bias, x, (layer.weight * critics.input_scale).flatten(0, 1).t())
        x, mean, inverse = _normalize(total, layer.scale, layer.shift, None, None, True, 0.0, EPSILON)
        x = x.relu_()
        if tapes is not None:
            tapes.append(_Tape(total, mean, inverse, x))
    return x


def _heads(critics: _Critics, encoded: Tensor) -> Tensor:
    """[b, 2 * H] to [2, b, V * P * Z]."""
    return torch.baddbmm(critics.bias.unsqueeze(1), _halves(encoded), critics.weight.transpose(1, 2))


def _halves(tensor: Tensor) -> Tensor:
    """View [N, 2 * H] as [2, N, H]."""
    return tensor.view(len(tensor), 2, -1).transpose(0, 1)
