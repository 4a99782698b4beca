"""Pictures on the wire: PNG files with a channel mapping, and raw images whose dimension order has to be detected.

See docs/explanation/mlagents-behavior.md#observations. Packages since 3.0 announce raw images as (channels, height,
width), but only some of them send the numbers in that order. ``OrderSearch`` looks at the first images of a player: in
the right order, neighboring pixels differ less.
"""

from __future__ import annotations

import io
import logging
import struct
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.image_order import RawImageOrder

_LOGGER = logging.getLogger(__name__)
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = struct.Struct(">I4s")
_SIZE = struct.Struct(">II")
_CRC_SIZE = 4
_KEPT_MODES = ("L", "LA", "RGB", "RGBA")

# Released packages send HWC, so HWC needs less evidence.
_RATIO_FOR_HWC = 1.25
_RATIO_FOR_CHW = 2.0
_RATIO_PER_AXIS = 1.5
_GRAY = 0.5
_MOST_NUMBERS = 1 << 22  # per call; larger batches are truncated, so that this takes milliseconds
_MOST_MESSAGES = 20

Picture = NDArray[np.float32] | NDArray[np.uint8]


class PictureError(ValueError):
    """A picture cannot be decoded or does not fit. The message is worded to follow "agent 3: "."""


def decode(data: bytes, mapping: Sequence[int], shape: Sequence[int]) -> Picture:
    """Decode one observation.

    Args:
        data: concatenated PNG files.
        mapping: for each channel of the files, its channel in the observation, or -1 to ignore it. File channels mapped
            to the same observation channel are averaged. If the mapping is empty (packages before API 1.2), a single
            expected channel is the mean of those in the first file; otherwise, the first channels are taken.
        shape: (channels, height, width).

    Returns:
        The picture in ``shape``: u8 as in the files, or f32 in 0..1 if channels are averaged.

    Raises:
        PictureError: the data is not PNG, is damaged, or has the wrong size or too few channels, or the mapping does
            not fit.
    """
    if len(shape) != 3:
        raise PictureError(f"only pictures of 3 dimensions can be compressed, not the shape {tuple(shape)}")
    channels, height, width = shape
    files = [_decode_file(file, height, width) for file in _split(data)]
    if channels == 1 and not mapping:
        return _mean(files[0], range(files[0].shape[2]))[np.newaxis]
    pixels = np.concatenate(files, axis=2)
    if not mapping:
        if pixels.shape[2] < channels:
            raise PictureError(f"the PNG files have {pixels.shape[2]} channels, expected at least {channels}")
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)[:channels])
    mapping = list(mapping)
    if len(mapping) != pixels.shape[2]:
        raise PictureError(
            f"the PNG files have {pixels.shape[2]} channels, but their mapping {mapping} has {len(mapping)}"
        )
    if {target for target in mapping if target >= 0} != set(range(channels)):
        raise PictureError(
            f"the channel mapping {mapping} does not cover each of the {channels} channels 0 to {channels - 1}"
        )
    sources = [[source for source, target in enumerate(mapping) if target == channel] for channel in range(channels)]
    if all(len(source) == 1 for source in sources):
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)[[source[0] for source in sources]])
    return np.stack([_mean(pixels, source) for source in sources])


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return the height and width of the first PNG file; None if the data is not PNG."""
    if not data.startswith(_SIGNATURE) or len(data) < len(_SIGNATURE) + _CHUNK.size + _SIZE.size:
        return None
    width, height = _SIZE.unpack_from(data, len(_SIGNATURE) + _CHUNK.size)
    return height, width


def _mean(pixels: NDArray[np.uint8], sources: Sequence[int]) -> NDArray[np.float32]:
    """Return the mean of some channels of u8 [H, W, *] as f32 [H, W] in 0..1, rounded as in ML-Agents."""
    scaled = pixels[:, :, list(sources)].astype(np.float32) / np.float32(255.0)
    mean: NDArray[np.float32] = scaled.mean(axis=2, dtype=np.float32)
    return mean


def _decode_file(file: bytes, height: int, width: int) -> NDArray[np.uint8]:
    """Decode one PNG file as u8 [H, W, channels of the file]."""
    found_width, found_height = _SIZE.unpack_from(file, len(_SIGNATURE) + _CHUNK.size)
    if (found_height, found_width) != (height, width):
        # Check this before decoding, because a few bytes of PNG can claim a picture that fills the memory.
        raise PictureError(f"found a PNG of {found_height} rows by {found_width} columns, expected {height} by {width}")
    from PIL import Image  # here, because players are launched before slow imports

    try:
        with Image.open(io.BytesIO(file), formats=["PNG"]) as image:
            pixels = np.asarray(image if image.mode in _KEPT_MODES else image.convert("RGB"))
    except Exception as error:
        # Pillow raises whatever its parsers raise for a damaged file: OSError, SyntaxError, struct.error, ...
        raise PictureError(f"found a PNG that cannot be decoded ({error})") from error
    return pixels.reshape(height, width, -1)


def _split(data: bytes) -> Iterator[bytes]:
    """Yield the PNG files in ``data``, found via their chunks because the signature may also occur inside a chunk."""
    begin = 0
    while begin < len(data) or begin == 0:
        if data[begin : begin + len(_SIGNATURE)] != _SIGNATURE:
            raise PictureError(f"found no PNG file at byte {begin} of {len(data)}")
        position, kind = begin + len(_SIGNATURE), b""
        while kind != b"IEND":
            if position + _CHUNK.size > len(data):
                raise PictureError(f"found a PNG that is truncated after {len(data) - begin} bytes")
            length, kind = _CHUNK.unpack_from(data, position)
            position += _CHUNK.size + length + _CRC_SIZE
        if position > len(data) or position < begin + len(_SIGNATURE) + _CHUNK.size + _SIZE.size:
            raise PictureError(f"found a PNG that is truncated after {len(data) - begin} bytes")
        yield data[begin:position]
        begin = position


def channel_mapping(channels: int) -> list[int]:
    """Return the mapping that Unity announces: empty for RGB, zeros for gray, -1 for padding in the last PNG."""
    if channels == 3:
        return []
    if channels == 1:
        return [0, 0, 0]
    return [*range(channels), *[-1] * (-channels % 3)]


def encode(picture: NDArray[np.uint8], level: int) -> bytes:
    """Encode a picture u8 [C, H, W] as Unity does, for ``decode`` with ``channel_mapping``.

    The result consists of PNG files with three channels each. A gray picture becomes a single RGB file.

    Args:
        picture: u8 [C, H, W].
        level: compression level, 0 to 9.
    """
    channels, height, width = picture.shape
    if channels == 1:
        picture = picture.repeat(3, axis=0)
    elif channels % 3:
        filler = np.zeros((-channels % 3, height, width), dtype=np.uint8)
        picture = np.concatenate((picture, filler))
    header = _SIZE.pack(width, height) + bytes([8, 2, 0, 0, 0])  # 8 bits per channel, RGB
    files = b""
    for first in range(0, len(picture), 3):
        lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # Each line starts with its filter, 0 for none.
        lines[:, 1:] = picture[first : first + 3].transpose(1, 2, 0).reshape(height, -1)
        content = zlib.compress(lines.tobytes(), level)
        files += _SIGNATURE + _chunk_of(b"IHDR", header) + _chunk_of(b"IDAT", content) + _chunk_of(b"IEND", b"")
    return files


def _chunk_of(kind: bytes, data: bytes) -> bytes:
    return _CHUNK.pack(len(data), kind) + data + struct.pack(">I", zlib.crc32(kind + data))


class OrderEvidence:
    """Evidence for the order of a player's raw images. One conclusive sensor is enough, unless another disagrees."""

    def __init__(self) -> None:
        self._sensors: dict[Hashable, _SensorEvidence] = defaultdict(_SensorEvidence)

    def add(self, sensor: Hashable, images: NDArray[np.float32]) -> None:
        """Add images of a sensor, decoded as HWC to [N, C, H, W]. C is at least 2."""
        self._sensors[sensor].add(images)

    @property
    def num_images(self) -> int:
        return sum(each.num_images for each in self._sensors.values())

    @property
    def order(self) -> RawImageOrder:
        """The detected order; ``AUTO`` if the images are inconclusive."""
        shown = {each.order for each in self._sensors.values()} - {RawImageOrder.AUTO}
        return shown.pop() if len(shown) == 1 else RawImageOrder.AUTO


