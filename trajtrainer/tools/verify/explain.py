"""Finds the explanation for recorded actions: the unchanged model, or one of the possible changes in the game.

Every change is tried. The one under which the recorded actions are most likely is the explanation, if it is clearly
better than the unchanged model and consistent with the recorded actions.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import BoolArray
from trajtrainer.tools.verify import likelihood
from trajtrainer.tools.verify.changes import UNCHANGED, Cause, Change, changes_of, refitted, scaled, times
from trajtrainer.tools.verify.likelihood import Figures, Mode
from trajtrainer.tools.verify.network import Answer, Network
from trajtrainer.tools.verify.recording import RecordedDecisions

# Log-likelihood ratio above which one of a few hundred explanations is considered better than the unchanged model.
_DECISIVE: Final = 11.0
_ALIKE: Final = 3.0  # log-likelihood ratio below which two explanations are considered equally good


@dataclass(frozen=True, slots=True)
class Fit:
    """How well the recorded actions agree with the model under a change.

    Attributes:
        change: the change; ``UNCHANGED`` for the unchanged model.
        mode: how the actions are chosen.
        log_likelihood: log-likelihood of all actions.
        figures: statistics of the error.
    """

    change: Change
    mode: Mode
    log_likelihood: float
    figures: Figures


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on whether recorded actions are the model's.

    Attributes:
        cause: the likely cause; None if they are the model's actions.
        plain: the fit of the unchanged model; None if it cannot process the recorded observations.
        best: the best explanation (``UNCHANGED`` if the actions are the model's); None if nothing explains the actions.
        as_good: other explanations that are as good as ``best``.
        num_tried: number of changes that were tried.
    """

    cause: Cause | None
    plain: Fit | None
    best: Fit | None
    as_good: tuple[Fit, ...] = ()
    num_tried: int = 0


class Trial:
    """Tries changes of one model on recorded decisions.

    Args:
        network: the model.
        recording: the recorded decisions.
    """

    def __init__(self, network: Network, recording: RecordedDecisions) -> None:
        self._network = network
        self._recording = recording
        self._features = likelihood.features(recording.question.obs)
        self.num_tried = 0

    def _answered(self, change: Change) -> tuple[Answer, BoolArray] | None:
        """Return the distributions under a change, and a mask of the decisions for which they are known.

        With a delay, they are unknown for decisions near the start or end of an episode. Return None if the network
        cannot process the changed question, or if no decision is known.
        """
        network, question = change.network or self._network, change.ask(self._recording.question)
        if not network.takes(question.shapes):
            return None
        answer = change.alter(network.answer(question))
        rows, episodes = np.arange(len(question)), np.cumsum(self._recording.question.starts)
        source = np.clip(rows - change.delay, 0, rows[-1])
        known = (source == rows - change.delay) & (episodes[source] == episodes)
        return (answer.at(source[known]), known) if known.any() else None

    def fits_of(self, change: Change = UNCHANGED) -> list[Fit]:
        """Return one fit for each possible mode; [] if the network cannot process the changed question."""
        answered = self._answered(change)
        if answered is None:
            return []
        answer, known = answered
        actions = self._recording.actions.at(known)
        unknown = float(likelihood.evenly(answer).sum()) * int((~known).sum())
        figures = likelihood.figures(answer, actions)
        likelihoods = {mode: likelihood.log_likelihoods(answer, actions, mode) for mode in Mode}
        return [
            Fit(change, mode, float(each.sum()) + unknown, figures)
            for mode, each in likelihoods.items()
            if each is not None
        ]

    def is_consistent(self, fit: Fit) -> bool:
        """Return whether the actions are consistent with the model. This is slower than computing a fit."""
        answered = self._answered(fit.change)
        assert answered is not None
        answer, known = answered
        return likelihood.fits(answer, self._recording.actions.at(known), fit.mode, self._features[known])

    def tried(self, changes: Iterable[Change]) -> list[Fit]:
        """Return the fits of all these changes."""
        found = []
        for change in changes:
            try:
                found += self.fits_of(change)
            except CheckpointError:  # this change makes the numbers overflow
                continue
            self.num_tried += 1
        return found

    def scales_near(self, fits: Sequence[Fit]) -> list[Fit]:
        """Return fits for more factors of the observations, close to the best one so far."""
        scales = [each for each in fits if each.change.scaled[0]]
        if not scales:
            return []
        sensors, factor = min(scales, key=lambda fit: fit.figures.error).change.scaled
        change = partial(scaled, sensors, self._recording.labels)
        width = math.log(3.2)
        while width > 1e-4:  # a finer grid around the best factor so far
            tried = self.tried(change(factor * math.exp(width * k / 4)) for k in range(-4, 5))
            if not tried:
                break
            _, factor = min(tried, key=lambda fit: fit.figures.error).change.scaled
            width /= 3
        rounded = {float(f"{factor:.{digits}g}") for digits in (2, 3)}
        rounded |= {1 / float(f"{1 / factor:.{digits}g}") for digits in (2, 3)}
        return self.tried(change(each) for each in sorted(rounded | {factor}))

    def action_factors(self) -> list[Fit]:
        """Return fits in which the actions are those of the model, multiplied by a factor."""
        actions, question = self._recording.actions.continuous, self._recording.question
        if not actions.shape[1] or not self._network.takes(question.shapes):
            return []
        expected = self._network.answer(question).mode.astype(np.float64)
        ratio = float((expected * actions).sum() / max(1e-9, np.square(expected).sum()))
        changes = []
        for each in {float(f"{ratio:.3g}"), float(f"{ratio:.2g}")}:
            if not 0.95 < each < 1.05 and abs(each) > 0.05:
                factors = np.full(actions.shape[1], each, np.float32)
                changes.append(times(factors, f"The continuous actions are {each:g} times the model's."))
        return self.tried(changes)


