"""Who takes part in a tournament."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trajtrainer.core.errors import SettingsError
from trajtrainer.evaluation.models import ActingOptions, Model, find_models

_FEWEST = 2


def find_entrants(words: Sequence[str], results: Path, options: ActingOptions) -> list[Model]:
    """Return the models that are meant, each once; see ``find_models``.

    Raises:
        SettingsError: some of them are none, or only one is left. All mistakes are told.
    """
    entrants: dict[tuple[Path, ...], Model] = {}
    for model in find_models(words, results, options, scripted=True):
        files = tuple(file.path.resolve() for file in model.policies.values())
        entrants.setdefault(files or (Path(model.name),), model)
    if len(entrants) < _FEWEST:
        raise SettingsError(
            f"A tournament needs at least two models, and this is one: {next(iter(entrants.values())).name}. Give "
            "other runs, checkpoints or .onnx files, too; 'RUN/*' means all checkpoints of a run."
        )
    return list(entrants.values())
