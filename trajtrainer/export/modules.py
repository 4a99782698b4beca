"""The ONNX form of the network modules in ``trajtrainer.nn``, for one step per agent.

The operators are those of ML-Agents' own exports, because these are known to work on all of Unity's inference
packages. Every method does what the ``forward`` of the module it is named after does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.errors import ExportError
from trajtrainer.export.graph import GraphBuilder
from trajtrainer.nn.attention import EntityEmbedding, ResidualSelfAttention
from trajtrainer.nn.body import NetworkBody, ObservationEncoder
from trajtrainer.nn.conditioning import HyperBody, HyperLayer, Mlp
from trajtrainer.nn.encoders import (
    ConvolutionEncoder,
    FullyConnectedEncoder,
    PluginEncoder,
    ResidualBlock,
    ResnetEncoder,
    ResnetStage,
)
from trajtrainer.nn.memory import Memory
from trajtrainer.nn.normalizer import CLIP, Normalizer

# Numbers that stand as literals in the modules' code. Export compares its result with the modules, so they cannot
# drift apart unnoticed.
_LEAKY_SLOPE = 0.01
_LAYER_NORM_EPSILON = 1e-5
_PADDING_BELOW = 0.01
_MASKED_SCORE = -1e6
_MEAN_EPSILON = 1e-7

# Order of the gates in ONNX (input, output, forget, cell) as positions in torch's (input, forget, cell, output).
_GATES = (0, 3, 1, 2)


def to_array(tensor: Tensor) -> NDArray[np.float32]:
    """A tensor's numbers in numpy, from whatever device and float type."""
    return tensor.detach().to("cpu", torch.float32).numpy()


