"""``evaluation`` of a run and of its behaviors, and ``stop``. Not in ML-Agents (docs/measure/evaluation.md)."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import Fault, count, positive
from trajtrainer.settings.environment import UNSEEDED, Sampler, seed_check

MAX_DECISIONS = 27_000
"""Default limit of decisions per episode.

It is the limit for Atari games, which have the longest episodes of the common benchmarks: 108,000 frames, with one
decision every four frames.
"""
_HOUR_S = 3600.0

_LACKING = {
    "interval": "is missing: expected the number of steps between two evaluations, here or in every behavior",
    "episodes": "is missing: expected the number of episodes of each evaluation, here or in every behavior",
}


@frozen
class BehaviorEvaluationSettings:
    """``evaluation`` of one behavior. Other settings are taken from the run's ``evaluation``.

    Attributes:
        interval: steps of this behavior between evaluations.
        episodes: number of episodes per evaluation.
        deterministic: take the most likely actions instead of sampling them.
    """

    interval: int | None = field(default=None, validator=optional(count))
    episodes: int | None = field(default=None, validator=optional(count))
    deterministic: bool | None = None


@frozen
class EvaluationSettings:
    """``evaluation`` of a run: when behaviors are evaluated, and in which environment.

    Attributes:
        interval: steps of a behavior between its evaluations. Together with ``episodes``, it determines how much time
            evaluations take.
        episodes: number of episodes per evaluation. With more episodes, the mean return is more precise: its standard
            error falls with the square root of their number.
        deterministic: take the most likely actions. With ``false``, actions are sampled, which is also the default of
            training, ``trajtrainer evaluate`` and an exported model in Unity. ``--deterministic`` sets this as well.
        env_args: arguments of the evaluation environment. Defaults to those of training.
        wrappers: wrappers of the evaluation environment, for example those of training without the one that clips
            rewards. Defaults to those of training.
        environment_parameters: numbers or samplers that replace those of training. Without them, a parameter with a
            curriculum uses its last lesson.
        seed: seed of the evaluation environment; -1 derives one from the run's seed that differs from that of training.
        num_envs: number of copies of the environment. Use more if an evaluation takes longer than the interval.
        max_decisions: maximum number of an agent's decisions per episode, for policies that never reach the end of an
            episode. Longer episodes are truncated and count with their return so far.
        timeout: maximum duration of an evaluation in seconds. An evaluation that takes longer fails with a message and
            has no result; training continues.
    """

    # ``trajtrainer config`` shows these examples, because evaluations need both settings.
    interval: int | None = field(default=None, validator=optional(count), metadata={"example": 50000})
    episodes: int | None = field(default=None, validator=optional(count), metadata={"example": 10})
    deterministic: bool = False
    env_args: list[str] | None = None
    wrappers: list[str] | None = None
    environment_parameters: dict[str, Sampler] | None = None
    seed: int = field(default=UNSEEDED, validator=seed_check)
    num_envs: int = field(default=1, validator=count)
    max_decisions: int = field(default=MAX_DECISIONS, validator=count)
    timeout: float = field(default=_HOUR_S, validator=positive)


@frozen
class Evaluations:
    """The resolved evaluation settings of one behavior.

    Attributes:
        interval: steps between evaluations.
        episodes: number of episodes per evaluation.
        deterministic: take the most likely actions instead of sampling them.
    """

    interval: int
    episodes: int
    deterministic: bool


@frozen
class StopSettings:
    """``stop``: conditions that end the training of a behavior before ``max_steps``. The first one that is met applies.

    Attributes:
        reward: stop when the mean return reaches this value. It is measured by evaluations if there are any, otherwise
            over the most recent summaries that together have at least 20 episodes. With self-play, the rating is
            compared instead.
        patience: stop after this many evaluations (or summaries) in a row without a new best result.
        time: stop after this many seconds of training, including the time before a ``--resume``.
        episodes: stop after this many completed episodes.
        gradient_steps: stop after this many gradient steps.
    """

    reward: float | None = None
    patience: int | None = field(default=None, validator=optional(count))
    time: float | None = field(default=None, validator=optional(positive))
    episodes: int | None = field(default=None, validator=optional(count))
    gradient_steps: int | None = field(default=None, validator=optional(count))


def evaluations(run: EvaluationSettings | None, own: BehaviorEvaluationSettings | None) -> Evaluations | None:
    """Combine the settings of a behavior with those of the run; return None if it is not evaluated."""
    run, own = run or EvaluationSettings(), own or BehaviorEvaluationSettings()
    interval, episodes = own.interval or run.interval, own.episodes or run.episodes
    if interval is None or episodes is None:
        return None
    return Evaluations(interval, episodes, run.deterministic if own.deterministic is None else own.deterministic)


def missing(run: EvaluationSettings | None, own: BehaviorEvaluationSettings | None, *path: str) -> Iterator[Fault]:
    """Yield a fault if only one of ``interval`` and ``episodes`` is given.

    Args:
        run: ``evaluation`` of the run.
        own: ``evaluation`` of the behavior.
        path: path of the behavior in the configuration.
    """
    run, own = run or EvaluationSettings(), own or BehaviorEvaluationSettings()
    place = (*path, "evaluation") if own.interval or own.episodes else ("evaluation",)
    wanted = {"interval": own.interval or run.interval, "episodes": own.episodes or run.episodes}
    lacking = [name for name, value in wanted.items() if value is None]
    if len(lacking) == 1:
        yield Fault((*place, *lacking), _LACKING[lacking[0]])
