"""Copies of an actor's weights for the acting side."""

from __future__ import annotations

from torch import Tensor

from trajtrainer.nn.actor import Actor
from trajtrainer.nn.normalizer import Normalizer


class PolicyWeights:
    """The entries of an actor's ``state_dict``, found once."""

    def __init__(self, actor: Actor) -> None:
        # Entries share memory with the weights, which optimizers and normalisers change in place.
        self._all: dict[str, Tensor] = actor.state_dict()
        self._normalizers = {
            f"{name}.{entry}": tensor
            for name, module in actor.named_modules()
            if isinstance(module, Normalizer)
            for entry, tensor in module.named_buffers()
        }

    def all(self) -> dict[str, Tensor]:
        """A copy of every entry."""
        return {name: tensor.clone() for name, tensor in self._all.items()}

    def of_normalizers(self) -> dict[str, Tensor]:
        """A copy of the normalisers' entries, which change with every trajectory."""
        return {name: tensor.clone() for name, tensor in self._normalizers.items()}
