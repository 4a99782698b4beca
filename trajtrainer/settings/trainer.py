"""A behavior's settings: trainer, hyperparameters, schedules."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import Factory, field, frozen
from attrs.validators import optional

from trajtrainer.core.spelling import closest
from trajtrainer.settings.checks import (
    OURS,
    UNDUMPED,
    Fault,
    at_least,
    count,
    mismatch,
    not_negative,
    raise_faults,
    registered,
    row_of,
    satisfies,
    unlimited_count,
)
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS, Hyperparameters, RewardSignalSettings
from trajtrainer.settings.evaluation import BehaviorEvaluationSettings, StopSettings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.presets import PRESETS, covered


@frozen(kw_only=True)
class BehavioralCloningSettings:
    """``behavioral_cloning``: imitation of recordings in addition to reinforcement learning.

    Attributes:
        demo_path: a ``.demo`` file, or a folder of ``.demo`` files.
        steps: step at which imitation ends; its learning rate decreases linearly to 0 until then. 0 keeps imitating at
            a constant rate for the whole run.
        strength: learning rate of imitation as a fraction of the trainer's, typically 0.1 to 1. Lower it if the
            recordings should only guide exploration and the policy is meant to surpass them.
        samples_per_update: recorded steps used in each epoch; 0 uses all of them. Limit it if there are many
            recordings.
        num_epoch: passes over the recorded steps in each update. Defaults to 3.
        batch_size: recorded steps in each gradient step. Defaults to the trainer's ``batch_size``.
    """

    demo_path: str
    steps: int = field(default=0, validator=not_negative)
    strength: float = field(default=1.0, validator=not_negative)
    samples_per_update: int = field(default=0, validator=not_negative)
    num_epoch: int | None = field(default=None, validator=optional(count))
    batch_size: int | None = field(default=None, validator=optional(count))


@frozen
class SelfPlaySettings:
    """``self_play``: training against earlier versions of the policy.

    Attributes:
        save_steps: steps between snapshots of the policy. With larger values, opponents are more diverse, and learning
            is slower but more stable.
        team_change: steps after which another team starts to learn. Defaults to five times ``save_steps``.
        swap_steps: steps that the opponents take before they switch to another snapshot. With teams of different sizes,
            scale it by the ratio of the sizes.
        window: number of snapshots to keep as opponents, typically 5 to 30. With a larger window, the policy is less
            likely to forget how to beat old opponents.
        play_against_latest_model_ratio: probability that the opponent is the current policy rather than a snapshot, 0
            to 1. Higher values match the current skill more closely; lower values make training more stable.
        initial_elo: Elo rating at the start of training.
        prioritized: sample opponents that the policy does not beat yet more often. Not in ML-Agents.
        opponents: runs, checkpoints and ``.onnx`` files to play against in addition to the snapshots. Not in ML-Agents.
        elo_per_match: update the rating once per match instead of once for each agent of a group. Not in ML-Agents.
    """

    save_steps: int = field(default=20000, validator=count)
    team_change: int = field(default=Factory(lambda self: 5 * self.save_steps, takes_self=True), validator=count)
    swap_steps: int = field(default=2000, validator=count)
    window: int = field(default=10, validator=count)
    play_against_latest_model_ratio: float = 0.5
    initial_elo: float = 1200.0
    prioritized: bool = field(default=False, metadata=OURS)
    opponents: list[str] = field(factory=list, metadata=OURS)
    elo_per_match: bool = field(default=False, metadata=OURS)


def _hyperparameters(trainer: TrainerSettings) -> Hyperparameters:
    row = ALGORITHMS.get(trainer.trainer_type) or ALGORITHMS["ppo"]
    return row.settings()


@frozen
class TrainerSettings:
    """Settings of one behavior.

    Attributes:
        trainer_type: the algorithm. ``ppo`` is stable and fast. ``sac`` needs fewer environment steps but more compute
            per step, so it suits slow environments. ``poca`` is for groups of agents that share a reward. Other
            algorithms serve special purposes, and installed packages may add more.
        hyperparameters: hyperparameters of the algorithm.
        checkpoint_interval: steps between checkpoints. If the run is killed, the progress since the last checkpoint is
            lost.
        network_settings: architecture of the policy and its critic.
        reward_signals: rewards to learn from. If there are several, they are added up.
        init_path: checkpoint (``.pt``) whose weights this behavior starts with, at step 0. A bare file name is looked
            up in the run given by ``initialize_from``.
        keep_checkpoints: number of numbered checkpoints to keep; 0 and -1 keep all of them.
        even_checkpoints: spread ``keep_checkpoints`` checkpoints evenly over ``max_steps`` and ignore
            ``checkpoint_interval``.
        max_steps: number of agent steps after which training ends. Typically 5e5 to 1e7; use more for complex tasks.
        time_horizon: maximum length of a trajectory, in steps; the critic estimates the return beyond it. Typically 32
            to 2,048. With sparse rewards, make it long enough to cover the important part of an episode; with frequent
            rewards, shorter trajectories learn faster and more stably.
        summary_freq: steps between summaries: lines on the console and points in TensorBoard.
        threaded: learn in a separate thread while the environment keeps running. Use it with slow environments and more
            than two cores. Runs are then no longer reproducible bit for bit.
        self_play: train against earlier versions of the policy, in games with two or more teams.
        behavioral_cloning: imitate recordings in addition to reinforcement learning.
        evaluation: evaluate the policy in a separate environment during training; see Evaluation. Not in ML-Agents.
        preset: named set of defaults for all settings that are not given here. ``baselines`` uses the defaults of
            Stable-Baselines3. ``trajtrainer config --presets`` prints all presets. Not in ML-Agents.
        stop: conditions that end the training of this behavior before ``max_steps``. Not in ML-Agents.
        keep_best: number of best models to keep; 0 keeps none. Not in ML-Agents.
        dataset: recorded steps for algorithms that learn only from recordings: a ``.demo`` or ``.npz`` file, a folder
            of ``.demo`` files, or a list of these. Not in ML-Agents.
    """

    trainer_type: str = field(default="ppo", validator=registered(ALGORITHMS))
    hyperparameters: Hyperparameters = field(default=Factory(_hyperparameters, takes_self=True))
    checkpoint_interval: int = field(default=500000, validator=count)
    network_settings: NetworkSettings = field(factory=NetworkSettings)
    reward_signals: dict[str, RewardSignalSettings] = field(
        factory=lambda: {"extrinsic": RewardSignalSettings()}, validator=satisfies(bool, "at least one reward signal")
    )
    init_path: str | None = None
    keep_checkpoints: int = field(default=5, validator=unlimited_count)
    even_checkpoints: bool = False
    max_steps: int = field(default=500000, validator=count)
    time_horizon: int = field(default=64, validator=count)
    summary_freq: int = field(default=50000, validator=count)
    threaded: bool = False
    self_play: SelfPlaySettings | None = None
    behavioral_cloning: BehavioralCloningSettings | None = None
    evaluation: BehaviorEvaluationSettings | None = field(default=None, metadata=OURS)
    stop: StopSettings | None = field(default=None, metadata=OURS)
    preset: str | None = field(default=None, metadata=UNDUMPED)
    keep_best: int = field(default=1, validator=at_least(0, "a whole number"), metadata=OURS)
    dataset: list[str] = field(factory=list, metadata=OURS)

    @property
    def is_offline(self) -> bool:
        """True if the behavior learns from its data set, without an environment."""
        return ALGORITHMS[self.trainer_type].offline

    @property
    def buffer_size(self) -> int:
        """Size of the algorithm's buffer in steps; ``batch_size`` if it has no buffer."""
        size: int = getattr(self.hyperparameters, "buffer_size", self.hyperparameters.batch_size)
        return size

    @property
    def acts_evenly_first(self) -> bool:
        """True if actions are sampled uniformly until learning starts."""
        return bool(getattr(self.hyperparameters, "learning_starts", 0))

    def __attrs_post_init__(self) -> None:
        raise_faults(self._faults())
        if self.even_checkpoints:
            interval = max(1, self.max_steps // self.keep_checkpoints)
            object.__setattr__(self, "checkpoint_interval", interval)  # the class is frozen

    def _faults(self) -> Iterator[Fault]:
        if not isinstance(self.hyperparameters, ALGORITHMS[self.trainer_type].settings):
            yield mismatch(("hyperparameters",), self.hyperparameters, f"those of trainer_type {self.trainer_type}")
        if self.preset is not None:
            yield self._preset_fault(self.preset)
        yield from self.hyperparameters.faults(self.network_settings)
        if self.network_settings.critic_only and not self.hyperparameters.critic_may_see_more:
            expected = f"no sensors with trainer_type {self.trainer_type}, which does not support critic_only"
            yield mismatch(("network_settings", "critic_only"), self.network_settings.critic_only, expected)
        n_step = getattr(self.hyperparameters, "n_step", 1)
        if n_step > self.time_horizon:
            expected = f"at most time_horizon ({self.time_horizon})"
            yield mismatch(("hyperparameters", "n_step"), n_step, expected)
        memory = self.network_settings.memory
        if memory is not None and memory.sequence_length > self.hyperparameters.batch_size:
            expected = f"at most hyperparameters.batch_size ({self.hyperparameters.batch_size})"
            yield mismatch(("network_settings", "memory", "sequence_length"), memory.sequence_length, expected)
        if self.even_checkpoints and self.keep_checkpoints < 1:
            expected = "at least 1 with even_checkpoints"
            yield mismatch(("keep_checkpoints",), self.keep_checkpoints, expected)
        for name, settings in self.reward_signals.items():
            cls = row_of(REWARD_SIGNALS, name, "reward_signals", name).settings
            if not isinstance(settings, cls):
                yield mismatch(("reward_signals", name), settings, f"a {cls.__name__}")
            hidden = settings.network_settings.critic_only
            if hidden:
                expected = (
                    "no sensors here, because reward signals observe the same sensors as the policy (network_settings "
                    "of the behavior)"
                )
                yield mismatch(("reward_signals", name, "network_settings", "critic_only"), hidden, expected)
            bonus = getattr(settings, "episodic_bonus", None)
            if bonus is not None and ALGORITHMS[self.trainer_type].replays:
                replay = f"trainer_type {self.trainer_type}, whose replay buffer does not keep episodes together"
                expected = f"nothing (null) with {replay}"
                yield mismatch(("reward_signals", name, "episodic_bonus"), bonus, expected)
        yield from self.hyperparameters.faults_of_rewards(self.reward_signals)
        if self.is_offline:
            yield from self._offline_faults()
        elif self.dataset:
            offline = " or ".join(name for name, row in ALGORITHMS.builtin.items() if row.offline)
            others = f" (trainer_type {offline})" if offline else ""
            expected = f"no data set, as trainer_type {self.trainer_type} learns from an environment{others}"
            yield mismatch(("dataset",), self.dataset, expected)

    def _preset_fault(self, name: str) -> Fault:
        """Return the reason why the preset could not be expanded when the settings were read."""
        if name not in PRESETS:
            return mismatch(("preset",), name, f"one of {', '.join(PRESETS)}{closest(name, PRESETS)}")
        known = ", ".join(covered(name))
        expected = f"no preset with trainer_type {self.trainer_type}, because {name} only covers {known}"
        return mismatch(("preset",), name, expected)

    def _offline_faults(self) -> Iterator[Fault]:
        """Yield faults for settings that make no sense without an environment."""
        kind = f"as trainer_type {self.trainer_type} learns from a data set"
        if not self.dataset:
            expected = "a .demo or .npz file or a folder of .demo files to learn from, or a list of these"
            yield mismatch(("dataset",), self.dataset or None, expected)
        for name in ("self_play", "behavioral_cloning"):
            if getattr(self, name) is not None:
                yield mismatch((name,), {name: ...}, f"no {name}, {kind}")
        for name in self.reward_signals:
            if name != "extrinsic":
                expected = f"no reward signal but extrinsic, {kind}, which contains no other rewards"
                yield mismatch(("reward_signals", name), {name: ...}, expected)
