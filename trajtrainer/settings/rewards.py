"""``reward_signals``."""

from __future__ import annotations

from dataclasses import dataclass

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import check_settings_class, count, fraction, not_negative, positive, satisfies
from trajtrainer.settings.network import NetworkSettings


@frozen
class RewardSignalSettings:
    """Settings that all reward signals have, and the extrinsic one has alone (it has no use for its network).

    Attributes:
        gamma: discount of future rewards. 0.8 to 0.995: nearer to 1 where what is done now pays off late; lower where
            it pays at once.
        strength: factor of the reward. 1 for the environment's own reward; for the others choose it by how large their
            sums are beside it.
        network_settings: networks of the signal itself; of use to gail, curiosity and rnd.
    """

    gamma: float = field(default=0.99, validator=fraction)
    strength: float = 1.0
    network_settings: NetworkSettings = field(
        factory=NetworkSettings,
        validator=satisfies(lambda network: network.memory is None, "no memory (reward networks have none)"),
    )


@frozen
class CuriositySettings(RewardSignalSettings):
    """Reward for what the agent did not foresee (Pathak et al. 2017).

    Attributes:
        learning_rate: of the signal's networks. Lower where the reward wears off too quickly.
        encoding_size: deprecated; ``network_settings.hidden_units`` says the same.
        normalize: divide the reward by the running standard deviation of its discounted sums, so that ``strength``
            means the same in every task. Not in ML-Agents.
        episodic_bonus: size of the cells in which the states of an episode are counted; the reward is multiplied by 1 /
            sqrt(count). Not with ``sac``. Not in ML-Agents.
    """

    learning_rate: float = field(default=3e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))
    # Not in ML-Agents (docs/imitation.md). Not dumped while they are off.
    normalize: bool = False
    episodic_bonus: float | None = field(default=None, validator=optional(positive))


@frozen(kw_only=True)
class GailSettings(RewardSignalSettings):
    """Reward for what looks like the demonstrations (Ho & Ermon 2016).

    Attributes:
        learning_rate: of the discriminator. Lower where its estimates go to 0 and 1 at once.
        encoding_size: deprecated; ``network_settings.hidden_units`` says the same.
        use_actions: let the discriminator see actions, too, so that the recorded ones are imitated and not only the
            states.
        use_vail: variational bottleneck (Peng et al. 2019). On where the discriminator is too strong; slower.
        demo_path: a ``.demo`` file, or a folder of some.
    """

    learning_rate: float = field(default=3e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))
    use_actions: bool = False
    use_vail: bool = False
    demo_path: str


@frozen
class RndSettings(RewardSignalSettings):
    """Reward for what was seldom seen: random network distillation (Burda et al. 2018).

    Attributes:
        learning_rate: of the signal's network. Lower where the reward wears off too quickly.
        encoding_size: deprecated; ``network_settings.hidden_units`` says the same.
        normalize: divide the reward by the running standard deviation of its discounted sums, so that ``strength``
            means the same in every task. Not in ML-Agents.
        episodic_bonus: size of the cells in which the states of an episode are counted; the reward is multiplied by 1 /
            sqrt(count). Not with ``sac``. Not in ML-Agents.
    """

    learning_rate: float = field(default=1e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))
    # As curiosity's.
    normalize: bool = False
    episodic_bonus: float | None = field(default=None, validator=optional(positive))


OWN_NOVELTY = ("normalize", "episodic_bonus")
"""Those of ``CuriositySettings`` and ``RndSettings`` that ML-Agents does not know."""


@dataclass(frozen=True, slots=True)
class RewardSignalRow:
    """A source of reward.

    Attributes:
        settings: the class of what stands below its name, made by ``attrs``.
        create: called with the ``BehaviorSpec``, these settings and the ``torch.device``; returns a ``RewardSignal`` of
            this name.
    """

    settings: type[RewardSignalSettings]
    create: Reference

    def __post_init__(self) -> None:
        check_settings_class(self.settings, RewardSignalSettings)


REWARD_SIGNALS = Registry(
    "reward signal",
    "trajtrainer.reward_signals",
    RewardSignalRow,
    {
        "extrinsic": RewardSignalRow(RewardSignalSettings, "trajtrainer.rewards.extrinsic:ExtrinsicReward"),
        "curiosity": RewardSignalRow(CuriositySettings, "trajtrainer.rewards.curiosity:CuriosityReward"),
        "gail": RewardSignalRow(GailSettings, "trajtrainer.rewards.gail:GailReward"),
        "rnd": RewardSignalRow(RndSettings, "trajtrainer.rewards.rnd:RndReward"),
    },
)
"""Key under ``reward_signals`` -> its settings and how it is made."""