class _SensorEvidence:
    """Measures how much neighboring pixels of one sensor's images differ when read as HWC and as CHW."""

    def __init__(self) -> None:
        self.num_images = 0
        # [reading (HWC, CHW), axis (rows, columns)]: sum of the absolute differences of neighbors.
        self._variation = np.zeros((2, 2))
        # If the order is HWC: mean difference between consecutive numbers within a pixel, and difference between the
        # last number of a pixel and the first number of the next one. Both are summed over all pixels.
        self._within = self._across = 0.0

    def add(self, images: NDArray[np.float32]) -> None:
        count, channels, height, width = images.shape
        kept = images[: max(1, _MOST_NUMBERS // (channels * height * width))]
        hwc = np.ascontiguousarray(np.moveaxis(kept, 1, -1), np.float64)
        chw = hwc.reshape(kept.shape)
        for reading, pixels, rows, columns in ((0, hwc, 1, 2), (1, chw, 2, 3)):
            for axis, which in enumerate((rows, columns)):
                self._variation[reading, axis] += np.abs(np.diff(pixels, axis=which)).sum()
        steps = np.abs(np.diff(hwc.reshape(len(kept), -1), axis=1, append=0.0)).reshape(-1, height * width, channels)
        steps[:, -1, -1] = 0.0  # nothing follows the last number
        self._within += steps[:, :, :-1].sum() / (channels - 1)
        self._across += steps[:, :, -1].sum()
        self.num_images += count

    @property
    def order(self) -> RawImageOrder:
        hwc, chw = self._variation.sum(axis=1)
        if chw > _RATIO_FOR_HWC * hwc:
            return RawImageOrder.HWC
        # A gray HWC image with only horizontal structure is also smooth when read as CHW, where it looks like three
        # stretched images. Its numbers change between pixels but not within a pixel, whereas those of CHW images can
        # change anywhere.
        is_gray = self._within < _GRAY * self._across
        on_both_axes = bool((self._variation[0] > _RATIO_PER_AXIS * self._variation[1]).all())
        if hwc > _RATIO_FOR_CHW * chw and on_both_axes and not is_gray:
            return RawImageOrder.CHW
        return RawImageOrder.AUTO


class OrderSearch:
    """Examines a player's first messages until its images reveal their dimension order.

    Args:
        presumed: order detected by an earlier session of the run, used if the images are inconclusive.
        level: level at which to log the result, because one report per run is enough.

    Attributes:
        num_messages: number of messages with raw images examined so far.
    """

    def __init__(self, presumed: RawImageOrder, level: int = logging.INFO) -> None:
        self.num_messages = 0
        self._presumed = presumed
        self._level = level
        self._evidence = OrderEvidence()

    def look(self, images: Mapping[Hashable, NDArray[np.float32]]) -> None:
        """Add the raw images of a message: sensor -> images, decoded as HWC to [N, C, H, W]."""
        self.num_messages += 1
        for sensor, each in images.items():
            self._evidence.add(sensor, each)

    @property
    def is_over(self) -> bool:
        """True if the order has been detected, or the message limit has been reached."""
        return self._evidence.order is not RawImageOrder.AUTO or self.num_messages >= _MOST_MESSAGES

    def result(self) -> RawImageOrder:
        """Return the order to use, and log it in one line."""
        shown, count = self._evidence.order, self._evidence.num_images
        if shown is RawImageOrder.AUTO:
            order = RawImageOrder.HWC if self._presumed is RawImageOrder.AUTO else self._presumed
            _LOGGER.log(
                self._level,
                "The player's first %d raw images do not show whether they come as hwc (height, width, channels) or "
                "chw (channels, height, width). They are read as %s, %s. If that is wrong, set raw_image_order.",
                count,
                order.value,
                "as released packages send them" if self._presumed is RawImageOrder.AUTO else "as earlier in this run",
            )
            return order
        if self._presumed not in (RawImageOrder.AUTO, shown):
            _LOGGER.warning(
                "The player's raw images are read as %s, based on the first %d, although they were %s when the model "
                "was trained: the player was probably built with a different version of the package. The model sees "
                "the same as before. If this is wrong, set raw_image_order.",
                shown.value,
                count,
                self._presumed.value,
            )
        else:
            _LOGGER.log(
                self._level, "The player's raw images are read as %s, based on the first %d.", shown.value, count
            )
        return shown
