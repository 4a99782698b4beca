"""A piece of memory that two processes see."""

from __future__ import annotations

import contextlib
import os
import sys
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from numpy.typing import NDArray

from trajtrainer.errors import EnvironmentFaultError

_FOLDER = "/dev/shm"  # noqa: S108  (where Linux shows shared memory as files; nothing is created by this name)


class SharedBlock:
    """One shared block: made by one process, opened by another under its name.

    The maker forgets the name (``unlink``) as soon as the other process has opened it. From then on the system frees
    the memory when both processes are gone, whatever ends them.

    Attributes:
        buffer: u8 [size], the block's bytes. Arrays over it keep the memory alive, even after ``close``.
    """

    def __init__(self, memory: SharedMemory, *, owned: bool) -> None:
        self._memory = memory
        self._has_name = owned
        if memory.buf is None:
            raise AssertionError("shared memory that was just opened has a buffer")
        # Unlike numpy.ndarray, frombuffer holds on to the memory.
        self.buffer: NDArray[np.uint8] = np.frombuffer(memory.buf, np.uint8)

    @classmethod
    def create(cls, size: int) -> SharedBlock:
        """A new block of at least ``size`` bytes.

        Raises:
            EnvironmentFaultError: the system has no room for it.
        """
        try:
            memory = _Memory(create=True, size=size)
        except OSError as error:
            raise _no_room(size, error) from error
        block = cls(memory, owned=True)
        try:
            _claim_pages(memory.name, size)
        except OSError as error:
            block.close()
            raise _no_room(size, error) from error
        return block

    @classmethod
    def open(cls, name: str) -> SharedBlock:
        """The block that another process made and has not unlinked yet.

        Raises:
            FileNotFoundError: there is none of this name.
        """
        return cls(_Memory(name), owned=False)

    @property
    def name(self) -> str:
        return self._memory.name

    @property
    def size(self) -> int:
        return len(self.buffer)

    def unlink(self) -> None:
        """Frees the name, in the process that made the block. Nothing happens the second time."""
        if self._has_name:
            self._has_name = False
            self._memory.unlink()

    def close(self) -> None:
        """Ends the use of the block by this process. Its memory stays until the last array over it is gone."""
        self.unlink()
        self.buffer = np.zeros(0, np.uint8)
        with contextlib.suppress(BufferError):
            self._memory.close()


class _Memory(SharedMemory):
    """Shared memory that is quiet about arrays which outlive it, as those in an exception's traceback do."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError, BufferError):
            self.close()


def _claim_pages(name: str, size: int) -> None:
    """Takes the memory now. Linux would kill a process that writes to pages for which there is no room later."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(FileNotFoundError), open(os.path.join(_FOLDER, name), "rb+") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _no_room(size: int, error: OSError) -> EnvironmentFaultError:
    return EnvironmentFaultError(
        f"There is no room for {size} bytes of shared memory, which pass what an environment observes: "
        f"{error.strerror or error}. Give this machine or container more (Docker: --shm-size=1g), or use fewer "
        "environments (--num-envs)."
    )
