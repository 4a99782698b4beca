"""Reads checkpoint files of ML-Agents and ours, also hostile and damaged ones."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from trajtrainer.checkpoints.mlagents.layout import EXTRA, STEP, STEP_ENTRY
from trajtrainer.core.errors import CheckpointError, first_line
from trajtrainer.core.filenames import open_regular
from trajtrainer.nn.mlagents import POLICY

Checkpoint = dict[str, Any]

# torch does not compress. A file that somebody packed anew is read too, unless it is made to fill the memory.
_MAX_EXPANSION = 8
_ALWAYS_ALLOWED_BYTES = 64 * 2**20
# Half of what the 64 bits of an event file hold, so that a run can go on from it.
_LARGEST_STEP = 2**62


class NoCheckpointError(ValueError):
    """The content of a file that is no trainer's checkpoint."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a ``.pt`` file of ML-Agents or ours. Code in it is never run; tensors come to the CPU.

    Raises:
        CheckpointError: missing, unreadable, damaged, holding objects other than tensors and plain data, or something
            else than a checkpoint.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"The checkpoint {path} does not exist.") from error
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from error
    try:
        with file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wonders at pickles of other programs; they are refused below
            return load_checkpoint(file)
    except NoCheckpointError as error:
        raise CheckpointError(f"The file {path} is no checkpoint to use: {error}.") from error
    except pickle.UnpicklingError as error:
        # What torch says that it found. Around it, it explains how to load the file unsafely.
        found = [line.strip()[:200] for line in str(error).splitlines() if "nsupported" in line]
        raise CheckpointError(
            f"The checkpoint {path} was refused: it is no checkpoint, or holds objects other than tensors and plain "
            f"data, which could be code. Nothing of it was run. ({found[0] if found else type(error).__name__})"
        ) from error
    except Exception as error:  # damaged files make the zip reader and the unpickler raise anything
        raise CheckpointError(
            f"The checkpoint {path} cannot be loaded: it is truncated, damaged or no checkpoint. Nothing of it was "
            f"run. Take another checkpoint of the run. ({first_line(error)})"
        ) from error


def load_checkpoint(source: IO[bytes]) -> Checkpoint:
    """Return what :func:`read_checkpoint` reads.

    Raises:
        NoCheckpointError: it loads, but is no checkpoint.
        Exception: it does not load; the type depends on what is wrong.
    """
    check_size(source)
    content = torch.load(source, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise NoCheckpointError(f"it holds a {type(content).__name__}")
    if not all(isinstance(key, str) for key in content) or not isinstance(content.get(POLICY), dict):
        held = ", ".join(ascii(key)[:40] for key in list(content)[:8]) or "nothing"
        raise NoCheckpointError(f"expected an entry {POLICY!r} with weights, found {held}")
    try:
        step = int(content[STEP][STEP_ENTRY])
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
        step = 0  # whoever needs it says that it is missing
    if not 0 <= step <= _LARGEST_STEP:
        raise NoCheckpointError(f"its step is {step}, expected 0 to {_LARGEST_STEP}")
    for name, entry in content.items():
        check_tensors(entry, set(), finite=name != EXTRA)
    return content


def check_size(source: IO[bytes]) -> None:
    """Refuse an archive that unpacks to far more than it has.

    Raises:
        NoCheckpointError: it does.
    """
    start = source.tell()
    try:
        with zipfile.ZipFile(source) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError):  # an older format, or damage that torch will name
        return
    finally:
        size = source.seek(0, os.SEEK_END)
        source.seek(start)
    if unpacked > max(_MAX_EXPANSION * size, _ALWAYS_ALLOWED_BYTES):
        raise NoCheckpointError(f"its {size:,} bytes unpack to {unpacked:,}, which is made to fill the memory")


def check_tensors(value: object, seen: set[int], *, finite: bool) -> None:
    """Refuse tensors that are not what they seem, and with ``finite`` NaN and infinity, too.

    A few bytes of file can describe one that fills the memory as soon as it is copied, or one without any numbers. A
    structure that holds another twice, which holds another twice, and so on, has more paths than there is time for:
    those in ``seen`` were looked at already.

    Raises:
        NoCheckpointError: there is such a tensor.
        RecursionError: a structure that holds itself.
    """
    if id(value) in seen:
        return
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise NoCheckpointError(f"it holds a {value.layout} tensor of type {value.dtype} on {value.device}")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise NoCheckpointError(f"it holds a tensor of shape {tuple(value.shape)} that shows one number many times")
        if finite and not bool(torch.isfinite(value).all()):
            raise NoCheckpointError("it holds NaN or infinite numbers, with which no training can go on")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_tensors(key, seen, finite=finite)
            check_tensors(item, seen, finite=finite)
        seen.add(id(value))
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            check_tensors(item, seen, finite=finite)
        seen.add(id(value))
