"""The model card: what the hub's page of a model shows, and by which its pages of ML-Agents models find it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import yaml

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
        "model-index": [{"name": trainers[0], "results": [_index_entry(*result) for result in results]}],
    }
    run_id = repository.rpartition("/")[2]
    sections = [
        f"# **{' and '.join(map(_cell, trainers))}** playing **{' and '.join(map(_cell, names))}**",
        f"{_origin(names, behaviors, status)} trajtrainer, a trainer for "
        "[Unity ML-Agents](https://github.com/Unity-Technologies/ml-agents).",
        *([_table(results)] if results else []),
        *([f"![Rewards over the steps of training]({curves})"] if curves else []),
        "## Use",
        "In Unity: put "
        + " or ".join(f"[{_cell(name)}]({_link(name)})" for name in models)
        + " into your project, and "
        "choose it as the *Model* of the agent's *Behavior Parameters*.",
        _code(
            f"trajtrainer pull {repository}\n"
            f"trajtrainer evaluate {run_id} --env=Builds/Game             # how good it is\n"
            f"trajtrainer learn results/{run_id}/configuration.yaml --run-id={run_id} --resume --env=Builds/Game"
        ),
        f"or with ML-Agents: `mlagents-load-from-hf --repo-id={repository} --local-dir=results`.",
        "## Configuration",
        _code(yaml.safe_dump({"behaviors": dict(behaviors)}, sort_keys=False).rstrip(), "yaml"),
        "## Versions",
        _versions(status),
    ]
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n" + "\n\n".join(sections) + "\n"


def _origin(names: Sequence[str], behaviors: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """Return where the policies are from, up to the name of this package."""
    trainers = {str((status.get(name) or {}).get("imported_from") or "") for name in names} - {""}
    if trainers:
        return f"Trained with {_cell(' and '.join(sorted(trainers)))}, and imported with"
    return "Trained with" if behaviors else "Exported with"  # without settings nothing says who trained it


def _results(
    names: Sequence[str], status: Mapping[str, Any], evaluation: Mapping[str, Any] | None
) -> list[tuple[str, str, float, float | None, str]]:
    """Return (behaviour, what was measured, mean, standard deviation, over what) of each behaviour that has any."""
    found = []
    evaluated: Mapping[str, Any] = {}
    for result in (evaluation or {}).get("results", [])[:1]:
        evaluated = result.get("behaviors", {})
    for name in names:
        of_run = status.get(name) or {}
        own, best = evaluated.get(name), of_run.get("best") or {}
        if own and own.get("mean") is not None:
            found.append(
                (name, "mean reward", own["mean"], own.get("std"), f"{own.get('episodes')} episodes, evaluated")
            )
        final, training = of_run.get("final_checkpoint") or {}, of_run.get("training") or {}
        if training.get("reward") is not None:
            over = f"{training.get('episodes')} episodes"
            at = "all" if training.get("steps") is None else f"summary of step {training['steps']}"
            found.append((name, "last mean return of training", training["reward"], None, f"{at}, {over}"))
        elif final.get("reward") is not None:  # of a run that ML-Agents or 0.1.0 trained
            over = f"step {final.get('steps')}, episodes since the last update"
            found.append((name, "last reward of training", final["reward"], None, over))
        if best.get("reward") is not None:
            measure = best.get("measure") or f"by {best.get('by')}"
            found.append((name, "best model", best["reward"], None, f"step {best.get('steps')}, {measure}"))
    return found


def _index_entry(name: str, what: str, mean: float, std: float | None, over: str) -> dict[str, Any]:
    value = f"{mean:.2f}" + ("" if std is None else f" +/- {std:.2f}")
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": name, "type": name},
        "metrics": [{"type": "mean_reward", "value": value, "name": f"{what} ({over})", "verified": False}],
    }


def _table(results: Sequence[tuple[str, str, float, float | None, str]]) -> str:
    lines = ["| behavior | | | over |", "| --- | --- | --- | --- |"]
    for name, what, mean, std, over in results:
        lines.append(f"| {_cell(name)} | {what} | {mean:.3f}{'' if std is None else f' ± {std:.3f}'} | {_cell(over)} |")
    return "\n".join(lines)


def _versions(status: Mapping[str, Any]) -> str:
    metadata = status.get("metadata") or {}
    versions = {
        "trajtrainer": __version__,
        "files as of ML-Agents": metadata.get("mlagents_version", "unknown"),
        "torch": metadata.get("torch_version", version("torch")),
        "Python": platform.python_version(),
    }
    return ", ".join(f"{name} {_cell(str(number))}" for name, number in versions.items()) + "."


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
