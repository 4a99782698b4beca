"""The player's ends of Unity's side channels (docs/explanation/mlagents-behavior.md#side-channels)."""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Callable, Iterator

from trajtrainer.core.steps import Statistic
from trajtrainer.sim.simulation import Constant, EnvironmentParameters, Gaussian, MultiRange, ParameterSource, Uniform

logger = logging.getLogger(__name__)

ENGINE_CONFIGURATION = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
ENVIRONMENT_PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
STATISTICS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
FLOAT_PROPERTIES = uuid.UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")
PICTURES = uuid.UUID("5a6f1d5e-6f0c-4c43-9a3e-2f6f0f7f6b1d")
TRAINING_ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")

_ENGINE_SETTINGS = ("resolution", "quality level", "time scale", "target frame rate", "capture frame rate")
_FLOAT_SETTINGS = (2,)


class Payload:
    """Reads the values of one side channel message in order. Past the end they are zero or empty, as in Unity."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece if len(piece) == size else bytes(size)

    def integer(self) -> int:
        return int(struct.unpack("<i", self._take(4))[0])

    def number(self) -> float:
        return float(struct.unpack("<f", self._take(4))[0])

    def numbers(self) -> list[float]:
        """A list of float32 after its length."""
        return [self.number() for _ in range(min(self.integer(), len(self._data) // 4))]

    def text(self) -> str:
        """ASCII text after its length."""
        size = max(0, min(self.integer(), len(self._data) - self._at))
        return self._take(size).decode("ascii", errors="replace")


def frames(blob: bytes) -> Iterator[tuple[uuid.UUID, bytes]]:
    """The messages of a blob: channel and payload.

    Raises:
        ValueError: the blob is truncated.
    """
    at = 0
    while at < len(blob):
        if at + 20 > len(blob):
            raise ValueError(f"a side channel message is truncated at byte {at}")
        channel = uuid.UUID(bytes_le=blob[at : at + 16])
        (size,) = struct.unpack_from("<i", blob, at + 16)
        at += 20 + size
        if size < 0 or at > len(blob):
            raise ValueError(f"a side channel message of {size} bytes is truncated at byte {len(blob)}")
        yield channel, blob[at - size : at]


def frame(channel: uuid.UUID, payload: bytes) -> bytes:
    """One message as it is in a blob."""
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def statistic_frame(statistic: Statistic) -> bytes:
    """A value of Unity's StatsRecorder."""
    name = statistic.key.encode("ascii", errors="replace")
    payload = struct.pack("<i", len(name)) + name + struct.pack("<fi", statistic.value, int(statistic.aggregation))
    return frame(STATISTICS, payload)


def picture_frame(png: bytes) -> bytes:
    """A picture for people."""
    return frame(PICTURES, png)


class ReceivedChannels:
    """Takes in what the trainer sends; environment parameters go to ``parameters``, everything is logged."""

    def __init__(self, parameters: EnvironmentParameters) -> None:
        self._parameters = parameters
        self._receivers: dict[uuid.UUID, Callable[[Payload], None]] = {
            ENGINE_CONFIGURATION: self._engine,
            ENVIRONMENT_PARAMETERS: self._parameter,
            FLOAT_PROPERTIES: self._property,
            TRAINING_ANALYTICS: lambda _: logger.info("training analytics received"),
        }

    def receive(self, blob: bytes) -> None:
        """Handle all messages of a blob.

        Raises:
            ValueError: the blob is truncated.
        """
        for channel, data in frames(blob):
            receiver = self._receivers.get(channel)
            if receiver is None:
                logger.info("message of %d bytes on the unknown side channel %s", len(data), channel)
            else:
                receiver(Payload(data))

    def _engine(self, payload: Payload) -> None:
        kind = payload.integer()
        name = _ENGINE_SETTINGS[kind] if 0 <= kind < len(_ENGINE_SETTINGS) else f"setting {kind}"
        value: object = payload.number() if kind in _FLOAT_SETTINGS else payload.integer()
        if kind == 0:
            value = f"{value} x {payload.integer()}"
        logger.info("engine: %s = %s", name, value)

    def _parameter(self, payload: Payload) -> None:
        key = payload.text()
        kind = payload.integer()
        if kind == 0:
            value = payload.number()
            logger.info("environment parameter %s = %g", key, value)
            self._parameters.set(key, Constant(value))
            return
        source: ParameterSource | None = None
        seed, sampler = payload.integer(), payload.integer()
        if sampler == 0:
            source = Uniform(seed, payload.number(), payload.number())
        elif sampler == 1:
            source = Gaussian(seed, payload.number(), payload.number())
        else:
            bounds = payload.numbers()
            if sampler == 2 and len(bounds) >= 2 and len(bounds) % 2 == 0:
                source = MultiRange(seed, bounds)
        if kind != 1 or source is None:
            logger.warning("environment parameter %s has an unknown type of value", key)
            return
        logger.info("environment parameter %s is drawn by %s", key, type(source).__name__)
        self._parameters.set(key, source)

    def _property(self, payload: Payload) -> None:
        key = payload.text()
        logger.info("property %s = %g", key, payload.number())
