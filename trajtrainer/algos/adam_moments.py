"""An Adam's state told by other tensors than those it trains: for parameters that are parts of larger ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajtrainer.algos.adam import Adam

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Piece:
    """A parameter that is part of a larger one.

    Attributes:
        leaf: the tensor that the optimizer trains.
        view: the part of a tensor of the leaf's shape (of the leaf or of its moments), sharing its memory.
    """

    leaf: Tensor
    view: Callable[[Tensor], Tensor]


def whole(leaf: Tensor) -> Piece:
    """The piece that is all of ``leaf``."""
    return Piece(leaf, lambda tensor: tensor)


def adam_state(optimizer: Adam | torch.optim.Adam, pieces: Sequence[Piece]) -> dict[str, Any]:
    """What ``state_dict`` of an Adam over the pieces would give. Tensors share the optimizer's memory."""
    moments: dict[int, dict[str, Tensor]] = {}
    for index, piece in enumerate(pieces):
        state = optimizer.state.get(piece.leaf)
        if state:
            moments[index] = {"step": state["step"], **{name: piece.view(state[name]) for name in _MOMENTS}}
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return {"state": moments, "param_groups": [{**group, "params": list(range(len(pieces)))}]}


@torch.no_grad()
def load_adam_state(optimizer: Adam | torch.optim.Adam, pieces: Sequence[Piece], state: Mapping[str, Any]) -> None:
    """Takes the moments of what ``adam_state`` gave, of all pieces or some of them; the others start anew.

    Pieces of one leaf share their count of steps, which is the highest that is given.

    Raises:
        ValueError: moments that fit no piece.
    """
    moments: Mapping[int, Mapping[str, Any]] = state["state"]
    for index, entry in moments.items():
        if index >= len(pieces) or pieces[index].view(pieces[index].leaf).shape != entry["exp_avg"].shape:
            raise ValueError(f"the Adam's moments {index} of shape {tuple(entry['exp_avg'].shape)} fit no parameter")
    for piece in pieces:
        optimizer.state.pop(piece.leaf, None)
    for index, entry in moments.items():
        piece = pieces[index]
        own = optimizer.state[piece.leaf]
        if not own:
            own["step"] = torch.zeros((), device=piece.leaf.device)
            own |= {name: torch.zeros_like(piece.leaf) for name in _MOMENTS}
        own["step"].clamp_(min=float(entry["step"]))
        for name in _MOMENTS:
            piece.view(own[name]).copy_(entry[name])
