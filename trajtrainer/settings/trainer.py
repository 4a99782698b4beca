"""A behaviour's settings: trainer, hyperparameters, schedules."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attrs import Factory, field, fields_dict, frozen
from attrs.validators import optional

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import (
    Fault,
    at_least,
    between,
    check_settings_class,
    closest,
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
from trajtrainer.settings.presets import PRESETS
from trajtrainer.settings.rewards import REWARD_SIGNALS, RewardSignalSettings

_ATTENTION_HEADS = 4


class ScheduleType(enum.Enum):
    """The course of a number up to ``max_steps``."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"
    ADAPTIVE = "adaptive"


_of_set_course = satisfies(lambda schedule: schedule is not ScheduleType.ADAPTIVE, "constant, linear or cosine")


def _along(hyper: Any) -> ScheduleType:
    """Return the course of what goes along with the learning rate."""
    schedule: ScheduleType = hyper.learning_rate_schedule
    return ScheduleType.CONSTANT if schedule is ScheduleType.ADAPTIVE else schedule


@frozen
class Hyperparameters:
    """The ``hyperparameters`` that every algorithm has.

    Attributes:
        batch_size: steps of each gradient step. With continuous actions 512 to 5,120 (``sac``: 128 to 1,024), with
            discrete ones 32 to 512; larger where the reward is noisy, and always several times smaller than
            ``buffer_size``.
        buffer_size: PPO and POCA: steps that are collected before each update, 2,048 to 409,600; larger is steadier and
            slower. SAC and DAgger: steps that are remembered in all, several thousand episodes' worth; more costs
            memory.
        learning_rate: step size of the gradient descent. 1e-5 to 1e-3: lower where the reward rises and falls again or
            the losses blow up.
    """

    batch_size: int = field(default=1024, validator=count)
    buffer_size: int = field(default=10240, validator=count)
    learning_rate: float = field(default=3e-4, validator=not_negative)

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        """Find what these networks cannot be for the algorithm; paths are those of the behaviour."""
        yield from ()


