"""``env_settings``, ``engine_settings`` and ``environment_parameters``."""

from __future__ import annotations

import enum
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
_LARGEST_SEED = 2**31 - 1  # the handshake carries the seed as int32
LARGEST_PORT = 65535
_WRAPPER, _ARGUMENT = re.compile(r"[\w.]+:[\w.]+"), re.compile(r"[^\W\d]\w*=")

seed_check = between(UNSEEDED, _LARGEST_SEED)


@frozen
class EnvironmentSettings:
    """``env_settings``: which players to start and when to give up on them.

    Attributes:
        env_path: the player to start, or ``sim:NAME``, ``godot:PATH``, ``gym:ID``, ``envpool:ID``,
            ``pettingzoo:MODULE``, ``python:MODULE:FACTORY`` or a scheme of an installed package (see Environments).
            Without it, the run waits for the Unity Editor; with ``godot``, for the Godot editor.
        env_args: a list of arguments for the player's command line, or of ``key=value`` for the constructor of a Python
            environment.
        wrappers: wrappers of each copy of a Gymnasium or PettingZoo environment, the innermost first, as
            ``package.module:Wrapper key=value ...``. Not in ML-Agents.
        base_port: port of the first player; the next players use the ports after it. Change it if the ports are in use.
            The Editor always has 5004.
        num_envs: number of players, or copies of a Python environment, at the same time. Use more as long as there
            are cores for them, and scale ``buffer_size`` with it.
        num_areas: training areas that each player sets up (``TrainingAreaReplicator``). Use more if one area leaves the
            processor idle.
        timeout_wait: seconds to wait for each answer of a player. Use more for scenes that load or compute for long.
        python_timeout: seconds that one call of a Python environment (creating it, reset, step, close) or of a
            statistics writer may take; -1 for no limit. A call that takes longer ends the run, with everything saved.
            Use more for environments that download or compile for long. Not in ML-Agents.
        seed: seed of the run, of its players (seed + number of the player) and of samplers without a seed; -1 draws one
            and logs it. Set it to repeat a run.
        max_lifetime_restarts: restarts of players that crash or hang, in one run; -1 for no limit.
        restarts_rate_limit_n: restarts within ``restarts_rate_limit_period_s``; -1 for no limit. Use more with many
            players.
        restarts_rate_limit_period_s: the period of ``restarts_rate_limit_n``, in seconds.
        listen_address: address on which to wait for players. ``0.0.0.0`` lets other machines and containers in: anyone
            who reaches the port can then send data into the run. Not in ML-Agents, which always does that.
        raw_image_order: order of raw (uncompressed) images from Unity packages 3.0 and newer: ``hwc`` (height, width,
            channels) or ``chw``. ``auto`` detects it from the first images; set it if the log says that this failed or
            if the result is wrong. Not in ML-Agents, which always assumes ``chw``.
        presumed_raw_image_order: with ``auto``, the order that an earlier session detected, for images that do not show
            it. Not part of the file, nor of equality.
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
        """Whether the environment is in an editor, such as Unity's, which only the user can start."""
        scheme = find_scheme(self.env_path)
        return self.env_path is None or (scheme is not None and scheme.editor and ":" not in self.env_path)

    @property
    def why_one(self) -> str:
        """Why there can be only one environment in an editor, as the end of a message."""
        given = "no env_path is given" if self.env_path is None else f"env_path is {self.env_path}"
        return f"as {given} (the {'E' if self.env_path is None else 'e'}ditor is one environment)"

    def _faults(self) -> Iterator[Fault]:
        yield from wrapper_faults(self.wrappers, self.env_path, "wrappers")
        if self.num_envs > 1 and self.is_editor:
            yield mismatch(("num_envs",), self.num_envs, f"1, {self.why_one}")
        if self.env_path is not None and self.base_port + self.num_envs - 1 > LARGEST_PORT:
            expected = f"at most {LARGEST_PORT - self.num_envs + 1}, as {self.num_envs} environments need a port each"
            yield mismatch(("base_port",), self.base_port, expected)


def wrapper_words(text: str) -> list[str]:
    """Split a wrapper into its name and its arguments, which may be quoted as in a shell.

    >>> wrapper_words("gymnasium.wrappers:ResizeObservation 'shape=[84, 84]'")
    ['gymnasium.wrappers:ResizeObservation', 'shape=[84, 84]']

    Raises:
        ValueError: a closing quote is missing.
    """
    return shlex.split(text)


