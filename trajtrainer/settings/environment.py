"""``env_settings``, ``engine_settings`` and ``environment_parameters``."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from attrs import evolve, field, frozen

from trajtrainer.settings.checks import (
    Fault,
    between,
    count,
    misfit,
    not_negative,
    positive,
    refuse,
    satisfies,
    unlimited_count,
)

LOOPBACK = "127.0.0.1"
UNSEEDED = -1
_LARGEST_SEED = 2**31 - 1  # the handshake carries the seed as int32
_LARGEST_PORT = 65535

seed_check = between(UNSEEDED, _LARGEST_SEED)


@frozen
class EnvironmentSettings:
    """``env_settings``: which players to start and when to give up on them."""

    env_path: str | None = None
    env_args: list[str] | None = None
    base_port: int = field(default=5005, validator=between(1, _LARGEST_PORT))
    num_envs: int = field(default=1, validator=count)
    num_areas: int = field(default=1, validator=count)
    timeout_wait: int = field(default=60, validator=count)
    seed: int = field(default=UNSEEDED, validator=seed_check)
    max_lifetime_restarts: int = field(default=10, validator=unlimited_count)
    restarts_rate_limit_n: int = field(default=1, validator=unlimited_count)
    restarts_rate_limit_period_s: int = field(default=60, validator=count)
    # Not in ML-Agents, whose server binds every interface (docs/mlagents-behavior.md#transport). Dumped only when it is
    # another.
    listen_address: str = field(default=LOOPBACK, validator=satisfies(bool, "an address or a host name"))

    def __attrs_post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if self.num_envs > 1 and self.env_path is None:
            expected = "1, as no env_path is given (the Editor is one environment)"
            yield misfit(("num_envs",), self.num_envs, expected, ("env_path",))
        if self.env_path is not None and self.base_port + self.num_envs - 1 > _LARGEST_PORT:
            expected = f"at most {_LARGEST_PORT - self.num_envs + 1}, as {self.num_envs} environments need a port each"
            yield misfit(("base_port",), self.base_port, expected, ("num_envs",), ("env_path",))


@frozen
class EngineSettings:
    """``engine_settings``: what the player's engine is told at its start."""

    width: int = field(default=84, validator=count)
    height: int = field(default=84, validator=count)
    quality_level: int = 5
    time_scale: float = field(default=20, validator=positive)
    target_frame_rate: int = field(default=-1, validator=unlimited_count)
    capture_frame_rate: int = field(default=60, validator=not_negative)
    no_graphics: bool = False
    no_graphics_monitor: bool = False


@frozen
class ConstantSettings:
    """A parameter that is always ``value``."""

    seed: int = field(default=UNSEEDED, validator=seed_check)
    value: float = 0.0


@frozen
class UniformSettings:
    """A parameter drawn evenly from [min_value, max_value]."""

    seed: int = field(default=UNSEEDED, validator=seed_check)
    min_value: float = 0.0
    max_value: float = 1.0

    def __attrs_post_init__(self) -> None:
        if self.min_value > self.max_value:
            refuse([misfit(("min_value",), self.min_value, f"at most max_value ({self.max_value})", ("max_value",))])


@frozen
class GaussianSettings:
    """A parameter drawn from a normal distribution."""

    seed: int = field(default=UNSEEDED, validator=seed_check)
    mean: float = 1.0
    st_dev: float = field(default=1.0, validator=not_negative)


def _intervals() -> list[tuple[float, float]]:
    return [(0.0, 1.0)]


@frozen
class MultiRangeUniformSettings:
    """A parameter drawn evenly from several intervals, each weighted by its length."""

    seed: int = field(default=UNSEEDED, validator=seed_check)
    intervals: list[tuple[float, float]] = field(
        factory=_intervals, validator=satisfies(bool, "at least one interval [low, high]")
    )

    def __attrs_post_init__(self) -> None:
        refuse(
            misfit(("intervals", str(index)), list(interval), "[low, high] with low not above high", ("intervals",))
            for index, interval in enumerate(self.intervals)
            if interval[0] > interval[1]
        )


Sampler = ConstantSettings | UniformSettings | GaussianSettings | MultiRangeUniformSettings

SAMPLERS: dict[str, type[Sampler]] = {
    "constant": ConstantSettings,
    "uniform": UniformSettings,
    "gaussian": GaussianSettings,
    "multirangeuniform": MultiRangeUniformSettings,
}
"""``sampler_type`` -> the class of its ``sampler_parameters``."""


class Measure(enum.Enum):
    """The measure that a lesson's threshold is compared with."""

    REWARD = "reward"
    PROGRESS = "progress"
    ELO = "elo"


@frozen
class CompletionCriteria:
    """The criteria by which a lesson is done."""

    behavior: str
    measure: Measure = Measure.REWARD
    min_lesson_length: int = field(default=0, validator=not_negative)
    signal_smoothing: bool = True
    threshold: float = 0.0
    require_reset: bool = False

    def __attrs_post_init__(self) -> None:
        if self.measure is Measure.PROGRESS and not 0 <= self.threshold <= 1:
            expected = "a number from 0 to 1, as the measure is progress"
            refuse([misfit(("threshold",), self.threshold, expected, ("measure",))])


@frozen
class Lesson:
    """One lesson of a parameter: where its value comes from, and until when. The last one has no end."""

    name: str
    value: Sampler
    completion_criteria: CompletionCriteria | None = None


@frozen
class EnvironmentParameterSettings:
    """The lessons of one environment parameter, at least one."""

    curriculum: list[Lesson] = field(validator=satisfies(bool, "at least one lesson"))

    def __attrs_post_init__(self) -> None:
        refuse(
            Fault(
                ("curriculum", str(index)),
                f"lesson {lesson.name!r} has no completion_criteria, which every lesson but the last needs",
                (("curriculum",),),
            )
            for index, lesson in enumerate(self.curriculum[:-1])
            if lesson.completion_criteria is None
        )


def seeded(parameters: dict[str, EnvironmentParameterSettings], seed: int) -> dict[str, EnvironmentParameterSettings]:
    """Give every sampler without a seed one of its own: ``seed``, ``seed + 1``, ... in the order of the file.

    Samplers that have a seed keep it and use up no number (docs/mlagents-behavior.md#seeds).
    """
    next_seed = seed

    def with_seed(lesson: Lesson) -> Lesson:
        nonlocal next_seed
        if lesson.value.seed != UNSEEDED:
            return lesson
        lesson = evolve(lesson, value=evolve(lesson.value, seed=next_seed))
        next_seed += 1
        return lesson

    return {
        name: evolve(parameter, curriculum=[with_seed(lesson) for lesson in parameter.curriculum])
        for name, parameter in parameters.items()
    }
