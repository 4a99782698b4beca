"""``env_settings``, ``engine_settings`` and ``environment_parameters``."""

from __future__ import annotations

import enum
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence

from attrs import evolve, field, frozen

from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.settings.checks import (
    INTERNAL,
    OURS,
    Fault,
    between,
    count,
    mismatch,
    not_negative,
    positive,
    raise_faults,
    satisfies,
    shown,
    unlimited_count,
)
from trajtrainer.settings.schemes import find_scheme

LOOPBACK = "127.0.0.1"
UNSEEDED = -1
_LARGEST_SEED = 2**31 - 1  # the seed is an int32 in the handshake
LARGEST_PORT = 65535
_WRAPPER, _ARGUMENT = re.compile(r"[\w.]+:[\w.]+"), re.compile(r"[^\W\d]\w*=")

seed_check = between(UNSEEDED, _LARGEST_SEED)


@frozen
class EnvironmentSettings:
    """``env_settings``: the environment to train in, and the handling of its failures.

    Attributes:
        env_path: environment to train in: the path of a Unity player, or ``sim:NAME``, ``godot:PATH``, ``gym:ID``,
            ``envpool:ID``, ``pettingzoo:MODULE``, ``python:MODULE:FACTORY`` or a scheme from an installed package (see
            Environments). Without it, the run waits for the Unity Editor; with ``godot``, for the Godot editor.
        env_args: list of command-line arguments for the player, or of ``key=value`` arguments for the constructor of a
            Python environment.
        wrappers: wrappers for each copy of a Gymnasium or PettingZoo environment, innermost first, in the form
            ``package.module:Wrapper key=value ...``. Not in ML-Agents.
        base_port: port of the first player; the others use consecutive ports after it. Change it if the ports are in
            use. The Editor always uses port 5004.
        num_envs: number of players, or copies of a Python environment, to run in parallel. Increase it as long as there
            are idle cores, and scale ``buffer_size`` accordingly.
        num_areas: number of training areas in each player (``TrainingAreaReplicator``). Increase it if a single area
            leaves the processor idle.
        timeout_wait: seconds to wait for each response from a player. Increase it for scenes that take long to load or
            to simulate.
        python_timeout: maximum duration of one call to a Python environment (constructor, reset, step, close) or to a
            statistics writer, in seconds; -1 for no limit. If a call takes longer, the run saves its state and ends.
            Increase it for environments that spend a long time downloading or compiling. Not in ML-Agents.
        seed: seed of the run, of its players (seed + index of the player) and of samplers without a seed. -1 draws a
            random seed and logs it. Set it to make runs reproducible.
        max_lifetime_restarts: maximum number of restarts of each player that crashes or hangs, over the whole run; -1
            for no limit.
        restarts_rate_limit_n: maximum number of restarts of each player within ``restarts_rate_limit_period_s``; -1 for
            no limit. Increase it if players crash often but training can continue.
        restarts_rate_limit_period_s: period of ``restarts_rate_limit_n`` in seconds.
        listen_address: address on which to listen for players. With ``0.0.0.0``, players can connect from other
            machines and containers, but anyone who can reach the port can send data to the run. Not in ML-Agents, which
            always listens on all interfaces.
        raw_image_order: axis order of raw (uncompressed) images from Unity packages 3.0 and newer: ``hwc`` (height,
            width, channels) or ``chw``. ``auto`` detects it from the first images. Set it if the log reports that
            detection failed, or if the detected order is wrong. Not in ML-Agents, which always assumes ``chw``.
        presumed_raw_image_order: order that an earlier session detected, used with ``auto`` for images from which it
            cannot be detected. Not part of the file, and ignored in comparisons.
    """

    env_path: str | None = None
    env_args: list[str] | None = None
    wrappers: list[str] | None = field(default=None, metadata=OURS)
    base_port: int = field(default=5005, validator=between(1, LARGEST_PORT))
    num_envs: int = field(default=1, validator=count)
    num_areas: int = field(default=1, validator=count)
    timeout_wait: int = field(default=60, validator=count)
    python_timeout: int = field(default=1800, validator=unlimited_count, metadata=OURS)
    seed: int = field(default=UNSEEDED, validator=seed_check)
    max_lifetime_restarts: int = field(default=10, validator=unlimited_count)
    restarts_rate_limit_n: int = field(default=1, validator=unlimited_count)
    restarts_rate_limit_period_s: int = field(default=60, validator=count)
    # ML-Agents' server binds every interface (docs/explanation/mlagents-behavior.md#transport).
    listen_address: str = field(default=LOOPBACK, validator=satisfies(bool, "an address or a host name"), metadata=OURS)
    raw_image_order: RawImageOrder = field(default=RawImageOrder.AUTO, metadata=OURS)
    presumed_raw_image_order: RawImageOrder = field(default=RawImageOrder.AUTO, eq=False, metadata=INTERNAL)

    def __attrs_post_init__(self) -> None:
        raise_faults(self._faults())

    @property
    def is_editor(self) -> bool:
        """True if the environment runs in an editor, such as Unity's, which only the user can start."""
        scheme = find_scheme(self.env_path)
        return self.env_path is None or (scheme is not None and scheme.editor and ":" not in self.env_path)

    @property
    def why_one(self) -> str:
        """The reason why an editor can have only one environment, as the end of a message."""
        given = "no env_path is given" if self.env_path is None else f"env_path is {self.env_path}"
        return f"as {given} (the {'E' if self.env_path is None else 'e'}ditor is one environment)"

    def _faults(self) -> Iterator[Fault]:
        yield from wrapper_faults(self.wrappers, self.env_path, "wrappers")
        if self.num_envs > 1 and self.is_editor:
            yield mismatch(("num_envs",), self.num_envs, f"1, {self.why_one}")
        if self.env_path is not None and self.base_port + self.num_envs - 1 > LARGEST_PORT:
            expected = f"at most {LARGEST_PORT - self.num_envs + 1}, as {self.num_envs} environments need a port each"
            yield mismatch(("base_port",), self.base_port, expected)


