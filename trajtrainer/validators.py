"""Validators for plugin settings, to pass as the ``validator`` of an ``attrs.field``.

An invalid value is reported with its file, line and key, together with all other errors in the settings.

>>> from attrs import field, frozen
>>> from trajtrainer import RewardSignalSettings
>>> from trajtrainer.validators import positive
>>> @frozen
... class EffortSettings(RewardSignalSettings):
...     exponent: float = field(default=2.0, validator=positive)
"""

from __future__ import annotations

from trajtrainer.settings.checks import (
    Check,
    at_least,
    between,
    count,
    fraction,
    not_negative,
    positive,
    satisfies,
    unlimited_count,
)

__all__ = [
    "Check",
    "at_least",
    "between",
    "count",
    "fraction",
    "not_negative",
    "positive",
    "satisfies",
    "unlimited_count",
]
