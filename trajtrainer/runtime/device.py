"""Where the networks are computed, and with how many threads."""

from __future__ import annotations

import os

import torch

from trajtrainer.errors import SettingsError


def choose_device(wanted: str | None) -> torch.device:
    """The device of ``--torch-device``; without one "cuda" where there is one, else "cpu".

    Raises:
        SettingsError: the name is no device, or this machine or this build of torch has none of it.
    """
    name = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0]
        raise SettingsError(
            f"torch_settings.device is {name!r}, which cannot be used here ({reason}). "
            f"Expected 'cpu'{_others()}; leave --torch-device out to let it be chosen."
        ) from error
    return device


def _others() -> str:
    names = [f"'cuda:{n}'" for n in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("'mps'")
    return "".join(f" or {name}" for name in names)


def set_threads() -> None:
    """One thread for torch, unless OMP_NUM_THREADS says otherwise.

    A second thread gains little on networks of this size and makes a small update about 40 times slower as soon as
    anything else runs on the same cores, such as the player (measured: 1.2 ms with one thread, 45 ms with two).
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
