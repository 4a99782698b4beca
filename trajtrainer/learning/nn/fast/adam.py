"""Adam (Kingma & Ba 2015) with torch's fused operation, and its state for parameters that are parts of larger ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam:
    """The fused operation of ``torch.optim.Adam(..., fused=True)``, with its state under the same names.

    Twin of ``torch.optim.Adam``. Creating the first one imports torch's compiler, which takes one to two seconds of
    every start, and with small networks most of its ``step`` is overhead.

    Attributes:
        state: parameter -> ``step``, ``exp_avg`` and ``exp_avg_sq``, once it has been updated.
        param_groups: one, with the settings; ``lr`` may be changed.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, weight_decay: float = 0, eps: float = 1e-8
    ) -> None:
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = [
            {"params": list(parameters), "lr": learning_rate, "betas": (0.9, 0.999), "eps": eps}
            | {"weight_decay": weight_decay}
        ]

    @torch.no_grad()
    def step(self, some: Sequence[Tensor] | None = None) -> None:
        """Update the parameters, or ``some`` of them, that have a gradient."""
        (group,) = self.param_groups
        candidates: Iterable[Tensor] = group["params"] if some is None else some
        gradients = {parameter: parameter.grad for parameter in candidates if parameter.grad is not None}
        parameters = list(gradients)
        states = [self.state[parameter] or self.begin(parameter) for parameter in parameters]
        steps = [state["step"] for state in states]
        beta1, beta2 = group["betas"]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            parameters,
            list(gradients.values()),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def begin(self, parameter: Tensor) -> dict[str, Tensor]:
        """Set a parameter's moments to zero, and return its state."""
        state = self.state[parameter]
        state["step"] = torch.zeros((), device=parameter.device)
        state.update({name: torch.zeros_like(parameter) for name in _MOMENTS})
        return state


@dataclass(frozen=True, slots=True)
class ParameterView:
    """A parameter that is part of a larger tensor.

    Attributes:
        leaf: the tensor that an optimizer trains.
        view: selects the parameter's part of the leaf or of its moments, sharing memory.
    """

    leaf: Tensor
    view: Callable[[Tensor], Tensor]


def whole(leaf: Tensor) -> ParameterView:
    """The parameter that is all of ``leaf``."""
    return ParameterView(leaf, lambda tensor: tensor)


def adam_state(optimizer: Adam, pieces: Sequence[ParameterView]) -> dict[str, Any]:
    """The ``state_dict`` that an Adam of ``pieces`` would have. Tensors share the optimizer's memory."""
    moments: dict[int, dict[str, Tensor]] = {}
    for index, piece in enumerate(pieces):
        state = optimizer.state.get(piece.leaf)
        if state:
            moments[index] = {"step": state["step"], **{name: piece.view(state[name]) for name in _MOMENTS}}
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return {"state": moments, "param_groups": [{**group, "params": list(range(len(pieces)))}]}


@torch.no_grad()
def load_adam_state(optimizer: Adam, pieces: Sequence[ParameterView], state: Mapping[str, Any]) -> None:
    """Restore the moments that ``adam_state`` returned. Pieces without moments start over.

    Pieces of one leaf share a count of steps: the highest of theirs.

    Raises:
        ValueError: moments do not fit a piece, or are no valid moments.
    """
    moments: Mapping[int, Mapping[str, Any]] = state["state"]
    for index, entry in moments.items():
        if index not in range(len(pieces)):
            raise ValueError(f"Adam has moments of parameter {index}, but there are {len(pieces)} parameters")
        shape = pieces[index].view(pieces[index].leaf).shape
        for name in _MOMENTS:  # copy_ would broadcast a shape that is too small
            if entry[name].shape != shape:
                raise ValueError(
                    f"Adam's {name} {index} has the shape {tuple(entry[name].shape)}, expected {tuple(shape)}"
                )
            if not bool(torch.isfinite(entry[name]).all()):
                raise ValueError(f"Adam's {name} {index} contains NaN or infinite numbers")
        if bool((entry["exp_avg_sq"] < 0).any()):
            raise ValueError(f"Adam's exp_avg_sq {index} contains negative numbers, but it is a mean of squares")
    for piece in pieces:
        optimizer.state.pop(piece.leaf, None)
    for index, entry in moments.items():
        piece = pieces[index]
        own = optimizer.state[piece.leaf] or optimizer.begin(piece.leaf)
        own["step"].clamp_(min=float(entry["step"]))
        for name in _MOMENTS:
            piece.view(own[name]).copy_(entry[name])