@frozen
class OnPolicyHyperparameters(Hyperparameters):
    """What PPO and POCA have beyond ML-Agents (docs/learning.md). Dumped only where they are not at their defaults.

    Attributes:
        joint_ratio: one probability ratio of the whole action, as PPO is published. Off: one of each continuous action
            and branch, as in ML-Agents.
        joint_entropy: ``beta`` counts the sum over the continuous actions. Off: their mean, as in ML-Agents.
        normalize_advantage_per_mini_batch: advantages have mean 0 and standard deviation 1 in each minibatch. Off: in
            the whole buffer.
        normalize_after_update: with ``normalize: true`` the normalisers learn after each update, not ahead of it with
            each trajectory as in ML-Agents. So an update sees observations as the policy saw them, as with VecNormalize
            of Stable-Baselines3. Where a run depends on how it begins.
        norm_reward: divide the environment's reward by the running standard deviation of its discounted sums. Where
            rewards are large, small or of unknown size. Summaries tell of rewards as they are.
        clip_reward: limit of rewards with ``norm_reward``.
        max_grad_norm: limit of the norm of the gradient of policy and critic together. 0.5 to 1: steadier. Left out,
            none.
        target_kl: an update ends when the policy has moved so far that the KL divergence of a minibatch is above 1.5
            times this, ahead of the gradient step of that minibatch, as in Stable-Baselines3. 0.01 to 0.05. Left out,
            it never does.
        value_clipping: clip the change of value estimates as that of the policy (Schulman et al. 2017). In ML-Agents it
            is inert.
        vf_coef: weight of the value loss. Matters with ``shared_critic`` and ``max_grad_norm``.
        adam_eps: epsilon of Adam. 1e-5 in most published results of PPO.
        v_trace: correct for the policies that acted, where they are older than the one that learns (Espeholt et al.
            2018): what they did counts by how likely it still is. Left out, where ``actors.max_policy_lag`` is above 0.
        rho_bar: with ``v_trace: true`` the most that a step counts, times what it counts if no policy is old. Larger is
            less biased towards the old policies, and noisier.
        c_bar: with ``v_trace: true`` the most that a step lets through of what comes after it, times ``lambd``; at most
            ``rho_bar``.
        desired_kl: the KL divergence that ``learning_rate_schedule: adaptive`` aims at: above twice this the learning
            rate of a gradient step is a third lower, below half of it a half higher, from 1e-5 to 1e-2.
    """

    joint_ratio: bool = False
    joint_entropy: bool = False
    normalize_advantage_per_mini_batch: bool = False
    normalize_after_update: bool = False
    norm_reward: bool = False
    clip_reward: float = field(default=10.0, validator=positive)
    max_grad_norm: float | None = field(default=None, validator=optional(positive))
    target_kl: float | None = field(default=None, validator=optional(positive))
    value_clipping: bool = False
    vf_coef: float = field(default=0.5, validator=not_negative)
    adam_eps: float = field(default=1e-8, validator=positive)
    desired_kl: float = field(default=0.01, validator=positive)
    v_trace: bool | None = None
    rho_bar: float = field(default=1.0, validator=positive)
    c_bar: float = field(default=1.0, validator=positive)

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        """See ``Hyperparameters``: the limits of importance weights are of use where there are some."""
        limits = {"rho_bar": self.rho_bar, "c_bar": self.c_bar}
        switch = ("hyperparameters", "v_trace")
        if not self.v_trace:
            for name, limit in limits.items():
                if limit != 1.0:
                    yield Fault(("hyperparameters", name), "has no effect, as it is for v_trace: true", (switch,))
        elif self.c_bar > self.rho_bar:
            expected = f"at most rho_bar ({self.rho_bar})"
            yield misfit(("hyperparameters", "c_bar"), self.c_bar, expected, ("hyperparameters", "rho_bar"))


OWN_ON_POLICY = tuple(set(fields_dict(OnPolicyHyperparameters)) - set(fields_dict(Hyperparameters)))
"""Those of ``PPOHyperparameters`` and ``POCAHyperparameters`` that ML-Agents does not know."""


@frozen
class POCAHyperparameters(OnPolicyHyperparameters):
    """Those of MA-POCA (Cohen et al. 2021), which are PPO's."""

    beta: float = field(default=5e-3, validator=not_negative)
    epsilon: float = field(default=0.2, validator=positive)
    lambd: float = field(default=0.95, validator=fraction)
    num_epoch: int = field(default=3, validator=count)
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = field(default=Factory(_along, takes_self=True), validator=_of_set_course)
    epsilon_schedule: ScheduleType = field(default=Factory(_along, takes_self=True), validator=_of_set_course)

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:
        """See ``Hyperparameters``: the attention between groupmates has several heads."""
        yield from super().misfits(network)
        if network.hidden_units % _ATTENTION_HEADS:
            expected = f"a multiple of {_ATTENTION_HEADS} with trainer_type poca"
            yield misfit(("network_settings", "hidden_units"), network.hidden_units, expected, ("trainer_type",))


