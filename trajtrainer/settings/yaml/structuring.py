"""Hooks for cattrs that build settings objects from plain mappings, and report all faults instead of only the first.

A hook raises ``InvalidValueError`` or, if cattrs generated it, an exception group; ``faults`` flattens both.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, get_args, get_origin

import attrs
from attrs import evolve
from cattrs import ClassValidationError, Converter, ForbiddenExtraKeysError, IterableValidationError
from cattrs.cols import list_structure_factory, mapping_structure_factory
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from trajtrainer.settings.checks import (
    AutoOrNumber,
    Fault,
    InvalidValueError,
    closest,
    raise_faults,
    registered,
    row_of,
)
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS, Hyperparameters, RewardSignalSettings
from trajtrainer.settings.environment import SAMPLERS, ConstantSettings, Lesson, Sampler
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.document import (
    enum_member,
    invalid_value,
    number_or_auto,
    real_number,
    text,
    text_or_number,
    truth_value,
    whole_number,
)

Hook = Callable[[Any, Any], Any]
"""(plain value, type) -> object of that type."""
HookFactory = Callable[[Any, Any], Hook]

_RewardSignals = dict[str, RewardSignalSettings]
_Interval = tuple[float, float]
CONVERTER = Converter(forbid_extra_keys=True, detailed_validation=True)
"""It has no state: the result depends only on the value."""
INVALID = (InvalidValueError, ClassValidationError, IterableValidationError)
"""What the converter raises for values that do not fit; see ``faults``."""


def faults(error: BaseException, path: tuple[str, ...] = ()) -> Iterator[Fault]:
    """Yield all faults in an error of the converter, with paths from the root.

    Raises:
        BaseException: ``error`` itself, if it is not about a value, but a bug in this program.
    """
    if isinstance(error, InvalidValueError):
        yield from (fault.below(*path) for fault in error.faults)
    elif isinstance(error, ClassValidationError | IterableValidationError):
        named, others = error.group_exceptions()
        for inner, note in named:
            yield from faults(inner, (*path, str(getattr(note, "name", None) or note.index)))
        for inner in others:
            yield from faults(inner, path)
    elif isinstance(error, ForbiddenExtraKeysError):
        yield from (Fault((*path, key), _unknown(key, error.cl)) for key in sorted(error.extra_fields))
    elif isinstance(error, KeyError):  # cattrs looked for a field that has no default
        yield Fault(path, "is missing and has no default")
    else:
        raise error


def _unknown(key: str, cls: type) -> str:
    if issubclass(cls, Hyperparameters):
        owners = [name for name, row in ALGORITHMS.builtin.items() if key in attrs.fields_dict(row.settings)]
        if owners:
            return f"is for trainer_type {', '.join(owners)}"
    fields = [field for field in attrs.fields(cls) if not is_internal(field)]
    for section in fields:
        classes = [each for each in (section.type, *get_args(section.type)) if isinstance(each, type)]
        if any(attrs.has(each) and key in attrs.fields_dict(each) for each in classes):
            return f"unknown option; it belongs under {section.name}"
    names = [field.name for field in fields]
    return f"unknown option{closest(key, names) or '; known here: ' + ', '.join(names)}"


def is_internal(field: attrs.Attribute[Any]) -> bool:
    """Whether a field is not part of the file."""
    return bool(field.metadata.get("internal"))


def _expecting(kind: type, expected: str, factory: HookFactory) -> HookFactory:
    """The factory of hooks that first refuse a value of another kind, and then do what those of ``factory`` do."""

    def checked(cls: Any, converter: Converter) -> Hook:
        hook = factory(cls, converter)

        def structure(value: Any, type_: Any) -> Any:
            if not isinstance(value, kind):
                raise invalid_value(value, expected)
            return hook(value, type_)

        return structure

    return checked


def _settings_factory(**types: Any) -> HookFactory:
    """The factory of hooks for settings classes. ``types`` replaces the declared types of fields."""

    def factory(cls: Any, converter: Converter) -> Hook:
        attrs.resolve_types(cls)
        overrides: dict[str, Any] = {}
        for field in attrs.fields(cls):
            hook = partial(_checked, converter, field, types.get(field.name, field.type))
            overrides[field.name] = override(omit=True) if is_internal(field) else override(struct_hook=hook)
        return make_dict_structure_fn(cls, converter, **overrides)

    return _expecting(dict, "a mapping ({} takes the defaults)", factory)


def _checked(converter: Converter, field: attrs.Attribute[Any], field_type: Any, value: Any, _type: Any) -> Any:
    """Structure a field and validate it right away. Otherwise one invalid field would hide others."""
    result = converter.structure(value, field_type)
    if field.validator is not None:
        try:
            field.validator(None, field, result)
        except InvalidValueError as error:  # the caller adds the name of the field again
            raise InvalidValueError(*(evolve(fault, path=fault.path[1:]) for fault in error.faults)) from None
    return result


def _trainer_factory(_cls: Any, converter: Converter) -> Hook:
    """The factory for behaviors, whose class of hyperparameters depends on their trainer_type."""

    @cache
    def hook_for(hyperparameters: Any) -> Hook:
        return _settings_factory(hyperparameters=hyperparameters)(TrainerSettings, converter)

    def structure(value: Any, cls: Any) -> Any:
        hyperparameters: Any = _WithoutTrainer
        if isinstance(value, dict) and "trainer_type" in value:
            name = value["trainer_type"]
            row = ALGORITHMS.get(name) if isinstance(name, str) else None
            # Without a row, there is no class to check them with, and the name is reported.
            hyperparameters = Any if row is None else row.settings
        return hook_for(hyperparameters)(value, cls)

    return structure


class _WithoutTrainer:
    """Stands for the class of hyperparameters where no trainer_type says which it is."""


def _of_no_trainer(_value: Any, _type: Any) -> Hyperparameters:
    raise InvalidValueError(Fault((), f"these need a trainer_type next to them: {', '.join(ALGORITHMS)}"))


def _reward_signals(value: Any, _type: Any) -> _RewardSignals:
    if not isinstance(value, dict):
        raise invalid_value(value, "a mapping of reward signals")
    signals: _RewardSignals = {}
    found: list[Fault] = []
    for name, inner in value.items():
        try:
            signals[name] = CONVERTER.structure(inner, row_of(REWARD_SIGNALS, name).settings)
        except INVALID as error:
            found += faults(error, (name,))
    raise_faults(found)
    return signals


def _sampler_form(parameters: Any) -> type[Any]:
    """The class of a sampler as it is written, with these ``sampler_parameters``."""
    sampler_type = attrs.field(type=str, validator=registered(SAMPLERS))
    fields = {"sampler_type": sampler_type, "sampler_parameters": attrs.field(type=parameters)}
    return attrs.make_class("SamplerForm", fields, frozen=True)


_SAMPLER_FORMS = {name: _sampler_form(cls) for name, cls in SAMPLERS.items()}
_UNKNOWN_SAMPLER = _sampler_form(Any)


def _sampler(value: Any, _type: Any) -> Any:
    if isinstance(value, dict):
        name = value.get("sampler_type")
        form = _SAMPLER_FORMS.get(name, _UNKNOWN_SAMPLER) if isinstance(name, str) else _UNKNOWN_SAMPLER
        return CONVERTER.structure(value, form).sampler_parameters
    try:
        return ConstantSettings(value=real_number(value))
    except InvalidValueError:
        raise invalid_value(value, "a number, or a mapping with sampler_type and sampler_parameters") from None


def _interval(value: Any, _type: Any) -> _Interval:
    if not isinstance(value, list) or len(value) != 2:
        raise invalid_value(value, "exactly two numbers [low, high]")
    low, high = CONVERTER.structure(value, list[float])
    return low, high


def _register_structuring(converter: Converter) -> None:
    converter.register_structure_hook(int, whole_number)
    converter.register_structure_hook(float, real_number)
    converter.register_structure_hook(bool, truth_value)
    converter.register_structure_hook(str, text)
    factory = converter.register_structure_hook_factory
    factory(attrs.has, _settings_factory())
    factory(_has_origin(dict), _expecting(dict, "a mapping of names", mapping_structure_factory))
    factory(_has_origin(list), _expecting(list, "a list", list_structure_factory))
    # Hooks that are registered later are tried first.
    factory(lambda cls: cls is TrainerSettings, _trainer_factory)
    hook = converter.register_structure_hook_func
    hook(lambda cls: cls is _WithoutTrainer, _of_no_trainer)
    hook(lambda cls: isinstance(cls, type) and issubclass(cls, enum.Enum), enum_member)
    hook(lambda cls: cls == str | int, text_or_number)
    hook(lambda cls: cls == AutoOrNumber, number_or_auto)
    hook(lambda cls: cls == Sampler, _sampler)
    hook(lambda cls: cls == _RewardSignals, _reward_signals)
    hook(lambda cls: cls == _Interval, _interval)


def _has_origin(origin: type) -> Callable[[Any], bool]:
    return lambda cls: get_origin(cls) is origin


def _register_unstructuring(converter: Converter) -> None:
    """Dump settings like ML-Agents (docs/explanation/mlagents-behavior.md#configuration).

    Options that it does not have are left out, unless they were changed.
    """
    converter.register_unstructure_hook_factory(attrs.has, partial(_dump_hook, converter))
    hook = converter.register_unstructure_hook_func
    hook(lambda cls: cls == _Interval, list)
    hook(lambda cls: cls is Hyperparameters, converter.unstructure)  # by the class of the object
    hook(
        lambda cls: cls == _RewardSignals,
        lambda signals: {name: converter.unstructure(each) for name, each in signals.items()},
    )
    for name, sampler in SAMPLERS.items():
        parameters = make_dict_unstructure_fn(sampler, converter)
        converter.register_unstructure_hook(
            sampler,
            lambda each, name=name, parameters=parameters: {
                "sampler_type": name,
                "sampler_parameters": parameters(each),
            },
        )

    def lesson_mapping(lesson: Lesson) -> dict[str, Any]:
        plain = {field.name: converter.unstructure(getattr(lesson, field.name)) for field in attrs.fields(Lesson)}
        return {"value": plain.pop("value"), **plain}

    converter.register_unstructure_hook(Lesson, lesson_mapping)


def _dump_hook(converter: Converter, cls: type[Any]) -> Callable[[Any], dict[str, Any]]:
    attrs.resolve_types(cls)
    rules = {"changed": override(omit_if_default=True), "never": override(omit=True)}
    dumped: dict[str, Any] = {
        each.name: rules[each.metadata["dumped"]] for each in attrs.fields(cls) if "dumped" in each.metadata
    }
    hook: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(cls, converter, **dumped)
    return hook


_register_structuring(CONVERTER)
_register_unstructuring(CONVERTER)
