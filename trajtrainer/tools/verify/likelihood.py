"""Computes how likely recorded actions are under a model's distributions, as samples or as its most likely actions.

Both are probability densities, mixed with a tiny share of a uniform density, so that a single outlier cannot decide the
result. Two explanations are compared by their log-likelihood ratio: if the first one is true, the ratio exceeds t in
favor of the second one with a probability of at most exp(-t) (Markov's inequality), regardless of the number of
decisions and of the network.

Shape legend: N decisions, C continuous actions, K discrete branches, F features.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from trajtrainer.core.printable import counted
from trajtrainer.core.steps import BoolArray, FloatArray
from trajtrainer.tools.verify.network import Answer
from trajtrainer.tools.verify.recording import PlayedActions

Doubles = NDArray[np.float64]

# Tolerance for differences between inference engines, for example in the order of sums or in the precision of tanh.
_TOLERANCE: Final = 2e-3
_LOG_TOLERANCE: Final = 2e-3  # discrete actions whose log-probabilities differ by less are considered equally likely
_MOST_ODD: Final = 0.002  # maximum share of decisions by something else, such as a player
_EVEN: Final = 1e-6
_MOST_FEATURES: Final = 24
_SIMULATIONS: Final = 100
_IMPOSSIBLE: Final = 6.0  # deviations from the mean, in standard deviations, that do not occur by chance
# The raw action cannot be recovered if the recorded action is at one of these limits.
_CLIPPED: Final = 1.0 - 1e-6
_SQUASHED: Final = 0.9999
_ROOT_TWO_PI: Final = math.log(math.sqrt(2.0 * math.pi))


class Mode(enum.Enum):
    """How actions are chosen from distributions."""

    SAMPLED = "sampled"
    DETERMINISTIC = "deterministic"


def log_likelihoods(answer: Answer, actions: PlayedActions, mode: Mode) -> Doubles | None:
    """Return log-likelihoods per decision and action [N, C + K], or None if the model cannot act in this mode."""
    if mode is Mode.DETERMINISTIC:
        size = actions.continuous.shape[1]
        found = np.where(matches(answer, actions), 0.0, -np.inf)
        # As for samples, use a probability for actions at the limits, and a density for other actions.
        inside = np.abs(actions.continuous) < (_CLIPPED if answer.limit else _SQUASHED)
        found[:, :size] -= inside * math.log(2.0 * _TOLERANCE)
        for k, log_probs in enumerate(answer.log_probs):
            equal = log_probs >= log_probs.max(axis=1, keepdims=True) - _LOG_TOLERANCE
            found[:, size + k] -= np.log(equal.sum(axis=1))  # any of the equally likely actions may be chosen
    else:
        if not answer.is_sampled or (answer.gaussian is None and answer.mode.shape[1]):
            return None
        found = np.column_stack([_of_continuous(answer, actions), *_of_discrete(answer, actions)])
    mixed: Doubles = np.logaddexp(found, math.log(_EVEN) + evenly(answer))
    return mixed


def evenly(answer: Answer) -> Doubles:
    """Return the log-likelihood of actions under a uniform distribution [C + K]."""
    size = answer.mode.shape[1]
    return np.array([math.log(0.5)] * size + [-math.log(each.shape[1]) for each in answer.log_probs])


def matches(answer: Answer, actions: PlayedActions) -> BoolArray:
    """Return whether each action is the model's most likely one, bool [N, C + K]."""
    near = np.abs(actions.continuous - answer.mode) <= _TOLERANCE
    pairs = zip(answer.log_probs, _of_discrete(answer, actions), strict=True)
    return np.column_stack([near, *(each.max(axis=1) - chosen <= _LOG_TOLERANCE for each, chosen in pairs)])


def _raw(answer: Answer, actions: FloatArray) -> tuple[Doubles, BoolArray, Doubles]:
    """Return raw actions, a mask of the clipped ones, and the log-determinant of the change of variables."""
    given = actions.astype(np.float64)
    limit = _CLIPPED if answer.limit else _SQUASHED
    beyond = np.abs(given) >= limit
    inside = np.clip(given, -limit, limit)
    if answer.limit:
        return inside * answer.limit, beyond, np.full(given.shape, math.log(answer.limit))
    return np.arctanh(inside), beyond, -np.log1p(-np.square(inside))


def _of_continuous(answer: Answer, actions: PlayedActions) -> Doubles:
    if answer.gaussian is None:  # there are no continuous actions
        return np.zeros(actions.continuous.shape)
    mean, spread = answer.gaussian
    raw, beyond, change = _raw(answer, actions.continuous)
    spread = np.maximum(spread.astype(np.float64), 1e-6)
    z = (raw - mean) / spread
    inside = -0.5 * np.square(z) - np.log(spread) - _ROOT_TWO_PI + change
    tail = torch.special.log_ndtr(torch.from_numpy(-np.sign(raw) * z)).numpy()
    found: Doubles = np.where(beyond, tail, inside)
    return found


def _of_discrete(answer: Answer, actions: PlayedActions) -> list[Doubles]:
    rows = np.arange(len(actions))
    return [each[rows, actions.discrete[:, k]].astype(np.float64) for k, each in enumerate(answer.log_probs)]


