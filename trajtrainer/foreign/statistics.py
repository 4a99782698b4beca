"""Reads the statistics of ``VecNormalize`` (Stable-Baselines3), saved as a ``.npz``."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trajtrainer.checkpoints.file import NoCheckpointError
from trajtrainer.foreign.policy import Statistics
from trajtrainer.foreign.weights import opened

_NEEDED = ("mean", "var", "epsilon", "clip_obs")
_COUNT = "count"
_SUFFIX = ".npy"
_MOST_NUMBERS = 10_000_000


def how_to_save(source: str) -> str:
    """Return the two lines that save the statistics of a ``VecNormalize``."""
    return (
        f'  import numpy, pathlib, pickle; v = pickle.loads(pathlib.Path("{source}").read_bytes())\n'
        '  numpy.savez("stats.npz", mean=v.obs_rms.mean, var=v.obs_rms.var, count=v.obs_rms.count, '
        "epsilon=v.epsilon, clip_obs=v.clip_obs)"
    )


def read_statistics(path: Path) -> Statistics:
    """Return the statistics: ``mean``, ``var``, ``epsilon``, ``clip_obs``, and ``count`` if it is there.

    Raises:
        CheckpointError: the file is missing, damaged, or another one.
    """
    with opened(path) as file:
        if not zipfile.is_zipfile(file):
            raise NoCheckpointError(
                "it is no .npz. A pickle could be code and is not loaded. If you trust it, save what is in it:\n"
                + how_to_save(path.name)
            )
        with zipfile.ZipFile(file) as archive:
            held = {name.removesuffix(_SUFFIX) for name in archive.namelist()}
            if missing := [name for name in _NEEDED if name not in held]:
                raise NoCheckpointError(
                    f"it lacks {', '.join(missing)}. Save it with\n{how_to_save('vecnormalize.pkl')}"
                )
            found = {name: _array(archive, name) for name in (*_NEEDED, _COUNT) if name in held}
        mean, variance = found["mean"].ravel(), found["var"].ravel()
        single = [value for name, value in found.items() if name not in ("mean", "var")]
        if mean.shape != variance.shape or any(value.size != 1 for value in single):
            shapes = ", ".join(f"{name} {value.shape}" for name, value in found.items())
            raise NoCheckpointError(f"the shapes of its arrays do not fit each other: {shapes}")
        variance = variance + found["epsilon"].item()
        clip, count = float(found["clip_obs"].item()), float(found[_COUNT].item()) if _COUNT in found else None
        if not all(np.isfinite(value).all() for value in found.values()) or (variance <= 0).any() or not clip > 0:
            raise NoCheckpointError("it has numbers that are not finite, or a variance or limit that is not above 0")
    return Statistics(_floats(mean), _floats(variance), clip, count)


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Return an array, after a look at the size that its header claims."""
    with archive.open(name + _SUFFIX) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if dtype.kind not in "fiu" or np.prod(shape, dtype=np.float64) > _MOST_NUMBERS:
        raise NoCheckpointError(f"its {name} is of type {dtype} and shape {shape}, expected numbers")
    with archive.open(name + _SUFFIX) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array


def _floats(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))
