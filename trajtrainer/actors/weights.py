"""The weights of a policy as one block of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 64


class WeightsLayout:
    """Where each entry of a network's ``state_dict``, on the CPU, lies in the block."""

    def __init__(self, entries: Mapping[str, Tensor]) -> None:
        self._entries = {name: (tensor.numpy().dtype, tuple(tensor.shape)) for name, tensor in entries.items()}
        self.size = sum(_bytes(*entry) for entry in self._entries.values())

    def over(self, buffer: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the weights as views of ``buffer``."""
        found, position = {}, 0
        for name, (dtype, shape) in self._entries.items():
            found[name] = np.ndarray(shape, dtype, buffer, position)
            position += _bytes(dtype, shape)
        return found

    def written(self, entries: Mapping[str, Tensor]) -> NDArray[np.uint8]:
        """Return the bytes of these weights."""
        buffer = np.zeros(self.size, np.uint8)
        for name, place in self.over(buffer).items():
            place[...] = entries[name].numpy()
        return buffer


def _bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
