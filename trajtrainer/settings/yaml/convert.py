"""Converts between YAML and settings. All problems in a file are reported at once, each with its line and path."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import yaml
from attrs import evolve

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.filenames import open_regular
from trajtrainer.core.spelling import closest
from trajtrainer.settings.checks import ConfigurationError, Place, Problem
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.presets import builtin_hint
from trajtrainer.settings.run import SEARCH_SECTION, RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.document import PlacedValue, from_mapping, read
from trajtrainer.settings.yaml.old_forms import is_old, problem_of_old_form
from trajtrainer.settings.yaml.prepare import prepare, prepare_behavior
from trajtrainer.settings.yaml.structuring import CONVERTER, INVALID, faults

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings")

# Much larger than any configuration, but small enough to be read in a few seconds.
_MAX_BYTES = 1_000_000
_MAX_BEHAVIORS = 1000


def load(text: str, filename: str) -> RunSettings:
    """Return the settings in a YAML text. ``filename`` is used in messages.

    Raises:
        ConfigurationError: the text is invalid; the message lists all problems.
    """
    root, problems = read_document(text, filename)
    return run_settings(root, problems)


def read_file(path: Path) -> tuple[PlacedValue, list[Problem]]:
    """Read a YAML file. Return its tree, and problems such as duplicate keys, which do not prevent reading it.

    Raises:
        SettingsError: the file does not exist or cannot be read.
        ConfigurationError: the file is not UTF-8 text, not YAML, empty, or not a mapping.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        beside = [other.name for other in path.absolute().parent.glob("*.y*ml")]
        built_in = builtin_hint(path)
        hint = f"{built_in}." if built_in else closest(path.name, beside) or "."
        raise SettingsError(f"Config file could not be found at {path.absolute()}{hint}") from None
    except OSError as error:
        raise SettingsError(f"The config file {path.absolute()} cannot be read: {error.strerror}.") from error
    if len(data) > _MAX_BYTES:
        message = f"has more than {_MAX_BYTES:,} bytes; is it the right file? Expected a configuration in YAML"
        raise ConfigurationError([Problem(Place(str(path)), message)])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = Place(str(path), data.count(b"\n", 0, error.start) + 1)
        message = f"is not UTF-8 text (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        raise ConfigurationError([Problem(place, message)]) from None
    return read_document(text, str(path))


def read_document(text: str, filename: str) -> tuple[PlacedValue, list[Problem]]:
    """Read a YAML text. Return its tree, and problems such as duplicate keys, which do not prevent reading it.

    Raises:
        ConfigurationError: the text is not YAML, empty, or not a mapping.
    """
    root, problems = read(text, filename)
    expected = "expected a mapping with sections such as 'behaviors:'"
    if root is None or root.content is None:
        raise ConfigurationError([Problem(Place(filename), f"is empty, {expected}")])
    if not isinstance(root.content, dict):
        kind = "list" if isinstance(root.content, list) else "value"
        raise ConfigurationError([Problem(Place(filename, 1), f"found a {kind} at the top level, {expected}")])
    return root, problems


def run_settings(
    root: PlacedValue,
    problems: Iterable[Problem] = (),
    *,
    missing: Sequence[Problem] = (),
    behaviors_required: bool = True,
) -> RunSettings:
    """Build the settings from a configuration's tree. The tree is modified.

    Args:
        root: the tree.
        problems: problems already found.
        missing: missing recordings. If there are no other problems, they are recorded in the settings.
        behaviors_required: treat a behavior that the configuration does not cover as an error.

    Raises:
        ConfigurationError: there are new or known problems. The message also lists those in ``missing``.
    """
    if is_old(root):
        raise ConfigurationError([problem_of_old_form(root)])
    behaviors = root.at("behaviors")
    if len(behaviors.mapping) > _MAX_BEHAVIORS:
        message = f"found {len(behaviors.mapping)} behaviors, expected at most {_MAX_BEHAVIORS}"
        raise ConfigurationError([*problems, Problem(behaviors.place, message)])
    root.mapping.pop(SEARCH_SECTION, None)
    prepare(root)
    try:
        settings = structure(root, RunSettings, problems)
    except ConfigurationError as error:
        raise ConfigurationError([*missing, *error.problems]) from None
    _advise(settings)
    return evolve(settings, behaviors_required=behaviors_required, missing_recordings=tuple(missing))


