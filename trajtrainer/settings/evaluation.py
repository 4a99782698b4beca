"""``evaluation`` of a run and of its behaviors, and ``stop``. Not in ML-Agents (docs/measure/evaluation.md)."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import Fault, count, positive
from trajtrainer.settings.environment import UNSEEDED, Sampler, seed_check

MAX_DECISIONS = 27_000
"""Default limit of decisions per episode.

It is the limit of Atari games (108,000 frames, a decision every four), the longest episodes of common benchmarks.
"""
_HOUR_S = 3600.0

_LACKING = {
    "interval": "is missing: expected the number of steps between two evaluations, here or in every behavior",
    "episodes": "is missing: expected the number of episodes of each evaluation, here or in every behavior",
}


@frozen
class BehaviorEvaluationSettings:
    """``evaluation`` of one behavior; anything left out is as in the run.

    Attributes:
        interval: steps of this behavior between two evaluations.
        episodes: episodes of each evaluation.
        deterministic: take the most likely actions.
    """

    interval: int | None = field(default=None, validator=optional(count))
    episodes: int | None = field(default=None, validator=optional(count))
    deterministic: bool | None = None


@frozen
class EvaluationSettings:
    """``evaluation`` of a run: when its behaviors are evaluated, and in which environment.

    Attributes:
        interval: steps of a behavior between two of its evaluations. Together with ``episodes``, it determines the cost
            of evaluations.
        episodes: episodes of each evaluation. More episodes make the mean more certain: its error falls with the square
            root of their number.
        deterministic: take the most likely actions. False samples them, which is also the default of training,
            ``trajtrainer evaluate`` and an exported model in Unity. ``--deterministic`` sets this, too.
        env_args: arguments of the evaluation's environment. Left out: those of training.
        wrappers: of its environment, such as those of training without the one that clips rewards. Left out: those of
            training.
        environment_parameters: numbers or samplers that replace those of training. Of a curriculum in training, the
            last lesson is used.
        seed: seed of the evaluation's environment; -1 derives a different one from the run's seed.
        num_envs: copies of the environment. Use more if an evaluation is not over when the next one is due.
        max_decisions: limit of an agent's decisions in one episode, because some policies never reach the end. A longer
            episode is truncated there, and counts with its return up to then.
        timeout: seconds that an evaluation may take. If it takes longer, it fails with a message and has no result, and
            training continues.
    """

    # ``trajtrainer config`` suggests these examples, because evaluations need both.
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
    """The resulting evaluation settings of one behavior.

    Attributes:
        interval: steps between two evaluations.
        episodes: episodes of each evaluation.
        deterministic: take the most likely actions.
    """

    interval: int
    episodes: int
    deterministic: bool


@frozen
class StopSettings:
    """``stop``: what ends the training of a behavior besides ``max_steps``, whichever comes first.

    Attributes:
        reward: value of the measure for the best model: the mean return of an evaluation or of the newest summaries
            with at least 20 episodes together; with self-play, the rating.
        patience: number of measures in a row that have not been better than the best.
        time: seconds of training, including those before a ``--resume``.
        episodes: episodes that have ended.
        gradient_steps: updates of the weights.
    """

    reward: float | None = None
    patience: int | None = field(default=None, validator=optional(count))
    time: float | None = field(default=None, validator=optional(positive))
    episodes: int | None = field(default=None, validator=optional(count))
    gradient_steps: int | None = field(default=None, validator=optional(count))


def evaluations(run: EvaluationSettings | None, own: BehaviorEvaluationSettings | None) -> Evaluations | None:
    """Combine the settings of a behavior with those of the run; None if it has no evaluations."""
    run, own = run or EvaluationSettings(), own or BehaviorEvaluationSettings()
    interval, episodes = own.interval or run.interval, own.episodes or run.episodes
    if interval is None or episodes is None:
        return None
    return Evaluations(interval, episodes, run.deterministic if own.deterministic is None else own.deterministic)


def missing(run: EvaluationSettings | None, own: BehaviorEvaluationSettings | None, *path: str) -> Iterator[Fault]:
    """Report ``interval`` or ``episodes`` if only the other one is given.

    Args:
        run: ``evaluation`` of the run.
        own: ``evaluation`` of the behavior.
        path: of the behavior.
    """
    run = run or EvaluationSettings()
    has_own = own is not None and (own.interval, own.episodes) != (None, None)
    place = (*path, "evaluation") if has_own else ("evaluation",)
    own = own or BehaviorEvaluationSettings()
    wanted = {"interval": own.interval or run.interval, "episodes": own.episodes or run.episodes}
    lacking = [name for name, value in wanted.items() if value is None]
    if len(lacking) == 1:
        yield Fault((*place, *lacking), _LACKING[lacking[0]])
