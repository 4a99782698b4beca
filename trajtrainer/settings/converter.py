"""The one converter between plain mappings and the settings classes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import cache, partial
from typing import Any, get_origin

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_unstructure_fn, override

from trajtrainer.settings.checks import Fault, InvalidValueError, closest, misfit, nearest, row_of
from trajtrainer.settings.environment import SAMPLERS, ConstantSettings, Lesson, Sampler
from trajtrainer.settings.hyperparameters import ALGORITHMS, Hyperparameters
from trajtrainer.settings.rewards import REWARD_SIGNALS, RewardSignalSettings
from trajtrainer.settings.scalars import (
    enum_member,
    real_number,
    refusal,
    text,
    text_or_number,
    truth_value,
    unwrapped,
    whole_number,
)
from trajtrainer.settings.structuring import (
    Hook,
    as_meant,
    beside,
    class_hook,
    gather,
    likeliest,
    list_hook,
    mapping_hook,
)
from trajtrainer.settings.trainer import TrainerSettings

_RewardSignals = dict[str, RewardSignalSettings]
_Interval = tuple[float, float]


def _trainer_hook(converter: Converter) -> Hook:
    """Return a behaviour: the class of its hyperparameters depends on its trainer_type."""

    @cache
    def hook_for(hyperparameters: Any) -> Hook:
        return class_hook(converter, TrainerSettings, hyperparameters=hyperparameters)

    def structure(value: Any, cls: Any) -> TrainerSettings:
        meant = as_meant(value, attrs.fields_dict(TrainerSettings))
        found = []
        if "hyperparameters" in meant and "trainer_type" not in meant:
            message = f"these need a trainer_type beside them: {', '.join(ALGORITHMS)}"
            found.append(Fault(("hyperparameters",), message))
        name = meant.get("trainer_type")
        if not isinstance(name, str) or name not in ALGORITHMS:
            builtin = {each: row.settings for each, row in ALGORITHMS.builtin.items() if not row.offline}
            name = likeliest(builtin, meant.get("hyperparameters"))
        row = ALGORITHMS.get(name) if name is not None else None
        if row is None and isinstance(value, dict):  # the hyperparameters may be anything
            value = {key: inner for key, inner in value.items() if key != "hyperparameters"}
        hyperparameters: Any = row.settings if row is not None else ALGORITHMS["ppo"].settings
        given = value.get("hyperparameters") if isinstance(value, dict) else None
        if row is not None and name is not None and name == meant.get("trainer_type") and isinstance(given, dict):
            strange = _of_other_trainers(given, name, row.settings)
            found += [Fault(("hyperparameters", key), message) for key, message in strange.items()]
            value = {**value, "hyperparameters": {key: given[key] for key in given if key not in strange}}
        with beside(found):
            trainer: TrainerSettings = hook_for(hyperparameters)(value, cls)
        return trainer

    return structure


def _of_other_trainers(hyperparameters: dict[str, Any], name: str, own: type[Any]) -> dict[str, str]:
    """Return what is wrong with the keys that this trainer does not know, but built-in ones do: key -> message."""
    found = {}
    for key in hyperparameters:
        knowing = [each for each, row in ALGORITHMS.builtin.items() if key in attrs.fields_dict(row.settings)]
        if knowing and key not in attrs.fields_dict(own):
            found[key] = f"is for trainer_type {', '.join(knowing)}; found trainer_type {name}"
    return found


def _reward_signals_hook(converter: Converter) -> Hook:
    def one(name: str, value: Any) -> tuple[str, RewardSignalSettings]:
        if name not in REWARD_SIGNALS:
            message = (
                f"unknown reward signal, expected one of {', '.join(REWARD_SIGNALS)}{closest(name, REWARD_SIGNALS)}"
            )
            meant = nearest(name, REWARD_SIGNALS)
            with beside([Fault((), message)]):
                if meant is not None:
                    one(meant, value)
        return name, converter.structure(value, row_of(REWARD_SIGNALS, name).settings)

    def structure(value: Any, _type: Any) -> _RewardSignals:
        if not isinstance(value, dict):
            raise refusal(value, "a mapping of reward signals")
        return dict(gather((name, partial(one, name, inner)) for name, inner in value.items()))

    return structure


def _sampler_hook(converter: Converter) -> Hook:
    keys = ("sampler_type", "sampler_parameters")

    def structure(value: Any, _type: Any) -> Sampler:
        if not isinstance(value, dict):
            try:
                return ConstantSettings(value=real_number(value))
            except InvalidValueError:
                raise refusal(value, f"a number, or a mapping with {' and '.join(keys)}") from None
        meant = as_meant(value, keys)
        found = [Fault((key,), f"unknown option{closest(key, keys)}") for key in value if key not in keys]
        found += [
            Fault((key,), "is missing: a sampler needs both " + " and ".join(keys)) for key in keys if key not in meant
        ]
        name, parameters = meant.get(keys[0]), meant.get(keys[1])
        cls = SAMPLERS.get(name) if isinstance(name, str) else None
        if cls is None and keys[0] in meant:
            hint = closest(name, SAMPLERS) if isinstance(name, str) else ""
            found.append(misfit((keys[0],), unwrapped(name), f"one of {', '.join(SAMPLERS)}{hint}"))
        cls = cls or SAMPLERS.get(likeliest(SAMPLERS, parameters) or "")
        if cls is None or keys[1] not in meant:
            raise InvalidValueError(*found)
        with beside(found):
            (sampler,) = gather([(keys[1], partial(converter.structure, parameters, cls))])
        return sampler

    return structure


def _interval(value: Any, _type: Any) -> _Interval:
    if not isinstance(value, list) or len(value) != 2:
        found = [unwrapped(item) for item in value] if isinstance(value, list) else value
        raise refusal(found, "exactly two numbers [low, high]")
    low, high = gather((str(index), partial(real_number, item)) for index, item in enumerate(value))
    return low, high


def _register_structuring(converter: Converter) -> None:
    converter.register_structure_hook(int, whole_number)
    converter.register_structure_hook(float, real_number)
    converter.register_structure_hook(bool, truth_value)
    converter.register_structure_hook(str, text)
    factory = converter.register_structure_hook_factory
    factory(attrs.has, lambda cls: class_hook(converter, cls))
    factory(_has_origin(dict), lambda cls: mapping_hook(converter, cls))
    factory(_has_origin(list), lambda cls: list_hook(converter, cls))
    # Registered later, asked earlier.
    factory(lambda cls: cls is TrainerSettings, lambda _cls: _trainer_hook(converter))
    hook = converter.register_structure_hook_func
    hook(lambda cls: isinstance(cls, type) and issubclass(cls, enum.Enum), enum_member)
    hook(lambda cls: cls == str | int, text_or_number)
    hook(lambda cls: cls == Sampler, _sampler_hook(converter))
    hook(lambda cls: cls == _RewardSignals, _reward_signals_hook(converter))
    hook(lambda cls: cls == _Interval, _interval)


def _has_origin(origin: type) -> Callable[[Any], bool]:
    return lambda cls: get_origin(cls) is origin


def _register_unstructuring(converter: Converter) -> None:
    """Dump settings as ML-Agents does; options that it does not know are left out unless they were changed.

    See docs/mlagents-behavior.md#configuration.
    """
    converter.register_unstructure_hook_factory(attrs.has, partial(_dump_hook, converter))
    hook = converter.register_unstructure_hook_func
    hook(lambda cls: cls == _Interval, list)
    hook(lambda cls: cls is Hyperparameters, converter.unstructure)  # by their own class
    hook(
        lambda cls: cls == _RewardSignals,
        lambda signals: {name: converter.unstructure(each) for name, each in signals.items()},
    )
    for name, sampler in SAMPLERS.items():
        parameters = make_dict_unstructure_fn(sampler, converter)
        converter.register_unstructure_hook(sampler, partial(_sampler_mapping, name, parameters))
    converter.register_unstructure_hook(Lesson, partial(_lesson_mapping, converter))


def _dump_hook(converter: Converter, cls: type[Any]) -> Callable[[Any], dict[str, Any]]:
    attrs.resolve_types(cls)
    rules = {"changed": override(omit_if_default=True), "never": override(omit=True)}
    dumped: dict[str, Any] = {
        each.name: rules[each.metadata["dumped"]] for each in attrs.fields(cls) if "dumped" in each.metadata
    }
    hook: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(cls, converter, **dumped)
    return hook


def _lesson_mapping(converter: Converter, lesson: Lesson) -> dict[str, Any]:
    plain = {field.name: converter.unstructure(getattr(lesson, field.name)) for field in attrs.fields(Lesson)}
    return {"value": plain.pop("value"), **plain}


def _sampler_mapping(name: str, parameters: Callable[[Any], dict[str, Any]], sampler: Sampler) -> dict[str, Any]:
    return {"sampler_type": name, "sampler_parameters": parameters(sampler)}


CONVERTER = Converter(forbid_extra_keys=True, detailed_validation=True)
"""Holds no state: structuring depends on nothing but the value."""
_register_structuring(CONVERTER)
_register_unstructuring(CONVERTER)
