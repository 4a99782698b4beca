"""Encoders of pictures (reference 4.8): [B, C, H, W] to [B, hidden_units]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.errors import UnsupportedError
from trajtrainer.nn.init import kaiming_linear
from trajtrainer.settings.network import EncoderType

_DENSE_GAIN = 1.41
# (channels, kernel, stride) of each convolution.
_CONVOLUTIONS: dict[EncoderType, tuple[tuple[int, int, int], ...]] = {
    EncoderType.SIMPLE: ((16, 8, 4), (32, 4, 2)),
    EncoderType.NATURE_CNN: ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    EncoderType.MATCH3: ((35, 3, 1), (144, 3, 1)),
}
_RESNET_STAGES = (16, 32, 32)
SMALLEST_SIDE = {
    EncoderType.SIMPLE: 20,
    EncoderType.NATURE_CNN: 36,
    EncoderType.RESNET: 15,
    EncoderType.MATCH3: 5,
    EncoderType.FULLY_CONNECTED: 1,
}


def to_float(picture: Tensor) -> Tensor:
    """Pictures that came as PNG are u8 until here; 0 ... 255 becomes 0 ... 1."""
    return picture.to(torch.float32).div_(255.0) if picture.dtype == torch.uint8 else picture


def convolved_side(side: int, kernel: int, stride: int) -> int:
    return (side - kernel) // stride + 1


class ConvolutionEncoder(nn.Module):
    """simple, nature_cnn and match3: convolutions and a dense layer, each followed by LeakyReLU."""

    def __init__(self, shape: Sequence[int], kind: EncoderType, hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        convolutions = []
        for out, kernel, stride in _CONVOLUTIONS[kind]:
            convolutions.append(nn.Conv2d(channels, out, kernel, stride))
            channels = out
            height, width = convolved_side(height, kernel, stride), convolved_side(width, kernel, stride)
        self.convolutions = nn.ModuleList(convolutions)
        self.dense = kaiming_linear(channels * height * width, hidden, _DENSE_GAIN)

    def forward(self, picture: Tensor) -> Tensor:
        x = to_float(picture)
        for convolution in self.convolutions:
            x = F.leaky_relu(convolution(x))
        return F.leaky_relu(self.dense(x.flatten(1)))


class ResidualBlock(nn.Module):
    """x + convolution(Swish(convolution(Swish(x))))"""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(x))))  # type: ignore[no-any-return]


class ResnetStage(nn.Module):
    """Convolution, max pooling that halves the sides, two residual blocks."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, 3, padding=1)
        self.blocks = nn.ModuleList((ResidualBlock(out), ResidualBlock(out)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.convolution(x), 3, 2)
        for block in self.blocks:
            x = block(x)
        return x


class ResnetEncoder(nn.Module):
    """resnet: three stages, Swish, a dense layer, ReLU."""

    def __init__(self, shape: Sequence[int], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        stages = []
        for out in _RESNET_STAGES:
            stages.append(ResnetStage(channels, out))
            channels = out
            height, width = convolved_side(height, 3, 2), convolved_side(width, 3, 2)
        self.dense = kaiming_linear(channels * height * width, hidden, _DENSE_GAIN)
        self.stages = nn.ModuleList(stages)

    def forward(self, picture: Tensor) -> Tensor:
        x = to_float(picture)
        for stage in self.stages:
            x = stage(x)
        return F.relu(self.dense(F.silu(x).flatten(1)))


class FullyConnectedEncoder(nn.Module):
    """fully_connected: a dense layer on all pixels, LeakyReLU."""

    def __init__(self, shape: Sequence[int], hidden: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.dense = kaiming_linear(channels * height * width, hidden, _DENSE_GAIN)

    def forward(self, picture: Tensor) -> Tensor:
        return F.leaky_relu(self.dense(to_float(picture).flatten(1)))


def visual_encoder(name: str, shape: Sequence[int], kind: EncoderType, hidden: int) -> nn.Module:
    """The encoder for the pictures of one sensor.

    Args:
        name: of the sensor, for the error.
        shape: (channels, height, width).
        kind: ``vis_encode_type``.
        hidden: size of the output.

    Raises:
        UnsupportedError: the pictures are too small for this encoder, or have no pixels.
    """
    _check_size(name, tuple(shape), kind)
    if kind is EncoderType.RESNET:
        return ResnetEncoder(shape, hidden)
    if kind is EncoderType.FULLY_CONNECTED:
        return FullyConnectedEncoder(shape, hidden)
    return ConvolutionEncoder(shape, kind, hidden)


def _check_size(name: str, shape: tuple[int, ...], kind: EncoderType) -> None:
    channels, height, width = shape
    side = min(height, width)
    if channels < 1 or side < 1:
        raise UnsupportedError(
            f"Sensor {name!r} sends pictures of shape {shape} (channels, height, width), which have no pixels. "
            "Give the sensor a size in Unity."
        )
    if side < SMALLEST_SIDE[kind]:
        fitting = [other.value for other, smallest in SMALLEST_SIDE.items() if side >= smallest]
        hint = " Are the channels last? They must come first." if width <= 4 < channels else ""
        raise UnsupportedError(
            f"Sensor {name!r} sends pictures of shape {shape} (channels, height, width), too small for "
            f"vis_encode_type {kind.value!r}, which needs sides of at least {SMALLEST_SIDE[kind]}. "
            f"Encoders that fit: {', '.join(fitting)}.{hint}"
        )