@frozen
class PPOHyperparameters(OnPolicyHyperparameters):
    """Those of proximal policy optimization (Schulman et al. 2017).

    Attributes:
        beta: weight of the entropy, which keeps actions random. 1e-4 to 1e-2: higher where ``Policy/Entropy`` falls
            before the reward has risen, lower where it does not fall.
        epsilon: how far a step may move a probability ratio from 1. 0.1 to 0.3: lower is steadier and slower.
        lambd: lambda of generalized advantage estimation. 0.9 to 0.95: lower relies on the value estimate (bias),
            higher on the rewards themselves (variance).
        num_epoch: how often each buffer is gone through. 3 to 10: more learns more from the same steps, with less
            stability; larger with larger batches.
        shared_critic: value heads on the policy's own layers instead of a second network. With pictures, where encoders
            cost most.
        learning_rate_schedule: ``linear`` falls to nothing at ``max_steps``, which settles the end; ``constant`` where
            the run has no set end. Not in ML-Agents: ``cosine`` falls slowly first and last; ``adaptive`` follows
            ``desired_kl``, and the other schedules are constant then.
        beta_schedule: course of ``beta``. Left out, that of the learning rate.
        epsilon_schedule: course of ``epsilon``. Left out, that of the learning rate.
    """

    beta: float = field(default=5e-3, validator=not_negative)
    epsilon: float = field(default=0.2, validator=positive)
    lambd: float = field(default=0.95, validator=fraction)
    num_epoch: int = field(default=3, validator=count)
    shared_critic: bool = False
    learning_rate_schedule: ScheduleType = ScheduleType.LINEAR
    beta_schedule: ScheduleType = field(default=Factory(_along, takes_self=True), validator=_of_set_course)
    epsilon_schedule: ScheduleType = field(default=Factory(_along, takes_self=True), validator=_of_set_course)


OnPolicy = PPOHyperparameters | POCAHyperparameters


@frozen
class SACHyperparameters(Hyperparameters):
    """Those of soft actor-critic (Haarnoja et al. 2018).

    Attributes:
        buffer_init_steps: steps that are collected before the first update. 1,000 to 10,000: experience to begin with.
        tau: how far the target networks move towards the networks at each update. 0.005 to 0.01.
        steps_per_update: agent steps for each gradient step. 1 to 20: about the number of agents; smaller learns more
            from each step and takes more time.
        save_replay_buffer: write the replay with each checkpoint, so that ``--resume`` has it. On for long runs that
            may be interrupted; the file may be large.
        init_entcoef: the entropy coefficient at the start. 0.5 to 1.0 for continuous, 0.05 to 0.5 for discrete actions:
            more explores more in the beginning.
        reward_signal_steps_per_update: agent steps for each update of the reward signals' networks. Left out,
            ``steps_per_update``.
        learning_starts: steps for which actions are drawn evenly, ahead of the first update, as in Stable-Baselines3.
            100 to 10,000: experience of everything. 0: the policy acts from the start. With ``buffer_init_steps`` the
            greater of both counts. Not in ML-Agents.
        ent_coef: the entropy coefficient, if it is not to be learnt. Where one that follows ``target_entropy`` falls
            before the reward is found. Left out, it is learnt, from ``init_entcoef`` on. Not in ML-Agents.
        target_entropy: what the entropy of the continuous actions is brought to. Left out, minus their number. Higher
            keeps exploring. Not in ML-Agents.
        value_network: learn values of states, too, and the Q networks by them (Haarnoja et al. 2018a). ``false``: the Q
            networks learn by slowly following copies of themselves, and the policy follows the smaller of both (2018b):
            for demanding continuous control. Not in ML-Agents.
        n_step: rewards of so many steps count before the value of what follows (Hessel et al. 2018). 1 to 5: learns
            faster where reward comes late. At most ``time_horizon``, and not with a memory. Not in ML-Agents.
        policy_delay: gradient steps of the Q networks for each one of the policy and the entropy coefficient. As many
            as there are per step with ``steps_per_update`` below 1, as in DroQ. Not in ML-Agents.
        layer_norm: normalise what the layers of the critics give: with few steps per update, ``dropout_rate`` and
            ``policy_delay`` this is DroQ (Hiraoka et al. 2022). Not in ML-Agents.
        dropout_rate: part of what the layers of the critics give that is dropped while they learn; 0.01 for DroQ. Not
            in ML-Agents.
    """

    # The order of the fields is that of ML-Agents' configuration.yaml.
    learning_rate: float = field(default=3e-4, validator=not_negative)
    learning_rate_schedule: ScheduleType = field(default=ScheduleType.CONSTANT, validator=_of_set_course)
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
    # Not in ML-Agents (docs/learning.md). Dumped only where they are not at their defaults.
    learning_starts: int = field(default=0, validator=at_least(0, "a whole number"))
    ent_coef: float | None = field(default=None, validator=optional(positive))
    target_entropy: float | None = None
    value_network: bool = True
    n_step: int = field(default=1, validator=count)
    policy_delay: int = field(default=1, validator=count)
    layer_norm: bool = False
    dropout_rate: float = field(default=0.0, validator=between(0, 0.9))

    def misfits(self, network: NetworkSettings) -> Iterator[Fault]:
        """See ``Hyperparameters``: steps of several are counted on within a trajectory only."""
        if self.n_step > 1 and network.memory is not None:
            expected = "1 with network_settings.memory"
            yield misfit(("hyperparameters", "n_step"), self.n_step, expected, ("network_settings", "memory"))

    @property
    def first_update(self) -> int:
        """Return the step from which on updates are made."""
        return max(self.buffer_init_steps, self.learning_starts)


