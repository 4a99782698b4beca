"""The settings of commands that act in an environment with trained models, and train nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from trajtrainer.settings import flags
from trajtrainer.settings.flags import ACTING_FLAGS
from trajtrainer.settings.run import CheckpointSettings, RunSettings

_ENVIRONMENT = "env_settings"


def resolve(
    arguments: argparse.Namespace, models: Iterable[str], sections: Mapping[str, object] | None = None
) -> RunSettings:
    """Return the settings of parsed options; what they leave open of the environment is that of the models' runs.

    Args:
        arguments: that were parsed.
        models: as ``find_models`` takes them; of the earlier ones' runs before those of the later ones.
        sections: of a configuration, which options of the command's own fill.

    Raises:
        TrajtrainerError: anything in the options is wrong.
    """
    from trajtrainer.commands.trained_environment import as_trained  # late: it imports what help does not need

    given = flags.given(arguments)
    results = Path(str(given.get("results_dir", CheckpointSettings().results_dir)))
    told = {flag.path: given[flag.name] for flag in ACTING_FLAGS if flag.name in given}
    told = {path.removeprefix(f"{_ENVIRONMENT}."): value for path, value in told.items()}
    taken: dict[str, object] = {}
    for model in models:
        taken |= as_trained(model, results, told | taken)
    return flags.resolve_options(arguments, {**(sections or {}), _ENVIRONMENT: taken})
