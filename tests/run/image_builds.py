"""Builds that send raw images in either order, as packages of the same version number do, or noise."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import ObservationArray
from trajtrainer.envs.sim.__main__ import main
from trajtrainer.envs.sim.wire import WireStyle

_ROOT = Path(__file__).resolve().parents[2]


def write_build(folder: Path, kind: str) -> Path:
    """Write the program of a VisualBall whose images come as ``hwc``, as ``chw``, or are ``noise``."""
    build = folder / f"{kind}.x86_64"
    build.write_text(
        f"#!{sys.executable}\n"
        f"import sys\nsys.path.insert(0, {str(_ROOT)!r})\n"
        f"from tests.run.image_builds import play\nsys.exit(play({kind!r}, sys.argv[1:]))\n"
    )
    build.chmod(build.stat().st_mode | stat.S_IXUSR)
    return build


def play(kind: str, arguments: list[str]) -> int:
    """Run the program."""
    as_hwc = WireStyle.floats

    def floats(style: WireStyle, column: ObservationArray) -> NDArray[np.float32]:
        found = as_hwc(style, column)
        if column.ndim != 4 or kind == "hwc":
            return found
        if kind == "noise":
            return np.random.default_rng(0).random(found.shape, np.float32)
        count, channels, height, width = column.shape
        return np.moveaxis(found.reshape(count, height, width, channels), -1, 1).reshape(count, -1)

    setattr(WireStyle, "floats", floats)  # noqa: B010
    return main(["VisualBall", "--agents", "4", "--camera", "20,24", *arguments])
