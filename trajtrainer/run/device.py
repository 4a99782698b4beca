"""The device of the networks, and the process-wide settings of threads and memory that make training fast."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

import torch

from trajtrainer.core.errors import SettingsError

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
_LONGEST_REASON = 200


def choose_device(wanted: str | None) -> torch.device:
    """The device of ``--torch-device``; without one "cuda" if there is one, otherwise "cpu".

    Raises:
        SettingsError: there is no such device, or this machine or this build of torch does not support it.
    """
    name = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = "torch does not know such a device"
        with contextlib.suppress(RuntimeError):
            kind = torch.device(name).type
            # torch's own explanation may be a page long.
            reason = str(error).strip().split("\n")[0].split(". ")[0][:_LONGEST_REASON].rstrip(".")
            if isinstance(error, NotImplementedError | ImportError):
                reason = f"this machine or this build of torch does not support {kind}"
        devices = ["'cpu'", *(f"'cuda:{n}'" for n in range(torch.cuda.device_count()))]
        devices += ["'mps'"] * torch.backends.mps.is_available()
        raise SettingsError(
            f"torch_settings.device is {name!r}, which cannot be used here ({reason}). Expected "
            f"{' or '.join(devices)}; without --torch-device, a device is chosen."
        ) from error
    return device


def set_threads() -> None:
    """Give torch one thread, unless OMP_NUM_THREADS says otherwise.

    A second thread gains little on networks of this size and makes a small update about 40 times slower as soon as
    anything else runs on the same cores, such as the player (measured: 1.2 ms with one thread, 45 ms with two).
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors of up to 32 MB for the next ones. Does nothing elsewhere.

    By default it returns them to the system, and every update has to get its gradients and activations back page by
    page (measured: a quarter of the time of an update of GridWorld's 4 million weights).
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None and mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD):
            mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
