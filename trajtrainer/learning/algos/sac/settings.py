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
        buffer_init_steps: number of steps to collect before the first update, typically 1,000 to 10,000.
        tau: fraction by which the target networks move toward the trained networks in each gradient step, typically
            0.005 to 0.01.
        steps_per_update: number of agent steps per gradient step, typically 1 to 20 and about the number of agents.
            Lower values learn more from each step but take more time. ``auto`` makes as many gradient steps as possible
            while the environments are busy, at most two per agent step and at least one per message from an
            environment. Not in ML-Agents: ``auto``.
        save_replay_buffer: save the replay buffer with each checkpoint, so that ``--resume`` restores it. Use it for
            long runs that may be interrupted. The file can be large.
        init_entcoef: initial entropy coefficient, typically 0.1 to 1.0 for continuous actions and 0.01 to 0.5 for
            discrete actions. Higher values explore more at the start of training.
        reward_signal_steps_per_update: number of agent steps per gradient step of the reward signals' networks.
            Defaults to ``steps_per_update``. ``auto`` requires ``steps_per_update: auto``.
        learning_starts: number of steps with uniformly random actions before the first update, as in Stable-Baselines3.
            Typically 100 to 10,000, for varied experience; with 0, the policy acts from the start. The first update
            follows after this number of steps or ``buffer_init_steps``, whichever is larger. Not in ML-Agents.
        ent_coef: fixed entropy coefficient. Use it if a learned coefficient falls before the agent has found the
            reward. By default, the coefficient is learned, starting at ``init_entcoef``. Not in ML-Agents.
        target_entropy: target entropy of the continuous actions for learning the coefficient. Defaults to minus the
            number of continuous actions. Higher values explore more. Not in ML-Agents.
        value_network: also train a value network, which provides the targets of the Q networks (Haarnoja et al. 2018a).
            With ``false``, target Q networks provide the targets, and the policy is trained on the minimum of both Q
            networks (2018b), which suits difficult continuous control tasks. Not in ML-Agents.
        n_step: number of steps whose rewards are added up before bootstrapping (Hessel et al. 2018). Typically 1 to 5;
            more steps speed up learning if rewards are delayed. At most ``time_horizon``, and 1 with a memory. Not in
            ML-Agents.
        policy_delay: number of gradient steps of the Q networks per gradient step of the policy and the entropy
            coefficient. If ``steps_per_update`` is below 1, use the number of gradient steps per agent step, as in
            DroQ. Not in ML-Agents.
        layer_norm: apply layer normalization in the critics. Together with a low ``steps_per_update``,
            ``dropout_rate`` and ``policy_delay``, this is DroQ (Hiraoka et al. 2022). Not in ML-Agents.
        dropout_rate: dropout rate in the critics during training; 0.01 in DroQ. Not in ML-Agents.
        symmetry: mirror symmetry of the task. Each minibatch then also contains the mirror images of its steps (Mittal
            et al. 2024). Only for agents with vector observations and no memory. Not in ML-Agents.
        demonstrations: recorded steps to include in each minibatch (RLPD; Ball et al. 2023). RLPD also uses
            ``layer_norm: true`` with SAC. Not supported with a memory. Not in ML-Agents.
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
            expected = f"a number, unless steps_per_update is also {AUTO}"
            yield mismatch(("hyperparameters", "reward_signal_steps_per_update"), AUTO, expected)
        if self.n_step > 1 and network.memory is not None:
            expected = "1 with network_settings.memory"
            yield mismatch(("hyperparameters", "n_step"), self.n_step, expected)
        if self.demonstrations is not None and network.memory is not None:
            expected = "none with network_settings.memory"
            yield mismatch(("hyperparameters", "demonstrations"), {"demonstrations": ...}, expected)

    @property
    def first_update(self) -> int:
        """The trainer step at which updates start."""
        return max(self.buffer_init_steps, self.learning_starts)


ROW = AlgorithmRow(SACHyperparameters, "trajtrainer.learning.algos.sac.sac:SAC", replays=True, clones=True)
