"""Pictures of the built-in simulations for humans to watch: one tile per agent or training area.

Drawing methods take coordinates of the simulation, with x to the right and y up, which the canvas converts to pixels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw

MOST_TILES = 16
_SIDE = 480  # approximate size of the whole picture in pixels
_GAP = 4
_BACKGROUND, _FRAME = (28, 30, 36), (10, 10, 12)

Color = tuple[int, int, int]
GRAY, WHITE, RED, GREEN, BLUE, YELLOW = (
    (120, 124, 132), (240, 240, 240), (230, 70, 60), (70, 200, 100), (80, 130, 250), (240, 200, 60)
)  # fmt: skip
COLORS: Sequence[Color] = (RED, GREEN, BLUE, YELLOW, (190, 90, 220), (80, 210, 220), (240, 140, 60), GRAY)


class Canvas:
    """A square tile that shows ``[-reach, reach]`` along both axes.

    Args:
        side: width and height in pixels.
    """

    def __init__(self, side: int) -> None:
        self.image = Image.new("RGB", (side, side), _BACKGROUND)
        self._side = side
        self._draw = ImageDraw.Draw(self.image)
        self.reach = 1.0

    def _at(self, x: float, y: float) -> tuple[float, float]:
        scale = self._side / (2.0 * self.reach)
        return self._side / 2 + x * scale, self._side / 2 - y * scale

    def box(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """Fill a rectangle centered at a point."""
        left, top = self._at(x - width / 2, y + height / 2)
        right, bottom = self._at(x + width / 2, y - height / 2)
        self._draw.rectangle((left, top, right, bottom), fill=color)

    def disc(self, x: float, y: float, radius: float, color: Color) -> None:
        """Fill a circle."""
        left, top = self._at(x - radius, y + radius)
        right, bottom = self._at(x + radius, y - radius)
        self._draw.ellipse((left, top, right, bottom), fill=color)

    def line(self, x0: float, y0: float, x1: float, y1: float, color: Color, pixels: int = 2) -> None:
        """Draw a line."""
        self._draw.line((self._at(x0, y0), self._at(x1, y1)), fill=color, width=pixels)

    def text(self, x: float, y: float, text: str, color: Color = WHITE) -> None:
        """Write text centered at a point."""
        self._draw.text(self._at(x, y), text, fill=color, anchor="mm", font_size=self._side // 12)

    def paste(self, picture: Image.Image) -> None:
        """Fill the tile with a picture of any size, scaled without smoothing."""
        scale = self._side / max(picture.size)
        size = (round(picture.width * scale), round(picture.height * scale))
        grown = picture.resize(size, Image.Resampling.NEAREST)
        self.image.paste(grown, ((self._side - size[0]) // 2, (self._side - size[1]) // 2))


def png(painters: Sequence[Callable[[Canvas], None]]) -> bytes:
    """Return a PNG with a grid of tiles, one for each of the first 16 painters."""
    painters = painters[:MOST_TILES]
    columns = math.ceil(math.sqrt(len(painters)))
    rows = math.ceil(len(painters) / columns)
    side = _SIDE // columns
    step = side + _GAP
    whole = Image.new("RGB", (columns * step + _GAP, rows * step + _GAP), _FRAME)
    for number, paint in enumerate(painters):
        canvas = Canvas(side)
        paint(canvas)
        whole.paste(canvas.image, (_GAP + number % columns * step, _GAP + number // columns * step))
    file = io.BytesIO()
    whole.save(file, "PNG", compress_level=1)
    return file.getvalue()