def trainer_settings(mapping: Mapping[str, Any], name: str = "behavior") -> TrainerSettings:
    """Build the settings of one behavior from a mapping like the one under its name in a file.

    Raises:
        ConfigurationError: the mapping contains errors.
    """
    root = from_mapping(mapping, Place(name))
    prepare_behavior(root)
    return structure(root, TrainerSettings)


def structure(root: PlacedValue, cls: type[Settings], problems: Iterable[Problem] = ()) -> Settings:
    """Build a settings object from a tree. ``problems`` are problems already found.

    Raises:
        ConfigurationError: there are new or known problems.
    """
    found = list(problems)
    try:
        settings = CONVERTER.structure(root.plain(), cls)
    except INVALID as error:
        found += (Problem(root.locate(fault.path), fault.message) for fault in faults(error))
    if found:
        raise ConfigurationError(found)
    return settings


def _advise(settings: RunSettings) -> None:
    """Warn about valid settings that are probably mistakes."""
    if settings.default_settings is not None:
        _advise_on_batches("default_settings", settings.default_settings)
    for name, behavior in settings.behaviors.items():
        _advise_on_batches(f"Behavior {name!r}", behavior)
        if "?team=" in name:
            logger.warning("Behavior %r never matches: list behaviors without '?team='.", name)
        self_play = behavior.self_play
        if self_play is None:
            continue
        if not 0 <= self_play.play_against_latest_model_ratio <= 1:
            logger.warning("Behavior %r: play_against_latest_model_ratio should be from 0 to 1.", name)
        if behavior.max_steps < self_play.team_change:
            logger.warning("Behavior %r: team_change is greater than max_steps, so only one team will learn.", name)
    for parameter, lessons in (settings.environment_parameters or {}).items():
        if lessons.curriculum[-1].completion_criteria is not None:
            logger.warning("Parameter %r: the completion_criteria of the last lesson are never used.", parameter)


def _advise_on_batches(whose: str, behavior: TrainerSettings) -> None:
    hyper = behavior.hyperparameters
    # On-policy trainers update when the buffer has more than buffer_size steps.
    if hyper.batch_size > behavior.buffer_size + (not ALGORITHMS[behavior.trainer_type].replays):
        message = "%s: batch_size (%d) is greater than buffer_size (%d): a batch cannot be larger than the buffer."
        logger.warning(message, whose, hyper.batch_size, behavior.buffer_size)


def to_mapping(settings: RunSettings) -> dict[str, Any]:
    """Return the settings as plain values that ML-Agents can read, in the order of ML-Agents' configuration.yaml.

    Options that ML-Agents does not have are included only if they differ from their defaults, or if
    ``default_settings`` would otherwise override them.
    """
    mapping: dict[str, Any] = CONVERTER.unstructure(settings)
    if settings.default_settings is not None:
        for name, behavior in settings.behaviors.items():
            _spell_out(behavior, mapping["behaviors"][name], mapping["default_settings"])
    return mapping


def _spell_out(settings: Any, mapping: dict[str, Any], default: dict[str, Any]) -> None:
    """Add all options to ``mapping`` that are only present in ``default``, section by section."""
    for field in attrs.fields(type(settings)):
        value, below = getattr(settings, field.name), default.get(field.name)
        if field.name not in mapping and field.name in default:
            mapping[field.name] = CONVERTER.unstructure(value)
        elif attrs.has(type(value)) and isinstance(below, dict):
            _spell_out(value, mapping[field.name], below)
        elif isinstance(value, dict) and isinstance(below, dict):
            for name in value.keys() & below.keys():
                _spell_out(value[name], mapping[field.name][name], below[name])


def trainer_mapping(settings: TrainerSettings) -> dict[str, Any]:
    """Return the settings of one behavior as plain values, in the order of ``to_mapping``."""
    mapping: dict[str, Any] = CONVERTER.unstructure(settings)
    return mapping


def dump(settings: RunSettings) -> str:
    """Return the settings as ASCII YAML that ``load`` and ML-Agents can read."""
    text: str = yaml.safe_dump(to_mapping(settings), sort_keys=False)
    return text
