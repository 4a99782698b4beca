"""A configuration whose every line is explained: by the docstrings of the settings' classes, and why it was chosen."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import yaml

from trajtrainer.printable import one_line
from trajtrainer.settings.environment import EngineSettings, EnvironmentSettings
from trajtrainer.settings.meanings import meaning
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.rewards import REWARD_SIGNALS
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.suggestions import Choice, Section
from trajtrainer.settings.trainer import ALGORITHMS, SelfPlaySettings, TrainerSettings

_WIDTH = 118
_SECTIONS: dict[str, type[Any]] = {"network_settings": NetworkSettings, "self_play": SelfPlaySettings}
_OF_RUN: dict[str, type[Any]] = {"env_settings": EnvironmentSettings, "engine_settings": EngineSettings}


def write(
    head: Sequence[str],
    behaviors: Mapping[str, Section],
    about: Mapping[str, str],
    others: Mapping[str, Mapping[str, Any]],
) -> str:
    """Return a configuration as YAML.

    Args:
        head: lines at the top, which become comments.
        behaviors: what stands below ``behaviors``.
        about: name of a behavior -> what it is, in one line.
        others: ``env_settings`` and ``engine_settings``: key -> value.
    """
    lines = [*_comment(head, 0), "behaviors:"]
    for name, section in behaviors.items():
        lines += [*_comment([about[name]], 1), f"  {_scalar(name)}:", *_behavior(section)]
    for section_name, values in others.items():
        if values:
            told = meaning(RunSettings, section_name)
            lines += [*_comment([_sentence(told)], 0), f"{section_name}:"]
            lines += _section({key: Choice(value) for key, value in values.items()}, _OF_RUN[section_name], 1)
    return "\n".join(lines) + "\n"


def _behavior(section: Section) -> Iterator[str]:
    hyperparameters = ALGORITHMS[section["trainer_type"].value].settings
    for key, value in section.items():
        if isinstance(value, Choice):
            yield from _entry(key, value, TrainerSettings, 2)
            continue
        told = _summary(hyperparameters) if key == "hyperparameters" else _sentence(meaning(TrainerSettings, key))
        yield from _comment([told], 2)
        yield f"    {key}:"
        if key == "reward_signals":
            for name, signal in value.items():
                yield from _comment(["The rewards that the environment gives."], 3)
                yield f"      {name}:"
                yield from _section(signal, REWARD_SIGNALS[name].settings, 4)
        else:
            yield from _section(value, _SECTIONS.get(key, hyperparameters), 3)


def _section(section: Section, cls: type[Any], depth: int) -> Iterator[str]:
    for key, choice in section.items():
        yield from _entry(key, choice, cls, depth)


def _entry(key: str, choice: Choice, cls: type[Any], depth: int) -> Iterator[str]:
    told = [_sentence(meaning(attrs.resolve_types(cls), key))]
    yield from _comment([*told, f"Here: {choice.reason}."] if choice.reason else told, depth)
    value = _scalar(choice.value)
    yield f"{'  ' * depth}{key}: {value}"


def _comment(lines: Sequence[str], depth: int) -> Iterator[str]:
    prefix = "  " * depth + "# "
    for line in lines:
        yield from (textwrap.wrap(one_line(line), _WIDTH, initial_indent=prefix, subsequent_indent=prefix) or ["#"])


def _scalar(value: Any) -> str:
    """Return a value, or a list of values, on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    return text.removesuffix("\n...\n").rstrip("\n")


def _summary(cls: type[Any]) -> str:
    return _sentence(re.split(r"\n\s*\n", cls.__doc__ or "")[0])


def _sentence(text: str) -> str:
    """Return a docstring's text as one that stands alone."""
    text = " ".join(text.split()).replace("``", "").replace("ehaviour", "ehavior")
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."
