"""The device of the networks and the number of threads."""

from __future__ import annotations

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
    """Return the device of ``--torch-device``; without one "cuda" where there is one, else "cpu".

    Raises:
        SettingsError: the name is no device, or this machine or this build of torch has none of it.
    """
    name = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise SettingsError(
            f"torch_settings.device is {name!r}, which cannot be used here ({_reason(name, error)}). "
            f"Expected 'cpu'{_others()}; leave --torch-device out to let it be chosen."
        ) from error
    return device


def _reason(name: str, error: Exception) -> str:
    """Return why a device cannot be used, in a few words: torch's own may take a page."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        return "torch knows no such device"
    if isinstance(error, NotImplementedError | ImportError):
        return f"this machine or this build of torch has no {kind}"
    return str(error).strip().split("\n")[0].split(". ")[0][:_LONGEST_REASON].rstrip(".")


def _others() -> str:
    names = [f"'cuda:{n}'" for n in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("'mps'")
    return "".join(f" or {name}" for name in names)


def set_threads() -> None:
    """Give torch one thread, unless OMP_NUM_THREADS says otherwise.

    A second thread gains little on networks of this size and makes a small update about 40 times slower as soon as
    anything else runs on the same cores, such as the player (measured: 1.2 ms with one thread, 45 ms with two).
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed tensors of up to 32 MB for the next ones, where it is glibc.

    By default it gives them back to the system, and every update gets its gradients and activations page by page anew
    (measured: a quarter of the time of an update of GridWorld's 4 million weights). Does nothing elsewhere.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None and mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD):
            mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
