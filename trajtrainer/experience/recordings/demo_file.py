"""Reads ``.demo`` files: a header, the behavior, and the recorded steps (docs/train/demonstrations.md#files).

A file is read in blocks, so it is never completely in memory. The header may be wrong, so it is compared with the rest
of the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns
from trajtrainer.core.errors import DemonstrationError, InvalidDataError
from trajtrainer.core.filenames import open_regular
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.protobuf import fields, frames, read_varint
from trajtrainer.envs.unity import pictures
from trajtrainer.envs.unity.behaviors import PictureOrder, UnityBehavior, announced
from trajtrainer.envs.unity.pictures import OrderEvidence
from trajtrainer.envs.unity.proto import communicator_pb2 as pb
from trajtrainer.envs.unity.records import check_records
from trajtrainer.experience.recordings.step_reader import StepError, StepReader

logger = logging.getLogger(__name__)

SUFFIX = ".demo"
# The header has a fixed size, because a recorder overwrites it when it is closed.
HEADER_SIZE = 33
API_VERSION = 1
# A field in the behavior's message that is used only by trajtrainer.
MARK = 1000

_API_VERSIONS = (0, 1)
_LONGEST_PARAMETERS = 1 << 20
_LONGEST_STEP = 1 << 28
_BLOCK = 1 << 20
_MOST_BYTES = 1 << 26  # limit for decoding steps together, because a PNG can be a thousand times larger when decoded
_STEP = 0x0A  # the first byte of each step, which starts with its AgentInfoProto
_LONGEST_VARINT = 5
_MANY = 1 << 62
_MOST_IMAGES = 1000  # maximum number of images to examine for the dimension order of raw images
_PICTURE_RANK = 3
_CHANNELS = 1  # the dimension property NONE


class StepBlock(NamedTuple):
    """Consecutive complete steps of a file.

    Attributes:
        data: the bytes that contain the steps.
        starts: i64 [N], the start of each step in ``data``.
        sizes: i64 [N], the size of each step.
        stop: position in the file after the last step.
    """

    data: bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    stop: int

    def end_of(self, row: int) -> int:
        """Return the end of a step in ``data``."""
        return int(self.starts[row] + self.sizes[row])


@dataclass(frozen=True, slots=True)
class DemoFile:
    """An opened recording. Opening it has determined the number of steps and the kind of data in them.

    Attributes:
        path: path of the file.
        meta: the header.
        parameters: the serialized behavior.
        behavior: the behavior, which describes the data in each step.
        start: position of the first step in the file.
        num_records: number of complete records, including the ends of episodes.
        action_delay: the number of records between an observation and the record with its action; 1 in Unity's
            recordings.
    """

    path: Path
    meta: pb.DemonstrationMetaProto
    parameters: bytes
    behavior: UnityBehavior
    start: int
    num_records: int
    action_delay: int

    def blocks(self) -> Iterator[StepBlock]:
        """Return an iterator over all steps, without decoding them."""
        return _blocks(self.path, self.start, self.num_records)

    def records(self, *, decode: bool = True) -> Iterator[Columns[NDArray[Any]]]:
        """Yield the columns of all steps, block by block.

        Args:
            decode: whether to decode PNGs. Otherwise, they are returned as ``CompressedPicture``.

        Raises:
            DemonstrationError: a step is damaged or does not match the first step.
        """
        reader = StepReader(self.behavior, decode=decode)
        most = max(1, _MOST_BYTES // reader.row_bytes)
        num_before = 0
        for data, starts, sizes, _ in self.blocks():
            for begin in range(0, len(starts), most):
                rows = slice(begin, begin + most)
                try:
                    steps = reader.read(data, starts[rows], sizes[rows])
                except StepError as error:
                    raise DemonstrationError(f"{self.path}, step {num_before + error.row + 1}: {error}.") from error
                yield steps
                num_before += len(steps)


def demo_paths(paths: Sequence[str | Path]) -> list[Path]:
    """Expand files and folders to a list of recordings.

    Raises:
        DemonstrationError: a file or folder is missing, or a folder contains no recordings.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix == SUFFIX)
            if not inside:
                raise DemonstrationError(f"The folder {path} contains no {SUFFIX} file.")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise DemonstrationError(f"The recording {path} does not exist.")
    if not found:
        raise DemonstrationError("No recording was given. Expected one or more .demo files or folders.")
    return found


