"""Finds what explains recorded actions: the model as it is, or one of the changes between it and the game.

Every change is tried; the one under which the recorded actions are most likely is the explanation, if it is better than
the model as it is beyond doubt and if nothing else speaks against it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import ObservationSpec
from trajtrainer.tools.verify import likelihood
from trajtrainer.tools.verify.changes import Cause, Change, changes_around_network, label_of, times
from trajtrainer.tools.verify.likelihood import DECISIVE, Figures, Mode, PlayedActions
from trajtrainer.tools.verify.network import Answer, MemoryHandling, Network, Question
from trajtrainer.tools.verify.sensor_changes import changes_of_sensors, refitted, scaled

_ALIKE: Final = 3.0  # difference of log-likelihoods below which the first explanation is as good
_SECTIONS: Final = 24  # of the golden section
_GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0
_PAIRED: Final = 4  # causes whose best change is tried together with others
_MOST_PAIRED: Final = 3000  # numbers of an observation
RELATED: Final = 0.5  # correlation of actions with those of another step of the same training, or more


@dataclass(frozen=True, slots=True)
class Fit:
    """How well the recorded actions go with the model under some changes.

    Attributes:
        changes: none for the model as it is.
        mode: in which they were taken for its answers.
        log_likelihood: of all actions.
        figures: the error.
        fits: whether nothing speaks against it.
    """

    changes: tuple[Change, ...]
    mode: Mode
    log_likelihood: float
    figures: Figures
    fits: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether recorded actions are the model's.

    Attributes:
        agrees: they are.
        plain: the model as it is; None if it cannot take what was recorded.
        best: the explanation, which has no changes if the actions are the model's; None where there is none.
        is_partial: the explanation leaves a part of the actions unexplained.
        as_good: other explanations as good as ``best``.
        num_tried: changes.
        relation: of unexplained actions to the model's, from 0 (none) to 1.
    """

    agrees: bool
    plain: Fit | None
    best: Fit | None
    is_partial: bool = False
    as_good: tuple[Fit, ...] = ()
    num_tried: int = 0
    relation: float = 1.0

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The likely causes; none where recording and model agree."""
        if self.agrees:
            return ()
        if self.best is None:
            return (Cause.MODEL,)
        if not self.best.changes:
            return (Cause.MODE,)
        return tuple(dict.fromkeys(change.cause for change in self.best.changes))


class Trial:
    """Tries changes of one model on recorded decisions.

    Args:
        network: the model.
        question: what was recorded.
        actions: that were taken.
        specs: of the recorded sensors.
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
        self.unrelated = _unrelated(actions, question, network.report.discrete_branches)
        self.num_tried = 0
        self.numbers = sum(values[0].size for values in question.obs)

    def takes_recorded(self) -> bool:
        """Whether the model can be fed with what was recorded."""
        return self._network.takes([values.shape[1:] for values in self._question.obs])

    def outcomes(self, chosen: tuple[Change, ...] = (), *, judge: bool = False) -> list[Fit]:
        """One outcome per mode that is possible; none if the changes do not go with the model.

        Args:
            chosen: made one after the other.
            judge: also look whether anything speaks against it, which takes longer than all else.
        """
        question, network = self._question, self._network
        memory = next((each.memory for each in chosen if each.memory is not MemoryHandling.KEPT), MemoryHandling.KEPT)
        for change in chosen:
            question = question if change.ask is None else change.ask(question)
            network = change.network or network
        if not network.takes([values.shape[1:] for values in question.obs]):
            return []
        answer = network.answer(question, memory)
        for change in chosen:
            answer = answer if change.alter is None else change.alter(answer)
        source = np.arange(len(question)) - sum(each.delay for each in chosen)
        answered = (source >= self._begins) & (source < self._ends)
        actions = PlayedActions(self._actions.continuous[answered], self._actions.discrete[answered])
        if not len(actions):
            return []
        answer = _taken(answer, source[answered])
        unknown = float(likelihood.evenly(answer).sum()) * int((~answered).sum())
        found = []
        for mode in Mode:
            log_likelihood = likelihood.log_likelihoods(answer, actions, mode)
            if log_likelihood is not None:
                total = float(log_likelihood.sum()) + unknown
                is_fit = judge and likelihood.fits(answer, actions, mode, self._features[answered])
                found.append(Fit(chosen, mode, total, likelihood.figures(answer, actions), is_fit))
        return found

    def judged(self, outcome: Fit) -> Fit:
        """An outcome with ``fits`` looked up."""
        return next(each for each in self.outcomes(outcome.changes, judge=True) if each.mode is outcome.mode)

    def tried(self, candidates: Iterable[tuple[Change, ...]]) -> list[Fit]:
        """The outcomes of all these."""
        found = []
        for chosen in candidates:
            try:
                found += self.outcomes(chosen)
            except CheckpointError:  # numbers overflow under this change
                continue
            self.num_tried += 1
        return found

    def candidates(self, others: Sequence[Change]) -> list[Change]:
        """All single changes, with these, which only the caller knows."""
        if not self.takes_recorded():
            return list(refitted(self._network, self._question, self._specs))
        around = changes_around_network(self._network, self._question, self._specs)
        return [*others, *around, *changes_of_sensors(self._question, self._specs)]

    def refined(self, outcomes: Sequence[Fit], plain: Sequence[Fit]) -> list[Fit]:
        """The outcomes of factors between those that were tried, and of a narrower spread."""
        found: list[Fit] = []
        scales = [each for each in outcomes if each.changes and each.changes[-1].scaled]
        if scales:
            best = max(scales, key=_smooth)
            labels = [label_of(number, spec) for number, spec in enumerate(self._specs)]
            last, before = best.changes[-1], best.changes[:-1]
            found += self._section(last.factor, lambda factor: (*before, scaled(last.scaled, labels, factor)))
        answer = self._network.answer(self._question) if self.takes_recorded() else None
        if answer is not None and answer.mode.shape[1]:
            expected = answer.mode.astype(np.float64)
            ratio = float((expected * self._actions.continuous).sum() / max(1e-9, np.square(expected).sum()))
            for factor in {float(f"{ratio:.3g}"), float(f"{ratio:.2g}")}:
                if not 0.95 < factor < 1.05 and abs(factor) > 0.05:
                    factors = np.full(answer.mode.shape[1], factor, np.float32)
                    text = f"The continuous actions are {factor:g} times the model's."
                    found += self.tried([(times(factors, text),)])
        for outcome in plain:
            deviations, usual = outcome.figures.deviations, outcome.figures.usual_deviations
            if outcome.mode is Mode.SAMPLED and deviations and usual and 0.1 < deviations / usual < 0.9:
                text = f"The draws spread {deviations / usual:.2g} times as far as the model's."
                advice = "Draw with the standard deviation that the model gives."
                alter = partial(_narrower, factor=deviations / usual)
                found += self.tried([(Change(Cause.SPREAD, text, advice, alter=alter),)])
        return found

    def _section(self, factor: float, made: Callable[[float], tuple[Change, ...]]) -> list[Fit]:
        """The outcomes of a golden-section search for the best factor around one, and of round ones near it."""
        sign, low, high = math.copysign(1.0, factor), math.log(abs(factor) / 3.2), math.log(abs(factor) * 3.2)

        def loss(x: float) -> float:
            outcomes = self.tried([made(sign * math.exp(x))])
            return -max(map(_smooth, outcomes), default=-math.inf)

        inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
        losses = [loss(each) for each in inner]
        for _ in range(_SECTIONS):
            if losses[0] < losses[1]:
                high, inner[1], losses[1] = inner[1], inner[0], losses[0]
                inner[0] = high - _GOLDEN * (high - low)
                losses[0] = loss(inner[0])
            else:
                low, inner[0], losses[0] = inner[0], inner[1], losses[1]
                inner[1] = low + _GOLDEN * (high - low)
                losses[1] = loss(inner[1])
        best = sign * math.exp((low + high) / 2)
        round_ones = {best}
        for digits in (2, 3):
            round_ones |= {float(f"{best:.{digits}g}"), 1 / float(f"{1 / best:.{digits}g}")}
        return self.tried([made(each) for each in sorted(round_ones)])

    def is_most(self, plain: Sequence[Fit], best: Fit) -> bool:
        """Whether an explanation that leaves something open is worth naming.

        It must be far better than the model as it is, and than actions that have nothing to do with what was seen.
        """
        actions = self._actions
        if best.mode is Mode.DETERMINISTIC:
            before = min((each.figures.different for each in plain if each.mode is best.mode), default=1.0)
            both = np.concatenate([actions.continuous.round(2), actions.discrete], axis=1)
            always = 1.0 - np.unique(both, axis=0, return_counts=True)[1].max() / len(both)
            return bool(best.figures.different < 0.3 * min(before, always))
        surprise = best.figures.surprise(actions.continuous.shape[1], actions.discrete.shape[1]) * len(actions)
        return surprise < 0.2 * (best.log_likelihood - self.unrelated)

    def relation(self) -> float:
        """How alike the recorded actions are to the model's most likely ones, from 0 to 1."""
        answer = self._network.answer(self._question)
        found = []
        for mine, theirs in zip(answer.mode.T, self._actions.continuous.T, strict=True):
            if mine.std() > 0 and theirs.std() > 0:
                found.append(float(np.corrcoef(mine, theirs)[0, 1]))
        for k, each in enumerate(answer.log_probs):
            best, done = each.argmax(1), self._actions.discrete[:, k]
            sizes = np.bincount(best, minlength=each.shape[1]) * np.bincount(done, minlength=each.shape[1])
            chance = float(sizes.sum()) / len(done) ** 2
            if chance < 1:
                found.append((float((best == done).mean()) - chance) / (1 - chance))
        return max(0.0, float(np.mean(found))) if found else 0.0