def wrapper_faults(wrappers: Sequence[str] | None, env_path: str | None, *path: str) -> Iterator[Fault]:
    """Yield the faults of wrappers that can be found without importing them."""
    for index, text in enumerate(wrappers or ()):
        try:
            name, *arguments = shlex.split(text)
        except ValueError:
            name, arguments = "", []
        if not _WRAPPER.fullmatch(name) or not all(map(_ARGUMENT.match, arguments)):
            expected = "package.module:Wrapper and its arguments, each as key=value (in quotes if it has spaces)"
            yield mismatch((*path, str(index)), text, expected)
    scheme = find_scheme(env_path)
    if wrappers and (scheme is None or not scheme.takes_wrappers):
        where = "the Unity Editor" if env_path is None else shown(env_path)
        remedy = "is not a Python environment" if scheme is None else scheme.no_wrappers
        message = f"expected no wrappers: they are for gym:, pettingzoo: and python: environments, and {where} {remedy}"
        yield Fault(path, message)


@frozen
class EngineSettings:
    """``engine_settings``: settings of the Unity engine.

    Attributes:
        width: width of the player's window in pixels. It does not affect camera sensors, which have their own size.
        height: height of the player's window in pixels.
        quality_level: quality level of the player (``QualitySettings.SetQualityLevel``). Lower it if rendering slows
            down training.
        time_scale: speed of game time relative to real time (``Time.timeScale``). Lower it to between 1 and 5 if the
            physics become unstable; use 1 to watch the agents.
        target_frame_rate: maximum frame rate in frames per second (``Application.targetFrameRate``); -1 uses the
            player's own setting.
        capture_frame_rate: frames per second of game time (``Time.captureFramerate``). Each frame advances game time by
            1 / ``capture_frame_rate`` seconds, however long it takes to compute. With 0, game time follows real time.
        no_graphics: start all players with ``-nographics -batchmode``, for machines without a display. Camera sensors
            do not work in this mode.
        no_graphics_monitor: like ``no_graphics``, but for all players except the first.
    """

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
    """A parameter with a constant value.

    Attributes:
        seed: seed of the sampler; -1 derives it from the run's seed.
        value: value of the parameter.
    """

    seed: int = field(default=UNSEEDED, validator=seed_check)
    value: float = 0.0


@frozen
class UniformSettings:
    """A parameter drawn uniformly from [min_value, max_value].

    Attributes:
        seed: seed of the sampler; -1 derives it from the run's seed.
        min_value: lower bound.
        max_value: upper bound.
    """

    seed: int = field(default=UNSEEDED, validator=seed_check)
    min_value: float = 0.0
    max_value: float = 1.0

    def __attrs_post_init__(self) -> None:
        if self.min_value > self.max_value:
            raise_faults([mismatch(("min_value",), self.min_value, f"at most max_value ({self.max_value})")])


