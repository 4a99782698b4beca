"""The recorded sessions of ``data/wire``: messages, specs, and what an independent decoder made of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import StepBatch
from trajtrainer.envs.unity.behaviors import PictureOrder, picture_order
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityMessageProto

NAMES = (
    "pkg1.3_3dball",
    "pkg1.3_grid",
    "pkg1.3_multi",
    "pkg2.3_3dball",
    "pkg2.3_basic",
    "pkg2.3_coop",
    "pkg2.3_grid",
    "pkg2.3_hybrid",
    "pkg2.3_soccer",
    "pkg2.3_two_behaviors",
    "pkg3.0_duel",
    "pkg3.0_group",
    "pkg3.0_respawn",
    "pkg3.0_two_behaviors",
    "pkg3.0_vis_png",
    "pkg3.0_vis_raw",
)


@dataclass(frozen=True)
class Recording:
    """``from_player[0]`` is the handshake, ``[1]`` the empty message, ``[2]`` the first with agents."""

    from_player: list[bytes]
    to_player: list[bytes]
    description: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    @property
    def steps(self) -> list[bytes]:
        return self.from_player[2:]

    @property
    def package_version(self) -> str:
        handshake = UnityMessageProto.FromString(self.from_player[0])
        return handshake.unity_output.rl_initialization_output.package_version

    @property
    def order(self) -> PictureOrder:
        return picture_order(self.package_version)

    def as_recorded(self, step: int, behavior: str, batch: StepBatch) -> dict[str, NDArray[Any]]:
        """A step batch under the keys of the ``.npz``, pictures as floats in the order of dimensions as announced."""
        return _as_recorded(step, behavior, batch, channels_last=self.order is PictureOrder.CHANNELS_LAST)


@cache
def load(shared_data: Path, name: str) -> Recording:
    """One of them, read once: each has hundreds of arrays, which nobody changes."""
    folder = shared_data / "wire"
    records = list(_records((folder / f"{name}.wire").read_bytes()))
    with np.load(folder / f"{name}.npz") as file:
        arrays = dict(file)
    return Recording(
        from_player=[data for direction, data in records if direction == b"<"],
        to_player=[data for direction, data in records if direction == b">"],
        description=json.loads((folder / f"{name}.json").read_text()),
        arrays=arrays,
    )


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position + 1)
        yield data[position : position + 1], data[position + 5 : position + 5 + length]
        position += 5 + length


def _as_recorded(step: int, behavior: str, batch: StepBatch, *, channels_last: bool) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for part, rows in (("t", slice(0, batch.num_terminal)), ("d", slice(batch.num_terminal, None))):
        if not len(batch.agent[rows]):
            continue
        key = f"{step}/{behavior}/{part}"
        found[f"{key}/id"] = batch.agent[rows].astype(np.int32)
        found[f"{key}/reward"] = batch.reward[rows]
        found[f"{key}/group_id"] = batch.group[rows].astype(np.int64)
        found[f"{key}/group_reward"] = batch.group_reward[rows]
        for index, observations in enumerate(batch.obs):
            column: NDArray[Any] = observations[rows]
            if column.dtype == np.uint8:
                column = column.astype(np.float32) / np.float32(255.0)
            found[f"{key}/obs{index}"] = np.moveaxis(column, 1, -1) if channels_last and column.ndim == 4 else column
        if part == "t":
            found[f"{key}/interrupted"] = batch.interrupted
        elif batch.mask.shape[1]:
            found[f"{key}/mask"] = batch.mask[rows]
    return found