def _unrelated(actions: PlayedActions, question: Question, branches: Sequence[int]) -> float:
    """The log-likelihood of actions that are drawn from their own frequencies, among those that are allowed."""
    total = 0.0
    for column in actions.continuous.astype(np.float64).T:
        deviation = max(float(column.std()), 1e-6)
        total -= len(column) * (math.log(deviation) + 0.5 * math.log(2.0 * math.pi * math.e))
    ends = np.cumsum([0, *branches])
    for column, begin, end in zip(actions.discrete.T, ends, ends[1:], strict=False):
        allowed = ~question.mask[:, begin:end]
        done = np.eye(end - begin)[column]
        weights = (done.sum(axis=0) + 1e-6) / (allowed.sum(axis=0) + 1e-6)
        among = weights * np.maximum(allowed, done)
        total += float(np.log((among * done).sum(axis=1) / among.sum(axis=1)).sum())
    return total


def _narrower(answer: Answer, factor: float) -> Answer:
    return answer if answer.spread is None else replace(answer, spread=answer.spread * factor)


def _taken(answer: Answer, rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Answer:
    mean, spread = (None if each is None else each[rows] for each in (answer.mean, answer.spread))
    log_probs = tuple(each[rows] for each in answer.log_probs)
    return replace(answer, mode=answer.mode[rows], mean=mean, spread=spread, log_probs=log_probs)


def _smooth(outcome: Fit) -> float:
    """A score that grows as a change comes nearer to the truth, also where no action is matched yet."""
    found = outcome.figures
    error = found.distance or 0.0
    if found.deviations is not None:
        error += math.log(max(found.deviations, 1e-9))
    if found.probability is not None:
        error -= math.log(max(found.probability, 1e-300))
    return -error if found.deviations is not None or found.probability is not None else -error - found.different


def _best(outcomes: Sequence[Fit]) -> Fit:
    """The most likely outcome; of those that are as good, the first."""
    most = max(each.log_likelihood for each in outcomes)
    return next(each for each in outcomes if each.log_likelihood >= most - _ALIKE)


def explain(
    network: Network,
    question: Question,
    actions: PlayedActions,
    specs: Sequence[ObservationSpec],
    *,
    others: Sequence[Change] = (),
    expected: Mode | None = None,
) -> Verdict:
    """Whether actions are the answers of a model and, if not, what explains them.

    Args:
        network: the model.
        question: what was recorded.
        actions: that were taken.
        specs: of the recorded sensors.
        others: further changes to try: other models.
        expected: how the game is meant to act; None for either.
    """
    trial = Trial(network, question, actions, specs)
    outcomes = trial.outcomes(judge=True)
    allowed = [each for each in outcomes if expected in (None, each.mode)]
    likely = _best(outcomes) if outcomes else None
    plain = _best(allowed) if allowed else likely
    if likely is not None and plain is not None and likely.log_likelihood - plain.log_likelihood <= DECISIVE:
        likely = plain
    if likely is not None and likely.mode is Mode.DETERMINISTIC and likely.figures.different == 0.0:
        return Verdict(likely is plain and bool(allowed), plain, likely)  # nothing can be better
    candidates = trial.candidates(others)
    found = outcomes + trial.tried([(each,) for each in candidates])
    found += trial.refined(found, outcomes)
    if not found:
        raise CheckpointError(f"What was recorded makes no sense to {network.name}: no change of it gives numbers.")
    best = trial.judged(_best(found))
    enough = DECISIVE + (likely.log_likelihood if likely is not None else -math.inf)
    if not best.fits:
        best = _of_two(trial, found, candidates, best)
    if best.log_likelihood > enough and (best.fits or likely is None or trial.is_most(outcomes, best)):
        alike = [each for each in found if best.log_likelihood - each.log_likelihood <= _ALIKE]
        # Explanations that differ in their numbers only are one.
        as_good = {_key(each): each for each in alike if _key(each) != _key(best)}
        return Verdict(False, plain, best, not best.fits, tuple(as_good.values()), trial.num_tried)
    assert likely is not None
    if likely.fits:
        return Verdict(likely is plain and bool(allowed), plain, likely, num_tried=trial.num_tried)
    return Verdict(False, plain, None, num_tried=trial.num_tried, relation=trial.relation())


def _key(outcome: Fit) -> str:
    return " ".join(str(each.scaled) if each.scaled else each.text for each in outcome.changes)


def _of_two(trial: Trial, found: Sequence[Fit], candidates: Sequence[Change], best: Fit) -> Fit:
    """The outcome of two changes together if that fits, else ``best``."""
    if trial.numbers > _MOST_PAIRED:
        return best
    first: dict[Cause, tuple[Change, ...]] = {}  # the best of each cause
    for outcome in sorted(found, key=lambda each: -each.log_likelihood):
        if outcome.changes:
            first.setdefault(outcome.changes[0].cause, outcome.changes)
    pairs = [
        (*one, other) for one in [*first.values()][:_PAIRED] for other in candidates if other.cause is not one[0].cause
    ]
    tried = trial.tried(pairs)
    if not tried:
        return best
    both = trial.judged(_best(tried))
    # Two changes may leave the network so little to see that anything fits it.
    enough = max(best.log_likelihood, trial.unrelated) + DECISIVE
    return both if both.fits and both.log_likelihood > enough else best
