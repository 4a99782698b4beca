"""A behaviour's settings: trainer, hyperparameters, schedules."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from attrs import Factory, field, frozen
from attrs.validators import optional

from trajtrainer.plugins import Reference, Registry
from trajtrainer.settings.checks import (
    Fault,
    at_least,
    between,
    check_settings_class,
    count,
    fraction,
    misfit,
    not_negative,
    positive,
    refuse,
    registered,
    row_of,
    satisfies,
    unlimited_count,
)
from trajtrainer.settings.evaluation import BehaviorEvaluationSettings, StopSettings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.rewards import REWARD_SIGNALS, RewardSignalSettings

_ATTENTION_HEADS = 4


class ScheduleType(enum.Enum):
    """The course of a number up to ``max_steps``."""

    CONSTANT = "constant"
    LINEAR = "linear"


@frozen
class Hyperparameters:
    """The ``hyperparameters`` that every algorithm has."""

    batch_size: int = field(default=1024, validator=count)
    buffer_size: int = field(default=10240, validator=count)
    learning_rate: float = field(default=3e-4, validator=not_negative)

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        """Find what these networks cannot be for the algorithm; paths are those of the behaviour."""
        yield from ()


@frozen
class POCAHyperparameters(Hyperparameters):
    """Left out, the schedules of beta and epsilon are that of the learning rate."""

    beta: float = field(default=5e-3, validator=not_negative)
    epsilon: float = field(default=0.2, validator=positive)
    lambd: float = field(default=0.95, validator=fraction)
    num_epoch: int = field(default=3, validator=count)
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = field(default=Factory(lambda self: self.learning_rate_schedule, takes_self=True))
    epsilon_schedule: ScheduleType = field(default=Factory(lambda self: self.learning_rate_schedule, takes_self=True))
    # Not in ML-Agents, where that of values is inert (docs/mlagents-behavior.md#update). Not dumped while it is off.
    value_clipping: bool = False

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:
        """See ``Hyperparameters``: the attention between groupmates has several heads."""
        if network.hidden_units % _ATTENTION_HEADS:
            expected = f"a multiple of {_ATTENTION_HEADS} with trainer_type poca"
            yield misfit(("network_settings", "hidden_units"), network.hidden_units, expected, ("trainer_type",))


@frozen
class PPOHyperparameters(Hyperparameters):
    """Left out, the schedules of beta and epsilon are that of the learning rate."""

    beta: float = field(default=5e-3, validator=not_negative)
    epsilon: float = field(default=0.2, validator=positive)
    lambd: float = field(default=0.95, validator=fraction)
    num_epoch: int = field(default=3, validator=count)
    shared_critic: bool = False
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = field(default=Factory(lambda self: self.learning_rate_schedule, takes_self=True))
    epsilon_schedule: ScheduleType = field(default=Factory(lambda self: self.learning_rate_schedule, takes_self=True))
    # Not in ML-Agents, where value clipping is inert (docs/mlagents-behavior.md#update). Not dumped while it is off.
    value_clipping: bool = False


@frozen
class SACHyperparameters(Hyperparameters):
    """Left out, ``reward_signal_steps_per_update`` is ``steps_per_update``."""

    # The order of the fields is that of ML-Agents' configuration.yaml.
    learning_rate: float = field(default=3e-4, validator=not_negative)
    learning_rate_schedule: ScheduleType = ScheduleType.CONSTANT
    batch_size: int = field(default=128, validator=count)
    buffer_size: int = field(default=50000, validator=count)
    buffer_init_steps: int = field(default=0, validator=not_negative)
    tau: float = field(default=0.005, validator=fraction)
    steps_per_update: float = field(default=1, validator=positive)
    save_replay_buffer: bool = False
    init_entcoef: float = field(default=1.0, validator=positive)
    reward_signal_steps_per_update: float = field(
        default=Factory(lambda self: self.steps_per_update, takes_self=True), validator=positive
    )


class PolicyKind(enum.Enum):
    """The kind of a policy's continuous actions: whose training can go on with it."""

    PPO = "ppo"
    SAC = "sac"


@frozen
class CloningHyperparameters(Hyperparameters):
    """What all trainers have that imitate actions.

    ``policy`` says whether continuous actions are those of PPO (a Gaussian whose standard deviation is one learnt
    vector) or those of SAC (squashed, the standard deviation depends on the state). ``min_std`` is the least standard
    deviation of a policy of PPO's kind, where the actions of the environment go from -1 to 1.
    """

    batch_size: int = field(default=256, validator=count)
    learning_rate_schedule: ScheduleType = ScheduleType.CONSTANT
    weight_decay: float = field(default=0.0, validator=not_negative)
    policy: PolicyKind = PolicyKind.PPO
    min_std: float = field(default=0.02, validator=positive)


@frozen
class OfflineHyperparameters(CloningHyperparameters):
    """What all trainers have that learn from a data set. ``buffer_size`` means nothing to them.

    Of the data set's steps the part ``validation_fraction`` is not learnt from, but tells how well what was not seen is
    predicted.
    """

    validation_fraction: float = field(default=0.0, validator=between(0, 0.9))


