"""Presets (named groups of settings, used with ``preset: NAME``), and the configurations shipped with the package.

Presets are expanded when a configuration is read, so a dump contains the settings of the preset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spelling import nearest
from trajtrainer.settings.components import ALGORITHMS

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
_NORMALIZER_PRIOR = 1e-4  # as in VecNormalize
_SEPARATE_MLPS: dict[str, Any] = {
    "hidden_units": 64,
    "num_layers": 2,
    "activation": "tanh",
    "initialization": "orthogonal",
    "clip_obs": 10.0,
    "normalizer_prior": _NORMALIZER_PRIOR,
    "clip_actions": 1.0,
}

PREFIX = "builtin:"
_SUFFIX = ".yaml"

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Preset:
    """A named group of settings.

    Attributes:
        meaning: a description in one sentence.
        of_trainer: ``trainer_type`` -> settings of a behavior. Other algorithms define the settings of a preset in
            their ``AlgorithmRow``.
    """

    meaning: str
    of_trainer: Mapping[str, Mapping[str, Any]]


PRESETS: dict[str, Preset] = {
    "baselines": Preset(
        "The defaults of Stable-Baselines3, which its zoo (rl-baselines3-zoo) uses unless it sets another value.",
        {
            **{
                name: {
                    "trainer_type": name,
                    "hyperparameters": _ON_POLICY,
                    "network_settings": _SEPARATE_MLPS,
                    "time_horizon": 2048,
                }
                for name in ("ppo", "poca")
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
                    "normalizer_prior": _NORMALIZER_PRIOR,
                },
                "time_horizon": 16,
            },
        },
    ),
}


def stands_for(name: str, trainer_type: object) -> Mapping[str, Any] | None:
    """Return the behavior settings of a preset; None if it does not cover this ``trainer_type``."""
    own = PRESETS[name].of_trainer.get(str(trainer_type))
    row = ALGORITHMS.get(str(trainer_type)) if own is None else None
    return own if row is None else row.presets.get(name)


def covered(name: str) -> list[str]:
    """Return the ``trainer_type`` values that a preset covers. Imports all algorithms."""
    own = PRESETS[name].of_trainer
    return [*own, *(other for other in ALGORITHMS if other not in own and stands_for(name, other) is not None)]


def described() -> str:
    """Return all presets as YAML with comments."""
    import yaml  # imported late, because ``--help`` does not need it

    parts = []
    for name, preset in PRESETS.items():
        parts.append(f"# preset: {name}: {preset.meaning}\n")
        for trainer in covered(name):
            settings = stands_for(name, trainer) or {}
            text = yaml.safe_dump(dict(settings), sort_keys=False, default_flow_style=None, width=110)
            parts.append(f"# {name}, trainer_type {trainer}\n{text}")
    return "\n".join(parts)


def config_path(name: str | Path) -> Path:
    """Return the path of a configuration: ``name`` itself unless it starts with ``builtin:``.

    Raises:
        SettingsError: there is no such shipped configuration. The message names the most similar one, or all of them.
    """
    text = str(name)
    if not text.startswith(PREFIX):
        return Path(name)
    known = builtin_configs()
    wanted = Path(text.removeprefix(PREFIX)).as_posix().removesuffix(_SUFFIX)
    if wanted not in known:
        by_last_part = {each.rpartition("/")[2].lower(): each for each in reversed(known)}
        match = by_last_part.get(wanted.lower()) or nearest(wanted, known)
        if match is not None:
            raise SettingsError(
                f"There is no configuration {text}; did you mean {PREFIX}{match}? 'trajtrainer init' lists all of them."
            )
        raise SettingsError(f"There is no configuration {text}. Expected one of:\n{_listed(known)}")
    return known[wanted]


def _listed(names: Iterable[str]) -> str:
    """Format the names as one line per folder."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        folders.setdefault(folder, []).append(file)
    width = max(map(len, folders)) + 1
    wrap = TextWrapper(110, subsequent_indent=" " * (len(PREFIX) + width + 3), break_on_hyphens=False)
    lines = (wrap.fill(f"  {PREFIX}{f'{folder}/':<{width}} {'  '.join(files)}") for folder, files in folders.items())
    return "\n".join(lines)


def builtin_hint(path: Path) -> str:
    """Return "; builtin:X comes with trajtrainer" if ``path`` ends like the shipped file X, otherwise ""."""
    name = "/".join(path.parts[-2:]).removesuffix(_SUFFIX)
    return f"; {PREFIX}{name} comes with trajtrainer" if name in builtin_configs() else ""


def builtin_configs() -> dict[str, Path]:
    """Return the file of each shipped configuration, by name (``ppo/3DBall``)."""
    folder = _PACKAGE / "config"  # in the wheel
    if not folder.is_dir():
        folder = _PACKAGE.parent / "config"  # in the source tree
    files = sorted(folder.rglob(f"*{_SUFFIX}"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
