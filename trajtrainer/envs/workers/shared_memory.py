"""Memory that two processes share, and blocks of such memory for passing bytes from one process to the other.

On Linux, the memory is an anonymous file (memfd), which the other process opens through ``/proc``. Unlike
``multiprocessing.shared_memory``, it needs no cleanup process, is not subject to the size limit of ``/dev/shm`` (64 MB
in Docker), and leaves nothing behind when either process is killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.errors import EnvironmentFaultError


class MemoryAddress(NamedTuple):
    """Name and size of shared memory, with which another process can open it."""

    name: str
    size: int


class SharedMemory:
    """Memory that one process creates and another opens.

    The creator unlinks the name as soon as the other process has opened it. The memory is freed once both processes
    have closed it or died, and no views of it are left.

    Attributes:
        buffer: u8 [size]. Views of it keep the memory alive, even after ``close``.
    """

    def __init__(self, name: str, memory: mmap.mmap, unlink: Callable[[], None] | None = None) -> None:
        self.address = MemoryAddress(name, len(memory))
        self.buffer: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self._unlink = unlink

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """Create memory of ``size`` zero bytes.

        Raises:
            EnvironmentFaultError: the system does not have that much memory left.
        """
        try:
            return cls(*_create(size))
        except OSError as error:
            raise EnvironmentFaultError(
                f"Cannot allocate {size} bytes of shared memory for an environment's observations: "
                f"{error.strerror or error}. Use fewer environments (--num-envs), or a machine with more memory."
            ) from error

    @classmethod
    def open(cls, address: MemoryAddress) -> SharedMemory:
        """Open the memory of another process. Raises ``OSError`` if it is gone or unlinked."""
        return cls(address.name, _open(*address))

    def unlink(self) -> None:
        """Release the name. Does nothing on the second call, or in the process that opened the memory."""
        unlink, self._unlink = self._unlink, None
        if unlink is not None:
            unlink()

    def close(self) -> None:
        """Stop using the memory in this process."""
        self.unlink()
        self.buffer = np.zeros(0, np.uint8)


if sys.platform == "win32":

    def _create(size: int) -> tuple[str, mmap.mmap]:
        name = f"trajtrainer-{os.getpid()}-{secrets.token_hex(8)}"
        return name, mmap.mmap(-1, size, tagname=name)

    def _open(name: str, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size, tagname=name)

else:
    _OPEN_FILES = "/proc/self/fd"

    def _create(size: int) -> tuple[str, mmap.mmap, Callable[[], None]]:
        if sys.platform == "linux" and os.path.isdir(_OPEN_FILES):
            file = os.memfd_create("trajtrainer")
            name = f"/proc/{os.getpid()}/fd/{file}"
        else:  # macOS, or a system without /proc
            file, name = tempfile.mkstemp(prefix="trajtrainer-")

        def unlink() -> None:
            os.close(file)  # also removes a memfd's name, but not a temporary file
            if not name.startswith("/proc/"):
                with contextlib.suppress(OSError):
                    os.unlink(name)

        try:
            os.ftruncate(file, size)
            return name, mmap.mmap(file, size), unlink
        except BaseException:
            unlink()
            raise

    def _open(name: str, size: int) -> mmap.mmap:
        file = os.open(name, os.O_RDWR)
        try:
            return mmap.mmap(file, size)
        finally:
            os.close(file)


class BlockPlace(NamedTuple):
    """Number of a block and, if its memory is new to the reader, its address."""

    number: int
    address: MemoryAddress | None


class Blocks:
    """The writer's end: creates blocks on demand and reuses those that the reader has returned. Thread-safe."""

    def __init__(self) -> None:
        self._blocks: dict[int, SharedMemory] = {}
        self._free: list[int] = []
        self._lock = threading.Lock()

    def reserve(self, size: int) -> tuple[NDArray[np.uint8], BlockPlace]:
        """Find or create a block with ``size`` bytes to write into.

        Raises:
            EnvironmentFaultError: the system does not have that much memory left.
        """
        with self._lock:
            fitting = [number for number in self._free if len(self._blocks[number].buffer) >= size]
            if fitting:
                number = min(fitting, key=lambda each: len(self._blocks[each].buffer))
                self._free.remove(number)
                return self._blocks[number].buffer[:size], BlockPlace(number, None)
            if self._free:  # all free blocks are too small, so replace one of them with a larger block
                number = self._free.pop()
                self._blocks[number].close()
            else:
                number = len(self._blocks)
            # Allocate 50% more than needed, because sizes vary.
            block = self._blocks[number] = SharedMemory.create(size + size // 2)
        return block.buffer[:size], BlockPlace(number, block.address)

    def take_back(self, number: int) -> None:
        """Make a block available again after the reader has finished with it."""
        with self._lock:
            self._blocks[number].unlink()  # the reader has already opened it, so the name is no longer needed
            self._free.append(number)

    def close(self) -> None:
        for block in self._blocks.values():
            block.close()
        self._blocks, self._free = {}, []


class OpenedBlocks:
    """The reader's end: opens the blocks that the writer has created."""

    def __init__(self) -> None:
        self._blocks: dict[int, SharedMemory] = {}

    def buffer(self, place: BlockPlace) -> NDArray[np.uint8]:
        """Return all bytes of a block. Raises ``OSError`` if the writer died and the block is gone."""
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
        for block in self._blocks.values():
            block.close()
        self._blocks = {}
