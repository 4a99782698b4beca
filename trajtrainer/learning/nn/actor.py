"""The policy network."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import ClassVar

from torch import Tensor, nn

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.heads import LOG_SIGMA_RANGE, ActionDistribution, ActionHead
from trajtrainer.learning.nn.init import initialize, make_unit_rows
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.settings.network import NetworkSettings

_POLICY_GAIN = 0.01  # gain of the head's orthogonal initialization
_NORMALIZED_LOG_SIGMA_RANGE = (-10.0, 2.0)  # Palenicek et al. 2026


class Actor(nn.Module):
    """A network body followed by an action head.

    Args:
        spec: the behavior's observations and actions.
        settings: ``network_settings``.
        conditional_sigma: make sigma depend on the state, as SAC does.
        tanh_squash: squash the actions with tanh, as SAC does.
        batch_norm: use normalized layers and unit-length weights (``BatchNorm``), and a higher lower bound for sigma.

    Attributes:
        spec: the observations that the policy receives, and its actions.
        sees: indices of the agents' sensors that ``spec`` consists of; None if the policy sees all of them. ``Policy``
            selects these sensors; every other caller passes only the sensors in ``spec``.

    Raises:
        UnsupportedError: no encoder supports one of the sensors.
    """

    mlagents_names: ClassVar[Names] = {"body": "network_body", "head": "action_model"}

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        *,
        conditional_sigma: bool = False,
        tanh_squash: bool = False,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.sees: tuple[int, ...] | None = None
        self.body = NetworkBody(spec.observation_specs, settings, batch_norm=batch_norm)
        self.head = ActionHead(
            self.body.encoding_size,
            spec.action_spec,
            conditional_sigma=conditional_sigma,
            tanh_squash=tanh_squash,
            clip_actions=settings.clip_actions,
            log_std_init=settings.log_std_init,
            use_sde=settings.use_sde,
            log_sigma_range=_NORMALIZED_LOG_SIGMA_RANGE if batch_norm else LOG_SIGMA_RANGE,
        )
        self.initialization = settings.initialization
        self.sde_sample_freq = settings.sde_sample_freq
        self.batch_norm = batch_norm
        if batch_norm:
            make_unit_rows(self.head)
        else:
            initialize(self.head, settings.initialization, _POLICY_GAIN)

    @property
    def memory_size(self) -> int:
        """H, the size of each agent's memory; 0 without a memory."""
        return self.body.memory_size

    def forward(
        self, obs: Sequence[Tensor], mask: Tensor, memory: Tensor | None = None, sequence_length: int = 1
    ) -> tuple[ActionDistribution, Tensor]:
        return self.distribution(obs, mask, memory, sequence_length)

    def distribution(
        self, obs: Sequence[Tensor], mask: Tensor, memory: Tensor | None = None, sequence_length: int = 1
    ) -> tuple[ActionDistribution, Tensor]:
        """Compute the action distribution for B steps in S sequences.

        Args:
            obs: observations of each sensor [B, *O], f32, or u8 for images.
            mask: bool [B, D]; True marks a forbidden action.
            memory: memory before each sequence [S, H]; None for empty memories.
            sequence_length: B / S.

        Returns:
            The distribution, and the memory after each sequence [S, H].
        """
        encoding, memory_out = self.body(obs, None, memory, sequence_length)
        return self.head(encoding, mask), memory_out

    def update_normalization(self, obs: Sequence[Tensor], *, repeats: int = 1) -> None:
        self.body.update_normalization(obs, repeats=repeats)


def copy_of(actor: Actor) -> Actor:
    """Return a copy of an actor on the CPU.

    Each tensor of the copy has its own storage, even if the original tensors are views of a larger one.
    """
    other = copy.deepcopy(actor).cpu().requires_grad_(False)
    for tensor in chain(other.parameters(), other.buffers()):
        tensor.data = tensor.data.clone()
    return other
