"""Safely reads checkpoint files of trajtrainer and ML-Agents, even if they are damaged or malicious."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from trajtrainer.core.archives import LargeDirectoryError, open_zip
from trajtrainer.core.errors import CheckpointError, first_line
from trajtrainer.core.filenames import open_regular
from trajtrainer.core.numeric import LARGEST_COUNT
from trajtrainer.core.printable import shortened
from trajtrainer.learning.nn.mlagents import POLICY
from trajtrainer.learning.nn.normalization import MAX_VARIANCE, Normalizer
from trajtrainer.policies.checkpoints.mlagents.convert import EXTRA, STEP, STEP_ENTRY

Checkpoint = dict[str, Any]

# Limits for zip bombs. torch does not compress its files, but a file that was compressed afterwards is accepted.
_MAX_EXPANSION = 8
_ALWAYS_ALLOWED_BYTES = 64 * 2**20
_LARGEST_DIRECTORY = 2**24  # self-play snapshots can contain tens of thousands of tensors
# The pickle in a torch file that describes the tensors. It is slow to read, and torch does not compress it, either.
_DESCRIPTION = "data.pkl"
_ALWAYS_ALLOWED_DESCRIPTION = 2**20
# ML-Agents' normalizer can overflow. Infinite variances are clamped, because the other statistics are still usable.
_VARIANCE = str(Normalizer.mlagents_names["variance"])


class NoCheckpointError(ValueError):
    """Raised for a file that can be loaded but is not a usable checkpoint."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a ``.pt`` file written by trajtrainer or ML-Agents. Tensors are loaded to the CPU; code in it is never run.

    Raises:
        CheckpointError: the file is missing, unreadable, damaged or not a checkpoint, or it holds objects other than
            tensors and plain data.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"The checkpoint {path} does not exist.") from error
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from error
    try:
        with file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about pickles it did not write; they are refused below
            return load_checkpoint(file)
    except NoCheckpointError as error:
        raise CheckpointError(f"The file {path} is not a usable checkpoint: {shortened(str(error))}.") from error
    except pickle.UnpicklingError as error:
        # Show only the line in which torch names the object. The other lines explain how to load the file unsafely.
        found = [line.strip()[:200] for line in str(error).splitlines() if "nsupported" in line]
        raise CheckpointError(
            f"The checkpoint {path} was rejected: it is not a checkpoint, or it contains objects other than tensors "
            "and plain data, which could run code. No code in it was run. "
            f"({found[0] if found else type(error).__name__})"
        ) from error
    except Exception as error:  # damaged files can make the zip reader and the unpickler raise any exception
        raise CheckpointError(
            f"The checkpoint {path} cannot be loaded: it is truncated, damaged or not a checkpoint. No code in it was "
            f"run. Use another checkpoint of the run. ({first_line(error)})"
        ) from error


def load_checkpoint(source: IO[bytes]) -> Checkpoint:
    """Load a checkpoint from an open file, with raw errors. ``read_checkpoint`` turns them into messages for the user.

    Raises:
        NoCheckpointError: the file loads but is not a usable checkpoint.
        Exception: the file does not load. The type depends on the cause.
    """
    content = load_tensors(source)
    if not isinstance(content, dict):
        raise NoCheckpointError(f"it contains a {type(content).__name__}, expected a mapping")
    if not all(isinstance(key, str) for key in content) or not isinstance(content.get(POLICY), dict):
        held = ", ".join(ascii(key)[:40] for key in list(content)[:8]) or "nothing"
        raise NoCheckpointError(f"expected an entry {POLICY!r} with weights, found {held}")
    try:
        step = int(content[STEP][STEP_ENTRY])
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
        step = 0  # code that needs the step reports that it is missing
    if not 0 <= step <= LARGEST_COUNT:
        raise NoCheckpointError(f"its step is {step}, expected 0 to {LARGEST_COUNT}")
    check_entries(content)
    for entry in content.values():
        for name, value in entry.items() if isinstance(entry, dict) else ():
            if str(name).endswith(_VARIANCE) and isinstance(value, Tensor):
                value.clamp_(max=MAX_VARIANCE)
    return content


def check_entries(content: Checkpoint) -> None:
    """Check all tensors and numbers of a checkpoint; see ``check_tensors``. Learned values must be finite.

    Raises:
        NoCheckpointError: a tensor or number is malformed, or training could not continue with it.
    """
    for name, entry in content.items():
        check_tensors(entry, set(), finite=name != EXTRA, counts=True, name=name)


