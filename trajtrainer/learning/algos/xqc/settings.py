"""The hyperparameters of XQC."""

from __future__ import annotations

from attrs import field, fields_dict, frozen
from attrs.validators import optional

from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.settings.checks import OURS, AutoOrNumber, at_least, count, in_order, positive, positive_or_auto
from trajtrainer.settings.components import AlgorithmRow, ScheduleType, of_set_course


@frozen(field_transformer=in_order(*fields_dict(SACHyperparameters)))  # defaults refer to earlier fields
class XQCHyperparameters(SACHyperparameters):
    """Hyperparameters of XQC (Palenicek et al. 2026): SAC's with other defaults, and the shape of the critics.

    Attributes:
        learning_rate_schedule: ``linear`` falls to a tenth of ``learning_rate`` at ``max_steps``.
        steps_per_update: agent steps for each gradient step. 0.25 to 1 with one agent behind a slow environment; with
            many agents about half their number. ``auto``: as many gradient steps as fit while the environments compute,
            at most two per agent step and at least one per message of an environment.
        init_entcoef: the entropy coefficient at the start, in units of scaled rewards. 0.01 for continuous actions, and
            0.3 for discrete ones, whose policy otherwise may stop exploring before it finds a rare reward.
        target_entropy: the entropy of the continuous actions at which the coefficient aims. Left out: minus half their
            number. Higher keeps exploring. Not in ML-Agents.
        policy_delay: gradient steps of the critics for each one of the policy and the entropy coefficient. Not in
            ML-Agents.
        critic_hidden_units: width of the critics' layers; ``network_settings`` describes the policy. 64 to 512: more
            for many observations, and slower. Left out: 64 if an agent sees at most 50 numbers, 128 for at most 100,
            256 for more and for pictures. Not in ML-Agents.
        critic_num_layers: layers of the critics. Not in ML-Agents.
        auto_gamma: choose the extrinsic signal's ``gamma`` by the length of episodes. On by default if the
            configuration has no ``gamma``. Not in ML-Agents.
        value_network: has no effect: XQC has none. Not in ML-Agents.
        layer_norm: has no effect: XQC's layers are batch-normalized. Not in ML-Agents.
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
    """Hidden units of networks for agents that see so many numbers, including those of pictures.

    64 was measured on HalfCheetah, which sees 17 (docs/benchmarks/xqc.md); 128 and 256 are estimates.
    """
    return 64 if numbers <= 50 else 128 if numbers <= 100 else 256


# Stable-Baselines3 has no XQC. These are the settings of SAC that apply to it.
_BASELINES = {
    "trainer_type": "xqc",
    "hyperparameters": {"batch_size": 256, "buffer_size": 1_000_000, "learning_rate": 3e-4, "tau": 0.005},
    "network_settings": {"hidden_units": 256, "num_layers": 2},
    "time_horizon": 16,
}

ROW = AlgorithmRow(
    XQCHyperparameters,
    "trajtrainer.learning.algos.xqc.xqc:XQC",
    replays=True,
    presets={"baselines": _BASELINES},
    first_settings="trajtrainer.learning.algos.xqc.first_settings:suggested",
)
