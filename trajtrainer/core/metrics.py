"""Metrics of runs: their names, which all publishers share, and Prometheus' text format.

A run publishes its metrics on its ``metrics_port``, in its ``metrics_file``, and as fields of its log lines with
``--log-format json``; ``trajtrainer page`` publishes the metrics of all its runs (docs/operate/monitoring.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trajtrainer.core.printable import one_line

if TYPE_CHECKING:
    from trajtrainer.core.stats import StatsSummary

PREFIX = "trajtrainer_"
"""Prefix of all metric names in Prometheus' format. Fields of log lines have names without it."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GIB = 2.0**30

MAX_STEPS = "max_steps"
STD_REWARD = "std_reward"
_REWARD = "Environment/Cumulative Reward"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a behavior, with the labels ``run`` and ``behavior``.

    Attributes:
        name: name without ``PREFIX``, but with a unit as recommended by Prometheus.
        help: description in one sentence.
        tag: tag of the statistic that the metric shows.
        scale: factor by which the statistic's value is multiplied.
    """

    name: str
    help: str
    tag: str
    scale: float = 1.0


STEP = Metric("step", "Agent steps that the behavior has trained on, or gradient steps if it has a data set", "Step")
EVALUATION_REWARD = Metric("evaluation_reward", "Mean return of the newest evaluation", "Evaluation/Cumulative Reward")

OF_STATISTICS: tuple[Metric, ...] = (
    STEP,
    Metric("is_training", "1 while the behavior learns, 0 while it only acts", "Is Training"),
    Metric("mean_reward", "Mean return of the episodes since the previous summary", _REWARD),
    Metric("mean_group_reward", "Mean return of groups", "Environment/Group Cumulative Reward"),
    Metric("episode_length", "Mean number of decisions in an episode", "Environment/Episode Length"),
    Metric("elo", "Rating in self-play", "Self-play/ELO"),
    EVALUATION_REWARD,
    Metric("policy_loss", "Mean loss of the policy", "Losses/Policy Loss"),
    Metric("value_loss", "Mean loss of the value function", "Losses/Value Loss"),
    Metric("learning_rate", "Learning rate of the policy", "Policy/Learning Rate"),
    Metric("entropy", "Mean entropy of the policy", "Policy/Entropy"),
    Metric("agent_steps_per_second", "Agent steps trained on per second", "Perf/Agent Steps per Second"),
    Metric("environment_steps_per_second", "Environment steps per second", "Perf/Environment Steps per Second"),
    Metric("optimizer_steps_per_second", "Gradient steps per second", "Perf/Optimizer Steps per Second"),
    Metric("update_seconds", "Mean duration of an update", "Perf/Update Seconds"),
    Metric("cpu_cores", "CPU cores that the whole run keeps busy", "Perf/CPU"),
    Metric("memory_bytes", "Resident memory of the whole run", "Perf/Memory", GIB),
    Metric("gpu_ratio", "Fraction of time that the GPU was busy", "Perf/GPU"),
    Metric("gpu_memory_bytes", "GPU memory reserved by the run", "Perf/GPU Memory", GIB),
)
"""Metrics that show the newest value of a statistic."""

HELP: dict[str, str] = {
    "build_info": "Always 1; the label shows the version of trajtrainer",
    "runs": "Number of runs in the results folder, by state",
    "run_state": "Always 1; the label shows the state of the run",
    "run_start_time_seconds": "Unix time at which this session of the run started",
    "run_updated_time_seconds": "Unix time of the run's last summary, or of its start if it has not written any",
    **{metric.name: metric.help for metric in OF_STATISTICS},
    MAX_STEPS: "Agent steps at which training ends",
    STD_REWARD: "Standard deviation of the returns of the episodes since the previous summary",
}
"""Name of every metric -> its help text."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value in the text format."""

    name: str
    value: float
    labels: Mapping[str, str]


def of_summary(values: Mapping[str, StatsSummary], step: int) -> dict[str, float]:
    """Return the metrics in a summary: name -> value. The summary of an evaluation has no step."""
    found = of_statistics(lambda tag: values[tag].mean if tag in values and len(values[tag].values) else None)
    if EVALUATION_REWARD.tag not in values:
        found = {STEP.name: step, **{name: value for name, value in found.items() if name != STEP.name}}
    if _REWARD in values:
        found[STD_REWARD] = values[_REWARD].std
    return found


def of_statistics(value: Callable[[str], float | None]) -> dict[str, float]:
    """Return the metrics whose statistics have a value: name -> value.

    Args:
        value: called with a tag; returns its newest value, or None.
    """
    found = {metric: value(metric.tag) for metric in OF_STATISTICS}
    return {metric.name: number * metric.scale for metric, number in found.items() if number is not None}


def exposition(samples: Iterable[MetricSample]) -> str:
    """Format samples in Prometheus' text format 0.0.4. All are gauges: a resumed run may decrease values."""
    by_name: dict[str, list[str]] = {}
    for sample in samples:
        labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels.items())
        line = f"{PREFIX}{sample.name}{{{labels}}} {_number(sample.value)}"
        by_name.setdefault(sample.name, []).append(line)
    parts = []
    for name, lines in by_name.items():  # all lines of a metric must be consecutive
        parts += [f"# HELP {PREFIX}{name} {HELP[name]}", f"# TYPE {PREFIX}{name} gauge", *lines]
    return "".join(f"{part}\n" for part in parts)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    """Escape a label's value. Names come from environments and may contain any character, even a lone surrogate."""
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"')
