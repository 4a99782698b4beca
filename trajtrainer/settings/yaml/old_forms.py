"""Converts configurations from ML-Agents before 0.19 to the current form (docs/train/migration.md#old-configurations).

The conversion works on the tree of the file, so that messages can refer to places in it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from attrs import fields_dict

from trajtrainer.settings.checks import ConfigurationError, InvalidValueError, Place, Problem
from trajtrainer.settings.components import ALGORITHMS, algorithm_named
from trajtrainer.settings.run import SEARCH_SECTION, RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.document import PlacedValue, real_number, unwrapped
from trajtrainer.settings.yaml.prepare import with_defaults

_SECTIONS = {*fields_dict(RunSettings), *fields_dict(TrainerSettings), SEARCH_SECTION}
_NETWORK = {"normalize", "hidden_units", "num_layers", "vis_encode_type"}
_MEMORY = {"sequence_length", "memory_size"}
_CURIOSITY = {"use_curiosity", "curiosity_strength", "curiosity_enc_size"}
_UPDATES = {"train_interval", "num_update"}
_SIGNAL_UPDATES = ("reward_signal_steps_per_update", "reward_signal_num_update")
_MULTIRANGE = {"multirange_uniform": "multirangeuniform"}
_SAMPLER_TYPES = ("sampler-type", "sampler_type")
_OLD_SECTIONS = ("curriculum", "parameter_randomization")
_INTERVAL = "resampling-interval"
_RENAMED = {"pretraining": "behavioral_cloning"}
_NO_PLACE = "has no equivalent in the current format and was dropped"


@cache
def _hyperparameters() -> set[str]:
    return {key for name in ("ppo", "poca", "sac") for key in fields_dict(ALGORITHMS[name].settings)}


def is_old(root: PlacedValue) -> bool:
    """Return whether a configuration has an outdated form, such as flat behaviors or ``curriculum``."""
    return (
        any(name in root.mapping for name in (*_OLD_SECTIONS, _INTERVAL))
        or any(_is_flat(entry) or _kind(entry) for _, entry in _others(root))
        or any("trainer" in entry.mapping and _is_flat(entry) for entry in root.at("behaviors").mapping.values())
    )


def problem_of_old_form(root: PlacedValue) -> Problem:
    """Return the problem to report when a user starts a run with an old configuration."""
    source = root.place.source
    message = (
        "has the format of ML-Agents before 0.19, such as settings directly below 'default' or a behavior's name. "
        f"Convert it with 'trajtrainer config {source} > NEW.yaml', read the warnings, and use NEW.yaml"
    )
    return Problem(Place(source), message)


def convert(root: PlacedValue) -> list[Problem]:
    """Convert an old configuration to the current form, in place.

    Returns:
        A note for each setting that could not be converted, with the reason.

    Raises:
        ConfigurationError: the lists of a curriculum have inconsistent lengths, or text instead of a number.
    """
    notes: list[Problem] = []
    flat, curriculum, samplers = _sort(root, notes)
    behaviors = root.at("behaviors")
    nested = behaviors.mapping
    flat |= {name: entry for name, entry in nested.items() if _is_flat(entry)}
    default = flat.pop("default", None)
    base = default.mapping if default else {}
    converted = {name: _behavior(base, entry, notes) for name, entry in flat.items()}
    found = {name: converted.get(name, entry) for name, entry in {**nested, **converted}.items()}
    if found:
        root.mapping["behaviors"] = PlacedValue(found, behaviors.place)
    if default is not None:
        settings = _behavior({}, default, notes)
        if all(with_defaults(settings, each).plain() == each.plain() for each in converted.values()):
            root.mapping["default_settings"] = settings
        else:
            message = (
                "was merged into every behavior of the file, and is not kept as default_settings: in the current "
                "format, these would add reward signals and sections that the behaviors replaced in the old format"
            )
            notes.append(Problem(default.place, message))
    _move_checkpoint_settings(root, notes)
    parameters = {name: _sampler(entry) for name, entry in samplers.items()}
    for name, entry in curriculum.items():
        parameters |= _lessons(name, entry)
    if parameters:
        root.mapping.setdefault("environment_parameters", PlacedValue({}, root.place)).mapping.update(parameters)
    return list(dict.fromkeys(notes))


def _sort(
    root: PlacedValue, notes: list[Problem]
) -> tuple[dict[str, PlacedValue], dict[str, PlacedValue], dict[str, PlacedValue]]:
    """Remove old entries from the top level of a file, and return flat behaviors, curricula and samplers by name."""
    sections = [root.mapping.pop(name, None) for name in _OLD_SECTIONS]
    inside = [pair for section in sections if section for pair in section.mapping.items()]
    top = dict(_others(root))
    for name in top:
        del root.mapping[name]
    found: dict[str, dict[str, PlacedValue]] = {"behavior": {}, "curriculum": {}, "sampler": {}}
    for name, entry in [*top.items(), *inside]:
        kind = _kind(entry)
        if name == _INTERVAL:
            notes.append(Problem(entry.place, f"{_NO_PLACE}: samplers are drawn at the beginning of each episode"))
        elif kind:
            found[kind][name] = entry
        elif name in top and isinstance(entry.content, str) and entry.content in top:
            found["behavior"][name] = top[entry.content]  # another behavior's name instead of settings
        elif name in top and (isinstance(entry.content, dict) or entry.content is None):
            found["behavior"][name] = entry
        else:
            notes.append(Problem(entry.place, _NO_PLACE))
    return found["behavior"], found["curriculum"], found["sampler"]


def _others(root: PlacedValue) -> Iterator[tuple[str, PlacedValue]]:
    """Yield the top-level entries that are not sections of the current format."""
    for name, entry in root.mapping.items():
        if name not in _SECTIONS:
            yield name, entry


def _is_flat(entry: PlacedValue) -> bool:
    keys = entry.mapping.keys()
    if not keys or keys & {"trainer_type", "hyperparameters", "network_settings"}:
        return False
    flat = _NETWORK | _MEMORY | _CURIOSITY | _UPDATES | _hyperparameters() | {"use_recurrent"}
    return bool(keys & flat)


def _kind(entry: PlacedValue) -> str:
    """Return ``curriculum`` or ``sampler`` if the entry is clearly one of these, otherwise an empty string."""
    if {"thresholds", "parameters"} <= entry.mapping.keys():
        return "curriculum"
    return "sampler" if any(key in entry.mapping for key in _SAMPLER_TYPES) else ""


def _behavior(base: Mapping[str, PlacedValue], own: PlacedValue, notes: list[Problem]) -> PlacedValue:
    """Convert the settings of one behavior. In the old format, its keys override those of ``default``."""
    place = own.place
    flat = {_RENAMED.get(key, key): entry for key, entry in {**base, **own.mapping}.items()}
    trainer_type = flat.pop("trainer", PlacedValue("ppo", place))
    row = algorithm_named(trainer_type.content)
    known: Collection[str] = fields_dict(row.settings) if row is not None else _hyperparameters()
    hyperparameters: dict[str, PlacedValue] = {}
    network: dict[str, PlacedValue] = {}
    settings: dict[str, PlacedValue] = {"trainer_type": trainer_type}
    signals = _reward_signals(flat)
    for key in ("gamma", *_CURIOSITY):
        if key in own.mapping and "reward_signals" in flat:
            notes.append(Problem(flat[key].place, f"{_NO_PLACE}: reward_signals has these settings"))
        flat.pop(key, None)
    flat["reward_signals"] = signals
    updates = flat.pop("num_update", None)
    if (interval := flat.pop("train_interval", None)) or updates:
        flat.setdefault("steps_per_update", _ratio(interval, updates, place))
    for name in _SIGNAL_UPDATES:
        if (entry := signals.mapping.pop(name, None)) is not None:
            flat[_SIGNAL_UPDATES[0]] = entry if name == _SIGNAL_UPDATES[0] else _ratio(interval, entry, place)
    recurrent = flat.pop("use_recurrent", None)
    memory = {key: flat.pop(key) for key in sorted(_MEMORY) if key in flat}
    is_recurrent = recurrent is not None and unwrapped(recurrent.content) is True
    network["memory"] = PlacedValue(memory if is_recurrent else None, recurrent.place if recurrent else place)
    for key, entry in flat.items():
        if key in _NETWORK:
            network[key] = entry
        elif key in known:
            hyperparameters[key] = entry
        elif key in fields_dict(TrainerSettings):
            settings[key] = entry
        elif key in own.mapping:
            why = f" with trainer {trainer_type.content}" if key in _hyperparameters() else ""
            notes.append(Problem(entry.place, f"{_NO_PLACE}{why}"))
    settings |= {
        "hyperparameters": PlacedValue(hyperparameters, place),
        "network_settings": PlacedValue(network, place),
    }
    found = copy.deepcopy(PlacedValue(settings, place))
    self_play = found.at("self_play").mapping
    if "play_against_current_self_ratio" in self_play:
        self_play["play_against_latest_model_ratio"] = self_play.pop("play_against_current_self_ratio")
    return found


def _reward_signals(flat: Mapping[str, PlacedValue]) -> PlacedValue:
    """Convert the reward signals of a behavior. In the oldest form, they were keys of the behavior itself."""
    given = flat.get("reward_signals")
    if given is not None:
        signals = copy.deepcopy(given)
        for signal in signals.mapping.values():
            size = signal.mapping.pop("encoding_size", None)
            if size is not None and unwrapped(size.content) is not None:
                signal.mapping["network_settings"] = PlacedValue({"hidden_units": size}, size.place)
        return signals
    place = next((flat[key].place for key in ("gamma", *_CURIOSITY) if key in flat), Place(""))
    gamma = {"gamma": flat["gamma"]} if "gamma" in flat else {}
    found = {"extrinsic": PlacedValue(dict(gamma), place)}
    use = flat.get("use_curiosity")
    if use is not None and unwrapped(use.content) is True:
        curiosity = dict(gamma)
        if "curiosity_strength" in flat:
            curiosity["strength"] = flat["curiosity_strength"]
        if (size := flat.get("curiosity_enc_size")) is not None:
            curiosity["network_settings"] = PlacedValue({"hidden_units": size}, size.place)
        found["curiosity"] = PlacedValue(curiosity, use.place)
    return PlacedValue(found, place)


def _ratio(interval: PlacedValue | None, updates: PlacedValue | None, place: Place) -> PlacedValue:
    """Return ``steps_per_update`` for ``updates`` updates every ``interval`` steps."""
    one = PlacedValue(1.0, place)
    numbers = []
    for entry in (interval or one, updates or one):
        try:
            numbers.append(real_number(entry.content))
        except InvalidValueError as error:
            raise ConfigurationError([Problem(entry.place, str(error))]) from None
    return PlacedValue(numbers[0] / max(numbers[1], 1.0), (updates or interval or one).place)


def _move_checkpoint_settings(root: PlacedValue, notes: list[Problem]) -> None:
    """Copy checkpoint settings, which used to be global, to every behavior, and drop the lesson number."""
    given = root.at("checkpoint_settings").mapping
    every = [*root.at("behaviors").mapping.values(), root.at("default_settings")]
    for old, new in (("save_freq", "checkpoint_interval"), ("keep_checkpoints", "keep_checkpoints")):
        if (value := given.pop(old, None)) is not None:
            for behavior in every:
                behavior.mapping.setdefault(new, copy.deepcopy(value))
    if (lesson := given.pop("lesson", None)) is not None and unwrapped(lesson.content) != 0:
        notes.append(Problem(lesson.place, f"{_NO_PLACE}: --resume continues with the lesson of the run"))


def _sampler(entry: PlacedValue) -> PlacedValue:
    """Convert a sampler to the current form, which has its parameters in a separate mapping."""
    flat = dict(entry.mapping)
    kind = next(flat.pop(key) for key in _SAMPLER_TYPES if key in flat)
    kind = PlacedValue(_MULTIRANGE.get(str(kind.content), kind.content), kind.place)
    parameters = flat.pop("sampler_parameters", None) or PlacedValue(flat, entry.place)
    return PlacedValue({"sampler_type": kind, "sampler_parameters": parameters}, entry.place)


def _lessons(behavior: str, entry: PlacedValue) -> dict[str, PlacedValue]:
    """Convert the curriculum of one behavior to the lessons of each parameter."""
    flat, place = entry.mapping, entry.place
    thresholds = flat["thresholds"].content if isinstance(flat["thresholds"].content, list) else []
    criteria: dict[str, PlacedValue] = {
        key: flat[key] for key in ("measure", "min_lesson_length", "signal_smoothing") if key in flat
    }
    # In the old form, every lesson started with a reset.
    criteria |= {"behavior": PlacedValue(behavior, place), "require_reset": PlacedValue(True, place)}
    found: dict[str, PlacedValue] = {}
    problems = []
    for name, parameter in flat["parameters"].mapping.items():
        values = parameter.content if isinstance(parameter.content, list) else []
        if len(values) != len(thresholds) + 1:
            message = f"found {len(values)} values, expected {len(thresholds) + 1}, one more than the thresholds"
            problems.append(Problem(parameter.place, message))
        lessons = []
        for number, value in enumerate(values):
            lesson = {"name": PlacedValue(f"Lesson{number}", value.place), "value": value}
            if number < len(thresholds):
                done = {**copy.deepcopy(criteria), "threshold": thresholds[number]}
                lesson["completion_criteria"] = PlacedValue(done, thresholds[number].place)
            lessons.append(PlacedValue(lesson, value.place))
        found[name] = PlacedValue({"curriculum": PlacedValue(lessons, parameter.place)}, parameter.place)
    if problems:
        raise ConfigurationError(problems)
    return found
