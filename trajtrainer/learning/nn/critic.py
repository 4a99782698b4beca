"""Value networks: with their own body, or as heads on the actor's."""

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
    """A body and one value head per reward signal. With actions as inputs, it is a Q network.

    Args:
        spec: what the agents see and do.
        settings: ``network_settings``.
        signals: names of the reward signals, in order.
        action_size: numbers of the action, which are appended to the encoded observations; 0 for a state's value.
        outputs: numbers per signal; a Q network has one for each discrete action.
        regularization: of the layers; none in ML-Agents.
        batch_norm: normalized layers and unit weights (``BatchNorm``).
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
        """H, the numbers of memory per agent; 0 without a memory."""
        return self.body.memory_size

    def forward(
        self,
        obs: Sequence[Tensor],
        memory: Tensor | None = None,
        sequence_length: int = 1,
        actions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Values [V, B] (or [V, B, outputs]) of B steps in S sequences, and the memories after each sequence [S, H]."""
        return self.of_encoded(self.body.encoder(obs), memory, sequence_length, actions)

    def of_encoded(
        self,
        encoded: tuple[Tensor, list[Tensor]],
        memory: Tensor | None = None,
        sequence_length: int = 1,
        actions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """:meth:`forward` of observations that ``body.encoder`` has encoded."""
        encoding, memory_out = self.body.of_encoded(encoded, actions, memory, sequence_length)
        return self.heads(encoding), memory_out


class SharedCritic(nn.Module):
    """Value heads on the actor's body (``shared_critic: true``).

    The actor is not a submodule: ``parameters()`` and ``state_dict()`` hold only the heads. So with both kinds of
    critic, actor and critic together have every parameter once.
    """

    mlagents_names: ClassVar[Names] = {"heads": "value_heads"}

    def __init__(self, actor: Actor, signals: Sequence[str]) -> None:
        super().__init__()
        self._actor = (actor,)  # The tuple hides it from nn.Module.
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
        """As :meth:`ValueNetwork.forward`. ML-Agents carries a second memory for the critic, even here."""
        encoding, memory_out = self.body(obs, None, memory, sequence_length)
        return self.heads(encoding), memory_out

    def actor_and_values(
        self, obs: Sequence[Tensor], mask: Tensor, memory: Tensor | None = None, sequence_length: int = 1
    ) -> tuple[ActionDistribution, Tensor, Tensor]:
        """The distribution, values [V, B] and memories [S, H] from one pass through the body.

        With a memory, the values come from the *actor's* memory. ML-Agents uses the critic's: :meth:`forward` yields
        its numbers.
        """
        encoding, memory_out = self.body(obs, None, memory, sequence_length)
        return *self.actor_and_values_of(encoding, mask), memory_out

    def actor_and_values_of(self, encoding: Tensor, mask: Tensor) -> tuple[ActionDistribution, Tensor]:
        """The distribution and values [V, B] of the body's encodings [B, E]."""
        return self._actor[0].head(encoding, mask), self.heads(encoding)


AnyCritic = ValueNetwork | SharedCritic


def unroll_values(
    critic: AnyCritic, obs: Sequence[Tensor], offset: Tensor, memory: Tensor | None, sequence_length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate whole trajectories with a critic that has a memory.

    Args:
        critic: with a memory.
        obs: per sensor [B, *O], S trajectories one after the other.
        offset: where each starts, and B at the end: whole numbers [S + 1].
        memory: before each trajectory [S, H]; None for empty ones.
        sequence_length: L, at which trajectories are cut for training.

    Returns:
        Values [V, B]; the memories before each sequence [Q, H], from which training starts, trajectory by trajectory;
        and the memories after each trajectory [S, H], for the value of the following observation and for the next
        trajectory of the same episode.
    """
    out, starts, final = critic.body.unroll(obs, offset, memory, sequence_length)
    return critic.heads(out), starts, final


def update_normalizations(actor: Actor, critic: AnyCritic | GroupCritic, obs: Sequence[Tensor]) -> None:
    """Add steps, per sensor [B, *O], to the normalizers of actor and critic.

    Both see the same rows, so the critic copies the actor's statistics and computes only those of sensors that it alone
    sees. ML-Agents counts each row twice on a shared body.
    """
    if isinstance(critic, SharedCritic):
        actor.update_normalization(obs, repeats=2)
    else:
        actor.update_normalization(obs)
        critic.body.copy_normalization(actor.body, obs)
