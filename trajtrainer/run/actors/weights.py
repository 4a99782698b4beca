"""The byte layout of weights that are sent to actors outside the learner's loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.columns import ColumnEntry
from trajtrainer.experience.source import aligned_bytes


class WeightsLayout:
    """The layout of a policy's weights in one block of bytes. All tensors must be on the CPU."""

    def __init__(self, entries: Mapping[str, Tensor]) -> None:
        self._entries = {
            name: ColumnEntry(tensor.numpy().dtype, tuple(tensor.shape)) for name, tensor in entries.items()
        }
        self.size = sum(map(aligned_bytes, self._entries.values()))

    def over(self, buffer: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Return the weights as views of ``buffer``."""
        found, position = {}, 0
        for name, entry in self._entries.items():
            found[name] = np.ndarray(entry.shape, entry.dtype, buffer, position)
            position += aligned_bytes(entry)
        return found

    def written(self, entries: Mapping[str, Tensor]) -> NDArray[np.uint8]:
        """Return a new buffer that contains a copy of these weights."""
        buffer = np.zeros(self.size, np.uint8)
        for name, place in self.over(buffer).items():
            place[...] = entries[name].numpy()
        return buffer
