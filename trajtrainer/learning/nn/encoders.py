"""Image encoders (docs/explanation/mlagents-behavior.md#pictures): [B, C, H, W] to [B, hidden_units]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.core.errors import ExportError, PluginError, UnsupportedError
from trajtrainer.core.plugins import resolve
from trajtrainer.learning.nn.graph import Graph
from trajtrainer.learning.nn.init import kaiming_linear
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.settings.network import ENCODERS

_DENSE_GAIN = 1.41
_RESNET_STAGES = (16, 32, 32)
_DENSE = {"dense": "dense.0"}  # ML-Agents numbers the layer and its activation


def to_float(picture: Tensor) -> Tensor:
    """Convert images to f32 in [0, 1]. Images that arrive as PNG are stored as u8."""
    return picture.to(torch.float32).div_(255.0) if picture.dtype == torch.uint8 else picture


def convolved_side(side: int, kernel: int, stride: int) -> int:
    """Return the side length of an image after a convolution without padding."""
    return (side - kernel) // stride + 1


class ConvolutionEncoder(nn.Module):
    """Convolutions and a dense layer, each followed by LeakyReLU.

    Args:
        shape: (channels, height, width).
        size: size of the output.
        layers: (channels, kernel, stride) of each convolution.
    """

    def __init__(self, shape: Sequence[int], size: int, layers: Sequence[tuple[int, int, int]]) -> None:
        super().__init__()
        channels, height, width = shape
        convolutions = []
        for out, kernel, stride in layers:
            convolutions.append(nn.Conv2d(channels, out, kernel, stride))
            channels = out
            height, width = convolved_side(height, kernel, stride), convolved_side(width, kernel, stride)
        self.convolutions = nn.ModuleList(convolutions)
        self.dense = kaiming_linear(channels * height * width, size, _DENSE_GAIN)

    def forward(self, picture: Tensor) -> Tensor:
        x = to_float(picture)
        for convolution in self.convolutions:
            x = F.leaky_relu(convolution(x))
        return F.leaky_relu(self.dense(x.flatten(1)))

    @property
    def mlagents_names(self) -> Names:
        """ML-Agents also numbers the activations between the layers."""
        return {f"convolutions.{i}": f"conv_layers.{2 * i}" for i in range(len(self.convolutions))} | _DENSE

    def to_onnx(self, graph: Graph, picture: str) -> str:
        for convolution in self.convolutions:
            picture = graph.leaky_relu(graph.convolution(convolution, picture))
        return graph.leaky_relu(graph.linear_of_picture(self.dense, picture))


def simple(shape: Sequence[int], size: int) -> nn.Module:
    """Create the encoder for ``vis_encode_type: simple``."""
    return ConvolutionEncoder(shape, size, ((16, 8, 4), (32, 4, 2)))


def nature_cnn(shape: Sequence[int], size: int) -> nn.Module:
    """Create the encoder for ``vis_encode_type: nature_cnn``."""
    return ConvolutionEncoder(shape, size, ((32, 8, 4), (64, 4, 2), (64, 3, 1)))


def match3(shape: Sequence[int], size: int) -> nn.Module:
    """Create the encoder for ``vis_encode_type: match3``."""
    return ConvolutionEncoder(shape, size, ((35, 3, 1), (144, 3, 1)))


class ResidualBlock(nn.Module):
    """A residual block: ``x + convolution(Swish(convolution(Swish(x))))``."""

    mlagents_names: ClassVar[Names] = {"first": "layers.1", "second": "layers.3"}

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(x))))  # type: ignore[no-any-return]

    def to_onnx(self, graph: Graph, x: str) -> str:
        inner = graph.convolution(self.first, graph.silu(x))
        return graph.node("Add", x, graph.convolution(self.second, graph.silu(inner)))


class ResnetStage(nn.Module):
    """A convolution, max pooling that halves height and width, and two residual blocks."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, 3, padding=1)
        self.blocks = nn.ModuleList((ResidualBlock(out), ResidualBlock(out)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.convolution(x), 3, 2)
        for block in self.blocks:
            x = block(x)
        return x

    def to_onnx(self, graph: Graph, x: str) -> str:
        x = graph.convolution(self.convolution, x)
        x = graph.node("MaxPool", x, kernel_shape=[3, 3], pads=[0, 0, 0, 0], strides=[2, 2])
        for block in self.blocks:
            x = graph.module(block, x)
        return x


class ResnetEncoder(nn.Module):
    """The encoder for ``vis_encode_type: resnet``: three stages, Swish, a dense layer and ReLU."""

    def __init__(self, shape: Sequence[int], size: int) -> None:
        super().__init__()
        channels, height, width = shape
        stages = []
        for out in _RESNET_STAGES:
            stages.append(ResnetStage(channels, out))
            channels = out
            height, width = convolved_side(height, 3, 2), convolved_side(width, 3, 2)
        self.dense = kaiming_linear(channels * height * width, size, _DENSE_GAIN)
        self.stages = nn.ModuleList(stages)

    def forward(self, picture: Tensor) -> Tensor:
        x = to_float(picture)
        for stage in self.stages:
            x = stage(x)
        return F.relu(self.dense(F.silu(x).flatten(1)))

    @property
    def mlagents_names(self) -> Names:
        """ML-Agents numbers all modules consecutively; a stage consists of a convolution, pooling and the blocks."""
        names = {"dense": "dense"}
        for i, stage in enumerate(self.stages):
            assert isinstance(stage, ResnetStage)
            first = i * (2 + len(stage.blocks))
            names[f"stages.{i}.convolution"] = f"sequential.{first}"
            names |= {f"stages.{i}.blocks.{k}": f"sequential.{first + 2 + k}" for k in range(len(stage.blocks))}
        return names

    def to_onnx(self, graph: Graph, picture: str) -> str:
        for stage in self.stages:
            picture = graph.module(stage, picture)
        return graph.node("Relu", graph.linear_of_picture(self.dense, graph.silu(picture)))


class FullyConnectedEncoder(nn.Module):
    """The encoder for ``vis_encode_type: fully_connected``: a dense layer on all pixels, followed by LeakyReLU."""

    mlagents_names: ClassVar[Names] = _DENSE

    def __init__(self, shape: Sequence[int], size: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.dense = kaiming_linear(channels * height * width, size, _DENSE_GAIN)

    def forward(self, picture: Tensor) -> Tensor:
        return F.leaky_relu(self.dense(to_float(picture).flatten(1)))

    def to_onnx(self, graph: Graph, picture: str) -> str:
        return graph.leaky_relu(graph.linear_of_picture(self.dense, picture))


class PluginEncoder(nn.Module):
    """An encoder from a plugin package, which always receives images as floats.

    Attributes:
        name: ``vis_encode_type``.
        plugin: the package's module, whose ``state_dict`` keys are used in the checkpoint.
    """

    def __init__(self, name: str, shape: Sequence[int], size: int) -> None:
        super().__init__()
        self.name = name
        row = ENCODERS[name]
        with ENCODERS.blaming(name):
            self.plugin: nn.Module = resolve(row.create)(tuple(shape), size)
            weight = next(self.plugin.parameters(), torch.empty(0))
            with torch.no_grad():
                found = tuple(self.plugin(weight.new_zeros((1, *shape))).shape)
            if found != (1, size):
                raise ValueError(f"its output for one image has the shape {found}, expected {(1, size)}")

    def forward(self, picture: Tensor) -> Tensor:
        return self.plugin(to_float(picture))  # type: ignore[no-any-return]

    def to_onnx(self, graph: Graph, picture: str) -> str:
        """Add nodes that map images [batch, channels, height, width] to [batch, size].

        Raises:
            ExportError: the package's module has no ``to_onnx`` method, or the method fails.
        """
        try:
            with ENCODERS.blaming(self.name):
                result: str = self.plugin.to_onnx(graph, picture)  # type: ignore[operator]
        except PluginError as error:
            raise ExportError(f"{error} The module needs a method to_onnx(graph, picture).") from error
        return result


def visual_encoder(sensor: str, shape: Sequence[int], name: str, size: int) -> nn.Module:
    """Create the encoder for the images of one sensor.

    Args:
        sensor: name of the sensor, for error messages.
        shape: (channels, height, width).
        name: ``vis_encode_type``.
        size: size of the output.

    Raises:
        UnsupportedError: the images are too small for this encoder or have no pixels.
        PluginError: the encoder comes from a plugin and cannot be created.
    """
    shape = tuple(shape)
    channels, height, width = shape
    side = min(height, width)
    if channels < 1 or side < 1:
        raise UnsupportedError(
            f"Sensor {sensor!r} sends images of shape {shape} (channels, height, width), which have no pixels. "
            "Set the size of the sensor in Unity."
            ""
        )
    smallest = ENCODERS[name].smallest_side
    if side < smallest:
        sides = {other: row.smallest_side for other, row in ENCODERS.builtin.items()}
        fitting = sorted((other for other in sides if side >= sides[other]), key=lambda other: -sides[other])
        hint = " Are the channels last? They must come first." if width <= 4 < channels else ""
        raise UnsupportedError(
            f"Sensor {sensor!r} sends images of shape {shape} (channels, height, width), which are too small for "
            f"vis_encode_type {name!r}: each side must have at least {smallest} pixels. "
            f"Encoders that fit: {', '.join(fitting)}.{hint}"
        )
    if name not in ENCODERS.builtin:
        return PluginEncoder(name, shape, size)
    encoder: nn.Module = resolve(ENCODERS[name].create)(shape, size)
    return encoder
