"""Brings what a user may write, including short and deprecated forms, into the form of the settings classes.

This works on the tree of the file, before any defaults are filled in. So ``default_settings`` passes on only what it
contains, and places remain those in the file.
"""

from __future__ import annotations

import copy
import logging

import attrs

from trajtrainer.settings.checks import Place
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.presets import PRESETS, stands_for
from trajtrainer.settings.yaml.document import PlacedValue, from_mapping

logger = logging.getLogger(__name__)

_DEFAULT_TRAINER = "ppo"
_AUTO_GAMMA = "auto_gamma"


class _Warnings:
    """Logs each warning once, although ``default_settings`` are processed again for every behavior."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, place: Place, message: str) -> None:
        text = f"{place}: {message}"
        if text not in self._seen:
            self._seen.add(text)
            logger.warning("%s", text)


def prepare(root: PlacedValue) -> None:
    """Bring a configuration into its full form, in place."""
    warn = _Warnings()
    sections = root.mapping
    default = sections.get("default_settings")
    if default is not None and default.content is not None:
        _modernize(default, warn)
    behaviors = _mapping(sections.get("behaviors"))
    for name, behavior in behaviors.items():
        _modernize(behavior, warn)
        if default is not None and isinstance(default.content, dict) and isinstance(behavior.content, dict):
            behavior = with_defaults(default, _with_preset(behavior, _trainer_type(behavior) or _trainer_type(default)))
        behavior = behaviors[name] = _with_preset(behavior, _trainer_type(behavior))
        _drop_unused(behavior, warn)
        _choose_discount(behavior, _trainer_type(behavior))
    if default is not None:
        default = sections["default_settings"] = _with_preset(default, _trainer_type(default))
        _drop_unused(default, warn)
        _choose_discount(default, _trainer_type(default))
    for name, parameter in _mapping(sections.get("environment_parameters")).items():
        if "curriculum" not in parameter.mapping:
            # A number or a sampler becomes a single lesson, with the name of the parameter.
            place = parameter.place
            lesson = PlacedValue(
                {"name": PlacedValue(name, place), "value": PlacedValue(parameter.content, place)}, place
            )
            parameter.content = {"curriculum": PlacedValue([lesson], place)}


def _mapping(entry: PlacedValue | None) -> dict[str, PlacedValue]:
    return {} if entry is None else entry.mapping


def prepare_behavior(behavior: PlacedValue) -> None:
    """Bring the settings of one behavior into their full form, in place and without ``default_settings``."""
    warn = _Warnings()
    _modernize(behavior, warn)
    behavior.content = _with_preset(behavior, _trainer_type(behavior)).content
    _drop_unused(behavior, warn)
    _choose_discount(behavior, _trainer_type(behavior))


def _modernize(behavior: PlacedValue, warn: _Warnings) -> None:
    """Remove ``framework``, and turn a ``dataset`` with a single file or folder into a list."""
    framework = behavior.mapping.pop("framework", None)
    if framework is not None:
        warn(framework.place, "this option was removed and is ignored: there is only PyTorch")
    dataset = behavior.mapping.get("dataset")
    if dataset is not None and isinstance(dataset.content, str):
        dataset.content = [PlacedValue(dataset.content, dataset.place)]


def _with_preset(behavior: PlacedValue, trainer_type: PlacedValue | None) -> PlacedValue:
    """Settings with their preset, if any, as defaults. Unknown presets are reported later."""
    entry = behavior.mapping.get("preset")
    if entry is None or not isinstance(entry.content, str) or entry.content not in PRESETS:
        return behavior
    settings = stands_for(entry.content, _DEFAULT_TRAINER if trainer_type is None else trainer_type.content)
    if settings is None:
        return behavior
    own = PlacedValue({**behavior.mapping, "preset": PlacedValue(None, entry.place)}, behavior.place)
    return _merged(from_mapping(settings, entry.place), own)


def with_defaults(default: PlacedValue, own: PlacedValue) -> PlacedValue:
    """Settings of a behavior with ``default_settings`` as defaults.

    If the behavior has another trainer, it gets only the default hyperparameters that its trainer has, too.
    """
    default = copy.deepcopy(default)
    default_type = _trainer_type(default) or PlacedValue(_DEFAULT_TRAINER, default.place)
    default.mapping.setdefault("trainer_type", default_type)
    own_type = _trainer_type(own) or default_type
    row = ALGORITHMS.get(own_type.content)
    if own_type.content != default_type.content and row is not None:
        known = attrs.fields_dict(row.settings)
        hyperparameters = _mapping(default.mapping.get("hyperparameters"))
        for name in set(hyperparameters) - set(known):
            del hyperparameters[name]
    if row is not None and not row.offline:
        default.mapping.pop("dataset", None)
    return _merged(default, own)


def _trainer_type(behavior: PlacedValue) -> PlacedValue | None:
    entry = behavior.mapping.get("trainer_type")
    return entry if entry is not None and isinstance(entry.content, str) else None


def _merged(below: PlacedValue, above: PlacedValue) -> PlacedValue:
    if not isinstance(below.content, dict) or not isinstance(above.content, dict):
        return above
    content = dict(below.content)
    for key, entry in above.content.items():
        content[key] = _merged(content[key], entry) if key in content else entry
    return PlacedValue(content, above.place)


def _drop_unused(behavior: PlacedValue, warn: _Warnings) -> None:
    """Replace deprecated options, and remove options without effect."""
    trainer_type = _trainer_type(behavior)
    row = None if trainer_type is None else ALGORITHMS.get(trainer_type.content)
    if row is not None and "buffer_size" not in attrs.fields_dict(row.settings):
        buffer_size = _mapping(behavior.mapping.get("hyperparameters")).pop("buffer_size", None)
        if buffer_size is not None:
            warn(buffer_size.place, "this is ignored, because this trainer_type has no buffer")
    for signal in _mapping(behavior.mapping.get("reward_signals")).values():
        encoding_size = signal.mapping.get("encoding_size")
        if encoding_size is not None and encoding_size.content is not None:
            warn(encoding_size.place, "this option is deprecated; use network_settings: hidden_units instead")
            if "network_settings" not in signal.mapping:
                network = PlacedValue({"hidden_units": copy.copy(encoding_size)}, encoding_size.place)
                signal.mapping["network_settings"] = network
        memory = _mapping(signal.mapping.get("network_settings")).get("memory")
        if memory is not None and memory.content is not None:
            warn(memory.place, "this is ignored, because reward signals have no memory")
            memory.content = None


def _choose_discount(behavior: PlacedValue, trainer_type: PlacedValue | None) -> None:
    """Let algorithms with ``auto_gamma`` choose the discount of the extrinsic signal, unless it is given."""
    row = None if trainer_type is None else ALGORITHMS.get(trainer_type.content)
    if row is None or _AUTO_GAMMA not in attrs.fields_dict(row.settings) or not isinstance(behavior.content, dict):
        return
    signals = behavior.mapping.get("reward_signals")
    extrinsic = None if signals is None else _mapping(signals).get("extrinsic")
    if (extrinsic is None and signals is not None) or "gamma" in _mapping(extrinsic):
        return
    hyperparameters = behavior.mapping.setdefault("hyperparameters", PlacedValue({}, behavior.place))
    if isinstance(hyperparameters.content, dict):
        hyperparameters.mapping.setdefault(_AUTO_GAMMA, PlacedValue(True, behavior.place))
