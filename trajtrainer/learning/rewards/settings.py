"""The settings of reward signals with networks."""

from __future__ import annotations

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import OURS, count, in_order, not_negative, positive
from trajtrainer.settings.components import RewardSignalRow, RewardSignalSettings


@frozen
class TrainedSignalSettings(RewardSignalSettings):
    """Settings of all signals with their own networks.

    Attributes:
        learning_rate: learning rate of the signal's networks. Lower it if the reward fades too quickly.
        encoding_size: deprecated; use ``network_settings.hidden_units`` instead.
    """

    learning_rate: float = field(default=3e-4, validator=not_negative)
    encoding_size: int | None = field(default=None, validator=optional(count))


@frozen
class NoveltySettings(TrainedSignalSettings):
    """Settings of all signals that reward novelty.

    Attributes:
        normalize: divide the reward by the running standard deviation of its discounted sums, so that the effect of
            ``strength`` does not depend on the task. Not in ML-Agents.
        episodic_bonus: multiply the reward by 1 / sqrt(N) on the N-th visit to a state in an episode. States are
            considered equal if their values round to the same multiples of this number. Not supported with a replay
            buffer (``sac``). Not in ML-Agents.
    """

    normalize: bool = field(default=False, metadata=OURS)
    episodic_bonus: float | None = field(default=None, validator=optional(positive), metadata=OURS)


@frozen
class CuriositySettings(NoveltySettings):
    """Settings of curiosity: a reward for actions whose effects the agent cannot predict (Pathak et al. 2017)."""


@frozen(field_transformer=in_order("learning_rate", "encoding_size", "normalize", "episodic_bonus"))
class RndSettings(NoveltySettings):
    """Settings of random network distillation: a reward for rarely visited states (Burda et al. 2018).

    Attributes:
        learning_rate: learning rate of the signal's network. Lower it if the reward fades too quickly.
    """

    learning_rate: float = field(default=1e-4, validator=not_negative)


@frozen(kw_only=True)
class GailSettings(TrainedSignalSettings):
    """Settings of GAIL: a reward for steps that look like demonstrations (Ho & Ermon 2016).

    Attributes:
        learning_rate: learning rate of the discriminator. Lower it if the discriminator's estimates quickly approach 0
            and 1.
        use_actions: use actions as inputs of the discriminator, so that the agent imitates actions as well as states.
        use_vail: add a variational bottleneck to the discriminator (Peng et al. 2019), which weakens a discriminator
            that is too accurate. Slower.
        demo_path: a ``.demo`` file, or a folder of ``.demo`` files.
    """

    use_actions: bool = False
    use_vail: bool = False
    demo_path: str


CURIOSITY = RewardSignalRow(CuriositySettings, "trajtrainer.learning.rewards.curiosity:CuriosityReward")
GAIL = RewardSignalRow(GailSettings, "trajtrainer.learning.rewards.gail:GailReward")
RND = RewardSignalRow(RndSettings, "trajtrainer.learning.rewards.rnd:RndReward")