def sampled(answer: Answer, random: np.random.Generator) -> PlayedActions:
    """Sample actions from the distributions."""
    continuous = answer.mode
    if answer.gaussian is not None:
        mean, spread = answer.gaussian
        raw = mean + spread * random.standard_normal(mean.shape, np.float32)
        continuous = np.clip(raw / answer.limit, -1.0, 1.0) if answer.limit else np.tanh(raw)
    columns = [(each + random.gumbel(size=each.shape)).argmax(axis=1) for each in answer.log_probs]
    discrete = np.column_stack([np.zeros((len(continuous), 0), np.int64), *columns])
    return PlayedActions(continuous.astype(np.float32), discrete)


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of the error, to show to the user.

    Attributes:
        decisions: number of decisions that were compared.
        different: share of decisions whose action is not the most likely one.
        distance: mean difference of continuous actions from the model's most likely ones; None without such actions.
        deviations, usual_deviations: root mean square distance from the mean in standard deviations, as found and as
            expected for samples, for actions that are not clipped; None without a distribution.
        probability, usual_probability: geometric mean of the probability of discrete actions, as found and as expected
            for samples; None without such actions, or without a distribution.
    """

    decisions: int
    different: float
    distance: float | None
    deviations: float | None = None
    usual_deviations: float | None = None
    probability: float | None = None
    usual_probability: float | None = None

    def in_words(self, mode: Mode) -> str:
        """Return the figures for this mode as text."""
        if mode is Mode.DETERMINISTIC:
            text = f"{self.different:.1%} of {counted(self.decisions, 'decision')} differ"
            return text + (f", by {self.distance:.3g} on average" if self.distance is not None else "")
        parts = []
        if self.deviations is not None and self.usual_deviations is not None:
            expected = f"{self.usual_deviations:.2f} expected"
            parts.append(f"{self.deviations:.2f} standard deviations from the mean ({expected})")
        if self.probability is not None and self.usual_probability is not None:
            found, usual = (
                f"{each:.3g}" if each < 0.001 else f"{each:.1%}" for each in (self.probability, self.usual_probability)
            )
            parts.append(f"probability {found} ({usual} expected)")
        return "; ".join(parts)

    @property
    def error(self) -> float:
        """A number that grows with the distance of the actions from the model's, even if none of them match."""
        error = (self.distance or 0.0) + (self.different if self.probability is None else -math.log(self.probability))
        return error if self.deviations is None else error + math.log(max(self.deviations, 1e-9))


def figures(answer: Answer, actions: PlayedActions) -> Figures:
    """Compute the error of one or more decisions. The expected values are estimated from one sample per decision."""
    usual = sampled(answer, np.random.default_rng(0))
    return Figures(
        len(actions),
        float((~matches(answer, actions)).any(1).mean()),
        float(np.abs(actions.continuous - answer.mode).mean()) if actions.continuous.shape[1] else None,
        _deviations(answer, actions),
        _deviations(answer, usual),
        _probability(answer, actions),
        _probability(answer, usual),
    )


def _probability(answer: Answer, actions: PlayedActions) -> float | None:
    if not answer.log_probs or not answer.is_sampled:
        return None
    return math.exp(np.column_stack(_of_discrete(answer, actions)).clip(-30.0).mean())


def _deviations(answer: Answer, actions: PlayedActions) -> float | None:
    if answer.gaussian is None:
        return None
    mean, spread = answer.gaussian
    raw, beyond, _ = _raw(answer, actions.continuous)
    z = (raw - mean) / np.maximum(spread, 1e-6)
    return None if beyond.all() else float(np.sqrt(np.square(z[~beyond]).mean()))


def features(obs: Sequence[FloatArray]) -> FloatArray:
    """Return features that distinguish decisions, f32 [N, F]: standardized observations, or random sums of them."""
    flat = np.concatenate([values.reshape(len(values), -1) for values in obs], axis=1)
    deviation = flat.std(axis=0)
    varied = deviation > 1e-6
    found = (flat[:, varied] - flat[:, varied].mean(axis=0)) / deviation[varied]
    if found.shape[1] > _MOST_FEATURES:
        signs = np.random.default_rng(0).choice((-1.0, 1.0), (found.shape[1], _MOST_FEATURES)).astype(np.float32)
        found = found @ signs
        found /= found.std(axis=0)
    clipped: FloatArray = np.clip(found, -3.0, 3.0)
    return clipped


def fits(answer: Answer, actions: PlayedActions, mode: Mode, seen: FloatArray) -> bool:
    """Return whether the actions are consistent with the model.

    For sampled actions, statistics are compared with those of simulated samples: the likelihood, and mean and spread of
    each action around its expected value, including the correlation with the observations.

    Args:
        answer: the model's distributions in N decisions.
        actions: the recorded actions.
        mode: how the actions were chosen.
        seen: features of the decisions, [N, F].
    """
    if mode is Mode.DETERMINISTIC:
        return int((~matches(answer, actions)).any(1).sum()) <= _MOST_ODD * len(actions)
    random = np.random.default_rng(0)
    simulated = np.stack([_statistics(answer, sampled(answer, random), seen) for _ in range(_SIMULATIONS)])
    off = np.abs(_statistics(answer, actions, seen) - simulated.mean(axis=0))
    return bool((off <= _IMPOSSIBLE * simulated.std(axis=0) + 1e-6).all())


def _statistics(answer: Answer, actions: PlayedActions, seen: FloatArray) -> Doubles:
    residuals = [actions.continuous - answer.mode]
    for k, log_probs in enumerate(answer.log_probs):
        residuals.append(np.eye(log_probs.shape[1])[actions.discrete[:, k]] - np.exp(log_probs))
    each = np.concatenate(residuals, axis=1)
    likely = log_likelihoods(answer, actions, Mode.SAMPLED)
    assert likely is not None
    found = [each.mean(axis=0), np.square(each).mean(axis=0), (seen.T @ each).ravel() / len(each), likely.mean(axis=0)]
    return np.concatenate(found)
