"""The axis order of raw images, in a module that settings can import without numpy."""

from __future__ import annotations

import enum


class RawImageOrder(enum.Enum):
    """Axis order of raw (uncompressed) images from Unity packages 3.0 and newer.

    All of these packages announce channels first, but released packages send HWC (height, width, channels); only
    ML-Agents' development branch sends CHW. ``AUTO`` means that the order is not known yet and is detected from the
    images (docs/train/unity-environments.md#raw-images).
    """

    AUTO = "auto"
    HWC = "hwc"
    CHW = "chw"
