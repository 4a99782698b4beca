"""Presets: names for settings that belong together, which ``preset: NAME`` puts below those of a behaviour.

They are gone once a configuration is read: what is dumped is what they stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ON_POLICY: dict[str, Any] = {
    "batch_size": 64,
    "buffer_size": 2047,
    "learning_rate": 3e-4,
    "learning_rate_schedule": "constant",
    "beta": 0.0,
    "epsilon": 0.2,
    "lambd": 0.95,
    "num_epoch": 10,
    "joint_ratio": True,
    "joint_entropy": True,
    "normalize_advantage_per_mini_batch": True,
    "max_grad_norm": 0.5,
    "vf_coef": 0.5,
    "adam_eps": 1e-5,
}
_SEPARATE_MLPS: dict[str, Any] = {
    "hidden_units": 64,
    "num_layers": 2,
    "activation": "tanh",
    "initialization": "orthogonal",
    "clip_obs": 10.0,
    "clip_actions": 1.0,
}


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings that belong together.

    Attributes:
        meaning: one sentence.
        of_trainer: ``trainer_type`` -> what stands below its behaviour.
    """

    meaning: str
    of_trainer: Mapping[str, Mapping[str, Any]]


PRESETS: dict[str, Preset] = {
    "baselines": Preset(
        "What Stable-Baselines3 has where its zoo (rl-baselines3-zoo) says nothing else.",
        {
            "ppo": {
                "trainer_type": "ppo",
                "hyperparameters": _ON_POLICY,
                "network_settings": _SEPARATE_MLPS,
                "time_horizon": 2048,
            },
            "poca": {
                "trainer_type": "poca",
                "hyperparameters": _ON_POLICY,
                "network_settings": _SEPARATE_MLPS,
                "time_horizon": 2048,
            },
            "sac": {
                "trainer_type": "sac",
                "hyperparameters": {
                    "batch_size": 256,
                    "buffer_size": 1_000_000,
                    "learning_starts": 100,
                    "learning_rate": 3e-4,
                    "learning_rate_schedule": "constant",
                    "tau": 0.005,
                    "steps_per_update": 1.0,
                    "init_entcoef": 1.0,
                    "value_network": False,
                },
                "network_settings": {
                    "hidden_units": 256,
                    "num_layers": 2,
                    "activation": "relu",
                    "initialization": "torch_default",
                },
                "time_horizon": 16,
            },
            # Stable-Baselines3 has no XQC: what SAC's means there, too.
            "xqc": {
                "trainer_type": "xqc",
                "hyperparameters": {"batch_size": 256, "buffer_size": 1_000_000, "learning_rate": 3e-4, "tau": 0.005},
                "network_settings": {"hidden_units": 256, "num_layers": 2},
                "time_horizon": 16,
            },
        },
    ),
}


def described() -> str:
    """Return all presets as YAML with comments."""
    import yaml  # late: commands that only tell their options do not need it

    parts = []
    for name, preset in PRESETS.items():
        parts.append(f"# preset: {name}: {preset.meaning}\n")
        for trainer, settings in preset.of_trainer.items():
            text = yaml.safe_dump(dict(settings), sort_keys=False, default_flow_style=None, width=110)
            parts.append(f"# {name}, trainer_type {trainer}\n{text}")
    return "\n".join(parts)
