"""How likely recorded actions are under what a policy gives: as draws from it, and as its most likely actions.

Both are probability densities, mixed with a tiny even one so that one odd action cannot decide. Two explanations are
compared by the logarithm of their likelihood ratio: if the first is true, the second is ahead by t or more with a
probability of at most exp(-t) (Markov's inequality), however many decisions there are and whatever the network is.

Shape legend: N decisions, C continuous actions, K discrete branches.
"""

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from trajtrainer.core.printable import counted
from trajtrainer.core.steps import BoolArray, FloatArray
from trajtrainer.tools.verify.network import Answer, log_softmax

Doubles = NDArray[np.float64]

# Logarithm of a likelihood ratio from which on one of some hundred explanations is better than the model as it is.
DECISIVE: Final = 11.0
_IMPOSSIBLE: Final = 15.0  # the same of a thousand general deviations
# Between engines: other orders of sums, other approximations of exp and tanh.
TOLERANCE: Final = 2e-3
_LOG_TOLERANCE: Final = 2e-3  # of log-probabilities, where two discrete actions are as good as equal
_MOST_ODD: Final = 0.002  # of decisions that may be no answer of the model: a player took over, and the like
_EVEN: Final = 1e-6
_MOST_FEATURES: Final = 24
# Beyond, raw actions are not known.
_CUT_OFF: Final = 1.0 - 1e-6
_SQUASHED: Final = 0.9999
_ROOT_TWO_PI: Final = math.log(math.sqrt(2.0 * math.pi))


class Mode(enum.Enum):
    """How actions follow from distributions."""

    SAMPLED = "sampled"
    DETERMINISTIC = "deterministic"


@dataclass(frozen=True, slots=True)
class PlayedActions:
    """What was done in N decisions: f32 [N, C] within [-1, 1], i64 [N, K]."""

    continuous: FloatArray
    discrete: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.discrete)


@dataclass(frozen=True, slots=True)
class Figures:
    """The error, as numbers to show.

    Attributes:
        decisions: that were compared.
        different: share of them whose action is not the most likely one.
        distance: mean difference of continuous actions from the model's most likely ones; None without any.
        deviations, usual_deviations: root mean square of the distance from the mean in standard deviations, found and
            expected of draws, of actions that are not cut off; None without a distribution.
        probability, usual_probability: geometric mean of the probability of discrete actions, found and expected of
            draws; None without any, or without a distribution.
    """

    decisions: int
    different: float
    distance: float | None
    deviations: float | None
    usual_deviations: float | None
    probability: float | None
    usual_probability: float | None

    def in_words(self, mode: Mode) -> str:
        """The figures of this mode, for a table."""
        if mode is Mode.DETERMINISTIC:
            text = f"{self.different:.1%} of {counted(self.decisions, 'decision')} differ"
            return text + (f", by {self.distance:.3g} on average" if self.distance is not None else "")
        parts = []
        if self.deviations is not None and self.usual_deviations is not None:
            expected = f"{self.usual_deviations:.2f} expected"
            parts.append(f"{self.deviations:.2f} standard deviations from the mean ({expected})")
        if self.probability is not None and self.usual_probability is not None:
            parts.append(f"probability {_percent(self.probability)} ({_percent(self.usual_probability)} expected)")
        return "; ".join(parts)

    def surprise(self, size: int, branches: int) -> float:
        """By how many nats per decision draws of this many actions are less likely than draws from the model."""
        nats = 0.0
        if self.deviations is not None and self.usual_deviations is not None:
            nats = 0.5 * size * (self.deviations**2 - self.usual_deviations**2)
        if self.probability is not None and self.usual_probability is not None:
            nats += branches * math.log(self.usual_probability / max(self.probability, 1e-300))
        return max(0.0, nats)


def _percent(share: float) -> str:
    return f"{share:.3g}" if share < 0.001 else f"{share:.1%}"


