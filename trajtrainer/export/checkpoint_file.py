"""Reads checkpoint files of ML-Agents and ours, also hostile and damaged ones."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from trajtrainer.errors import CheckpointError
from trajtrainer.export.peer_layout import POLICY

Checkpoint = dict[str, Any]


class NoCheckpointError(ValueError):
    """The content of a file that is no trainer's checkpoint."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a ``.pt`` file of ML-Agents or ours. Code in it is never run; tensors come to the CPU.

    Raises:
        CheckpointError: missing, unreadable, damaged, holding objects other than tensors and plain data, or something
            else than a checkpoint.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise CheckpointError(f"The checkpoint {path} does not exist.") from error
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from error
    try:
        with file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wonders at pickles of other programs; they are refused below
            return load_checkpoint(file)
    except NoCheckpointError as error:
        raise CheckpointError(f"The file {path} is no trainer's checkpoint: {error}.") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"The checkpoint {path} was refused: it is no checkpoint, or holds objects other than tensors and plain "
            f"data, which could be code. Nothing of it was run. ({_refusal(error)})"
        ) from error
    except Exception as error:  # damaged files make the zip reader and the unpickler raise anything
        raise CheckpointError(
            f"The checkpoint {path} cannot be loaded: it is truncated, damaged or no checkpoint. Nothing of it was "
            f"run. Take another checkpoint of the run. ({first_line(error)})"
        ) from error


def load_checkpoint(source: IO[bytes]) -> Checkpoint:
    """What :func:`read_checkpoint` reads, with the errors as they come.

    Raises:
        NoCheckpointError: it loads, but is no checkpoint.
        Exception: it does not load; the type depends on what is wrong.
    """
    content = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise NoCheckpointError(f"it holds a {type(content).__name__}")
    if not all(isinstance(key, str) for key in content) or not isinstance(content.get(POLICY), dict):
        held = ", ".join(ascii(key)[:40] for key in list(content)[:8]) or "nothing"
        raise NoCheckpointError(f"expected an entry {POLICY!r} with weights, found {held}")
    _check_tensors(content)
    return content


def _check_tensors(value: object) -> None:
    """Refuse tensors that are not what they seem: a few bytes of file can describe one that fills the memory as soon
    as it is copied, or one without any numbers.

    Raises:
        NoCheckpointError: there is such a tensor.
        RecursionError: a structure that holds itself.
    """
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise NoCheckpointError(f"it holds a {value.layout} tensor of type {value.dtype} on {value.device}")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise NoCheckpointError(f"it holds a tensor of shape {tuple(value.shape)} that shows one number many times")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_tensors(key)
            _check_tensors(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            _check_tensors(item)


def _refusal(error: BaseException) -> str:
    """What torch says that it found. Around it, it explains how to load the file unsafely."""
    lines = [line.strip() for line in str(error).splitlines()]
    found = [line for line in lines if "nsupported" in line]
    return found[0][:200] if found else type(error).__name__


def first_line(error: BaseException) -> str:
    """Type and first line of an error's text, for a message."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
