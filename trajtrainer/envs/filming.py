"""Frames of in-process environments, for videos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.errors import UnsupportedError

Frame = NDArray[np.uint8]
"""A video frame, u8 [height, width, 3]."""
TakeFrame = Callable[[Frame, float], None]
"""Receives a frame and the frame rate in frames per second."""

_USUAL_RATE = 30.0


class Rendering:
    """Wraps an environment, and passes a frame to ``take`` after each reset and step.

    The frame of a reset is held back until the first step, so that a video ends with the last frame of its last
    episode.

    Args:
        env: a Gymnasium environment or a PettingZoo parallel environment.
        name: name of the environment, for messages.
        take: receives the frames.

    Raises:
        UnsupportedError: the environment's render mode is not ``rgb_array``.
    """

    def __init__(self, env: Any, name: str, take: TakeFrame) -> None:
        mode = getattr(env, "render_mode", None)
        metadata = getattr(env, "metadata", None) or {}
        modes = metadata.get("render_modes") or ["none"]
        if mode != "rgb_array":
            raise UnsupportedError(
                f'The environment {name} cannot be filmed: its render_mode is {mode!r}, expected "rgb_array" '
                f"(supported: {', '.join(map(str, modes))}). Its factory must accept the argument render_mode."
            )
        self._env = env
        self._name = name
        self._take = take
        self._rate = float(metadata.get("render_fps") or _USUAL_RATE)
        self._first: Frame | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **arguments: Any) -> Any:
        result = self._env.reset(**arguments)
        self._first = self._frame()
        return result

    def step(self, actions: Any) -> Any:
        result = self._env.step(actions)
        if self._first is not None:
            self._take(self._first, self._rate)
            self._first = None
        self._take(self._frame(), self._rate)
        return result

    def _frame(self) -> Frame:
        picture = self._env.render()
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            is_array = isinstance(picture, np.ndarray)
            what = f"{picture.dtype} of shape {picture.shape}" if is_array else repr(picture)[:80]
            raise UnsupportedError(
                f"The environment {self._name} cannot be filmed: it renders {what}. Expected uint8 [height, width, 3]."
            )
        return picture.copy()


class FirstPicture:
    """Wraps a vectorized environment so that ``render`` returns the frame of its first copy, for ``Rendering``."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def render(self) -> Any:
        return self._env.render()[0]
