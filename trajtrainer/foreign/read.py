"""Reads a policy of another trainer, whatever its file is."""

from __future__ import annotations

import zipfile
from pathlib import Path

from trajtrainer.foreign.onnx_model import ForeignModel, read_onnx_model
from trajtrainer.foreign.policy import ForeignPolicy, Told
from trajtrainer.foreign.stable_baselines3 import WEIGHTS, read_stable_baselines3
from trajtrainer.foreign.state_dicts import read_state_dict
from trajtrainer.foreign.weights import load, load_safetensors, opened


def read_policy(path: Path, told: Told) -> ForeignPolicy | ForeignModel:
    """Return the policy in a file: a model of Stable-Baselines3, a state dict of CleanRL or rsl_rl, or an ``.onnx``.

    Raises:
        CheckpointError: it is missing, damaged, of another kind, would have to be unpickled, or does not tell something
            that is not told either.
    """
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return read_onnx_model(path, told)
    with opened(path) as file:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if WEIGHTS in archive.namelist():
                    return read_stable_baselines3(archive, told)
        file.seek(0)
        return read_state_dict(load_safetensors(file) if suffix == ".safetensors" else load(file), told)
