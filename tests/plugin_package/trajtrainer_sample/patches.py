"""An encoder: non-overlapping patches, each seen by the same layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trajtrainer import EncoderRow

SIDE = 5


class Patches(nn.Module):
    """Pictures [B, channels, height, width], 0 to 1, to [B, size]."""

    def __init__(self, shape: tuple[int, int, int], size: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.patch = nn.Conv2d(channels, 4, SIDE, SIDE)
        self.linear = nn.Linear(4 * (height // SIDE) * (width // SIDE), size)

    def forward(self, picture: Tensor) -> Tensor:
        return torch.relu(self.linear(torch.relu(self.patch(picture)).flatten(1)))

    def to_onnx(self, graph: Any, picture: str) -> str:
        patches = graph.node("Relu", graph.convolution(self.patch, picture))
        result: str = graph.node("Relu", graph.linear_of_picture(self.linear, patches))
        return result


ROW = EncoderRow(Patches, smallest_side=SIDE)
