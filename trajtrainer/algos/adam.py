"""Adam (Kingma & Ba 2015) by torch's fused operation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Adam:
    """What ``torch.optim.Adam(parameters, lr=learning_rate, fused=True)`` does, and its state under the same names.

    It calls the same operation. That class imports torch's compiler when it is first made, which takes one to two
    seconds of every start, and for small networks its ``step`` takes several times as long as what it does.

    Attributes:
        state: parameter -> ``step``, ``exp_avg`` and ``exp_avg_sq``, once it has been updated.
        param_groups: one, with the settings; ``lr`` may be changed.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self.state: defaultdict[Tensor, dict[str, Tensor]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = [
            {"params": list(parameters), "lr": learning_rate, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0}
        ]

    @torch.no_grad()
    def step(self, some: Sequence[Tensor] | None = None) -> None:
        """Updates the parameters, or some of them, as far as they have a gradient."""
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

    def _begin(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        state["step"] = torch.zeros((), device=parameter.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state
