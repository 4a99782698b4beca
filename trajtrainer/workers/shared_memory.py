"""Memory that two processes see.

On Linux it is a file in memory without a name (memfd), which the other process opens through ``/proc``. Unlike
``multiprocessing.shared_memory`` it needs no process that cleans up, is not limited by the size of ``/dev/shm`` (64 MB
in Docker), and cannot be left behind, whatever is killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.errors import EnvironmentFaultError


class MemoryAddress(NamedTuple):
    """The address by which another process opens the memory."""

    name: str
    size: int


class SharedMemory:
    """A piece of shared memory: made by one process, opened by another under its name.

    The maker forgets the name (``unlink``) as soon as the other process has opened it. The memory is freed when both
    processes have closed it, or are gone, and no array over it is left.

    Attributes:
        address: by which it can be opened, until it is unlinked.
        buffer: u8 [size], its bytes. Arrays over it keep the memory alive, even after ``close``.
    """

    def __init__(self, name: str, memory: mmap.mmap, unlink: Callable[[], None] | None = None) -> None:
        self.address = MemoryAddress(name, len(memory))
        self.buffer: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self._unlink = unlink

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """Make ``size`` bytes, which are 0.

        Raises:
            EnvironmentFaultError: the system has no room for it.
        """
        try:
            return cls(*_make(size))
        except OSError as error:
            raise EnvironmentFaultError(
                f"There is no room for {size} bytes of shared memory, which pass what an environment observes: "
                f"{error.strerror or error}. Use fewer environments (--num-envs), or give this machine more memory."
            ) from error

    @classmethod
    def open(cls, address: MemoryAddress) -> SharedMemory:
        """Open the memory that another process made and has not unlinked yet.

        Raises:
            OSError: there is none.
        """
        return cls(address.name, _open(*address))

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.buffer)

    def unlink(self) -> None:
        """Free the name, in the process that made the memory. Nothing happens the second time."""
        unlink, self._unlink = self._unlink, None
        if unlink is not None:
            unlink()

    def close(self) -> None:
        """End the use of the memory by this process."""
        self.unlink()
        self.buffer = np.zeros(0, np.uint8)


if sys.platform == "win32":

    def _make(size: int) -> tuple[str, mmap.mmap]:
        name = f"trajtrainer-{os.getpid()}-{secrets.token_hex(8)}"
        return name, mmap.mmap(-1, size, tagname=name)

    def _open(name: str, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size, tagname=name)

else:
    _OPEN_FILES = "/proc/self/fd"

    def _make(size: int) -> tuple[str, mmap.mmap, Callable[[], None]]:
        if sys.platform == "linux" and os.path.isdir(_OPEN_FILES):
            file = os.memfd_create("trajtrainer")
            # The name holds as long as the file is open here.
            name, unlink = f"/proc/{os.getpid()}/fd/{file}", partial(os.close, file)
        else:
            file, name = tempfile.mkstemp(prefix="trajtrainer-")
            unlink = partial(_remove, file, name)
        try:
            os.ftruncate(file, size)
            return name, mmap.mmap(file, size), unlink
        except BaseException:
            unlink()
            raise

    def _remove(file: int, name: str) -> None:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(name)

    def _open(name: str, size: int) -> mmap.mmap:
        file = os.open(name, os.O_RDWR)
        try:
            return mmap.mmap(file, size)
        finally:
            os.close(file)