def wrapper_faults(wrappers: Sequence[str] | None, env_path: str | None, *path: str) -> Iterator[Fault]:
    """Check wrappers as far as that is possible without importing them."""
    for index, text in enumerate(wrappers or ()):
        try:
            name, *arguments = wrapper_words(text)
        except ValueError:
            name, arguments = "", []
        if not _WRAPPER.fullmatch(name) or not all(map(_ARGUMENT.match, arguments)):
            expected = "package.module:Wrapper and its arguments, each as key=value (in quotes if it has spaces)"
            yield mismatch((*path, str(index)), text, expected)
    scheme = find_scheme(env_path)
    if wrappers and (scheme is None or not scheme.takes_wrappers):
        where = "the Unity Editor" if env_path is None else shown(env_path)
        remedy = "is not a Python environment" if scheme is None else scheme.no_wrappers
        message = f"expected none: they are for gym:, pettingzoo: and python: environments, and {where} {remedy}"
        yield Fault(path, message)


@frozen
class EngineSettings:
    """``engine_settings``: settings of the player's engine.

    Attributes:
        width: width of the player's window in pixels. Camera sensors have their own sizes.
        height: height of the player's window in pixels.
        quality_level: the player's quality level (``QualitySettings.SetQualityLevel``). Lower it if
            rendering slows down training.
        time_scale: how fast time passes in the game (``Time.timeScale``). Lower (1 to 5) where physics become unstable
            at speed; 1 to watch.
        target_frame_rate: frames per second at most (``Application.targetFrameRate``); -1 leaves it to the player.
        capture_frame_rate: frames per second of game time (``Time.captureFramerate``): each frame takes 1 / this of
            game time, however long it takes to compute. 0 lets game time follow the clock.
        no_graphics: start every player with ``-nographics -batchmode``, for machines without a screen. Camera sensors
            do not work then.
        no_graphics_monitor: the same for all players but the first.
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
    """A parameter that is always ``value``.

    Attributes:
        seed: seed of the sampler; -1 derives it from the run's seed.
        value: the number.
    """

    seed: int = field(default=UNSEEDED, validator=seed_check)
    value: float = 0.0


@frozen
class UniformSettings:
    """A parameter drawn evenly from [min_value, max_value].

    Attributes:
        seed: seed of the sampler; -1 derives it from the run's seed.
        min_value: the least value.
        max_value: the largest value.
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
    """A parameter drawn evenly from several intervals, each weighted by its length.

    Attributes:
        seed: seed of the sampler; -1 derives it from the run's seed.
        intervals: a list of ``[low, high]``.
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
"""``sampler_type`` -> the class of its ``sampler_parameters``."""


class Measure(enum.Enum):
    """What the threshold of a lesson is compared with."""

    REWARD = "reward"
    GROUP_REWARD = "group_reward"
    PROGRESS = "progress"
    ELO = "elo"


@frozen
class CompletionCriteria:
    """When a lesson is completed.

    Attributes:
        behavior: name of the behavior that is measured.
        measure: ``reward``: mean return of its last episodes; ``progress``: its step / ``max_steps``; ``elo``: its
            rating, with ``self_play`` (ML-Agents refuses that); ``group_reward``: mean of the group rewards of its last
            episodes (not in ML-Agents).
        min_lesson_length: the lesson lasts at least that many episodes, and the reward is the mean over that many. Use
            more if returns differ much from episode to episode.
        signal_smoothing: compare 0.25 * the last measure + 0.75 * the current measure.
        threshold: the lesson is completed when the measure is above this.
        require_reset: reset the environment when the lesson changes; otherwise the new value is only sent to it.
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
    """One lesson of a parameter: where its value comes from, and when it is completed.

    Attributes:
        name: name of the lesson, for logs and TensorBoard.
        value: a number, or a sampler: ``sampler_type`` and ``sampler_parameters``.
        completion_criteria: when the next lesson begins. The last lesson has none.
    """

    name: str
    value: Sampler
    completion_criteria: CompletionCriteria | None = None


@frozen
class EnvironmentParameterSettings:
    """The lessons of one environment parameter, at least one.

    Attributes:
        curriculum: the lessons in their order. A parameter that is only a number or a sampler has one endless lesson.
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

    Samplers that have a seed keep it and do not count (docs/explanation/mlagents-behavior.md#seeds).
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