def log_likelihoods(answer: Answer, actions: PlayedActions, mode: Mode) -> Doubles | None:
    """One number per decision and action, [N, C + K]; None if the model cannot act in this mode."""
    if mode is Mode.DETERMINISTIC:
        matched = matches(answer, actions)
        size = actions.continuous.shape[1]
        found = np.where(matched, 0.0, -np.inf)
        # At the limits actions have a probability, as of draws; elsewhere a density.
        inside = np.abs(actions.continuous) < (_CUT_OFF if answer.limit else _SQUASHED)
        found[:, :size] -= inside * math.log(2.0 * TOLERANCE)
        for k, log_probs in enumerate(answer.log_probs):
            equal = log_probs >= log_probs.max(axis=1, keepdims=True) - _LOG_TOLERANCE
            found[:, size + k] -= np.log(equal.sum(axis=1))  # any of them may be chosen
    else:
        if not can_draw(answer):
            return None
        found = np.concatenate([_of_continuous(answer, actions), _of_discrete(answer, actions)], axis=1)
    mixed: Doubles = np.logaddexp(found, math.log(_EVEN) + evenly(answer))
    return mixed


def evenly(answer: Answer) -> Doubles:
    """The log-likelihood of actions about which nothing is known, [C + K]."""
    size = answer.mode.shape[1]
    return np.array([math.log(0.5)] * size + [-math.log(each.shape[1]) for each in answer.log_probs])


def can_draw(answer: Answer) -> bool:
    """Whether the model has a distribution for all its actions."""
    return answer.is_drawn and (answer.spread is not None or not answer.mode.shape[1])


def matches(answer: Answer, actions: PlayedActions) -> BoolArray:
    """Which actions are the most likely ones, bool [N, C + K]."""
    near = np.abs(actions.continuous - answer.mode) <= TOLERANCE
    best = [
        each.max(axis=1) - _chosen(each, actions.discrete[:, k]) <= _LOG_TOLERANCE
        for k, each in enumerate(answer.log_probs)
    ]
    return np.concatenate([near, np.stack(best, 1) if best else np.zeros((len(near), 0), np.bool_)], axis=1)


def _chosen(log_probs: Doubles | FloatArray, chosen: NDArray[np.int64]) -> Doubles:
    return np.take_along_axis(log_probs, chosen[:, None], 1)[:, 0].astype(np.float64)


def _raw(answer: Answer, actions: FloatArray) -> tuple[Doubles, BoolArray, Doubles]:
    """Raw actions, which of them are only known to lie there or beyond, and the log-density of the change."""
    given = actions.astype(np.float64)
    limit = _CUT_OFF if answer.limit else _SQUASHED
    beyond = np.abs(given) >= limit
    inside = np.clip(given, -limit, limit)
    if answer.limit:
        return inside * answer.limit, beyond, np.full(given.shape, math.log(answer.limit))
    return np.arctanh(inside), beyond, -np.log1p(-np.square(inside))


def _of_continuous(answer: Answer, actions: PlayedActions) -> Doubles:
    if not actions.continuous.shape[1]:
        return np.zeros(actions.continuous.shape)
    assert answer.mean is not None
    assert answer.spread is not None
    raw, beyond, change = _raw(answer, actions.continuous)
    spread = np.maximum(answer.spread.astype(np.float64), 1e-6)
    z = (raw - answer.mean) / spread
    inside = -0.5 * np.square(z) - np.log(spread) - _ROOT_TWO_PI + change
    tail = torch.special.log_ndtr(torch.from_numpy(-np.sign(raw) * z)).numpy()
    return np.where(beyond, tail, inside)


def _of_discrete(answer: Answer, actions: PlayedActions) -> Doubles:
    columns = [_chosen(each, actions.discrete[:, k]) for k, each in enumerate(answer.log_probs)]
    return np.stack(columns, 1) if columns else np.zeros((len(actions), 0))


def figures(answer: Answer, actions: PlayedActions) -> Figures:
    """The error of one or more decisions."""
    deviations = usual_deviations = probability = usual = None
    if answer.spread is not None and actions.continuous.shape[1]:
        assert answer.mean is not None
        raw, beyond, _ = _raw(answer, actions.continuous)
        known = ~beyond
        if known.any():
            z = (raw - answer.mean) / np.maximum(answer.spread, 1e-6)
            deviations = float(np.sqrt(np.square(z[known]).mean()))
            usual_deviations = float(np.sqrt(_usual_squares(answer)[known].mean()))
    if answer.log_probs and answer.is_drawn:
        probability = math.exp(_of_discrete(answer, actions).clip(-30.0).mean())
        entropies = [-(np.exp(each) * np.maximum(each, -1e9)).sum(1).mean() for each in answer.log_probs]
        usual = math.exp(-float(np.mean(entropies)))
    return Figures(
        decisions=len(actions),
        different=float((~matches(answer, actions)).any(1).mean()),
        distance=float(np.abs(actions.continuous - answer.mode).mean()) if actions.continuous.shape[1] else None,
        deviations=deviations,
        usual_deviations=usual_deviations,
        probability=probability,
        usual_probability=usual,
    )


