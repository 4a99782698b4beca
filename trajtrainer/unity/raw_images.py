"""Finds out in which order a player sends raw images (docs/unity-environments.md#raw-images).

Packages of the same version number send them as (height, width, channels) or as (channels, height, width), so only the
images can tell. Read in the right order, neighboring pixels are alike. In the wrong order they are not.

Shape legend: N images, H height, W width, C channels.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Hashable, Mapping

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.image_order import RawImageOrder

_LOGGER = logging.getLogger(__name__)

# HWC is what released packages send, so less evidence is enough for it.
_RATIO_FOR_HWC = 1.25
_RATIO_FOR_CHW = 2.0
_RATIO_PER_AXIS = 1.5
_GRAY = 0.5
_MOST_NUMBERS = 1 << 22  # of one call; larger batches are sampled, so that this takes milliseconds
_MOST_MESSAGES = 20


class OrderEvidence:
    """What all raw images of a player show so far. One sensor that shows it is enough, unless others disagree."""

    def __init__(self) -> None:
        self._sensors: dict[Hashable, _SensorEvidence] = defaultdict(_SensorEvidence)

    def add(self, sensor: Hashable, images: NDArray[np.float32]) -> None:
        """Take images of a sensor, [N, C, H, W] as they look in the HWC reading. C is at least 2."""
        self._sensors[sensor].add(images)

    @property
    def num_images(self) -> int:
        """The number of images so far."""
        return sum(each.num_images for each in self._sensors.values())

    @property
    def order(self) -> RawImageOrder:
        """The order that the images show; ``AUTO`` if they do not."""
        shown = {each.order for each in self._sensors.values()} - {RawImageOrder.AUTO}
        return shown.pop() if len(shown) == 1 else RawImageOrder.AUTO


class _SensorEvidence:
    """How much neighboring pixels of one sensor's images differ in either reading."""

    def __init__(self) -> None:
        self.num_images = 0
        # [reading (HWC, CHW), axis (rows, columns)]: sum of the absolute differences of neighbors.
        self._variation = np.zeros((2, 2))
        # Mean difference between consecutive numbers of one pixel, and of two pixels, if the order is HWC.
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
        # A gray HWC image with horizontal structure only is smooth in the CHW reading, too: stretched to three images.
        # Its numbers change from pixel to pixel but not within one, which those of CHW images do at random.
        is_gray = self._within < _GRAY * self._across
        on_both_axes = bool((self._variation[0] > _RATIO_PER_AXIS * self._variation[1]).all())
        if hwc > _RATIO_FOR_CHW * chw and on_both_axes and not is_gray:
            return RawImageOrder.CHW
        return RawImageOrder.AUTO


class OrderSearch:
    """Looks at the first messages of a player until its images show their order.

    Args:
        presumed: what an earlier session of the run has found, for images that do not show it.
        level: of the log line; one of several players of a run is enough to tell.

    Attributes:
        num_messages: that were looked at, with raw images in them.
    """

    def __init__(self, presumed: RawImageOrder, level: int = logging.INFO) -> None:
        self.num_messages = 0
        self._presumed = presumed
        self._level = level
        self._evidence = OrderEvidence()

    def look(self, images: Mapping[Hashable, NDArray[np.float32]]) -> None:
        """Take the raw images of a message: sensor -> [N, C, H, W] as they look in the HWC reading."""
        self.num_messages += 1
        for sensor, each in images.items():
            self._evidence.add(sensor, each)

    @property
    def is_over(self) -> bool:
        """Whether the images have shown their order, or will not."""
        return self._evidence.order is not RawImageOrder.AUTO or self.num_messages >= _MOST_MESSAGES

    def result(self) -> RawImageOrder:
        """Return the order that will be used, and log it in one line."""
        shown, count = self._evidence.order, self._evidence.num_images
        if shown is RawImageOrder.AUTO:
            order = RawImageOrder.HWC if self._presumed is RawImageOrder.AUTO else self._presumed
            _LOGGER.log(
                self._level,
                "The player's first %d raw images do not show whether they come as hwc (height, width, channels) or "
                "chw (channels, height, width). They are read as %s, %s. If that is wrong, set raw_image_order.",
                count,
                order.value,
                "as released packages send them" if self._presumed is RawImageOrder.AUTO else "as in this run before",
            )
            return order
        if self._presumed not in (RawImageOrder.AUTO, shown):
            _LOGGER.warning(
                "The player's raw images are read as %s, which the first %d show, although they were %s when the model "
                "was trained: the player was probably built with another version of the package. The model sees the "
                "same as before. If this is wrong, set raw_image_order.",
                shown.value,
                count,
                self._presumed.value,
            )
        else:
            _LOGGER.log(
                self._level, "The player's raw images are read as %s, which the first %d show.", shown.value, count
            )
        return shown
