"""The settings of the reward signals that learn."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import OURS, count, in_order, not_negative, positive
from trajtrainer.settings.components import RewardSignalRow, RewardSignalSettings


@frozen
class TrainedSignalSettings(RewardSignalSettings):
    """Settings of every signal with networks of its own.

    Attributes:
        learning_rate: of the signal's networks. Lower where the reward wears off too quickly.
        encoding_size: deprecated; ``network_settings.hidden_units`` says the same.
    """

    learning_rate: float = field(default=3e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))


@frozen
class NoveltySettings(TrainedSignalSettings):
    """Settings of every signal that rewards what is new.

    Attributes:
        normalize: divide the reward by the running standard deviation of its discounted sums, so that ``strength``
            means the same in every task. Not in ML-Agents.
        episodic_bonus: size of the cells in which the states of an episode are counted; the reward is multiplied by 1 /
            sqrt(count). Not with ``sac`` and ``xqc``. Not in ML-Agents.
    """

    normalize: bool = field(default=False, metadata=OURS)
    episodic_bonus: float | None = field(default=None, validator=optional(positive), metadata=OURS)


@frozen
class CuriositySettings(NoveltySettings):
    """Reward for what the agent did not foresee (Pathak et al. 2017)."""


@frozen(field_transformer=in_order("learning_rate", "encoding_size", "normalize", "episodic_bonus"))
class RndSettings(NoveltySettings):
    """Reward for what was seldom seen: random network distillation (Burda et al. 2018).

    Attributes:
        learning_rate: of the signal's network. Lower where the reward wears off too quickly.
    """

    learning_rate: float = field(default=1e-4, validator=not_negative)


@frozen(kw_only=True)
class GailSettings(TrainedSignalSettings):
    """Reward for what looks like the demonstrations (Ho & Ermon 2016).

    Attributes:
        learning_rate: of the discriminator. Lower where its estimates go to 0 and 1 at once.
        use_actions: let the discriminator see actions, too, so that the recorded ones are imitated and not only the
            states.
        use_vail: variational bottleneck (Peng et al. 2019). On where the discriminator is too strong; slower.
        demo_path: a ``.demo`` file, or a folder of some.
    """

    use_actions: bool = False
    use_vail: bool = False
    demo_path: str


CURIOSITY = RewardSignalRow(CuriositySettings, "trajtrainer.rewards.curiosity:CuriosityReward")
GAIL = RewardSignalRow(GailSettings, "trajtrainer.rewards.gail:GailReward")
RND = RewardSignalRow(RndSettings, "trajtrainer.rewards.rnd:RndReward")
