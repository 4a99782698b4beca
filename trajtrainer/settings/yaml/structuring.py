"""Hooks for cattrs that build settings objects from plain mappings, and report all faults instead of only the first.

A hook raises ``InvalidValueError`` or, if cattrs generated it, an exception group; ``faults`` flattens both.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_origin

import attrs
from attrs import evolve
from cattrs import ClassValidationError, Converter, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from trajtrainer.settings.checks import (
    AutoOrNumber,
    Fault,
    InvalidValueError,
    closest,
    mismatch,
    nearest,
    refuse,
    row_of,
)
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS, Hyperparameters, RewardSignalSettings
from trajtrainer.settings.environment import SAMPLERS, ConstantSettings, Lesson, Sampler
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.document import (
    enum_member,
    number_or_auto,
    real_number,
    refusal,
    text,
    text_or_number,
    truth_value,
    unwrapped,
    whole_number,
)

_SURELY_MEANT = 0.8  # likeness from which on a misspelled key is read as the option
T = TypeVar("T")
Hook = Callable[[Any, Any], Any]
"""(plain value, type) -> object of that type."""

_RewardSignals = dict[str, RewardSignalSettings]
_Interval = tuple[float, float]
CONVERTER = Converter(forbid_extra_keys=True, detailed_validation=True)
"""It has no state: the result depends only on the value."""


def faults(error: BaseException, path: tuple[str, ...] = ()) -> Iterator[Fault]:
    """Yield all faults in an error of the converter, with paths from the root.

    Raises:
        BaseException: ``error`` itself, if it is not about a value, but a bug in this program.
    """
    if isinstance(error, InvalidValueError):
        yield from (fault.below(*path) for fault in error.faults)
    elif isinstance(error, ClassValidationError):
        named, others = error.group_exceptions()
        for inner, note in named:
            yield from faults(inner, (*path, note.name))
        for inner in others:
            yield from faults(inner, path)
    elif isinstance(error, ForbiddenExtraKeysError):
        yield from (Fault((*path, key), _unknown(key, error.cl)) for key in sorted(error.extra_fields))
    elif isinstance(error, KeyError):  # cattrs looked for a field that has no default
        yield Fault(path, "is missing and has no default")
    else:
        raise error


def _unknown(key: str, cls: type) -> str:
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


def gather(parts: Iterable[tuple[str, Callable[[], T]]]) -> list[T]:
    """Call all parts and return their results.

    Raises:
        InvalidValueError: parts failed; it has the faults of all of them, below the names of the parts.
    """
    results: list[T] = []
    found: list[Fault] = []
    for name, part in parts:
        try:
            results.append(part())
        except (InvalidValueError, ClassValidationError) as error:
            found.extend(faults(error, (name,)))
    if found:
        raise InvalidValueError(*found)
    return results


def class_hook(converter: Converter, cls: type[Any], **types: Any) -> Hook:
    """The hook for a settings class. ``types`` replaces the declared types of fields."""
    attrs.resolve_types(cls)
    overrides: dict[str, Any] = {}
    names = [field.name for field in attrs.fields(cls) if not is_internal(field)]
    for field in attrs.fields(cls):
        hook = partial(_checked, converter, field, types.get(field.name, field.type))
        overrides[field.name] = override(omit=True) if is_internal(field) else override(struct_hook=hook)
    generated: Hook = make_dict_structure_fn(cls, converter, **overrides)

    def structure(value: Any, _type: Any) -> Any:
        if not isinstance(value, dict):
            raise refusal(value, "a mapping ({} takes the defaults)")
        typos = misspelled(value, names)
        if not typos:
            return generated(value, cls)
        found = [Fault((typo,), _unknown(typo, cls)) for typo in typos]
        written = {name: typo for typo, name in typos.items()}
        try:
            generated(as_meant(value, names), cls)
        except (InvalidValueError, ClassValidationError) as error:
            found += [
                evolve(each, path=(written.get(each.path[0], each.path[0]), *each.path[1:])) for each in faults(error)
            ]
        raise InvalidValueError(*found)

    return structure


def misspelled(mapping: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Find keys that are so similar to a missing name that it must be meant: key -> name."""
    free = [name for name in names if name not in mapping]
    found: dict[str, str] = {}
    for key in mapping:
        name = None if key in names else nearest(key, free, _SURELY_MEANT)
        if name is not None:
            found[key] = name
            free.remove(name)
    return found


def as_meant(value: object, names: Collection[str]) -> dict[str, Any]:
    """A mapping with corrected keys; empty if ``value`` is not a mapping."""
    mapping: dict[str, Any] = value if isinstance(value, dict) else {}
    typos = misspelled(mapping, names)
    return {typos.get(key, key): inner for key, inner in mapping.items()}


def most_likely(classes: Mapping[str, type[Any]], value: object) -> str | None:
    """Name of the class that has the most keys of ``value``; None if none has any."""
    keys = set(value) if isinstance(value, dict) else set()
    known = {name: len(keys & set(attrs.fields_dict(cls))) for name, cls in classes.items()}
    best = max(known, key=lambda name: known[name])
    return best if known[best] else None