class NetworkEmitter:
    """Adds the modules of one actor to a graph. Weights keep the names of the actor's ``state_dict``.

    Args:
        graph: what is added to.
        actor: whose modules will be added.
        shapes: of the observations, per sensor.
    """

    def __init__(self, graph: GraphBuilder, actor: nn.Module, shapes: Sequence[Sequence[int]]) -> None:
        self.graph = graph
        self.node = graph.node
        self._shapes = shapes
        self._names = {id(tensor): name for name, tensor in (*actor.named_parameters(), *actor.named_buffers())}
        self._sensors: dict[type[nn.Module], Callable[[Any, str], str]] = {
            nn.Identity: lambda _, x: x,
            Normalizer: self._normalizer,
            ConvolutionEncoder: self._convolution_encoder,
            FullyConnectedEncoder: self._fully_connected_encoder,
            ResnetEncoder: self._resnet_encoder,
            PluginEncoder: lambda module, x: module.to_onnx(self, x),
        }

    def body(self, body: NetworkBody, obs: Sequence[str], memory: str | None, memory_out: str) -> str:
        """From observations [batch, *O] to the encoding [batch, E].

        Args:
            body: the actor's.
            obs: per sensor.
            memory: memories before the step [batch, 1, H]; None if the body has none.
            memory_out: what to call the memories after the step [batch, 1, H], if the body has any.
        """
        x, parts = self._observations(body.encoder, obs)
        layers = body.layers
        if isinstance(layers, HyperBody):
            encoder = body.encoder
            goal = self.graph.concat([parts[encoder.fixed.index(i)] for i in encoder.goals], axis=1)
            x = self._hyper_body(layers, x, goal)
        elif isinstance(layers, Mlp):
            x = self._mlp(layers, x)
        else:
            raise _unknown(layers)
        if body.memory is None:
            return x
        assert memory is not None
        return self._memory(body.memory, x, memory, memory_out)

    def linear(self, layer: nn.Module, x: str) -> str:
        """A linear layer on one row per agent [batch, in]."""
        assert isinstance(layer, nn.Linear)
        return self.graph.node("Gemm", x, self._weight(layer.weight), self._weight(layer.bias), transB=1)

    def _weight(self, tensor: Tensor) -> str:
        return self.graph.weight(self._names[id(tensor)], to_array(tensor))

    def _linear_of_rows(self, layer: nn.Linear, x: str) -> str:
        """On several rows per agent [batch, n, in]."""
        weight = self.graph.weight(f"{self._names[id(layer.weight)]}.transposed", to_array(layer.weight).T)
        return self.graph.node("Add", self.graph.node("MatMul", x, weight), self._weight(layer.bias))

    # -- sensors

    def _observations(self, encoder: ObservationEncoder, obs: Sequence[str]) -> tuple[str, list[str]]:
        graph = self.graph
        parts = [self._sensor(encoder.sensors[i], obs[i]) for i in encoder.fixed]
        if encoder.attention is None:
            return graph.concat(parts, axis=1), parts
        own = None
        if encoder.own is not None:
            own = graph.silu(self.linear(encoder.own.linear, graph.concat(parts, axis=1)))
        counts = [self._shapes[i][0] for i in encoder.lists]
        entities = [
            self._entities(encoder.sensors[i], obs[i], own, count)
            for i, count in zip(encoder.lists, counts, strict=True)
        ]
        padding = [self._padding(obs[i]) for i in encoder.lists]
        attended = self._attention(
            encoder.attention, graph.concat(entities, axis=1), graph.concat(padding, axis=1), sum(counts)
        )
        return graph.concat([*parts, attended], axis=1), parts

    def _sensor(self, module: nn.Module, x: str) -> str:
        emit = self._sensors.get(type(module))
        if emit is None:
            raise _unknown(module)
        return emit(module, x)

    def _normalizer(self, module: Normalizer, x: str) -> str:
        graph = self.graph
        mean = self._weight(module.mean)
        name = self._names[id(module.variance)].replace("variance", "deviation")
        deviation = graph.weight(name, to_array(torch.sqrt(module.variance / module.steps)))
        return graph.clip(graph.node("Div", graph.node("Sub", x, mean), deviation), -CLIP, CLIP)

    def linear_of_picture(self, layer: nn.Linear, x: str) -> str:
        return self.linear(layer, self.graph.reshape(x, [-1, layer.in_features]))

    def _leaky(self, x: str) -> str:
        return self.graph.node("LeakyRelu", x, alpha=_LEAKY_SLOPE)

    def _convolution_encoder(self, module: ConvolutionEncoder, x: str) -> str:
        for convolution in module.convolutions:
            x = self._leaky(self.convolution(convolution, x))
        return self._leaky(self.linear_of_picture(module.dense, x))

    def _fully_connected_encoder(self, module: FullyConnectedEncoder, x: str) -> str:
        return self._leaky(self.linear_of_picture(module.dense, x))

    def _resnet_encoder(self, module: ResnetEncoder, x: str) -> str:
        graph = self.graph
        for stage in module.stages:
            assert isinstance(stage, ResnetStage)
            x = self.convolution(stage.convolution, x)
            x = graph.node("MaxPool", x, kernel_shape=[3, 3], pads=[0, 0, 0, 0], strides=[2, 2])
            for block in stage.blocks:
                assert isinstance(block, ResidualBlock)
                x = self._residual_block(block, x)
        return graph.node("Relu", self.linear_of_picture(module.dense, graph.silu(x)))

    def _residual_block(self, module: ResidualBlock, x: str) -> str:
        y = self.convolution(module.first, self.graph.silu(x))
        return self.graph.node("Add", x, self.convolution(module.second, self.graph.silu(y)))

    def convolution(self, layer: nn.Module, x: str) -> str:
        assert isinstance(layer, nn.Conv2d)
        assert layer.bias is not None
        vertical, horizontal = (int(side) for side in layer.padding)
        return self.graph.node(
            "Conv",
            x,
            self._weight(layer.weight),
            self._weight(layer.bias),
            dilations=list(layer.dilation),
            group=layer.groups,
            kernel_shape=list(layer.kernel_size),
            pads=[vertical, horizontal] * 2,
            strides=list(layer.stride),
        )

    # -- lists of entities

    def _entities(self, module: nn.Module, x: str, own: str | None, count: int) -> str:
        """Embeddings [batch, count, e] of entities [batch, count, size] and of the agent itself [batch, e]."""
        if not isinstance(module, EntityEmbedding):
            raise _unknown(module)
        graph = self.graph
        if own is not None:
            row = graph.reshape(own, [-1, 1, module.self_size])
            x = graph.concat([graph.concat([row] * count, axis=1), x], axis=2)
        return graph.silu(self._linear_of_rows(module.linear, x))

    def _padding(self, x: str) -> str:
        """1 for entities of zeros, [batch, n] from [batch, n, size]."""
        graph = self.graph
        squares = graph.sum(graph.node("Mul", x, x), axis=2, keep=False)
        less = graph.node("Less", squares, graph.constant(_PADDING_BELOW))
        return graph.node("Cast", less, to=1)

    def _attention(self, module: ResidualSelfAttention, entities: str, padding: str, count: int) -> str:
        graph = self.graph
        normalized = graph.layer_norm(entities, _LAYER_NORM_EPSILON)
        query, key, value = (
            self._linear_of_rows(layer, normalized) for layer in (module.query, module.key, module.value)
        )
        heads = self._attend(module, query, key, value, padding, count)
        residual = graph.node("Add", self._linear_of_rows(module.out, heads), normalized)
        attended = graph.layer_norm(residual, _LAYER_NORM_EPSILON)
        present = graph.reshape(graph.node("Sub", graph.constant(1.0), padding), [-1, count, 1])
        total = graph.sum(graph.node("Mul", attended, present), axis=1, keep=False)
        number = graph.reshape(graph.sum(present, axis=1, keep=True), [-1, 1])
        return graph.node("Div", total, graph.node("Add", number, graph.constant(_MEAN_EPSILON)))

    def _attend(self, module: ResidualSelfAttention, query: str, key: str, value: str, padding: str, count: int) -> str:
        """Scaled dot-product attention of all heads, [batch, count, e].

        Barracuda leaves out what it takes for a change from channels-first to channels-last or back: a Transpose
        [0, 2, 3, 1] or [0, 3, 1, 2], and behind a convolution also a Reshape to such an order of the same sizes, as
        [batch, n] to [batch, 1, 1, n] is. Neither may be here.
        """
        graph = self.graph
        split = [-1, count, module.heads, module.embedding // module.heads]
        query = graph.node("Transpose", graph.reshape(query, split), perm=[0, 2, 1, 3])
        key = graph.node("Transpose", graph.reshape(key, split), perm=[0, 2, 1, 3])
        value = graph.node("Transpose", graph.reshape(value, split), perm=[0, 2, 1, 3])
        # Scaled between the two transposes of the key, which would otherwise be joined to one of [0, 2, 3, 1].
        scaled = graph.node("Div", key, graph.constant(math.sqrt(module.embedding)))
        scores = graph.node("MatMul", query, graph.node("Transpose", scaled, perm=[0, 1, 3, 2]))
        per_head = graph.reshape(graph.concat([padding] * module.heads, axis=1), [-1, module.heads, 1, count])
        mask = graph.node("Mul", per_head, graph.constant(_MASKED_SCORE))
        weights = graph.node("Softmax", graph.node("Add", scores, mask), axis=3)
        heads = graph.node("Transpose", graph.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        return graph.reshape(heads, [-1, count, module.embedding])

    # -- layers and memory

    def _mlp(self, module: Mlp, x: str) -> str:
        for layer in module.layers:
            x = self.graph.silu(self.linear(layer, x))
        return x

    def _hyper_body(self, module: HyperBody, x: str, goal: str) -> str:
        for layer in module.plain:
            x = self.graph.silu(self.linear(layer, x))
        return self.graph.silu(self._hyper_layer(module.hyper, x, goal))

    def _hyper_layer(self, module: HyperLayer, x: str, goal: str) -> str:
        graph = self.graph
        features = graph.layer_norm(self._mlp(module.layers, goal), _LAYER_NORM_EPSILON)
        weights = graph.reshape(self.linear(module.weights, features), [-1, module.size, module.hidden])
        product = graph.squeeze(graph.node("MatMul", graph.unsqueeze(x, axis=1), weights), axis=1)
        return graph.node("Add", product, self._weight(module.bias))

    def _memory(self, module: Memory, x: str, memory: str, memory_out: str) -> str:
        """One step of the LSTM. Unity keeps memories as [agent, 1, H]; the operator wants [1, agent, H / 2] twice.

        Barracuda recognises the LSTM of ML-Agents by its surroundings, so these are kept as they are there.
        """
        graph, lstm, size = self.graph, module.lstm, module.hidden_size
        steps = graph.node("Transpose", graph.reshape(x, [-1, 1, lstm.input_size]), perm=[1, 0, 2])
        state = graph.node("Transpose", memory, perm=[1, 0, 2])
        hidden, cell = graph.slice(state, axis=2, start=0, end=size), graph.slice(state, axis=2, start=size)
        out, hidden, cell = graph.nodes(
            "LSTM", [steps, *self._lstm_weights(lstm), "", hidden, cell], ["lstm", "hidden", "cell"], hidden_size=size
        )
        graph.node("Transpose", graph.concat([hidden, cell], axis=-1), perm=[1, 0, 2], output=memory_out)
        sequences = graph.node("Transpose", graph.squeeze(out, axis=1), perm=[1, 0, 2])
        return graph.reshape(sequences, [-1, size])

    def _lstm_weights(self, lstm: nn.LSTM) -> list[str]:
        def gates(tensor: Tensor) -> NDArray[np.float32]:
            blocks = np.split(to_array(tensor), len(_GATES))
            return np.concatenate([blocks[i] for i in _GATES])[None]

        weights = dict(lstm.named_parameters())
        bias = np.concatenate((gates(weights["bias_ih_l0"]), gates(weights["bias_hh_l0"])), axis=1)
        prefix = self._names[id(weights["weight_ih_l0"])].removesuffix("weight_ih_l0")
        return [
            self.graph.weight(f"{prefix}input", gates(weights["weight_ih_l0"])),
            self.graph.weight(f"{prefix}recurrence", gates(weights["weight_hh_l0"])),
            self.graph.weight(f"{prefix}bias", bias),
        ]


def _unknown(module: nn.Module) -> ExportError:
    return ExportError(
        f"The network contains a {type(module).__name__}, for which there is no ONNX form. The exporter knows the "
        "networks that network_settings can describe."
    )