def _usual_squares(answer: Answer) -> Doubles:
    """The mean square of (draw - mean) / spread among draws that are not cut off: of truncated Gaussians."""
    assert answer.mean is not None
    assert answer.spread is not None
    limit = answer.limit * _CUT_OFF if answer.limit else math.atanh(_SQUASHED)
    spread = np.maximum(answer.spread.astype(np.float64), 1e-6)
    low, high = (torch.from_numpy((end - answer.mean) / spread) for end in (-limit, limit))
    share = torch.special.ndtr(high) - torch.special.ndtr(low)
    slopes = [end * torch.exp(-0.5 * end.square() - _ROOT_TWO_PI) for end in (low, high)]
    squares: Doubles = (1.0 - (slopes[1] - slopes[0]) / share.clamp(min=1e-12)).clamp(min=0.0).numpy()
    return squares


def features(obs: Sequence[FloatArray]) -> FloatArray:
    """Numbers by which decisions differ, f32 [N, F]: standardized observations, or sums of many of them."""
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
    """Whether nothing speaks against the actions being the answers.

    Draws are held against other distributions: wider, narrower, shifted, also by what was seen, and such in which one
    discrete action is more or less likely.

    Args:
        answer: of N decisions.
        actions: that were taken.
        mode: in which.
        seen: features [N, F] of the decisions.
    """
    if mode is Mode.DETERMINISTIC:
        return int((~matches(answer, actions)).any(1).sum()) <= _MOST_ODD * len(actions)
    if actions.continuous.shape[1]:
        own = _of_continuous(answer, actions)
        if any(
            (_of_continuous(other, actions) - own).sum(axis=0).max() > _IMPOSSIBLE for other in _wider(answer, seen)
        ):
            return False
    for k, log_probs in enumerate(answer.log_probs):
        chosen = actions.discrete[:, k]
        own = np.maximum(_chosen(log_probs, chosen), math.log(_EVEN))
        if any((_chosen(other, chosen) - own).sum() > _IMPOSSIBLE for other in _tilted(log_probs, seen)):
            return False
    return True


def _wider(answer: Answer, seen: FloatArray) -> Iterator[Answer]:
    """Yield other distributions of continuous actions."""
    assert answer.mean is not None
    assert answer.spread is not None
    for scale in (0.3, 0.6, 0.85, 1.2, 1.6, 3.0):
        yield replace(answer, spread=answer.spread * np.float32(scale))
    for scale in (0.0, 0.5, 0.8, 1.25, 2.0):
        yield replace(answer, mean=answer.mean * np.float32(scale))
    ones = np.ones((len(seen), 1), np.float32)
    for shift in (-0.8, -0.3, -0.1, 0.1, 0.3, 0.8):
        for feature in np.concatenate([ones, seen], axis=1).T:
            yield replace(answer, mean=answer.mean + np.float32(shift) * feature[:, None] * answer.spread)


def _tilted(log_probs: FloatArray, seen: FloatArray) -> Iterator[Doubles]:
    """Yield other distributions of a branch, as logarithms of probabilities."""
    known = np.maximum(log_probs, -1e9)
    ones = np.ones((len(seen), 1), np.float32)
    yield from (log_softmax(known * scale) for scale in (0.3, 0.7, 1.4, 3.0))
    for tilt in (-1.5, -0.5, -0.2, 0.2, 0.5, 1.5):
        for feature in np.concatenate([ones, seen], axis=1).T:
            for action in range(known.shape[1]) if known.shape[1] > 2 else [0]:
                tilted = known.copy()
                tilted[:, action] += tilt * feature
                yield log_softmax(tilted)
