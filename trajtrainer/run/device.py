"""Chooses the device for the networks, and makes process-wide thread and memory settings that speed up training."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys

import torch

from trajtrainer.core.errors import SettingsError

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
_LONGEST_REASON = 200


def choose_device(wanted: str | None) -> torch.device:
    """Return the device given by ``--torch-device``. The default is "cuda" if available, otherwise "cpu".

    Raises:
        SettingsError: the device does not exist, or this machine or this build of torch does not support it.
    """
    name = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = "torch does not know this device"
        with contextlib.suppress(RuntimeError):
            kind = torch.device(name).type
            # torch's own message may be a page long.
            reason = str(error).strip().split("\n")[0].split(". ")[0][:_LONGEST_REASON].rstrip(".")
            if isinstance(error, NotImplementedError | ImportError):
                reason = f"this machine or this build of torch does not support {kind}"
        devices = ["'cpu'", *(f"'cuda:{n}'" for n in range(torch.cuda.device_count()))]
        devices += ["'mps'"] * torch.backends.mps.is_available()
        raise SettingsError(
            f"torch_settings.device is {name!r}, which cannot be used here ({reason}). Expected "
            f"{' or '.join(devices)}; without --torch-device, a device is chosen automatically."
        ) from error
    return device


def set_threads() -> None:
    """Limit torch to one thread, unless OMP_NUM_THREADS is set.

    With typical network sizes, a second thread gains little. It makes a small update about 40 times slower as soon as
    another process, such as the player, runs on the same cores (measured: 1.2 ms with one thread, 45 ms with two).
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def freeze_imports() -> None:
    """Exclude everything that exists so far from garbage collection.

    Otherwise, the garbage collector visits all of torch's objects, which takes 0.1 s per collection and 0.2 s at exit
    (measured).
    """
    gc.freeze()
    atexit.register(gc.freeze)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors of up to 32 MB for reuse. Does nothing on other systems.

    By default, glibc returns it to the system, so every update has to allocate memory for gradients and activations
    again. Measured with GridWorld (4 million weights), this takes a quarter of the update time.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None and mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD):
            mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
