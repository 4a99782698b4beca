"""The settings of the reward signals that learn."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import OURS, count, in_order, not_negative, positive
from trajtrainer.settings.components import RewardSignalRow, RewardSignalSettings


@frozen
class TrainedSignalSettings(RewardSignalSettings):
    """Settings of every signal with its own networks.

    Attributes:
        learning_rate: learning rate of the signal's networks. Lower if the reward wears off too quickly.
        encoding_size: deprecated, use ``network_settings.hidden_units``.
    """

    learning_rate: float = field(default=3e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))


@frozen
class NoveltySettings(TrainedSignalSettings):
    """Settings of every signal that rewards novelty.

    Attributes:
        normalize: divide the reward by the running standard deviation of its discounted sums, so that ``strength``
            means the same in every task. Not in ML-Agents.
        episodic_bonus: multiply the reward by 1 / sqrt(count of visits to the state in this episode). States are equal
            if they round to the same multiples of this value. Not with a replay (``sac``). Not in ML-Agents.
    """

    normalize: bool = field(default=False, metadata=OURS)
    episodic_bonus: float | None = field(default=None, validator=optional(positive), metadata=OURS)


@frozen
class CuriositySettings(NoveltySettings):
    """Settings of curiosity: a reward for effects that the agent did not predict (Pathak et al. 2017)."""


@frozen(field_transformer=in_order("learning_rate", "encoding_size", "normalize", "episodic_bonus"))
class RndSettings(NoveltySettings):
    """Settings of random network distillation: a reward for states that were rarely seen (Burda et al. 2018).

    Attributes:
        learning_rate: learning rate of the signal's network. Lower if the reward wears off too quickly.
    """

    learning_rate: float = field(default=1e-4, validator=not_negative)


@frozen(kw_only=True)
class GailSettings(TrainedSignalSettings):
    """Settings of GAIL: a reward for steps that look like demonstrations (Ho & Ermon 2016).

    Attributes:
        learning_rate: learning rate of the discriminator. Lower if its estimates go to 0 and 1 at once.
        use_actions: let the discriminator see actions, so that the agent imitates actions and not only states.
        use_vail: variational bottleneck (Peng et al. 2019). For a discriminator that is too strong; slower.
        demo_path: a ``.demo`` file, or a folder of ``.demo`` files.
    """

    use_actions: bool = False
    use_vail: bool = False
    demo_path: str


CURIOSITY = RewardSignalRow(CuriositySettings, "trajtrainer.learning.rewards.curiosity:CuriosityReward")
GAIL = RewardSignalRow(GailSettings, "trajtrainer.learning.rewards.gail:GailReward")
RND = RewardSignalRow(RndSettings, "trajtrainer.learning.rewards.rnd:RndReward")
