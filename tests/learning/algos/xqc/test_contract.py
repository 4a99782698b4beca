"""The contract of algorithms."""

from __future__ import annotations

from trajtrainer.testing import AlgorithmContract


class TestXQC(AlgorithmContract):
    trainer_type = "xqc"
    hyperparameters = dict(  # noqa: C408, RUF012
        batch_size=8,
        buffer_size=64,
        learning_starts=16,
        steps_per_update=8,
        policy_delay=1,
        critic_hidden_units=8,
        critic_num_layers=2,
    )
