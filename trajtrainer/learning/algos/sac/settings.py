"""The hyperparameters of SAC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from attrs import Factory, field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import (
    AUTO,
    OURS,
    AutoOrNumber,
    Fault,
    at_least,
    between,
    count,
    fraction,
    mismatch,
    not_negative,
    positive,
    positive_or_auto,
)
from trajtrainer.settings.components import AlgorithmRow, Hyperparameters, ScheduleType, of_set_course
from trajtrainer.settings.demonstrations import DemonstrationSettings
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.symmetry import SymmetrySettings, faults_of_symmetry


@frozen
class SACHyperparameters(Hyperparameters):
    """Hyperparameters of soft actor-critic (Haarnoja et al. 2018).

    Attributes:
        buffer_init_steps: steps that are collected before the first update. 1,000 to 10,000: experience to begin with.
        tau: how far the target networks move toward the networks at each update. 0.005 to 0.01.
        steps_per_update: agent steps for each gradient step. 1 to 20: about the number of agents; smaller learns more
            from each step and takes more time. ``auto``: as many gradient steps as fit while the environments compute,
            at most two per agent step and at least one per message of an environment. Not in ML-Agents: ``auto``.
        save_replay_buffer: write the replay with each checkpoint, so that ``--resume`` restores it. For long runs that
            may be interrupted; the file may be large.
        init_entcoef: the entropy coefficient at the start. 0.1 to 1.0 for continuous, 0.01 to 0.5 for discrete actions:
            more explores more in the beginning.
        reward_signal_steps_per_update: agent steps for each update of the reward signals' networks. Left out:
            ``steps_per_update``. ``auto`` only with ``steps_per_update: auto``.
        learning_starts: steps with uniformly random actions before the first update, as in Stable-Baselines3. 100 to
            10,000: varied experience. 0: the policy acts from the start. The first update comes after
            ``buffer_init_steps`` or this, whichever is larger. Not in ML-Agents.
        ent_coef: a fixed entropy coefficient. For tasks in which a learned one falls before the agent has found the
            reward. Left out: it is learned, starting at ``init_entcoef``. Not in ML-Agents.
        target_entropy: the entropy of the continuous actions at which the coefficient aims. Left out: minus their
            number. Higher keeps exploring. Not in ML-Agents.
        value_network: also learn values of states, as targets of the Q networks (Haarnoja et al. 2018a). ``false``:
            slow copies of the Q networks are the targets, and the policy follows the smaller of both (2018b); for
            demanding continuous control. Not in ML-Agents.
        n_step: how many steps' rewards count before the estimated value (Hessel et al. 2018). 1 to 5: learns faster if
            rewards come late. At most ``time_horizon``, and not with a memory. Not in ML-Agents.
        policy_delay: gradient steps of the Q networks for each one of the policy and the entropy coefficient. With
            ``steps_per_update`` below 1, as many as there are per step, as in DroQ. Not in ML-Agents.
        layer_norm: normalize the outputs of the critics' layers. With few steps per update, ``dropout_rate`` and
            ``policy_delay`` this is DroQ (Hiraoka et al. 2022). Not in ML-Agents.
        dropout_rate: fraction of the critics' activations that is dropped during learning; 0.01 for DroQ. Not in
            ML-Agents.
        symmetry: the mirror under which the task stays the same: each minibatch also contains the mirror image of each
            of its steps (Mittal et al. 2024). For agents that see vectors, without a memory. Not in ML-Agents.
        demonstrations: recorded steps that are part of each batch from the first update on (RLPD; Ball et al. 2023).
            RLPD also sets ``layer_norm: true``, for SAC. Without a memory. Not in ML-Agents.
    """

    critic_may_see_more: ClassVar[bool] = True

    learning_rate_schedule: ScheduleType = field(default=ScheduleType.CONSTANT, validator=of_set_course)
    batch_size: int = field(default=128, validator=count)
    buffer_size: int = field(default=50000, validator=count)
    buffer_init_steps: int = field(default=0, validator=not_negative)
    tau: float = field(default=0.005, validator=fraction)
    steps_per_update: AutoOrNumber = field(default=1, validator=positive_or_auto)
    save_replay_buffer: bool = False
    init_entcoef: float = field(default=1.0, validator=positive)
    reward_signal_steps_per_update: AutoOrNumber = field(
        default=Factory(lambda self: self.steps_per_update, takes_self=True), validator=positive_or_auto
    )
    learning_starts: int = field(default=0, validator=at_least(0, "a whole number"), metadata=OURS)
    ent_coef: float | None = field(default=None, validator=optional(positive), metadata=OURS)
    target_entropy: float | None = field(default=None, metadata=OURS)
    value_network: bool = field(default=True, metadata=OURS)
    n_step: int = field(default=1, validator=count, metadata=OURS)
    policy_delay: int = field(default=1, validator=count, metadata=OURS)
    layer_norm: bool = field(default=False, metadata=OURS)
    dropout_rate: float = field(default=0.0, validator=between(0, 0.9), metadata=OURS)
    symmetry: SymmetrySettings | None = field(default=None, metadata=OURS)
    demonstrations: DemonstrationSettings | None = field(default=None, metadata=OURS)

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:
        yield from faults_of_symmetry(self.symmetry, network)
        if self.reward_signal_steps_per_update == AUTO != self.steps_per_update:
            expected = f"a number, or steps_per_update: {AUTO} as well"
            yield mismatch(("hyperparameters", "reward_signal_steps_per_update"), AUTO, expected)
        if self.n_step > 1 and network.memory is not None:
            expected = "1 with network_settings.memory"
            yield mismatch(("hyperparameters", "n_step"), self.n_step, expected)
        if self.demonstrations is not None and network.memory is not None:
            expected = "none with network_settings.memory"
            yield mismatch(("hyperparameters", "demonstrations"), {"demonstrations": ...}, expected)

    @property
    def first_update(self) -> int:
        """The step at which updates start."""
        return max(self.buffer_init_steps, self.learning_starts)


ROW = AlgorithmRow(SACHyperparameters, "trajtrainer.learning.algos.sac.sac:SAC", replays=True)
