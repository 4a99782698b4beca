"""Finds the explanation for recorded actions: the unchanged model, or one of the possible changes in the game.

Every change is tried. The one under which the recorded actions are most likely is the explanation, if it is clearly
better than the unchanged model and consistent with the recorded actions.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import ObservationSpec
from trajtrainer.tools.verify import likelihood
from trajtrainer.tools.verify.changes import Cause, Change, changes_of, label_of, refitted, scaled, times
from trajtrainer.tools.verify.likelihood import Figures, Mode, PlayedActions
from trajtrainer.tools.verify.network import Network, Question

# Logarithm of the likelihood ratio above which one of a few hundred explanations is better than the unchanged model.
_DECISIVE: Final = 11.0
_ALIKE: Final = 3.0  # logarithm of the likelihood ratio below which two explanations are equally good
_NOTHING: Final = Change(Cause.MODE, "")


@dataclass(frozen=True, slots=True)
class Fit:
    """How well the recorded actions agree with the model under a change.

    Attributes:
        change: the change; None for the unchanged model.
        mode: how the actions are chosen.
        log_likelihood: log-likelihood of all actions.
        figures: statistics of the error.
        fits: True if the actions are consistent with the model; only known if the fit was judged.
    """

    change: Change | None
    mode: Mode
    log_likelihood: float
    figures: Figures
    fits: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on whether recorded actions are the model's.

    Attributes:
        agrees: True if they are the model's actions.
        plain: the fit of the unchanged model; None if it cannot process the recorded observations.
        best: the explanation, without a change if the actions are the model's; None if there is no explanation.
        as_good: other explanations that are as good as ``best``.
        num_tried: number of changes that were tried.
    """

    agrees: bool
    plain: Fit | None
    best: Fit | None
    as_good: tuple[Fit, ...] = ()
    num_tried: int = 0

    @property
    def cause(self) -> Cause | None:
        """The likely cause; None if recording and model agree."""
        if self.agrees:
            return None
        if self.best is None:
            return Cause.MODEL
        return Cause.MODE if self.best.change is None else self.best.change.cause


class Trial:
    """Tries changes of one model on recorded decisions.

    Args:
        network: the model.
        question: the recorded inputs.
        actions: the recorded actions.
        specs: specs of the recorded sensors.
    """

    def __init__(
        self, network: Network, question: Question, actions: PlayedActions, specs: Sequence[ObservationSpec]
    ) -> None:
        self._network = network
        self._question = question
        self._actions = actions
        self._specs = specs
        rows = np.arange(len(question))
        self._begins = np.maximum.accumulate(np.where(question.starts, rows, 0))
        ends = np.append(np.flatnonzero(question.starts)[1:], len(question))
        self._ends = ends[np.cumsum(question.starts) - 1]
        self._features = likelihood.features(question.obs)
        self.num_tried = 0

    def fits_of(self, change: Change | None = None, *, judge: bool = False) -> list[Fit]:
        """Return one fit for each possible mode, or none if the network cannot process the changed question.

        Args:
            change: the change to try.
            judge: also decide whether the actions are consistent with the model, which takes longer than the rest.
        """
        made = change or _NOTHING
        network = made.network or self._network
        question = self._question if made.ask is None else made.ask(self._question)
        if not network.takes(question.shapes):
            return []
        answer = network.answer(question, made.memory)
        answer = answer if made.alter is None else made.alter(answer)
        source = np.arange(len(question)) - made.delay
        known = (source >= self._begins) & (source < self._ends)
        actions = PlayedActions(self._actions.continuous[known], self._actions.discrete[known])
        if not len(actions):
            return []
        answer = answer.at(source[known])
        unknown = float(likelihood.evenly(answer).sum()) * int((~known).sum())
        found = []
        for mode in Mode:
            each = likelihood.log_likelihoods(answer, actions, mode)
            if each is not None:
                is_fit = judge and likelihood.fits(answer, actions, mode, self._features[known])
                figures = likelihood.figures(answer, actions)
                found.append(Fit(change, mode, float(each.sum()) + unknown, figures, is_fit))
        return found

    def judged(self, fit: Fit) -> Fit:
        """Return the same fit, with ``fits`` set."""
        return next(each for each in self.fits_of(fit.change, judge=True) if each.mode is fit.mode)

    def tried(self, changes: Iterable[Change]) -> list[Fit]:
        """Return the fits of all these changes."""
        found = []
        for change in changes:
            try:
                found += self.fits_of(change)
            except CheckpointError:  # numbers overflow under this change
                continue
            self.num_tried += 1
        return found

    def single_changes(self, others: Sequence[Change]) -> list[Change]:
        """Return all changes to try, including the caller's."""
        if not self._network.takes(self._question.shapes):
            return list(refitted(self._network, self._question, self._specs))
        return [*others, *changes_of(self._network, self._question, self._specs)]

    def factors(self, fits: Sequence[Fit]) -> list[Fit]:
        """Return fits of further factors: near the best one for the observations, and the mean one of the actions."""
        found: list[Fit] = []
        scales = [each for each in fits if each.change is not None and each.change.scaled is not None]
        if scales:
            best = min(scales, key=lambda each: each.figures.error)
            assert best.change is not None
            assert best.change.scaled is not None
            sensors, factor = best.change.scaled
            labels = [label_of(number, spec) for number, spec in enumerate(self._specs)]
            width = math.log(3.2)
            while width > 1e-4:  # a finer grid around the best factor so far
                tried = self.tried(scaled(sensors, labels, factor * math.exp(width * k / 4)) for k in range(-4, 5))
                if not tried:
                    break
                best = min(tried, key=lambda each: each.figures.error)
                assert best.change is not None
                assert best.change.scaled is not None
                factor, width = best.change.scaled[1], width / 3
            rounded = {float(f"{factor:.{digits}g}") for digits in (2, 3)}
            rounded |= {1 / float(f"{1 / factor:.{digits}g}") for digits in (2, 3)}
            found += self.tried(scaled(sensors, labels, each) for each in sorted(rounded | {factor}))
        if self._network.takes(self._question.shapes) and self._actions.continuous.shape[1]:
            expected = self._network.answer(self._question).mode.astype(np.float64)
            ratio = float((expected * self._actions.continuous).sum() / max(1e-9, np.square(expected).sum()))
            for each in {float(f"{ratio:.3g}"), float(f"{ratio:.2g}")}:
                if not 0.95 < each < 1.05 and abs(each) > 0.05:
                    factors = np.full(expected.shape[1], each, np.float32)
                    found += self.tried([times(factors, f"The continuous actions are {each:g} times the model's.")])
        return found


