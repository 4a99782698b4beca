"""Scalars of a YAML file or a command line -> Python values, strictly where a mistake would be silent."""

from __future__ import annotations

import enum
import math
import re
from typing import Any

from trajtrainer.settings.checks import InvalidValueError, closest, misfit
from trajtrainer.settings.yaml.document import Written

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST_INT = 2**63 - 1


def refusal(found: object, expected: str) -> InvalidValueError:
    """Return the error for a value that cannot be read; the caller knows the path."""
    return InvalidValueError(misfit((), unwrapped(found), expected))


def unwrapped(value: object) -> object:
    """Return the value that YAML read, without the text it had."""
    return value.value if isinstance(value, Written) else value


def _number(value: object) -> int | float | None:
    """Return the number that is there or that a text spells (PyYAML takes ``5e4`` for text), else None."""
    plain = unwrapped(value)
    if isinstance(plain, str) and _NUMBER.fullmatch(plain) and len(plain) < 100:
        plain = float(plain) if re.search("[.eE]", plain) else int(plain)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        return None
    return plain


def whole_number(value: object, _type: object = None) -> int:
    """Return ``64``, ``20_000``, ``5e4`` and ``5.0e5``, but neither ``64.7`` nor ``true``.

    Raises:
        InvalidValueError: it is none, or needs more than 64 bits.
    """
    number = _number(value)
    if isinstance(number, float) and (not math.isfinite(number) or number != int(number)):
        number = None
    if number is None:
        raise refusal(value, "a whole number")
    if abs(number) > _LARGEST_INT:
        raise refusal(value, "a whole number of at most 64 bits")
    return int(number)


def real_number(value: object, _type: object = None) -> float:
    """Return any finite number, ``3e-4`` included.

    Raises:
        InvalidValueError: it is none.
    """
    number = _number(value)
    if number is None or abs(number) > 1e308:
        raise refusal(value, "a number")
    result = float(number)
    if not math.isfinite(result):
        raise refusal(value, "a finite number")
    return result


def truth_value(value: object, _type: object = None) -> bool:
    """Return ``true`` or ``false``, not a text that spells it.

    Raises:
        InvalidValueError: it is neither.
    """
    plain = unwrapped(value)
    if not isinstance(plain, bool):
        raise refusal(value, "true or false, without quotes" if isinstance(plain, str) else "true or false")
    return plain


def text(value: object, _type: object = None) -> str:
    """Return text as it was written: ``run_id: 007`` is the run "007".

    Raises:
        InvalidValueError: it is a mapping, a list or null.
    """
    if isinstance(value, Written):
        return value.text
    if not isinstance(value, str):
        raise refusal(value, "text")
    return value


def text_or_number(value: object, _type: object = None) -> str | int:
    """Return a whole number as such and anything else as text.

    Raises:
        InvalidValueError: it is a mapping, a list or null.
    """
    plain = unwrapped(value)
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else text(value)


def enum_member(value: object, enumeration: Any) -> enum.Enum:
    """Return the member with this value.

    Raises:
        InvalidValueError: there is none.
    """
    names: dict[str, enum.Enum] = {member.value: member for member in enumeration}
    name = value.text if isinstance(value, Written) else value
    if isinstance(name, str) and name in names:
        return names[name]
    hint = closest(name, names) if isinstance(name, str) else ""
    raise refusal(value, f"one of {', '.join(names)}{hint}")
