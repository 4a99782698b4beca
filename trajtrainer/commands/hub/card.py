"""The model card: what the hub's page of a model shows, and by which its pages of ML-Agents models find it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from trajtrainer.core.printable import one_line
from trajtrainer.core.version import __version__


def card(
    repository: str,
    settings: Mapping[str, Any],
    status: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    models: Sequence[str],
    curves: str | None,
) -> str:
    """Return ``README.md``.

    Args:
        repository: "owner/name".
        settings: ``configuration.yaml``.
        status: ``training_status.json``.
        evaluation: what ``trajtrainer evaluate --json`` wrote.
        models: names of the policies for Unity.
        curves: name of the picture, if there is one.
    """
    behaviors: Mapping[str, Any] = settings.get("behaviors") or {}
    names = list(behaviors) or [name.removesuffix(".onnx") for name in models]
    trainers = list(dict.fromkeys(str(each.get("trainer_type", "")) for each in behaviors.values())) or ["ppo"]
    results = _results(names, status, evaluation)
    head = {
        "library_name": "ml-agents",
        "pipeline_tag": "reinforcement-learning",
        # The hub's page of ML-Agents and its games in the browser look for these.
        "tags": [
            *names,
            "deep-reinforcement-learning",
            "reinforcement-learning",
            *(f"ML-Agents-{name}" for name in names),
            "trajtrainer",
        ],
        "model-index": [{"name": trainers[0], "results": [_index_entry(result) for result in results]}],
    }
    environment = Environment(  # noqa: S701 - Markdown, which `cell` escapes
        loader=PackageLoader("trajtrainer.commands.hub"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(cell=_cell, link=_link, code=_code)
    metadata = status.get("metadata") or {}
    text = environment.get_template("card.md").render(
        head=yaml.safe_dump(head, sort_keys=False),
        trainers=trainers,
        names=names,
        origin=_origin(names, behaviors, status),
        results=results,
        curves=curves,
        models=models,
        repository=repository,
        run_id=repository.rpartition("/")[2],
        configuration=yaml.safe_dump({"behaviors": dict(behaviors)}, sort_keys=False).rstrip(),
        versions={
            "trajtrainer": __version__,
            "files as of ML-Agents": metadata.get("mlagents_version", "unknown"),
            "torch": metadata.get("torch_version", version("torch")),
            "Python": platform.python_version(),
        },
    )
    return f"{text}\n"


def _origin(names: Sequence[str], behaviors: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return where the policies are from, up to the name of this package."""
    trainers = {str((status.get(name) or {}).get("imported_from") or "") for name in names} - {""}
    if trainers:
        return f"Trained with {_cell(' and '.join(sorted(trainers)))}, and imported with"
    return "Trained with" if behaviors else "Exported with"  # without settings nothing says who trained it


class _Result(NamedTuple):
    """One line of the card's results: what was measured, and over which episodes."""

    behavior: str
    measure: str
    mean: float
    std: float | None
    over: str


def _results(names: Sequence[str], status: Mapping[str, Any], evaluation: Mapping[str, Any] | None) -> list[_Result]:
    found = []
    evaluated: Mapping[str, Any] = {}
    for result in (evaluation or {}).get("results", [])[:1]:
        evaluated = result.get("behaviors", {})
    for name in names:
        of_run = status.get(name) or {}
        own, best = evaluated.get(name), of_run.get("best") or {}
        if own and own.get("mean") is not None:
            over = f"{own.get('episodes')} episodes, evaluated"
            found.append(_Result(name, "mean reward", own["mean"], own.get("std"), over))
        final, training = of_run.get("final_checkpoint") or {}, of_run.get("training") or {}
        if training.get("reward") is not None:
            at = "all" if training.get("steps") is None else f"summary of step {training['steps']}"
            over = f"{at}, {training.get('episodes')} episodes"
            found.append(_Result(name, "last mean return of training", training["reward"], None, over))
        elif final.get("reward") is not None:  # of a run that ML-Agents or 0.1.0 trained
            over = f"step {final.get('steps')}, episodes since the last update"
            found.append(_Result(name, "last reward of training", final["reward"], None, over))
        if best.get("reward") is not None:
            measure = best.get("measure") or f"by {best.get('by')}"
            found.append(_Result(name, "best model", best["reward"], None, f"step {best.get('steps')}, {measure}"))
    return found


def _index_entry(result: _Result) -> dict[str, Any]:
    value = f"{result.mean:.2f}" + ("" if result.std is None else f" +/- {result.std:.2f}")
    name = f"{result.measure} ({result.over})"
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": result.behavior, "type": result.behavior},
        "metrics": [{"type": "mean_reward", "value": value, "name": name, "verified": False}],
    }


def _cell(text: str) -> str:
    """Return text that neither ends a cell or line nor is taken for markup."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in one_line(text))


def _link(name: str) -> str:
    return name.replace("%", "%25").replace(" ", "%20").replace(")", "%29")


def _code(text: str, language: str = "") -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"