OWN_SAC = (
    "learning_starts",
    "ent_coef",
    "target_entropy",
    "value_network",
    "n_step",
    "policy_delay",
    "layer_norm",
    "dropout_rate",
)
"""Those of ``SACHyperparameters`` that ML-Agents does not know."""


class PolicyKind(enum.Enum):
    """The kind of a policy's continuous actions: whose training can go on with it."""

    PPO = "ppo"
    SAC = "sac"


@frozen
class CloningHyperparameters(Hyperparameters):
    """What all trainers have that imitate actions.

    Attributes:
        weight_decay: L2 penalty of Adam. Above 0 where the validation loss rises while the loss falls.
        policy: the kind of continuous actions. ``ppo``: a Gaussian whose standard deviation is one learnt vector;
            ``sac``: squashed by tanh, the standard deviation depends on the state. That of the trainer that goes on
            with it.
        min_std: the least standard deviation of a policy of PPO's kind, where actions go from -1 to 1.
    """

    batch_size: int = field(default=256, validator=count)
    learning_rate_schedule: ScheduleType = field(default=ScheduleType.CONSTANT, validator=_of_set_course)
    weight_decay: float = field(default=0.0, validator=not_negative)
    policy: PolicyKind = PolicyKind.PPO
    min_std: float = field(default=0.02, validator=positive)


@frozen
class OfflineHyperparameters(CloningHyperparameters):
    """What all trainers have that learn from a data set.

    Attributes:
        buffer_size: means nothing to them.
        validation_fraction: part of the data set that is not learnt from, but tells how well what was not seen is
            predicted.
    """

    validation_fraction: float = field(default=0.0, validator=between(0, 0.9))


@frozen
class BCHyperparameters(OfflineHyperparameters):
    """Behavioural cloning from a data set alone."""


