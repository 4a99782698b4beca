"""The hyperparameters of XQC."""

from __future__ import annotations

from attrs import field, fields_dict, frozen
from attrs.validators import optional

from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.settings.checks import OURS, AutoOrNumber, at_least, count, in_order, positive, positive_or_auto
from trajtrainer.settings.components import AlgorithmRow, ScheduleType, of_set_course

# Stable-Baselines3 does not include XQC. These are the applicable settings of its SAC.
_BASELINES = {
    "trainer_type": "xqc",
    "hyperparameters": {"batch_size": 256, "buffer_size": 1_000_000, "learning_rate": 3e-4, "tau": 0.005},
    "network_settings": {"hidden_units": 256, "num_layers": 2},
    "time_horizon": 16,
}


@frozen(field_transformer=in_order(*fields_dict(SACHyperparameters)))  # defaults refer to earlier fields
class XQCHyperparameters(SACHyperparameters):
    """Hyperparameters of XQC (Palenicek et al. 2026): those of SAC with other defaults, and the critics' architecture.

    Attributes:
        learning_rate_schedule: ``linear`` decays to a tenth of ``learning_rate`` at ``max_steps``.
        steps_per_update: number of agent steps per gradient step, typically 0.25 to 1 for a single agent in a slow
            environment, and about half the number of agents if there are many. ``auto`` makes as many gradient steps as
            possible while the environments are busy, at most two per agent step and at least one per message from an
            environment.
        init_entcoef: initial entropy coefficient, relative to scaled rewards. Use 0.01 for continuous actions. Use 0.3
            for discrete actions, so that the policy does not stop exploring before it finds a rare reward.
        target_entropy: target entropy of the continuous actions for learning the coefficient. Defaults to minus half
            the number of continuous actions. Higher values explore more. Not in ML-Agents.
        policy_delay: number of gradient steps of the critics per gradient step of the policy and the entropy
            coefficient. Not in ML-Agents.
        critic_hidden_units: number of units in each layer of the critics, typically 64 to 512; ``network_settings``
            only applies to the policy. Larger critics suit large observations but are slower. Defaults to 64 for up to
            50 observed values per agent, 128 for up to 100, and 256 for more, including images. Not in ML-Agents.
        critic_num_layers: number of layers in the critics. Not in ML-Agents.
        auto_gamma: choose the extrinsic signal's ``gamma`` according to the length of episodes. Enabled by default if
            the configuration does not set ``gamma``. Not in ML-Agents.
        value_network: has no effect, because XQC has no value network. Not in ML-Agents.
        layer_norm: has no effect, because XQC's layers are batch-normalized. Not in ML-Agents.
        dropout_rate: has no effect. Not in ML-Agents.
    """

    learning_rate_schedule: ScheduleType = field(default=ScheduleType.LINEAR, validator=of_set_course)
    batch_size: int = field(default=256, validator=count)
    buffer_size: int = field(default=500_000, validator=count)
    steps_per_update: AutoOrNumber = field(default=0.5, validator=positive_or_auto)
    init_entcoef: float = field(default=0.01, validator=positive)
    learning_starts: int = field(default=1000, validator=at_least(0, "a whole number"), metadata=OURS)
    value_network: bool = field(default=False, metadata=OURS)
    policy_delay: int = field(default=3, validator=count, metadata=OURS)
    critic_hidden_units: int | None = field(default=None, validator=optional(count), metadata=OURS)
    critic_num_layers: int = field(default=4, validator=count, metadata=OURS)
    auto_gamma: bool = field(default=False, metadata=OURS)


def width_for(numbers: int) -> int:
    """Return the number of hidden units for agents that observe this number of values, including pixels.

    64 was measured on HalfCheetah, with 17 values (docs/benchmarks/xqc.md); 128 and 256 are estimates.
    """
    return 64 if numbers <= 50 else 128 if numbers <= 100 else 256


ROW = AlgorithmRow(
    XQCHyperparameters,
    "trajtrainer.learning.algos.xqc.xqc:XQC",
    replays=True,
    clones=True,
    presets={"baselines": _BASELINES},
    first_settings="trajtrainer.learning.algos.xqc.first_settings:suggested",
)
