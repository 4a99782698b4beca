"""Writes images as a video: ``.mp4`` (with the extra ``video``) or ``.gif``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from PIL import Image

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.envs.filming import Frame

logger = logging.getLogger(__name__)

_VIDEO, _PICTURE = ".mp4", ".gif"
# A GIF is assembled in memory.
_MOST_FRAMES, _WIDEST = 1_000, 320
_EVEN = 2  # H.264 needs even widths and heights


def check_film(path: Path) -> None:
    """Check that a video with this file name can be written.

    Raises:
        SettingsError: the suffix is not supported, or the package that writes the format is not installed.
    """
    if path.suffix not in (_VIDEO, _PICTURE):
        raise SettingsError(f"--video {path}: expected a file name that ends in .mp4 or .gif.")
    if path.suffix == _VIDEO:
        try:
            import imageio.v2  # noqa: F401
            import imageio_ffmpeg  # noqa: F401
        except ImportError as error:
            raise SettingsError(
                f"--video {path} needs the packages imageio and imageio-ffmpeg, which are not installed. Install them "
                "with: pip install 'trajtrainer[video]'. A .gif does not need them."
            ) from error


class Film:
    """A video that is being written.

    Args:
        path: path of the file; its suffix determines the format.

    Attributes:
        num_frames: number of frames added so far.
    """

    def __init__(self, path: Path) -> None:
        self.num_frames = 0
        self._path = path
        self._size: tuple[int, ...] = ()
        self._pictures: list[Image.Image] = []
        self._writer: Any = None
        self._rate = 0.0

    def add(self, frame: Frame, rate: float) -> None:
        """Add the next frame.

        Args:
            frame: u8 [height, width, 3].
            rate: frames per second.

        Raises:
            UnsupportedError: the frame's size differs from that of earlier frames.
        """
        self._size = self._size or frame.shape
        if frame.shape != self._size:
            raise UnsupportedError(
                f"The environment cannot be filmed: an image has shape {frame.shape}, earlier ones had {self._size}."
            )
        self._rate = rate
        self.num_frames += 1
        if self._path.suffix != _PICTURE:
            if self._writer is None:
                import imageio.v2

                height, width, _ = frame.shape
                self._writer = imageio.v2.get_writer(
                    self._path,
                    format="FFMPEG",
                    mode="I",
                    fps=rate,
                    macro_block_size=1,
                    ffmpeg_log_level="error",
                    output_params=["-vf", f"pad={width + width % _EVEN}:{height + height % _EVEN}"],
                )
            self._writer.append_data(frame)
        elif len(self._pictures) < _MOST_FRAMES:
            picture = Image.fromarray(frame)
            picture.thumbnail((_WIDEST, _WIDEST))
            self._pictures.append(picture.quantize())
        elif self.num_frames == _MOST_FRAMES + 1:
            limit = f"{_MOST_FRAMES} images, the limit for a .gif"
            logger.warning("%s ends after %s. An .mp4 has no limit.", self._path, limit)

    def close(self) -> None:
        """Finish the file.

        Raises:
            OSError: the file could not be written.
        """
        if self._writer is not None:
            self._writer.close()
        if self._pictures:
            first, *others = self._pictures
            duration = round(1000 / self._rate)
            first.save(self._path, "GIF", save_all=True, append_images=others, duration=duration, loop=0)