def _best(fits: Sequence[Fit]) -> Fit:
    """Return the most likely fit, or the first of several that are equally good."""
    most = max(each.log_likelihood for each in fits)
    return next(each for each in fits if each.log_likelihood >= most - _ALIKE)


def explain(
    network: Network,
    question: Question,
    actions: PlayedActions,
    specs: Sequence[ObservationSpec],
    *,
    others: Sequence[Change] = (),
    expected: Mode | None = None,
) -> Verdict:
    """Decide whether actions are those of a model and, if not, find what explains them.

    Args:
        network: the model.
        question: the recorded inputs.
        actions: the recorded actions.
        specs: specs of the recorded sensors.
        others: additional changes to try, such as other models.
        expected: how the game should choose actions; None for either mode.
    """
    trial = Trial(network, question, actions, specs)
    plain_fits = trial.fits_of(judge=True)
    allowed = [each for each in plain_fits if expected in (None, each.mode)]
    likely = _best(plain_fits) if plain_fits else None
    plain = _best(allowed) if allowed else likely
    if likely is not None and plain is not None and likely.log_likelihood - plain.log_likelihood <= _DECISIVE:
        likely = plain
    if likely is not None and likely.mode is Mode.DETERMINISTIC and likely.figures.different == 0.0:
        return Verdict(likely is plain and bool(allowed), plain, likely)  # nothing can be better
    found = plain_fits + trial.tried(trial.single_changes(others))
    found += trial.factors(found)
    if not found:
        raise CheckpointError(
            f"{network.name} cannot process the recorded observations: it returns NaN, whatever change is tried."
        )
    best = trial.judged(_best(found))
    enough = _DECISIVE + (likely.log_likelihood if likely is not None else -math.inf)
    if best.log_likelihood > enough and (best.fits or likely is None):
        alike = [each for each in found if best.log_likelihood - each.log_likelihood <= _ALIKE]
        # Explanations that differ only in their numbers count as one.
        as_good = {_key(each): each for each in alike if _key(each) != _key(best)}
        return Verdict(False, plain, best, tuple(as_good.values()), trial.num_tried)
    assert likely is not None
    if likely.fits:
        return Verdict(likely is plain and bool(allowed), plain, likely, num_tried=trial.num_tried)
    return Verdict(False, plain, None, num_tried=trial.num_tried)


def _key(fit: Fit) -> str:
    change = fit.change or _NOTHING
    return change.text if change.scaled is None else str(change.scaled[0])