@frozen
class IQLHyperparameters(OfflineHyperparameters):
    """Implicit Q-learning (Kostrikov et al. 2021).

    Attributes:
        critic_learning_rate: of the value networks. Left out, ``learning_rate``.
        expectile: which expectile of the value of actions states are valued by. 0.5 is the mean over the data; 0.7 to
            0.9 trusts the best of it.
        temperature: how much better actions count more. 0 is plain cloning; 3 to 10.
        max_weight: the most that a single step counts.
    """

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

    Attributes:
        expert: a run, a checkpoint or an ``.onnx`` file, ``heuristic`` (the written policy that some simulations have),
            or ``python:MODULE:FUNCTION``.
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
        offline: it learns from the behavior's ``dataset`` instead of an environment, and its steps are gradient steps.
    """

    settings: type[Hyperparameters]
    algorithm: Reference | None
    offline: bool = False

    def __post_init__(self) -> None:
        check_settings_class(self.settings, Hyperparameters)


ALGORITHMS = Registry(
    "algorithm",
    "trajtrainer.algorithms",
    AlgorithmRow,
    {
        "ppo": AlgorithmRow(PPOHyperparameters, "trajtrainer.algos.ppo.learner:PPOLearner"),
        "sac": AlgorithmRow(SACHyperparameters, "trajtrainer.algos.sac.learner:SACLearner"),
        "poca": AlgorithmRow(POCAHyperparameters, "trajtrainer.algos.poca.learner:POCALearner"),
        "bc": AlgorithmRow(BCHyperparameters, "trajtrainer.algos.bc.learner:BCLearner", offline=True),
        "dagger": AlgorithmRow(DAggerHyperparameters, "trajtrainer.algos.dagger.learner:DAggerLearner"),
        "iql": AlgorithmRow(IQLHyperparameters, "trajtrainer.algos.iql.learner:IQLLearner", offline=True),
    },
)
"""``trainer_type`` -> its hyperparameters and how it learns."""


@frozen(kw_only=True)
class BehavioralCloningSettings:
    """``behavioral_cloning``: imitation beside the training.

    Attributes:
        demo_path: a ``.demo`` file, or a folder of some.
        steps: the strength falls to nothing until this step; 0 keeps it for the whole run.
        strength: factor of the trainer's learning rate. 0.1 to 1: lower where the recordings are not to be outdone but
            only to help.
        samples_per_update: recorded steps of each epoch of it; 0 takes all. Less where there are many recordings.
        num_epoch: of each update. Left out, that of the trainer.
        batch_size: of each gradient step. Left out, that of the trainer.
    """

    demo_path: str
    steps: int = field(default=0, validator=not_negative)
    strength: float = field(default=1.0, validator=not_negative)
    samples_per_update: int = field(default=0, validator=not_negative)
    num_epoch: int | None = field(default=None, validator=optional(count))
    batch_size: int | None = field(default=None, validator=optional(count))


@frozen
class SelfPlaySettings:
    """``self_play``: the teams' opponents are earlier versions of themselves.

    What is not in ML-Agents is dumped only where it is not at its default.

    Attributes:
        save_steps: steps between two snapshots. More: opponents differ more from each other, and learning is slower and
            steadier.
        team_change: steps after which another team learns. Left out, five times ``save_steps``.
        swap_steps: steps of the others after which they play as another snapshot. With unequal teams scale it with
            their sizes.
        window: snapshots that are kept as opponents. 5 to 30: more is steadier against forgetting how to beat old ones.
        play_against_latest_model_ratio: how often the opponent is the policy as it is now. 0 to 1: higher follows the
            present strength, lower is steadier.
        initial_elo: rating at the start.
        prioritized: prefer opponents that are not beaten yet. Not in ML-Agents.
        opponents: runs, checkpoints and ``.onnx`` files that play beside the snapshots. Not in ML-Agents.
        elo_per_match: rate a group once instead of each of its agents. Not in ML-Agents.
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

    Attributes:
        trainer_type: the algorithm. ``ppo`` is steady and fast; ``sac`` needs fewer steps and more time for each, so it
            suits slow environments; ``poca`` is for groups that share a reward; ``bc`` and ``iql`` learn from
            recordings alone, ``dagger`` from an expert. Installed packages may have more.
        hyperparameters: of the algorithm; see below.
        checkpoint_interval: steps between two checkpoints. What a kill may cost.
        network_settings: shape of the policy and of its critic.
        reward_signals: what is learnt from; several add up.
        init_path: a checkpoint (``.pt``) from whose weights this behavior starts, at step 0; a bare file name is looked
            for in the run of ``initialize_from``.
        keep_checkpoints: how many numbered checkpoints are kept; 0 and -1 keep all.
        even_checkpoints: spread ``keep_checkpoints`` checkpoints evenly over ``max_steps``; ``checkpoint_interval`` is
            then ignored.
        max_steps: the run ends when the behavior has taken in more steps than this. 5e5 to 1e7, more for more
            complicated tasks.
        time_horizon: longest trajectory; what comes after is estimated by the critic. 32 to 2,048: long enough to hold
            what matters of an episode where rewards are rare; shorter is quicker and steadier with frequent rewards.
        summary_freq: steps between two lines on the console and points in TensorBoard.
        threaded: learn in a thread of its own while the environment goes on. With a slow environment and more than two
            cores; runs then no longer repeat bit for bit.
        self_play: play against earlier versions of itself, in games of two or more teams.
        behavioral_cloning: imitate recordings beside the training.
        evaluation: play episodes in another environment while training; see Evaluation. Not in ML-Agents.
        preset: name of settings that lie below those written here: ``baselines`` has those of Stable-Baselines3.
            ``trajtrainer config --presets`` prints them. Not in ML-Agents.
        stop: what ends the training of this behavior before ``max_steps``, whichever comes first. Not in ML-Agents.
        keep_best: how many best models are kept; 0 keeps none. Not in ML-Agents.
        dataset: recorded steps: a ``.demo`` or ``.npz`` file, a folder of ``.demo`` files, or a list of some; for
            ``bc`` and ``iql``, which learn from nothing else. Not in
            ML-Agents.
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
    preset: str | None = None
    keep_best: int = field(default=1, validator=at_least(0, "a whole number"))
    # Files and folders of recorded steps, for the trainers that learn from nothing else.
    dataset: list[str] = field(factory=list)

    @property
    def is_offline(self) -> bool:
        """Return whether it learns from its data set, without an environment."""
        return ALGORITHMS[self.trainer_type].offline

    @property
    def acts_evenly_first(self) -> bool:
        """Return whether actions are drawn evenly until there is a policy that has learnt."""
        return bool(getattr(self.hyperparameters, "learning_starts", 0))

    def __attrs_post_init__(self) -> None:
        refuse(self._faults())
        if self.even_checkpoints:
            interval = max(1, self.max_steps // self.keep_checkpoints)
            object.__setattr__(self, "checkpoint_interval", interval)  # frozen, but still under construction

    def _faults(self) -> Iterator[Fault]:
        if not isinstance(self.hyperparameters, ALGORITHMS[self.trainer_type].settings):
            yield misfit(("hyperparameters",), self.hyperparameters, f"those of trainer_type {self.trainer_type}")
        if self.preset is not None:
            yield self._preset_fault(self.preset)
        yield from self.hyperparameters.misfits(self.network_settings)
        n_step = getattr(self.hyperparameters, "n_step", 1)
        if n_step > self.time_horizon:
            expected = f"at most time_horizon ({self.time_horizon})"
            yield misfit(("hyperparameters", "n_step"), n_step, expected, ("time_horizon",))
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

    def _preset_fault(self, name: str) -> Fault:
        """Tell why it was not put below these settings when they were read."""
        if name not in PRESETS:
            return misfit(("preset",), name, f"one of {', '.join(PRESETS)}{closest(name, PRESETS)}")
        known = ", ".join(PRESETS[name].of_trainer)
        expected = f"none with trainer_type {self.trainer_type}, of which it says nothing (but of {known})"
        return misfit(("preset",), name, expected, ("trainer_type",))

    def _offline_faults(self) -> Iterator[Fault]:
        """Find what has no meaning without an environment."""
        kind = f"as trainer_type {self.trainer_type} learns from a data set"
        if not self.dataset:
            expected = "a .demo or .npz file or a folder of .demo files to learn from, or a list of some"
            yield misfit(("dataset",), self.dataset or None, expected, ("trainer_type",))
        for name in ("self_play", "behavioral_cloning"):
            if getattr(self, name) is not None:
                yield misfit((name,), {name: ...}, f"none, {kind}", ("trainer_type",))
        for name in self.reward_signals:
            if name != "extrinsic":
                expected = f"no reward signal but extrinsic, {kind}, in which nothing else was recorded"
                yield misfit(("reward_signals", name), {name: ...}, expected, ("trainer_type",))