def _best(fits: Sequence[Fit]) -> Fit:
    """Return the most likely fit, or the first of several that are equally good."""
    most = max(each.log_likelihood for each in fits)
    return next(each for each in fits if each.log_likelihood >= most - _ALIKE)


def explain(network: Network, recording: RecordedDecisions, others: Sequence[Change], expected: Mode | None) -> Verdict:
    """Decide whether recorded actions match a model and, if they do not, find the best explanation.

    Args:
        network: the model.
        recording: the recorded decisions.
        others: additional changes to try, such as other models.
        expected: how the game should choose actions; None for either mode.
    """
    trial = Trial(network, recording)
    plain_fits = trial.fits_of()
    allowed = [each for each in plain_fits if expected in (None, each.mode)]
    likely = _best(plain_fits) if plain_fits else None
    plain = _best(allowed) if allowed else likely
    if likely is not None and plain is not None and likely.log_likelihood - plain.log_likelihood <= _DECISIVE:
        likely = plain
    mode_cause = None if likely is plain and allowed else Cause.MODE
    if likely is not None and likely.mode is Mode.DETERMINISTIC and likely.figures.different == 0.0:
        return Verdict(mode_cause, plain, likely)  # no change can fit better
    if network.takes(recording.question.shapes):
        found = plain_fits + trial.tried(others) + trial.tried(changes_of(network, recording))
    else:
        found = trial.tried(refitted(network, recording))
    found += trial.scales_near(found) + trial.action_factors()
    if not found:
        raise CheckpointError(
            f"{network.name} cannot process the recorded observations: it returns NaN for every change."
        )
    best = _best(found)
    enough = _DECISIVE + (likely.log_likelihood if likely is not None else -math.inf)
    if best.log_likelihood > enough and (likely is None or trial.is_consistent(best)):
        alike = [each for each in found if best.log_likelihood - each.log_likelihood <= _ALIKE]
        # Scales of the same sensors that differ only in the factor count as one explanation.
        as_good = {_key(each): each for each in alike if _key(each) != _key(best)}
        return Verdict(best.change.cause, plain, best, tuple(as_good.values()), trial.num_tried)
    assert likely is not None
    if trial.is_consistent(likely):
        return Verdict(mode_cause, plain, likely, num_tried=trial.num_tried)
    return Verdict(Cause.MODEL, plain, None, num_tried=trial.num_tried)


def _key(fit: Fit) -> str:
    sensors, _ = fit.change.scaled
    return str(sensors) if sensors else fit.change.text