@frozen
class GaussianSettings:
    """A parameter drawn from a normal distribution.

    Attributes:
        seed: seed of the sampler; -1 derives it from the run's seed.
        mean: mean of the distribution.
        st_dev: standard deviation of the distribution.
    """

    seed: int = field(default=UNSEEDED, validator=seed_check)
    mean: float = 1.0
    st_dev: float = field(default=1.0, validator=not_negative)


@frozen
class MultiRangeUniformSettings:
    """A parameter drawn uniformly from the union of several intervals, each weighted by its length.

    Attributes:
        seed: seed of the sampler; -1 derives it from the run's seed.
        intervals: list of ``[low, high]`` pairs.
    """

    seed: int = field(default=UNSEEDED, validator=seed_check)
    intervals: list[tuple[float, float]] = field(
        factory=lambda: [(0.0, 1.0)], validator=satisfies(bool, "at least one interval [low, high]")
    )

    def __attrs_post_init__(self) -> None:
        raise_faults(
            mismatch(("intervals", str(index)), list(interval), "[low, high] with low not above high")
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
"""``sampler_type`` -> class of its ``sampler_parameters``."""


class Measure(enum.Enum):
    """The quantity that is compared with the threshold of a lesson."""

    REWARD = "reward"
    GROUP_REWARD = "group_reward"
    PROGRESS = "progress"
    ELO = "elo"


@frozen
class CompletionCriteria:
    """The condition for completing a lesson.

    Attributes:
        behavior: name of the behavior whose progress is measured.
        measure: quantity to compare with the threshold. ``reward`` is the mean return of the last episodes,
            ``progress`` the current step divided by ``max_steps``, ``elo`` the rating in ``self_play`` (rejected by
            ML-Agents), and ``group_reward`` the mean group reward of the last episodes (not in ML-Agents).
        min_lesson_length: minimum number of episodes in the lesson, and the number of last episodes over which rewards
            are averaged. Increase it if returns vary a lot between episodes.
        signal_smoothing: compare 0.25 times the previous smoothed reward plus 0.75 times the current one with the
            threshold.
        threshold: value that the measure must exceed to complete the lesson.
        require_reset: reset the environment when the lesson changes. Otherwise, the new value is only sent to it.
    """

    behavior: str
    measure: Measure = Measure.REWARD
    min_lesson_length: int = field(default=0, validator=not_negative)
    signal_smoothing: bool = True
    threshold: float = 0.0
    require_reset: bool = False

    def __attrs_post_init__(self) -> None:
        if self.measure is Measure.PROGRESS and not 0 <= self.threshold <= 1:
            expected = "a number from 0 to 1, as the measure is progress"
            raise_faults([mismatch(("threshold",), self.threshold, expected)])


@frozen
class Lesson:
    """One lesson of a parameter: its value, and the condition for completing it.

    Attributes:
        name: name of the lesson, for logs and TensorBoard.
        value: value of the parameter: a number, or a sampler (``sampler_type`` and ``sampler_parameters``).
        completion_criteria: condition for moving on to the next lesson. Required for all lessons but the last.
    """

    name: str
    value: Sampler
    completion_criteria: CompletionCriteria | None = None


@frozen
class EnvironmentParameterSettings:
    """The curriculum of one environment parameter.

    Attributes:
        curriculum: list of lessons, in order, at least one. A parameter given as a number or a sampler has a single
            lesson that never ends.
    """

    curriculum: list[Lesson] = field(validator=satisfies(bool, "at least one lesson"))

    def __attrs_post_init__(self) -> None:
        raise_faults(
            Fault(
                ("curriculum", str(index)),
                f"lesson {lesson.name!r} has no completion_criteria, which every lesson but the last needs",
            )
            for index, lesson in enumerate(self.curriculum[:-1])
            if lesson.completion_criteria is None
        )


def seeded(parameters: dict[str, EnvironmentParameterSettings], seed: int) -> dict[str, EnvironmentParameterSettings]:
    """Give samplers without a seed the seeds ``seed``, ``seed + 1``, ... in the order of the file.

    Samplers that already have a seed keep it and are skipped (docs/explanation/mlagents-behavior.md#seeds).
    """
    seeds = itertools.count(seed)

    def with_seed(lesson: Lesson) -> Lesson:
        if lesson.value.seed != UNSEEDED:
            return lesson
        return evolve(lesson, value=evolve(lesson.value, seed=next(seeds)))

    return {
        name: evolve(parameter, curriculum=[with_seed(lesson) for lesson in parameter.curriculum])
        for name, parameter in parameters.items()
    }
