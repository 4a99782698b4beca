"""Adam (Kingma & Ba 2015) with torch's fused operation, for parameters that may be parts of larger tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam:
    """The fused operation of ``torch.optim.Adam(..., fused=True)``, with the same state under the same names.

    Twin of ``torch.optim.Adam``. Creating the first torch optimizer imports torch's compiler, which adds one to two
    seconds to every start. With small networks, most of the time in torch's ``step`` is overhead.

    Attributes:
        state: maps each parameter that has been updated to its ``step``, ``exp_avg`` and ``exp_avg_sq``.
        param_groups: a single group with the settings; ``lr`` may be changed.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, weight_decay: float = 0, eps: float = 1e-8
    ) -> None:
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = [
            {"params": list(parameters), "lr": learning_rate, "betas": (0.9, 0.999), "eps": eps}
            | {"weight_decay": weight_decay}
        ]

    def descend(self, loss: Tensor, learning_rate: float | None = None, some: Sequence[Tensor] | None = None) -> None:
        """Differentiate ``loss`` with respect to the parameters, or ``some`` of them, and update these parameters.

        ``learning_rate`` replaces the previous learning rate.
        """
        (group,) = self.param_groups
        if learning_rate is not None:
            group["lr"] = learning_rate
        for parameter in group["params"] if some is None else some:
            parameter.grad = None  # torch's zero_grad does the same, but its profiling hooks take time.
        loss.backward(inputs=some)  # type: ignore[no-untyped-call]
        self.step(some)

    @torch.no_grad()
    def step(self, some: Sequence[Tensor] | None = None) -> None:
        """Update the parameters (or ``some`` of them) that have a gradient."""
        (group,) = self.param_groups
        candidates: Iterable[Tensor] = group["params"] if some is None else some
        gradients = {parameter: parameter.grad for parameter in candidates if parameter.grad is not None}
        parameters = list(gradients)
        states = [self.state[parameter] or self._begin(parameter) for parameter in parameters]
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

    def _begin(self, leaf: Tensor) -> dict[str, Tensor]:
        """Set the moments of a trained tensor to zero and return its state."""
        state = self.state[leaf]
        state["step"] = torch.zeros((), device=leaf.device)
        state.update({name: torch.zeros_like(leaf) for name in _MOMENTS})
        return state

    def leaf_of(self, parameter: Tensor) -> Tensor:
        """Return the trained tensor that contains a parameter, or the parameter itself if none does."""
        trained = self.param_groups[0]["params"]
        if parameter.numel() == 0 or any(leaf is parameter for leaf in trained):
            return parameter
        memory = parameter.untyped_storage().data_ptr()
        return next((leaf for leaf in trained if leaf.untyped_storage().data_ptr() == memory), parameter)

    def state_dict(self, parameters: Sequence[Tensor] | None = None) -> dict[str, Any]:
        """Return the state that an Adam optimizer of ``parameters`` would have. It shares memory with this optimizer.

        ``parameters`` may be parts of the trained tensors.
        """
        parameters = self.param_groups[0]["params"] if parameters is None else parameters
        moments: dict[int, dict[str, Tensor]] = {}
        for index, parameter in enumerate(parameters):
            leaf = self.leaf_of(parameter)
            if state := self.state.get(leaf):
                parts = {name: part_of(state[name], leaf, parameter) for name in _MOMENTS}
                moments[index] = {"step": state["step"], **parts}
        group = {key: value for key, value in self.param_groups[0].items() if key != "params"}
        return {"state": moments, "param_groups": [{**group, "params": list(range(len(parameters)))}]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor] | None = None) -> None:
        """Restore the moments in a ``state_dict``. The moments of all other parameters are reset.

        Parameters in the same trained tensor share one step count, which is set to the highest of theirs.

        Raises:
            ValueError: the moments do not match the parameters, or are invalid.
        """
        parameters = self.param_groups[0]["params"] if parameters is None else parameters
        moments: Mapping[int, Mapping[str, Any]] = state["state"]
        for index, entry in moments.items():
            if index not in range(len(parameters)):
                raise ValueError(f"Adam has moments for parameter {index}, but there are {len(parameters)} parameters")
            shape = parameters[index].shape
            for name in _MOMENTS:  # copy_ would broadcast a tensor that is too small
                if entry[name].shape != shape:
                    raise ValueError(
                        f"Adam's {name} {index} has the shape {tuple(entry[name].shape)}, expected {tuple(shape)}"
                    )
                if not bool(torch.isfinite(entry[name]).all()):
                    raise ValueError(f"Adam's {name} {index} contains NaN or infinite numbers")
            if bool((entry["exp_avg_sq"] < 0).any()):
                raise ValueError(f"Adam's exp_avg_sq {index} contains negative numbers, but it is a mean of squares")
        leaves = [self.leaf_of(parameter) for parameter in parameters]
        for leaf in leaves:
            self.state.pop(leaf, None)
        for index, entry in moments.items():
            leaf = leaves[index]
            own = self.state[leaf] or self._begin(leaf)
            own["step"].clamp_(min=float(entry["step"]))
            for name in _MOMENTS:
                part_of(own[name], leaf, parameters[index]).copy_(entry[name])


def part_of(tensor: Tensor, leaf: Tensor, parameter: Tensor) -> Tensor:
    """Return a view of the part of ``tensor`` that corresponds to ``parameter`` in ``leaf``.

    ``tensor`` must have the layout of ``leaf``.
    """
    if leaf is parameter:
        return tensor
    return tensor.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset() - leaf.storage_offset())
