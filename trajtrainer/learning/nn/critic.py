"""Value networks with their own body, or as heads on the actor's body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.conditioning import Regularization
from trajtrainer.learning.nn.heads import ActionDistribution, ValueHeads
from trajtrainer.learning.nn.init import make_unit_rows
from trajtrainer.learning.nn.mlagents import Names
from trajtrainer.learning.nn.multi_agent import GroupCritic
from trajtrainer.settings.network import NetworkSettings


class ValueNetwork(nn.Module):
    """A body with one value head per reward signal. With actions as inputs, it is a Q network.

    Args:
        spec: the behavior's observations and actions.
        settings: ``network_settings``.
        signals: names of the reward signals, in order.
        action_size: size of the action vector appended to the encoded observations; 0 for a state value.
        outputs: number of outputs per signal; a Q network has one for each discrete action.
        regularization: regularization of the layers; ML-Agents has none.
        batch_norm: use normalized layers and unit-length weights (``BatchNorm``).
    """

    mlagents_names: ClassVar[Names] = {"body": "network_body", "heads": "value_heads"}

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        signals: Sequence[str],
        *,
        action_size: int = 0,
        outputs: int = 1,
        regularization: Regularization | None = None,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.body = NetworkBody(
            spec.observation_specs,
            settings,
            action_size=action_size,
            regularization=regularization,
            batch_norm=batch_norm,
            sees_all=True,
        )
        self.heads = ValueHeads(self.body.encoding_size, signals, outputs, initialization=settings.initialization)
        if batch_norm:
            make_unit_rows(self.heads)

    @property
    def signals(self) -> tuple[str, ...]:
        """Names of the reward signals, in the order of the heads."""
        return self.heads.signals

    @property
    def memory_size(self) -> int:
        """H, the size of each agent's memory; 0 without a memory."""
        return self.body.memory_size

    def forward(
        self,
        obs: Sequence[Tensor],
        memory: Tensor | None = None,
        sequence_length: int = 1,
        actions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Evaluate B steps in S sequences.

        Returns:
            The values [V, B] (or [V, B, outputs]), and the memory after each sequence [S, H].
        """
        return self.of_encoded(self.body.encoder(obs), memory, sequence_length, actions)

    def of_encoded(
        self,
        encoded: tuple[Tensor, list[Tensor]],
        memory: Tensor | None = None,
        sequence_length: int = 1,
        actions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Like :meth:`forward`, but for observations that ``body.encoder`` has already encoded."""
        encoding, memory_out = self.body.of_encoded(encoded, actions, memory, sequence_length)
        return self.heads(encoding), memory_out


class SharedCritic(nn.Module):
    """Value heads on the actor's body (``shared_critic: true``).

    The actor is not a submodule, so ``parameters()`` and ``state_dict()`` contain only the heads. With either kind of
    critic, every parameter therefore belongs to exactly one of the actor and the critic.
    """

    mlagents_names: ClassVar[Names] = {"heads": "value_heads"}

    def __init__(self, actor: Actor, signals: Sequence[str]) -> None:
        super().__init__()
        self._actor = (actor,)  # A tuple, so that nn.Module does not register it.
        self.heads = ValueHeads(actor.body.encoding_size, signals, initialization=actor.initialization)

    @property
    def body(self) -> NetworkBody:
        return self._actor[0].body

    @property
    def signals(self) -> tuple[str, ...]:
        return self.heads.signals

    @property
    def memory_size(self) -> int:
        return self.body.memory_size

    def forward(
        self, obs: Sequence[Tensor], memory: Tensor | None = None, sequence_length: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Compute the same as :meth:`ValueNetwork.forward`.

        ML-Agents keeps a separate memory for the critic even if the critic shares the actor's body.
        """
        encoding, memory_out = self.body(obs, None, memory, sequence_length)
        return self.heads(encoding), memory_out

    def actor_and_values(
        self, obs: Sequence[Tensor], mask: Tensor, memory: Tensor | None = None, sequence_length: int = 1
    ) -> tuple[ActionDistribution, Tensor, Tensor]:
        """Compute the distribution, values [V, B] and memories [S, H] in one pass through the body.

        With a memory, the values are based on the *actor's* memory. ML-Agents uses the critic's memory: use
        :meth:`forward` to get the same values.
        """
        encoding, memory_out = self.body(obs, None, memory, sequence_length)
        return *self.actor_and_values_of(encoding, mask), memory_out

    def actor_and_values_of(self, encoding: Tensor, mask: Tensor) -> tuple[ActionDistribution, Tensor]:
        """Compute the distribution and values [V, B] for the body's encodings [B, E]."""
        return self._actor[0].head(encoding, mask), self.heads(encoding)


AnyCritic = ValueNetwork | SharedCritic


def unroll_values(
    critic: AnyCritic, obs: Sequence[Tensor], offset: Tensor, memory: Tensor | None, sequence_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate whole trajectories with a critic that has a memory.

    Args:
        critic: a critic with a memory.
        obs: observations of each sensor [B, *O], for S consecutive trajectories.
        offset: start index of each trajectory, followed by B: integers [S + 1].
        memory: memory before each trajectory [S, H]; None for empty memories.
        sequence_length: L, the length of the sequences that trajectories are split into for training.

    Returns:
        The values [V, B]; the memory before each sequence [Q, H], grouped by trajectory, from which training starts;
        and the memory after each trajectory [S, H], for the value of the following observation and for the next
        trajectory of the same episode.
    """
    out, starts, final = critic.body.unroll(obs, offset, memory, sequence_length)
    return critic.heads(out), starts, final


def update_normalizations(actor: Actor, critic: AnyCritic | GroupCritic, obs: Sequence[Tensor]) -> None:
    """Update the normalizers of the actor and the critic with the observations of each sensor [B, *O].

    Both see the same rows, so the critic copies the actor's statistics and computes only those of the sensors that the
    actor does not see. With a shared body, each row counts twice, as in ML-Agents.
    """
    if isinstance(critic, SharedCritic):
        actor.update_normalization(obs, repeats=2)
    else:
        actor.update_normalization(obs)
        critic.body.copy_normalization(actor.body, obs)
