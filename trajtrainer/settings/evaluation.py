"""``evaluation``, of a run and of its behaviors, and ``stop``. None of them is in ML-Agents (docs/evaluation.md)."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import Fault, count, positive
from trajtrainer.settings.environment import UNSEEDED, Sampler, seed_check

MAX_DECISIONS = 27_000
"""The limit of decisions per episode by default.

As many as Atari games allow (108,000 frames, a decision every four), the longest episodes of the usual benchmarks.
"""
_HOUR_S = 3600.0


@frozen
class BehaviorEvaluationSettings:
    """``evaluation`` of one behavior; what is left out is that of the run.

    Attributes:
        interval: steps of this behavior between two evaluations.
        episodes: of each evaluation.
        deterministic: take the most likely actions.
    """

    interval: int | None = field(default=None, validator=optional(count))
    episodes: int | None = field(default=None, validator=optional(count))
    deterministic: bool | None = None


@frozen
class EvaluationSettings:
    """``evaluation`` of a run: when its behaviors are evaluated, and in which environment.

    Attributes:
        interval: steps of a behavior between two evaluations of it. Together with ``episodes`` it says what evaluation
            may cost.
        episodes: of each evaluation. More make the mean more certain: its error falls with the root of their number.
        deterministic: take the most likely actions. False samples them, as training, ``trajtrainer evaluate`` and an
            exported model in Unity do unless they are told otherwise. ``--deterministic`` sets this, too.
        env_args: of its environment. Left out, those of the training.
        wrappers: of its environment, such as those of the training but the one that clips rewards. Left out, those of
            the training.
        environment_parameters: numbers or samplers that go before those of the training, of whose curricula the last
            lesson counts.
        seed: of the evaluation's environment; -1 takes one that follows from the run's and is another.
        num_envs: copies of the environment. More where an evaluation is not over when the next one is due.
        max_decisions: decisions that an agent makes in one episode at most. A longer episode is truncated there and
            counts with what it has brought: some policies never come to the end of one.
        timeout: seconds that an evaluation may take. One that takes longer fails: it has no result, a message says so,
            and training goes on.
    """

    # Proposed by ``trajtrainer config``, as there are no evaluations without both.
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
    """The evaluations of one behavior.

    Attributes:
        interval: steps between two of them.
        episodes: of each.
        deterministic: take the most likely actions.
    """

    interval: int
    episodes: int
    deterministic: bool


@frozen
class StopSettings:
    """``stop``: what ends the training of a behavior beside ``max_steps``, whichever comes first.

    Attributes:
        reward: the measure of the best model has reached this: the mean return of an evaluation or of the newest
            summaries that have 20 episodes together, with self-play the rating.
        patience: so many measures in a row have not been better than the best.
        time: seconds of training, those before a ``--resume`` included.
        episodes: episodes that have ended.
        gradient_steps: updates of the weights.
    """

    reward: float | None = None
    patience: int | None = field(default=None, validator=optional(count))
    time: float | None = field(default=None, validator=optional(positive))
    episodes: int | None = field(default=None, validator=optional(count))
    gradient_steps: int | None = field(default=None, validator=optional(count))


def evaluations(run: EvaluationSettings | None, own: BehaviorEvaluationSettings | None) -> Evaluations | None:
    """Return those of a behavior, whose own settings go before those of the run; None if it has none."""
    run, own = run or EvaluationSettings(), own or BehaviorEvaluationSettings()
    interval, episodes = own.interval or run.interval, own.episodes or run.episodes
    if interval is None or episodes is None:
        return None
    return Evaluations(interval, episodes, run.deterministic if own.deterministic is None else own.deterministic)


def missing(run: EvaluationSettings | None, own: BehaviorEvaluationSettings | None, *path: str) -> Iterator[Fault]:
    """Find out which of ``interval`` and ``episodes`` is not there, where there is one of them.

    Args:
        run: ``evaluation`` of the run.
        own: that of the behavior.
        path: of the behavior's.
    """
    run = run or EvaluationSettings()
    has_own = own is not None and (own.interval, own.episodes) != (None, None)
    place = (*path, "evaluation") if has_own else ("evaluation",)
    own = own or BehaviorEvaluationSettings()
    wanted = {"interval": own.interval or run.interval, "episodes": own.episodes or run.episodes}
    lacking = [name for name, value in wanted.items() if value is None]
    if len(lacking) == 1:
        others = tuple((*place, name) for name in wanted if name not in lacking)
        yield Fault((*place, *lacking), _LACKING[lacking[0]], others)


_LACKING = {
    "interval": "is missing: expected the number of steps between two evaluations, here or in every behavior",
    "episodes": "is missing: expected the number of episodes of each evaluation, here or in every behavior",
}