def load_tensors(source: IO[bytes], largest_directory: int = _LARGEST_DIRECTORY) -> Any:
    """Load a file written by ``torch.save``, with tensors and plain data only; see also ``check_size``.

    Raises:
        NoCheckpointError: loading the file would exhaust the memory, or take very long.
        Exception: the file does not load. The type depends on the cause.
    """
    size = check_size(source, largest_directory)
    content = torch.load(source, map_location="cpu", weights_only=True)
    claimed = _claimed_bytes(content, set())
    if claimed > max(_MAX_EXPANSION * size, _ALWAYS_ALLOWED_BYTES):
        raise NoCheckpointError(f"its tensors claim {claimed:,} bytes in total, but the file has only {size:,}")
    return content


def _claimed_bytes(value: object, seen: set[int]) -> int:
    """Return the total size of the tensors in a structure. Shared memory (tied layers) is counted repeatedly."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if not isinstance(value, dict | list | tuple | set) or id(value) in seen:
        return 0
    seen.add(id(value))
    return sum(_claimed_bytes(item, seen) for item in (value.values() if isinstance(value, dict) else value))


def check_size(source: IO[bytes], largest_directory: int = _LARGEST_DIRECTORY) -> int:
    """Reject an archive that unpacks to far more than its own size, or has too many members.

    Returns:
        The size of the file.

    Raises:
        NoCheckpointError: the archive is rejected.
    """
    start = source.tell()
    size = source.seek(0, os.SEEK_END)
    try:
        with open_zip(source, largest_directory) as archive:
            entries = archive.infolist()
    except LargeDirectoryError as error:
        raise NoCheckpointError(str(error)) from error
    except (zipfile.BadZipFile, ValueError, OSError):  # an older format, or damage that torch will report
        return size
    finally:
        source.seek(start)
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > max(_MAX_EXPANSION * size, _ALWAYS_ALLOWED_BYTES):
        raise NoCheckpointError(f"its {size:,} bytes unpack to {unpacked:,}, far more than a checkpoint would")
    described = max((entry.file_size for entry in entries if entry.filename.endswith(_DESCRIPTION)), default=0)
    if described > max(size, _ALWAYS_ALLOWED_DESCRIPTION):
        raise NoCheckpointError(
            f"the description of its tensors has {described:,} bytes, but the whole file has only {size:,}"
        )
    return size


def check_tensors(value: object, seen: set[int], *, finite: bool, counts: bool = False, name: str = "") -> None:
    """Reject malformed tensors and, with ``finite``, tensors with NaN or (except in variances) infinite values.

    A few bytes can describe a tensor that exhausts the memory as soon as it is copied, or a tensor without any data.

    Args:
        value: a tensor, a number or a nested structure.
        seen: ids of the containers that were already checked. They are skipped, because a structure in which each level
            refers to the next one twice has exponentially many paths.
        finite: whether to reject NaN and infinity.
        counts: whether integers are counts and steps, and must be within their range.
        name: path of the value within the checkpoint.

    Raises:
        NoCheckpointError: a tensor or number is rejected.
        RecursionError: a structure contains itself.
    """
    if id(value) in seen:
        return
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise NoCheckpointError(f"it contains a {value.layout} tensor of type {value.dtype} on {value.device}")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise NoCheckpointError(f"it contains a tensor of shape {tuple(value.shape)} with too little data")
        unusable = torch.isnan(value) if name.endswith(_VARIANCE) else ~torch.isfinite(value)
        if finite and bool(unusable.any()):
            raise NoCheckpointError(f"{name} contains NaN or infinite numbers, so training cannot continue from it")
    elif isinstance(value, int):
        if counts and abs(value) > LARGEST_COUNT:
            found = f"a whole number of {value.bit_length()} bits"
            raise NoCheckpointError(f"it contains {found}, expected at most {LARGEST_COUNT}")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_tensors(key, seen, finite=finite, counts=counts, name=name)
            shown = key[:120] if isinstance(key, str) else key if isinstance(key, int) else type(key).__name__
            part = ascii(shown).strip("'")[:120]
            check_tensors(item, seen, finite=finite, counts=counts, name=f"{name}/{part}" if name else part)
        seen.add(id(value))
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            check_tensors(item, seen, finite=finite, counts=counts, name=name)
        seen.add(id(value))
