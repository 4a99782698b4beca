"""``search``: settings of ``trajtrainer search`` (docs/train/search.md)."""

from __future__ import annotations

import contextlib
import copy
import enum
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import asdict, field, frozen
from attrs.validators import optional

from trajtrainer.core.cores import usable_cores
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spelling import closest
from trajtrainer.settings.checks import (
    ConfigurationError,
    Fault,
    InvalidValueError,
    Place,
    Problem,
    count,
    mismatch,
    not_negative,
    positive,
    raise_faults,
    shown,
)
from trajtrainer.settings.flags import run_settings_with
from trajtrainer.settings.run import SEARCH_SECTION, RunSettings
from trajtrainer.settings.unmeasured import summary_fault
from trajtrainer.settings.yaml.convert import structure, to_mapping
from trajtrainer.settings.yaml.document import PlacedValue, from_mapping, unwrapped

Value = bool | int | float | str | None
"""A value that a search can try for a setting."""

# Maximum number of combinations of range ends that are checked, which takes a second or two.
_MOST_TRIED = 300
_FEWEST_CHOICES = 2
# The search sets these in each trial, or they are the same in all trials.
_TAKEN = ("checkpoint_settings", "env_settings.seed", "env_settings.base_port", "debug", "tracking", "monitoring")


class Direction(enum.Enum):
    """``direction``: maximize or minimize the metric."""

    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


class Measured(enum.Enum):
    """``value``: method for reducing the metric's values over a run to one number."""

    END = "end"
    BEST = "best"
    MEAN = "mean"


class Combined(enum.Enum):
    """``combined``: method for combining the results of several seeds."""

    MEAN = "mean"
    IQM = "iqm"


class SamplerKind(enum.Enum):
    """``sampler``: method for choosing the values of the next trial."""

    TPE = "tpe"
    RANDOM = "random"


class PrunerKind(enum.Enum):
    """``pruner``: method for stopping bad trials early."""

    MEDIAN = "median"
    HYPERBAND = "hyperband"
    NONE = "none"