def open_demo(path: Path, raw_image_order: RawImageOrder = RawImageOrder.AUTO) -> DemoFile:
    """Open a file, and determine its behavior and the number of complete steps.

    If a file ends in the middle of a step, or has fewer steps than its header says, the complete steps are used and a
    warning is logged.

    Args:
        path: path of the file.
        raw_image_order: dimension order of raw images from package versions since 3.0; ``AUTO`` determines it from the
            images.

    Raises:
        DemonstrationError: the file cannot be read, is not a recording, or has no steps.
    """
    if path.suffix != SUFFIX:
        raise DemonstrationError(
            f"{path} is not a {SUFFIX} file. Expected a recording of Unity's Demonstration Recorder, or the result of "
            f"`trajtrainer demo convert {path.name} -o {path.stem}{SUFFIX}` for an .npz file, a .json file of "
            "Godot's plugin or a data set."
        )
    meta, meta_bytes, parameters, start, size = read_header(path)
    try:
        num_records, stop = _count(path, start, meta.number_steps)
        is_closed = _is_end(path, stop, size, meta_bytes)
        first = next(_blocks(path, start, 1))
    except OSError as error:
        raise DemonstrationError(f"The recording {path} cannot be read: {error.strerror or error}.") from error
    is_cut = num_records < meta.number_steps or not (meta.number_steps or size == stop or is_closed)
    if is_cut:
        logger.warning("%s is truncated: its last step is incomplete. Using the %d steps before it.", path, num_records)
    is_marked = any(field.number == MARK for field in fields(parameters))
    behavior = _behavior(first, parameters, path, PictureOrder.CHANNELS_FIRST if is_marked else None)
    by_unity = not is_marked and (is_closed or is_cut or not meta.number_steps)
    demo = DemoFile(path, meta, parameters, behavior, start, num_records, int(by_unity))
    # Package versions since 3.0 announce raw images as channels first, but released versions send channels last.
    if any(sensor.is_raw_image and sensor.float_shape != sensor.wire_shape for sensor in behavior.sensors):
        order = _order_shown(demo) if raw_image_order is RawImageOrder.AUTO else raw_image_order
        if order is RawImageOrder.CHW:
            demo = replace(demo, behavior=_behavior(first, parameters, path, PictureOrder.CHANNELS_FIRST))
    return demo


def _order_shown(file: DemoFile) -> RawImageOrder:
    """Determine the dimension order from the first raw images (docs/train/unity-environments.md#raw-images)."""
    evidence = OrderEvidence()
    for records in file.records(decode=False):
        for sensor, column in zip(file.behavior.sensors, records.obs, strict=True):
            if sensor.is_raw_image:
                evidence.add(sensor.index, column)
        if evidence.order is not RawImageOrder.AUTO or evidence.num_images >= _MOST_IMAGES:
            break
    if evidence.order is RawImageOrder.CHW:
        logger.info("Reading the raw images of %s as chw (detected in %d images).", file.path, evidence.num_images)
    elif evidence.order is RawImageOrder.AUTO:
        logger.info(
            "The first %d raw images of %s do not show whether they are hwc (height, width, channels) or chw "
            "(channels, height, width). Reading them as hwc, which released packages write. If that is wrong, convert "
            "the file: trajtrainer demo convert --raw-image-order chw.",
            evidence.num_images,
            file.path,
        )
    return evidence.order


class _Beginning(NamedTuple):
    """The part of a file before the steps.

    Attributes:
        meta: the header.
        meta_bytes: the header's bytes in the file.
        parameters: the serialized behavior.
        start: position of the first step.
        size: size of the file.
    """

    meta: pb.DemonstrationMetaProto
    meta_bytes: bytes
    parameters: bytes
    start: int
    size: int


