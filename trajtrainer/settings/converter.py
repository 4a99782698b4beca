"""The one converter between plain mappings and the settings classes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_origin

import attrs
from cattrs import Converter
from cattrs.gen import make_dict_unstructure_fn, override

from trajtrainer.settings.checks import Fault, InvalidValueError, closest
from trajtrainer.settings.environment import SAMPLERS, ConstantSettings, EnvironmentSettings, Lesson, Sampler
from trajtrainer.settings.rewards import REWARD_SIGNALS, RewardSignalSettings, RewardSignalType
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.scalars import enum_member, real_number, refusal, text, truth_value, unwrapped, whole_number
from trajtrainer.settings.structuring import Hook, class_hook, gather, list_hook, mapping_hook
from trajtrainer.settings.trainer import HYPERPARAMETERS, PPOHyperparameters, TrainerSettings

_RewardSignals = dict[RewardSignalType, RewardSignalSettings]
_Interval = tuple[float, float]


def _trainer_hook(converter: Converter) -> Hook:
    """A behaviour: the class of its hyperparameters depends on its trainer_type."""
    hooks = {name: class_hook(converter, TrainerSettings, hyperparameters=cls) for name, cls in HYPERPARAMETERS.items()}

    def structure(value: Any, cls: Any) -> TrainerSettings:
        name = "ppo"
        if isinstance(value, dict) and "trainer_type" in value:
            name = value["trainer_type"] if isinstance(value["trainer_type"], str) else ""
        elif isinstance(value, dict) and "hyperparameters" in value:
            message = f"these need a trainer_type beside them: {', '.join(HYPERPARAMETERS)}"
            raise InvalidValueError(Fault(("hyperparameters",), message))
        if name not in hooks:  # the check of trainer_type says so; nobody knows what its hyperparameters may be
            value = {key: inner for key, inner in value.items() if key != "hyperparameters"}
        trainer: TrainerSettings = hooks.get(name, hooks["ppo"])(value, cls)
        return trainer

    return structure


def _reward_signals_hook(converter: Converter) -> Hook:
    def one(name: str, value: Any) -> tuple[RewardSignalType, RewardSignalSettings]:
        known = {signal.value: signal for signal in RewardSignalType}
        if name not in known:
            message = f"unknown reward signal, expected one of {', '.join(known)}{closest(name, known)}"
            raise InvalidValueError(Fault((), message))
        return known[name], converter.structure(value, REWARD_SIGNALS[known[name]])

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
        missing = [
            Fault((key,), "is missing: a sampler needs both " + " and ".join(keys)) for key in set(keys) - set(value)
        ]
        unknown = [Fault((key,), f"unknown option{closest(key, keys)}") for key in value if key not in keys]
        if missing or unknown:
            raise InvalidValueError(*missing, *unknown)
        cls = gather([(keys[0], partial(_sampler_class, value))])[0]
        sampler: Sampler = gather([(keys[1], partial(converter.structure, value[keys[1]], cls))])[0]
        return sampler

    return structure


def _sampler_class(sampler: Mapping[str, Any]) -> type[Sampler]:
    name = sampler["sampler_type"]
    if isinstance(name, str) and name in SAMPLERS:
        return SAMPLERS[name]
    hint = closest(name, SAMPLERS) if isinstance(name, str) else ""
    raise refusal(name, f"one of {', '.join(SAMPLERS)}{hint}")


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
    hook(lambda cls: cls == Sampler, _sampler_hook(converter))
    hook(lambda cls: cls == _RewardSignals, _reward_signals_hook(converter))
    hook(lambda cls: cls == _Interval, _interval)


def _has_origin(origin: type) -> Callable[[Any], bool]:
    return lambda cls: get_origin(cls) is origin


def _register_unstructuring(converter: Converter) -> None:
    """As ML-Agents dumps them (reference 1.10); options that it does not know are left out unless they were changed.

    From the inside out, as every generated function keeps the hooks that it finds.
    """
    hook = converter.register_unstructure_hook_func
    hook(lambda cls: cls == _Interval, list)
    hook(lambda cls: cls == _RewardSignals, partial(_reward_signals_mapping, converter))
    for name, sampler in SAMPLERS.items():
        parameters = make_dict_unstructure_fn(sampler, converter)
        converter.register_unstructure_hook(sampler, partial(_sampler_mapping, name, parameters))
    converter.register_unstructure_hook(Lesson, partial(_lesson_mapping, converter))
    if_changed, never = override(omit_if_default=True), override(omit=True)
    hidden: dict[type[Any], dict[str, Any]] = {
        PPOHyperparameters: {"value_clipping": if_changed},
        EnvironmentSettings: {"listen_address": if_changed},
        RunSettings: {"deterministic": never, "behaviors_required": never, "inference_episodes": never},
    }
    for cls, overrides in hidden.items():
        attrs.resolve_types(cls)
        converter.register_unstructure_hook(cls, make_dict_unstructure_fn(cls, converter, **overrides))


def _reward_signals_mapping(converter: Converter, signals: _RewardSignals) -> dict[str, Any]:
    return {signal.value: converter.unstructure(settings) for signal, settings in signals.items()}


def _lesson_mapping(converter: Converter, lesson: Lesson) -> dict[str, Any]:
    plain = {field.name: converter.unstructure(getattr(lesson, field.name)) for field in attrs.fields(Lesson)}
    return {"value": plain.pop("value"), **plain}


def _sampler_mapping(name: str, parameters: Callable[[Any], dict[str, Any]], sampler: Sampler) -> dict[str, Any]:
    return {"sampler_type": name, "sampler_parameters": parameters(sampler)}


def _build() -> Converter:
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    _register_structuring(converter)
    _register_unstructuring(converter)
    return converter


CONVERTER = _build()
"""Holds no state: structuring depends on nothing but the value."""