@frozen
class BCHyperparameters(OfflineHyperparameters):
    """Behavioural cloning from a data set alone."""


@frozen
class IQLHyperparameters(OfflineHyperparameters):
    """Implicit Q-learning (Kostrikov et al. 2021). Left out, ``critic_learning_rate`` is ``learning_rate``."""

    critic_learning_rate: float = field(
        default=Factory(lambda self: self.learning_rate, takes_self=True), validator=not_negative
    )
    expectile: float = field(default=0.7, validator=between(0.5, 0.999))
    temperature: float = field(default=3.0, validator=not_negative)
    max_weight: float = field(default=100.0, validator=positive)
    tau: float = field(default=0.005, validator=fraction)


@frozen
class DAggerHyperparameters(CloningHyperparameters):
    """DAgger (Ross et al. 2011): imitation of an expert that is asked wherever the learner comes.

    ``expert`` is a run, a checkpoint or an ``.onnx`` file, ``heuristic`` (the written policy that some simulations
    have), or ``python:MODULE:FUNCTION``.
    """

    buffer_size: int = field(default=50000, validator=count)
    expert: str = ""
    steps_per_update: float = field(default=4, validator=positive)
    save_replay_buffer: bool = False

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        """See ``Hyperparameters``: without an expert there is nothing to learn."""
        if not self.expert:
            expected = "a run, a checkpoint, an .onnx file, heuristic or python:MODULE:FUNCTION that says what to do"
            yield misfit(("hyperparameters", "expert"), None, expected)


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    """A way to learn.

    Attributes:
        settings: the class of the ``hyperparameters``, made by ``attrs``.
        algorithm: the subclass of ``Algorithm``. None if it is not built yet.
        in_mlagents: its networks and optimizers are those of PPO or SAC by their names, and stand in checkpoints where
            ML-Agents has them. Otherwise all but the policy stand beside what ML-Agents knows.
        offline: it learns from the behavior's ``dataset`` instead of an environment, and its steps are gradient steps.
    """

    settings: type[Hyperparameters]
    algorithm: Reference | None
    in_mlagents: bool = False
    offline: bool = False

    def __post_init__(self) -> None:
        check_settings_class(self.settings, Hyperparameters)


ALGORITHMS = Registry(
    "algorithm",
    "trajtrainer.algorithms",
    AlgorithmRow,
    {
        "ppo": AlgorithmRow(PPOHyperparameters, "trajtrainer.algos.ppo.learner:PPOLearner", in_mlagents=True),
        "sac": AlgorithmRow(SACHyperparameters, "trajtrainer.algos.sac.learner:SACLearner", in_mlagents=True),
        "poca": AlgorithmRow(POCAHyperparameters, "trajtrainer.algos.poca.learner:POCALearner", in_mlagents=True),
        "bc": AlgorithmRow(BCHyperparameters, "trajtrainer.algos.bc.learner:BCLearner", offline=True),
        "dagger": AlgorithmRow(DAggerHyperparameters, "trajtrainer.algos.dagger.learner:DAggerLearner"),
        "iql": AlgorithmRow(IQLHyperparameters, "trajtrainer.algos.iql.learner:IQLLearner", offline=True),
    },
)
"""``trainer_type`` -> its hyperparameters and how it learns."""


@frozen(kw_only=True)
class BehavioralCloningSettings:
    """Imitation beside the training. Left out, the trainer chooses ``num_epoch`` and ``batch_size``."""

    demo_path: str
    steps: int = field(default=0, validator=not_negative)
    strength: float = field(default=1.0, validator=not_negative)
    samples_per_update: int = field(default=0, validator=not_negative)
    num_epoch: int | None = field(default=None, validator=optional(count))
    batch_size: int | None = field(default=None, validator=optional(count))


@frozen
class SelfPlaySettings:
    """Left out, ``team_change`` is five times ``save_steps``.

    ``prioritized`` prefers opponents that are not beaten yet, ``opponents`` are checkpoints and runs that play beside
    the snapshots, ``elo_per_match`` rates a group once instead of each of its agents. ML-Agents has none of them; they
    are dumped only where they are not at their defaults.
    """

    save_steps: int = field(default=20000, validator=count)
    team_change: int = field(default=Factory(lambda self: 5 * self.save_steps, takes_self=True), validator=count)
    swap_steps: int = field(default=2000, validator=count)
    window: int = field(default=10, validator=count)
    play_against_latest_model_ratio: float = 0.5
    initial_elo: float = 1200.0
    prioritized: bool = False
    opponents: list[str] = field(factory=list)
    elo_per_match: bool = False


OWN = ("evaluation", "stop", "keep_best", "dataset")
"""Those of ``TrainerSettings`` that ML-Agents does not know."""
OWN_SELF_PLAY = ("prioritized", "opponents", "elo_per_match")
"""Those of ``SelfPlaySettings`` that ML-Agents does not know."""