def read_header(path: Path) -> _Beginning:
    """Read the part of a file before the steps.

    Raises:
        DemonstrationError: the file cannot be read, or does not start like a recording.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(HEADER_SIZE + _LONGEST_VARINT + _LONGEST_PARAMETERS)
    except OSError as error:
        raise DemonstrationError(f"The recording {path} cannot be read: {error.strerror or error}.") from error
    return _Beginning(*_header(head, path), *_parameters(head, path), size)


def _header(head: bytes, path: Path) -> tuple[pb.DemonstrationMetaProto, bytes]:
    """Return the header and its bytes."""
    if not head:
        raise DemonstrationError(f"The recording {path} is empty.")
    data = head[1 : 1 + head[0]]
    if head[0] >= HEADER_SIZE or len(data) < head[0]:
        raise DemonstrationError(_no_recording(path, "it does not start with a header"))
    try:
        meta = pb.DemonstrationMetaProto.FromString(data)
    except DecodeError as error:
        raise DemonstrationError(_no_recording(path, "its header is not a valid message")) from error
    if meta.api_version not in _API_VERSIONS:
        raise DemonstrationError(
            f"{path} has version {meta.api_version} of the format, expected {_API_VERSIONS[0]} or {_API_VERSIONS[1]}, "
            "which all releases of ML-Agents write."
        )
    if len(head) <= HEADER_SIZE:
        raise DemonstrationError(
            f"The recording {path} ends after its header ({len(head)} bytes): the recorder was stopped before its "
            "first step. Record it again."
        )
    return meta, data


def _no_recording(path: Path, reason: str) -> str:
    return f"{path} is not a recording of Unity's Demonstration Recorder: {reason}."


def _parameters(head: bytes, path: Path) -> tuple[bytes, int]:
    """Return the serialized behavior and the position of the first step."""
    found = _size_at(head, HEADER_SIZE)
    if found is None:
        raise DemonstrationError(_no_recording(path, "its behavior has no valid length"))
    size, begin = found
    parameters = head[begin : begin + size]
    if len(parameters) < size:
        raise DemonstrationError(_no_recording(path, f"the {size} bytes of its behavior are missing"))
    return parameters, begin + size


def _count(path: Path, start: int, named: int) -> tuple[int, int]:
    """Count the complete steps, up to the number in the header. Return their number and the position after them."""
    count, stop = 0, start
    for block in _blocks(path, start, named or _MANY):
        kept = len(block.starts)
        if not named:
            # The recorder was not closed properly, and the data after the steps may look like another step.
            first_bytes = np.frombuffer(block.data, np.uint8)[np.minimum(block.starts, len(block.data) - 1)]
            others = (block.sizes == 0) | (first_bytes != _STEP)
            kept = int(others.argmax()) if others.any() else kept
        if kept:
            count += kept
            stop = block.stop - block.end_of(-1) + block.end_of(kept - 1)
        if kept < len(block.starts):
            break
    if count == 0:
        raise DemonstrationError(
            f"The recording {path} has no steps: the recorder was stopped before the first one. Record it again."
        )
    return count, stop


def _is_end(path: Path, stop: int, size: int, meta_bytes: bytes) -> bool:
    """Return whether the file ends with a copy of the header, which Unity's recorder appends when it is closed."""
    if size - stop != len(meta_bytes):
        return False
    with path.open("rb") as file:
        file.seek(stop)
        return file.read() == meta_bytes


def _blocks(path: Path, start: int, num_records: int) -> Iterator[StepBlock]:
    """Yield up to ``num_records`` complete steps, in blocks."""
    data, wanted, position = b"", _BLOCK, start
    with path.open("rb") as file:
        file.seek(start)
        while num_records > 0:
            more = file.read(wanted)
            if not more:
                return
            data += more
            starts, sizes, end = frames(data, most=num_records)
            wanted = _BLOCK
            if starts:
                position += end
                yield StepBlock(data, np.array(starts, np.int64), np.array(sizes, np.int64), position)
                num_records -= len(starts)
            data = data[end:]
            size, begin = _size_at(data, 0) or (0, 0)
            if size > _LONGEST_STEP or (not begin and len(data) >= _LONGEST_VARINT):
                raise DemonstrationError(
                    f"The recording {path} is damaged at byte {position}: the length there is too large for a step."
                )
            wanted = max(_BLOCK, begin + size - len(data))


def _size_at(data: bytes, position: int) -> tuple[int, int] | None:
    """Return the length at ``position`` and the position after it, or None if it is incomplete or invalid."""
    with contextlib.suppress(IndexError):
        size, begin = read_varint(data[: position + _LONGEST_VARINT], position)
        return size, begin
    return None


def _behavior(first: StepBlock, parameters: bytes, path: Path, order: PictureOrder | None) -> UnityBehavior:
    data = first.data[first.starts[0] : first.starts[0] + first.sizes[0]]
    try:
        check_records(data, path.name)
        info = pb.AgentInfoActionPairProto.FromString(data).agent_info
        order = order or _picture_order(info)
        return announced(pb.BrainParametersProto.FromString(parameters), info, order, allow_empty=True)
    except (DecodeError, InvalidDataError) as error:
        raise DemonstrationError(_no_recording(path, f"step 1 or the behavior is damaged ({error})")) from error


def _picture_order(info: pb.AgentInfoProto) -> PictureOrder:
    """Determine the layout of images, which depends on the package version. The file does not contain the version.

    Since version 2.0, the dimension properties mark the channels. In older files, height and width are taken from a
    PNG. Otherwise, the channels are assumed to be the smaller one of the first and last dimensions, or the last if they
    are equal.
    """
    for observation in info.observations:
        if len(observation.shape) != _PICTURE_RANK:
            continue
        shape, properties = tuple(observation.shape), tuple(observation.dimension_properties)
        first, last = (tuple(properties[i : i + 1]) == (_CHANNELS,) for i in (0, 2))
        if first != last:
            return PictureOrder.ANNOUNCED_CHANNELS_FIRST if first else PictureOrder.CHANNELS_LAST
        size = pictures.size_of(observation.compressed_data)
        if size is not None and (shape[1:] == size) != (shape[:2] == size):
            return PictureOrder.CHANNELS_FIRST if shape[1:] == size else PictureOrder.CHANNELS_LAST
        return PictureOrder.CHANNELS_FIRST if shape[0] < shape[2] else PictureOrder.CHANNELS_LAST
    return PictureOrder.CHANNELS_FIRST
