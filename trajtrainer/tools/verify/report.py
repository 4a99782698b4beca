"""The findings of a verification as text."""

from collections.abc import Iterator

from trajtrainer.core.printable import counted
from trajtrainer.tools.verify.changes import ADVICE, UNCHANGED
from trajtrainer.tools.verify.explain import Verdict
from trajtrainer.tools.verify.likelihood import Mode
from trajtrainer.tools.verify.verify import Verification


def format_verification(found: Verification, model: str) -> Iterator[str]:
    """Yield the lines that describe the findings."""
    recording = found.recording
    first = "" if recording.is_whole else "the first "
    episodes = counted(int(recording.question.starts.sum()), "episode")
    yield f"{', '.join(map(str, recording.paths))}: {first}{counted(len(recording.actions), 'decision')} of {episodes}"
    yield from _verdict(found.verdict, model)
    for cause, text in found.training:
        yield f"DIFFERENT from training: {cause.value}"
        yield f"  {text}"
    for note in found.notes:
        yield f"note: {note}"


def _verdict(verdict: Verdict, model: str) -> Iterator[str]:
    plain, best = verdict.plain, verdict.best
    if verdict.cause is None:
        assert plain is not None
        yield f"AGREE: the game and the model {model}; actions are {plain.mode.value}"
        yield f"  {plain.figures.in_words(plain.mode)}"
        return
    yield f"DIFFERENT: the game and the model {model}"
    yield f"  likely cause: {verdict.cause.value}"
    if best is None:
        yield from _unexplained(verdict)
    elif best.change is not UNCHANGED:
        yield f"  {best.change.text}"
        before = (
            "the model does not accept the recorded observations"
            if plain is None
            else plain.figures.in_words(best.mode)
        )
        yield f"  before: {before}"
        yield f"  after:  {best.figures.in_words(best.mode)}"
    else:
        yield (
            "  The actions are sampled, and are not the most likely ones."
            if best.mode is Mode.SAMPLED
            else "  The actions are the most likely ones (Deterministic Inference), and are not sampled."
        )
        for fit in filter(None, (plain, best)):
            yield f"  as {fit.mode.value} actions: {fit.figures.in_words(fit.mode)}"
    if verdict.as_good:
        yield f"  Equally good explanation: {' '.join(filter(None, (fit.change.text for fit in verdict.as_good[:3])))}"
    if best is not None and best.change is not UNCHANGED:
        yield f"  {ADVICE[best.change.cause]}"


def _unexplained(verdict: Verdict) -> Iterator[str]:
    assert verdict.plain is not None
    yield f"  as it is: {verdict.plain.figures.in_words(verdict.plain.mode)}"
    yield f"  None of {verdict.num_tried} changes explains the recorded actions. Either the game has another model, or"
    yield "  something else acted, such as a player or a heuristic, or several things are wrong at once."
    yield "  Check the Model field of Behavior Parameters. --run RUN compares with all checkpoints of a run."
