"""Blocks of shared memory that carry bytes from one process to another, which gives each back when it has read it."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.workers.shared_memory import MemoryAddress, SharedMemory


class BlockPlace(NamedTuple):
    """A block as the other process finds it.

    Attributes:
        number: of the block.
        address: of its memory, the first time it is used; it takes the place of the block that had this number.
    """

    number: int
    address: MemoryAddress | None


class Blocks:
    """The writer's end. Blocks are made as they are needed, and used again when they come back. From any thread."""

    def __init__(self) -> None:
        self._blocks: dict[int, SharedMemory] = {}
        self._free: list[int] = []
        self._lock = threading.Lock()

    def reserve(self, size: int) -> tuple[NDArray[np.uint8], BlockPlace]:
        """Return ``size`` bytes to write into, and their place.

        Raises:
            EnvironmentFaultError: the system has no room for them.
        """
        with self._lock:
            fitting = [number for number in self._free if self._blocks[number].size >= size]
            if fitting:
                number = min(fitting, key=lambda each: self._blocks[each].size)
                self._free.remove(number)
                return self._blocks[number].buffer[:size], BlockPlace(number, None)
            if self._free:  # a larger one takes its place, at the other end, too
                number = self._free.pop()
                self._blocks[number].close()
            else:
                number = len(self._blocks)
            # Somewhat more than is needed now: what comes next will not be of the same size.
            block = self._blocks[number] = SharedMemory.create(size + size // 2)
        return block.buffer[:size], BlockPlace(number, block.address)

    def take_back(self, number: int) -> None:
        """Let a block be used again."""
        with self._lock:
            self._blocks[number].unlink()  # the other end has it open
            self._free.append(number)

    def close(self) -> None:
        """End the use of all blocks."""
        for block in self._blocks.values():
            block.close()
        self._blocks, self._free = {}, []


class OpenedBlocks:
    """The reader's end."""

    def __init__(self) -> None:
        self._blocks: dict[int, SharedMemory] = {}

    def buffer(self, place: BlockPlace) -> NDArray[np.uint8]:
        """Return all bytes of a block.

        Raises:
            OSError: the writer is gone, and the block with it.
        """
        number, address = place
        if address is not None:
            memory = SharedMemory.open(address)
            if number in self._blocks:
                self._blocks[number].close()
            self._blocks[number] = memory
        if number not in self._blocks:
            raise OSError(f"block {number} is gone")
        return self._blocks[number].buffer

    def close(self) -> None:
        """End the use of all blocks. Arrays over them keep their memory."""
        for block in self._blocks.values():
            block.close()
        self._blocks = {}