@contextlib.contextmanager
def together_with(found: Iterable[Fault]) -> Iterator[None]:
    """Raise the faults ``found`` at the end, together with any others that occur until then."""
    every = list(found)
    try:
        yield
    except (InvalidValueError, ClassValidationError) as error:
        every += faults(error)
    refuse(every)


def _checked(converter: Converter, field: attrs.Attribute[Any], field_type: Any, value: Any, _type: Any) -> Any:
    """Structure a field and validate it right away. Otherwise one invalid field would hide others."""
    result = converter.structure(value, field_type)
    if field.validator is not None:
        try:
            field.validator(None, field, result)
        except InvalidValueError as error:  # the caller adds the name of the field again
            raise InvalidValueError(*(evolve(fault, path=fault.path[1:]) for fault in error.faults)) from None
    return result


def mapping_hook(converter: Converter, cls: Any) -> Hook:
    """The hook for ``dict[str, X]``."""
    _, value_type = get_args(cls)

    def structure(value: Any, _type: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refusal(value, "a mapping of names")
        parts = gather((name, partial(converter.structure, inner, value_type)) for name, inner in value.items())
        return dict(zip(value, parts, strict=True))

    return structure


def list_hook(converter: Converter, cls: Any) -> Hook:
    """The hook for ``list[X]``."""
    (item_type,) = get_args(cls)

    def structure(value: Any, _type: Any) -> list[Any]:
        if not isinstance(value, list):
            raise refusal(value, "a list")
        return gather((str(index), partial(converter.structure, item, item_type)) for index, item in enumerate(value))

    return structure


def _trainer_hook(converter: Converter) -> Hook:
    """The hook for a behavior, whose class of hyperparameters depends on its trainer_type."""

    @cache
    def hook_for(hyperparameters: Any) -> Hook:
        return class_hook(converter, TrainerSettings, hyperparameters=hyperparameters)

    def structure(value: Any, cls: Any) -> TrainerSettings:
        meant = as_meant(value, attrs.fields_dict(TrainerSettings))
        found = []
        if "hyperparameters" in meant and "trainer_type" not in meant:
            message = f"these need a trainer_type next to them: {', '.join(ALGORITHMS)}"
            found.append(Fault(("hyperparameters",), message))
        name = meant.get("trainer_type")
        if not isinstance(name, str) or name not in ALGORITHMS:
            builtin = {each: row.settings for each, row in ALGORITHMS.builtin.items() if not row.offline}
            name = most_likely(builtin, meant.get("hyperparameters"))
        row = ALGORITHMS.get(name) if name is not None else None
        if row is None and isinstance(value, dict):  # there is no class to check the hyperparameters with
            value = {key: inner for key, inner in value.items() if key != "hyperparameters"}
        hyperparameters: Any = row.settings if row is not None else ALGORITHMS["ppo"].settings
        given = value.get("hyperparameters") if isinstance(value, dict) else None
        if row is not None and name is not None and name == meant.get("trainer_type") and isinstance(given, dict):
            own, kept = attrs.fields_dict(row.settings), dict(given)
            for key in given:
                owners = [
                    each for each, other in ALGORITHMS.builtin.items() if key in attrs.fields_dict(other.settings)
                ]
                if owners and key not in own:
                    message = f"is for trainer_type {', '.join(owners)}; found trainer_type {name}"
                    if row.offline and key == "steps_per_update":
                        message += ", which learns from a data set, so no environment sets a pace"
                    found.append(Fault(("hyperparameters", key), message))
                    del kept[key]
            value = {**value, "hyperparameters": kept}
        with together_with(found):
            trainer: TrainerSettings = hook_for(hyperparameters)(value, cls)
        return trainer

    return structure


def _reward_signals_hook(converter: Converter) -> Hook:
    def one(name: str, value: Any) -> tuple[str, RewardSignalSettings]:
        if name not in REWARD_SIGNALS:
            message = (
                f"unknown reward signal, expected one of {', '.join(REWARD_SIGNALS)}{closest(name, REWARD_SIGNALS)}"
            )
            meant = nearest(name, REWARD_SIGNALS)
            with together_with([Fault((), message)]):
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
            found.append(mismatch((keys[0],), unwrapped(name), f"one of {', '.join(SAMPLERS)}{hint}"))
        cls = cls or SAMPLERS.get(most_likely(SAMPLERS, parameters) or "")
        if cls is None or keys[1] not in meant:
            raise InvalidValueError(*found)
        with together_with(found):
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
    # Hooks that are registered later are tried first.
    factory(lambda cls: cls is TrainerSettings, lambda _cls: _trainer_hook(converter))
    hook = converter.register_structure_hook_func
    hook(lambda cls: isinstance(cls, type) and issubclass(cls, enum.Enum), enum_member)
    hook(lambda cls: cls == str | int, text_or_number)
    hook(lambda cls: cls == AutoOrNumber, number_or_auto)
    hook(lambda cls: cls == Sampler, _sampler_hook(converter))
    hook(lambda cls: cls == _RewardSignals, _reward_signals_hook(converter))
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
