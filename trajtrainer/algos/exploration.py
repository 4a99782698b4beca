"""Noise of actions that is a function of the state: generalised state-dependent exploration (Raffin et al. 2021).

Shape legend: N agents, E encoding size, C continuous actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trajtrainer.nn.actor import Actor


class StateDependentNoise:
    """Draw a matrix for each agent by the policy's standard deviations, and keep it for some steps.

    The noise is what the matrix makes of the encoding, so in like states it is alike. As agents are not known by name
    where a policy acts, a matrix is that of a row of the batch.

    Args:
        actor: with a head whose ``use_sde`` is set; read whenever matrices are drawn.
    """

    def __init__(self, actor: Actor) -> None:
        assert actor.head.log_sigma is not None
        self._log_std = actor.head.log_sigma
        self._drawn_by = self._log_std.clone()
        self._frequency = actor.sde_sample_freq
        self._matrices = self._log_std.new_empty(0, *self._log_std.shape)
        self._steps = 0

    def weights_changed(self) -> None:
        """Forget the matrices if there are other deviations, as of each new policy that was not resumed."""
        if not torch.equal(self._log_std, self._drawn_by):
            self._drawn_by = self._log_std.clone()
            self._draw_anew()

    def _draw_anew(self) -> None:
        self._matrices = self._matrices[:0]
        self._steps = 0

    def __call__(self, encoding: Tensor, generator: torch.Generator) -> Tensor:
        """Return the noise of one step, [N, C] for encodings [N, E]."""
        if self._steps == self._frequency:
            self._draw_anew()
        self._steps += 1
        missing = len(encoding) - len(self._matrices)
        if missing > 0:
            drawn = torch.empty(missing, *self._log_std.shape, device=encoding.device).normal_(generator=generator)
            self._matrices = torch.cat((self._matrices, drawn * self._log_std.exp()))
        return torch.bmm(encoding.unsqueeze(1), self._matrices[: len(encoding)]).squeeze(1)

    def state(self) -> dict[str, Any]:
        """Return the matrices, what they were drawn by, and how many steps they are old. Tensors are copies."""
        tensors = {"matrices": self._matrices, "log_std": self._drawn_by}
        return {**{name: tensor.cpu().clone() for name, tensor in tensors.items()}, "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what ``state`` gave.

        Raises:
            ValueError: the matrices are of another policy.
        """
        matrices = state["matrices"]
        if matrices.shape[1:] != self._log_std.shape:
            raise ValueError(f"matrices of noise {tuple(matrices.shape)}, expected {tuple(self._log_std.shape)} each")
        self._matrices, self._steps = matrices.to(self._log_std), int(state["steps"])
        self._drawn_by = state["log_std"].to(self._log_std)