@frozen
class Range:
    """Possible values of one setting: a range of numbers, or a list of values.

    Attributes:
        low, high: the smallest and the largest number.
        log: draw numbers uniformly on a logarithmic scale, so 1 to 10 is as likely as 10 to 100.
        step: distance between neighboring numbers; None for a continuous range.
        is_whole: allow whole numbers only.
        choices: the possible values; if there are any, all other attributes are ignored.
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    is_whole: bool = False
    choices: tuple[Value, ...] = ()

    @property
    def ends(self) -> tuple[Value, ...]:
        """The extreme values of the range, for checking the configuration."""
        if self.choices:
            return self.choices
        ends = (self.low, self.high)
        return tuple(int(end) for end in ends) if self.is_whole else ends


@frozen
class SearchSettings:
    """``search``: a search for good settings. The settings to vary, and their values, are in its section ``ranges``.

    Attributes:
        metric: TensorBoard tag to optimize. ``Evaluation/Cumulative Reward`` requires an ``evaluation``,
            ``Self-play/ELO`` requires self-play.
        behavior: behavior to measure. Required unless the configuration lists exactly one.
        direction: ``maximize`` or ``minimize`` the metric.
        value: number that represents a run: the mean of the metric over the last tenth of the steps (``end``), the best
            summary (``best``), or the mean over the whole run (``mean``), which favors settings that learn early.
        trials: total number of trials, including those of earlier sessions of the same search.
        seeds: number of runs per trial, with the seeds ``seed``, ``seed`` + 1, and so on. Only the first run can be
            pruned. Use several if results vary a lot between seeds.
        combined: how to combine the results of several seeds: their mean, or their interquartile mean (``iqm``).
        parallel: number of trials to run in parallel. Defaults to the number of cores that this process may use.
        sampler: method for choosing the values of a trial. ``tpe`` (Bergstra et al. 2011) learns from earlier trials;
            ``random`` does not.
        pruner: method for stopping bad trials early. ``median`` stops trials that are worse than the median of the
            others at the same step, ``hyperband`` (Li et al. 2018) gives only the most promising trials more steps, and
            ``none`` runs all trials to the end.
        reports: number of times per run that its progress is reported to the pruner.
        warmup: number of reports of a trial before it can be pruned.
        startup: number of trials that must finish before others can be pruned (``median`` only).
        seed: seed of the first run of each trial, and of the sampler.
        timeout: number of seconds after which no new trials are started.
    """

    metric: str = "Environment/Cumulative Reward"
    behavior: str | None = None
    direction: Direction = Direction.MAXIMIZE
    value: Measured = Measured.END
    trials: int = field(default=20, validator=count)
    seeds: int = field(default=1, validator=count)
    combined: Combined = Combined.MEAN
    parallel: int | None = field(default=None, validator=optional(count))
    sampler: SamplerKind = SamplerKind.TPE
    pruner: PrunerKind = PrunerKind.MEDIAN
    reports: int = field(default=20, validator=count)
    warmup: int = field(default=3, validator=not_negative)
    startup: int = field(default=5, validator=not_negative)
    seed: int = field(default=1, validator=not_negative)
    timeout: float | None = field(default=None, validator=optional(positive))


@frozen(eq=False)
class Plan:
    """A search whose configuration has been checked.

    Attributes:
        root: the tree of the configuration; never changed.
        options: ``Flag.name`` -> value, for command-line options.
        settings: settings of the configuration without its ranges.
        search: settings of the section ``search``.
        ranges: path of a setting ("behaviors.Ball.hyperparameters.beta") -> its possible values.
        keys: path of a setting -> the keys that lead to it.
    """

    root: PlacedValue
    options: Mapping[str, object]
    settings: RunSettings
    search: SearchSettings
    ranges: Mapping[str, Range]
    keys: Mapping[str, tuple[str, ...]]

    @property
    def behavior(self) -> str:
        """The behavior to measure."""
        return self.search.behavior or next(iter(self.settings.behaviors))

    @property
    def parallel(self) -> int:
        """Number of trials to run in parallel."""
        return self.search.parallel or (1 if _needs_editor(self.settings) else usable_cores())

    def settings_with(self, values: Mapping[str, Value]) -> RunSettings:
        """Return the settings with the given values, by the names of their ranges.

        Raises:
            SettingsError: the combination of values is invalid.
        """
        root = copy.deepcopy(self.root)
        written = self.root.mapping[SEARCH_SECTION].mapping["ranges"].mapping
        for name, value in values.items():
            inner = root
            *sections, key = self.keys[name]
            for section in sections:
                inner = inner.mapping.setdefault(section, PlacedValue({}, written[name].place))
                if not isinstance(inner.content, dict):  # ``network_settings:`` without a value
                    inner.content = {}
            inner.mapping[key] = from_mapping(value, written[name].place)
        return run_settings_with(root, self.options, behaviors_required=True)


def make_plan(
    root: PlacedValue,
    options: Mapping[str, object],
    problems: Iterable[Problem] = (),
    own_options: Mapping[str, object] | None = None,
) -> Plan:
    """Build the plan from a configuration's tree and the command-line options.

    Args:
        root: tree of a configuration with a section ``search``.
        options: ``Flag.name`` -> value, for options that were given.
        problems: problems already found in the configuration.
        own_options: settings of the section ``search`` that were given on the command line.

    Raises:
        ConfigurationError: the section is missing or invalid. For example, a range does not name a setting, or the
            configuration is invalid at the ends of the ranges.
    """
    section = root.mapping.get(SEARCH_SECTION)
    if section is None:
        expected = "has no section 'search'; expected one with the ranges to try (docs/train/search.md)"
        raise ConfigurationError([*problems, Problem(root.place, expected)])
    settings = run_settings_with(copy.deepcopy(root), options, problems, behaviors_required=True)
    found: list[Problem] = []
    search = SearchSettings()
    if isinstance(section.content, dict):
        given = {name: from_mapping(value, Place(f"--{name}")) for name, value in (own_options or {}).items()}
        written = {name: entry for name, entry in section.content.items() if name != "ranges"}
        try:
            search = structure(PlacedValue({**written, **given}, section.place), SearchSettings)
        except ConfigurationError as error:
            found += error.problems
    else:
        found.append(Problem(section.place, f"found {shown(unwrapped(section.content))}, expected a mapping"))
    listed = section.mapping.get("ranges", PlacedValue({}, section.place))
    if not listed.mapping:
        found.append(
            Problem(listed.place.below("ranges"), "there are no ranges; expected at least one setting with its range")
        )
    ranges: dict[str, Range] = {}
    keys: dict[str, tuple[str, ...]] = {}
    for name, entry in listed.mapping.items():
        try:
            keys[name], present = _look_up(name, to_mapping(settings))
            ranges[name] = _range(entry, present)
        except InvalidValueError as error:
            found += [Problem(entry.locate(fault.path), fault.message) for fault in error.faults]
        except ConfigurationError as error:
            found += error.problems
    found += [Problem(section.locate(fault.path), fault.message) for fault in _faults_of_search(search, settings)]
    plan = Plan(root, options, settings, search, ranges, keys)
    if not found:
        with _quiet():
            found += _unfit(plan) or _unmeasured(plan)
    if found:
        raise ConfigurationError(found)
    return plan


def _unfit(plan: Plan) -> list[Problem]:
    """Return problems with the ends of single ranges or, if there are none, with the ends of pairs of ranges."""
    found: dict[str, Problem] = {}
    alone: list[dict[str, Value]] = [{name: end} for name, each in plan.ranges.items() for end in each.ends]
    pairs = ({**one, **other} for one, other in itertools.combinations(alone, 2) if one.keys() != other.keys())
    for some in (alone, itertools.islice(pairs, _MOST_TRIED)):
        for values in some if not found else ():
            try:
                plan.settings_with(values)
            except ConfigurationError as error:
                for problem in error.problems:
                    found.setdefault(str(problem.place), problem)
            except SettingsError as error:
                found.setdefault("", Problem(plan.root.place, str(error)))
    return list(found.values())


def _look_up(name: str, settings: Mapping[str, Any]) -> tuple[tuple[str, ...], object]:
    """Return the keys of a setting and its current value (None if unknown). Behavior names may contain dots.

    Raises:
        InvalidValueError: there is no such setting, or a search cannot vary it.
    """
    if any(name == taken or name.startswith(f"{taken}.") for taken in _TAKEN):
        raise InvalidValueError(Fault((), "cannot vary: it is the same in all trials, or set by the search itself"))
    path: tuple[str, ...] = ()
    rest, inner = name, settings
    while True:
        where = ".".join(path) or "the configuration"
        if not isinstance(inner, Mapping):
            raise InvalidValueError(Fault((), f"does not exist: {where} is {shown(inner)}, not a section"))
        key = max((key for key in inner if rest == key or rest.startswith(f"{key}.")), key=len, default=None)
        if key is None:
            # The mapping omits our own options if they have their default values. Whether the option exists is checked
            # when the configuration is read.
            if "." in rest or path == ("environment_parameters",):
                beginnings = itertools.accumulate(rest.split("."), "{}.{}".format)
                hint = next(filter(None, (closest(beginning, inner) for beginning in beginnings)), "")
                message = f"does not exist: there is no {rest!r} in {where}{hint}"
                raise InvalidValueError(Fault((), message))
            return (*path, rest), None
        path, inner = (*path, key), inner[key]
        if rest == key:
            return path, inner
        rest = rest[len(key) + 1 :]


@frozen
class _Choices:
    """A range given as a list of values."""

    choices: list[Any]


@frozen
class _Bounds:
    """A range given by its bounds."""

    low: float
    high: float
    log: bool = False
    step: float | None = None


def _range(entry: PlacedValue, present: object) -> Range:
    """Return the range that an entry describes.

    Args:
        entry: the entry under ``ranges``.
        present: the setting's value in the configuration. If it is a whole number, so are all values of the range.

    Raises:
        ConfigurationError, InvalidValueError: the entry is not a valid range.
    """
    written = entry.mapping
    if not written:
        found = unwrapped(entry.content)
        raise InvalidValueError(mismatch((), found, "{low: ..., high: ...} or {choices: [...]}"))
    if "choices" in written:
        choices: list[Any] = [unwrapped(each) for each in structure(entry, _Choices).choices]
        if len(choices) < _FEWEST_CHOICES or not all(
            isinstance(each, bool | int | float | str | None) for each in choices
        ):
            raise InvalidValueError(
                mismatch(("choices",), choices, "a list of two or more values: numbers, strings, true or false")
            )
        return Range(choices=tuple(choices))
    given = structure(entry, _Bounds)
    numbers = {key: value for key, value in asdict(given).items() if key != "log" and value is not None}
    all_whole = all(isinstance(unwrapped(written[key].content), int) for key in numbers)
    is_whole = isinstance(present, int) or (present is None and all_whole)
    raise_faults(_faults_of_range(given, numbers if is_whole else {}))
    return Range(**asdict(given), is_whole=is_whole)


def _faults_of_range(given: _Bounds, whole: Mapping[str, float]) -> Iterator[Fault]:
    """Yield what is wrong with a range. The values of ``whole`` must be whole numbers."""
    yield from (mismatch((key,), number, "a whole number") for key, number in whole.items() if number % 1)
    if given.low >= given.high:
        yield Fault((), f"found low {shown(given.low)} and high {shown(given.high)}, expected low below high")
    elif given.step is not None and not 0 < given.step <= given.high - given.low:
        most = shown(given.high - given.low)
        yield mismatch(("step",), given.step, f"a number above 0 and at most high - low ({most})")
    if given.log and given.low <= 0:
        yield mismatch(("low",), given.low, "a number above 0, as log is true")
    if given.log and given.step is not None:
        yield Fault(("step",), "cannot be combined with log: true")


def _faults_of_search(search: SearchSettings, settings: RunSettings) -> Iterator[Fault]:
    """Yield conflicts between ``search`` and the rest of the configuration."""
    listed = list(settings.behaviors)
    if search.behavior is None and len(listed) != 1:
        yield Fault((), f"behavior is missing: expected one of {', '.join(listed) or 'those in the environment'}")
        return
    name = search.behavior or listed[0]
    behavior = settings.behaviors.get(name, settings.default_settings)
    if behavior is None:
        yield mismatch(("behavior",), name, f"one of {', '.join(listed)}{closest(name, listed)}")
        return
    if search.metric.startswith("Evaluation/") and settings.evaluations_of(behavior) is None:
        yield mismatch(("metric",), search.metric, f"another metric, because behavior {name!r} has no evaluation")
    if search.metric.startswith("Self-play/") and behavior.self_play is None:
        yield mismatch(("metric",), search.metric, f"another metric, because behavior {name!r} has no self_play")
    if _needs_editor(settings) and (search.parallel or 1) > 1:
        yield mismatch(("parallel",), search.parallel, "1, as no environment is given (the Editor is one environment)")


def _unmeasured(plan: Plan) -> list[Problem]:
    """Return a problem if a trial could end before the metric has a value."""
    if plan.search.metric.startswith("Evaluation/"):  # the last model is always evaluated
        return []
    deciding = [name for name, keys in plan.keys.items() if keys[-1] in ("summary_freq", "max_steps")]
    ends = itertools.product(*(plan.ranges[name].ends for name in deciding))
    for values in itertools.islice(ends, _MOST_TRIED):
        behavior = plan.settings_with(dict(zip(deciding, values, strict=True))).for_behavior(plan.behavior)
        consequence = f"{plan.search.metric!r} is never measured"
        for fault in summary_fault(("behaviors", plan.behavior), behavior, consequence):
            return [Problem(plan.root.locate(fault.path), fault.message)]
    return []


def _needs_editor(settings: RunSettings) -> bool:
    return settings.env_settings.is_editor and not settings.is_offline


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings, which would be repeated each time the configuration is read."""
    parent = logging.getLogger(__package__)
    level = parent.level
    parent.setLevel(logging.ERROR)
    try:
        yield
    finally:
        parent.setLevel(level)
