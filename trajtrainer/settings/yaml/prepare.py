"""Converts short and deprecated forms in a configuration to the form that the settings classes expect.

The conversion works on the tree of the file, before any defaults are filled in. Therefore, behaviors only inherit
settings that ``default_settings`` contains, and error messages can still refer to places in the file.
"""

from __future__ import annotations

import copy
import logging

import attrs

from trajtrainer.settings.checks import Problem
from trajtrainer.settings.components import algorithm_named
from trajtrainer.settings.presets import PRESETS, stands_for
from trajtrainer.settings.yaml.document import PlacedValue, from_mapping

logger = logging.getLogger(__name__)

_DEFAULT_TRAINER = "ppo"
_AUTO_GAMMA = "auto_gamma"


def prepare(root: PlacedValue) -> None:
    """Convert a configuration to its full form, in place."""
    notes: list[Problem] = []
    default = root.at("default_settings")
    _modernize(default, notes)
    behaviors = root.at("behaviors").mapping
    for name, behavior in behaviors.items():
        behaviors[name] = _prepared(behavior, default, notes)
    if "default_settings" in root.mapping:
        root.mapping["default_settings"] = _prepared(default, PlacedValue(None, default.place), notes)
    for name, parameter in root.at("environment_parameters").mapping.items():
        if "curriculum" not in parameter.mapping:
            # A number or a sampler becomes a single lesson, named like the parameter.
            place = parameter.place
            lesson = {"name": PlacedValue(name, place), "value": PlacedValue(parameter.content, place)}
            parameter.content = {"curriculum": PlacedValue([PlacedValue(lesson, place)], place)}
    _warn(notes)


def prepare_behavior(behavior: PlacedValue) -> None:
    """Convert the settings of one behavior to their full form, in place. ``default_settings`` are not applied."""
    notes: list[Problem] = []
    behavior.content = _prepared(behavior, PlacedValue(None, behavior.place), notes).content
    _warn(notes)


def _warn(notes: list[Problem]) -> None:
    for note in dict.fromkeys(notes):  # once each, although ``default_settings`` is processed again for every behavior
        logger.warning("%s", note)


def _prepared(behavior: PlacedValue, default: PlacedValue, notes: list[Problem]) -> PlacedValue:
    """Return the full form of a behavior's settings, with ``default_settings`` as defaults."""
    _modernize(behavior, notes)
    if isinstance(default.content, dict) and isinstance(behavior.content, dict):
        behavior = with_defaults(default, _with_preset(behavior, _trainer_type(behavior) or _trainer_type(default)))
    behavior = _with_preset(behavior, _trainer_type(behavior))
    _drop_unused(behavior, notes)
    _choose_discount(behavior)
    return behavior


def _modernize(behavior: PlacedValue, notes: list[Problem]) -> None:
    """Remove ``framework``, and convert a ``dataset`` given as a single file or folder to a list."""
    framework = behavior.mapping.pop("framework", None)
    if framework is not None:
        notes.append(Problem(framework.place, "this option was removed and is ignored: PyTorch is always used"))
    dataset = behavior.at("dataset")
    if isinstance(dataset.content, str):
        dataset.content = [PlacedValue(dataset.content, dataset.place)]


def _with_preset(behavior: PlacedValue, trainer_type: PlacedValue | None) -> PlacedValue:
    """Return the settings with their preset, if any, as defaults. Unknown presets are reported later."""
    entry = behavior.at("preset")
    if not isinstance(entry.content, str) or entry.content not in PRESETS:
        return behavior
    settings = stands_for(entry.content, _DEFAULT_TRAINER if trainer_type is None else trainer_type.content)
    if settings is None:
        return behavior
    own = PlacedValue({**behavior.mapping, "preset": PlacedValue(None, entry.place)}, behavior.place)
    return _merged(from_mapping(settings, entry.place), own)


def with_defaults(default: PlacedValue, own: PlacedValue) -> PlacedValue:
    """Return the settings of a behavior with ``default_settings`` as defaults.

    If the behavior has another trainer type, it inherits only hyperparameters that its own trainer type supports.
    """
    default = copy.deepcopy(default)
    default_type = _trainer_type(default) or PlacedValue(_DEFAULT_TRAINER, default.place)
    default.mapping.setdefault("trainer_type", default_type)
    own_type = _trainer_type(own) or default_type
    row = algorithm_named(own_type.content)
    if own_type.content != default_type.content and row is not None:
        known = attrs.fields_dict(row.settings)
        hyperparameters = default.at("hyperparameters").mapping
        for name in set(hyperparameters) - set(known):
            del hyperparameters[name]
    if row is not None and not row.offline:
        default.mapping.pop("dataset", None)
    return _merged(default, own)


def _trainer_type(behavior: PlacedValue) -> PlacedValue | None:
    entry = behavior.at("trainer_type")
    return entry if isinstance(entry.content, str) else None


def _merged(below: PlacedValue, above: PlacedValue) -> PlacedValue:
    if not isinstance(below.content, dict) or not isinstance(above.content, dict):
        return above
    content = dict(below.content)
    for key, entry in above.content.items():
        content[key] = _merged(content[key], entry) if key in content else entry
    return PlacedValue(content, above.place)


def _drop_unused(behavior: PlacedValue, notes: list[Problem]) -> None:
    """Replace deprecated options, and remove options that have no effect."""
    row = algorithm_named(behavior.at("trainer_type").content)
    if row is not None and "buffer_size" not in attrs.fields_dict(row.settings):
        buffer_size = behavior.at("hyperparameters").mapping.pop("buffer_size", None)
        if buffer_size is not None:
            notes.append(Problem(buffer_size.place, "this is ignored, because this trainer_type has no buffer"))
    for signal in behavior.at("reward_signals").mapping.values():
        encoding_size = signal.at("encoding_size")
        if encoding_size.content is not None:
            notes.append(
                Problem(encoding_size.place, "this option is deprecated; use network_settings: hidden_units instead")
            )
            if "network_settings" not in signal.mapping:
                network = PlacedValue({"hidden_units": copy.copy(encoding_size)}, encoding_size.place)
                signal.mapping["network_settings"] = network
        memory = signal.at("network_settings", "memory")
        if memory.content is not None:
            notes.append(Problem(memory.place, "this is ignored, because reward signals have no memory"))
            memory.content = None


def _choose_discount(behavior: PlacedValue) -> None:
    """Let algorithms with ``auto_gamma`` choose the discount factor of the extrinsic signal, unless it is given."""
    row = algorithm_named(behavior.at("trainer_type").content)
    if row is None or _AUTO_GAMMA not in attrs.fields_dict(row.settings):
        return
    has_extrinsic = "reward_signals" not in behavior.mapping or "extrinsic" in behavior.at("reward_signals").mapping
    if has_extrinsic and "gamma" not in behavior.at("reward_signals", "extrinsic").mapping:
        hyperparameters = behavior.mapping.setdefault("hyperparameters", PlacedValue({}, behavior.place))
        hyperparameters.mapping.setdefault(_AUTO_GAMMA, PlacedValue(True, behavior.place))
