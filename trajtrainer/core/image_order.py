"""The order in which the numbers of a raw (uncompressed) image come."""

from __future__ import annotations

import enum


class RawImageOrder(enum.Enum):
    """The order of the numbers of raw images from packages 3.0 and newer, all of which announce channels first.

    Released packages send HWC (height, width, channels); ML-Agents' development branch sends CHW. ``AUTO`` stands for
    "not known": the images have to show it (docs/unity-environments.md#raw-images).
    """

    AUTO = "auto"
    HWC = "hwc"
    CHW = "chw"