def _extrinsic() -> dict[str, RewardSignalSettings]:
    return {"extrinsic": RewardSignalSettings()}


def _hyperparameters(trainer: TrainerSettings) -> Hyperparameters:
    row = ALGORITHMS.get(trainer.trainer_type)
    return row.settings() if row else PPOHyperparameters()


@frozen
class TrainerSettings:
    """Settings of one behaviour.

    With ``even_checkpoints`` the interval is always ``max_steps / keep_checkpoints``, whatever was asked for.
    """

    trainer_type: str = field(default="ppo", validator=registered(ALGORITHMS))
    hyperparameters: Hyperparameters = field(default=Factory(_hyperparameters, takes_self=True))
    checkpoint_interval: int = field(default=500000, validator=count)
    network_settings: NetworkSettings = field(factory=NetworkSettings)
    reward_signals: dict[str, RewardSignalSettings] = field(
        factory=_extrinsic, validator=satisfies(bool, "at least one reward signal")
    )
    init_path: str | None = None
    # 0 and -1 keep all of them.
    keep_checkpoints: int = field(default=5, validator=unlimited_count)
    even_checkpoints: bool = False
    max_steps: int = field(default=500000, validator=count)
    time_horizon: int = field(default=64, validator=count)
    summary_freq: int = field(default=50000, validator=count)
    threaded: bool = False
    self_play: SelfPlaySettings | None = None
    behavioral_cloning: BehavioralCloningSettings | None = None
    # Not in ML-Agents. Dumped only where they are not at their defaults.
    evaluation: BehaviorEvaluationSettings | None = None
    stop: StopSettings | None = None
    keep_best: int = field(default=1, validator=at_least(0, "a whole number"))
    # Files and folders of recorded steps, for the trainers that learn from nothing else.
    dataset: list[str] = field(factory=list)

    @property
    def is_offline(self) -> bool:
        """Return whether it learns from its data set, without an environment."""
        return ALGORITHMS[self.trainer_type].offline

    def __attrs_post_init__(self) -> None:
        refuse(self._faults())
        if self.even_checkpoints:
            interval = max(1, self.max_steps // self.keep_checkpoints)
            object.__setattr__(self, "checkpoint_interval", interval)  # frozen, but still under construction

    def _faults(self) -> Iterator[Fault]:
        if not isinstance(self.hyperparameters, ALGORITHMS[self.trainer_type].settings):
            yield misfit(("hyperparameters",), self.hyperparameters, f"those of trainer_type {self.trainer_type}")
        yield from self.hyperparameters.misfits(self.network_settings)
        memory = self.network_settings.memory
        if memory is not None and memory.sequence_length > self.hyperparameters.batch_size:
            expected = f"at most hyperparameters.batch_size ({self.hyperparameters.batch_size})"
            batch_size = ("hyperparameters", "batch_size")
            yield misfit(
                ("network_settings", "memory", "sequence_length"), memory.sequence_length, expected, batch_size
            )
        if self.even_checkpoints and self.keep_checkpoints < 1:
            expected = "at least 1, as even_checkpoints spreads that many over the run"
            yield misfit(("keep_checkpoints",), self.keep_checkpoints, expected, ("even_checkpoints",))
        for name, settings in self.reward_signals.items():
            cls = row_of(REWARD_SIGNALS, name, "reward_signals", name).settings
            if not isinstance(settings, cls):
                yield misfit(("reward_signals", name), settings, f"a {cls.__name__}")
            bonus = getattr(settings, "episodic_bonus", None)
            if bonus is not None and isinstance(self.hyperparameters, SACHyperparameters):
                expected = "nothing (null) with trainer_type sac, whose replay does not keep the course of episodes"
                yield misfit(("reward_signals", name, "episodic_bonus"), bonus, expected, ("trainer_type",))
        if self.is_offline:
            yield from self._offline_faults()
        elif self.dataset:
            offline = " or ".join(name for name, row in ALGORITHMS.builtin.items() if row.offline)
            expected = f"none, as trainer_type {self.trainer_type} learns from an environment (trainer_type {offline})"
            yield misfit(("dataset",), self.dataset, expected, ("trainer_type",))

    def _offline_faults(self) -> Iterator[Fault]:
        """Find what has no meaning without an environment."""
        kind = f"as trainer_type {self.trainer_type} learns from a data set"
        if not self.dataset:
            expected = "a list of .demo files or folders to learn from"
            yield misfit(("dataset",), self.dataset or None, expected, ("trainer_type",))
        for name in ("self_play", "behavioral_cloning"):
            if getattr(self, name) is not None:
                yield misfit((name,), {name: ...}, f"none, {kind}", ("trainer_type",))
        for name in self.reward_signals:
            if name != "extrinsic":
                expected = f"no reward signal but extrinsic, {kind}, in which nothing else was recorded"
                yield misfit(("reward_signals", name), {name: ...}, expected, ("trainer_type",))
