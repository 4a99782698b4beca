"""The order of the numbers in raw images, in a module that settings can import without numpy."""

from __future__ import annotations

import enum


class RawImageOrder(enum.Enum):
    """Order of the numbers in raw (uncompressed) images from Unity packages 3.0 and newer.

    All of them announce channels first, but released packages send HWC (height, width, channels), and only ML-Agents'
    development branch sends CHW. ``AUTO`` means that it is not known yet: the images have to show it
    (docs/train/unity-environments.md#raw-images).
    """

    AUTO = "auto"
    HWC = "hwc"
    CHW = "chw"
