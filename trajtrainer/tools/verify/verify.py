"""Checks whether a game acts like the policy in training, or why not (docs/deploy/verify.md)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from trajtrainer.core.errors import CheckpointError, SettingsError, TrajtrainerError
from trajtrainer.core.filenames import behavior_of
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec, sensors_seen, with_sensors
from trajtrainer.core.spelling import closest
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.policy_record import PolicyRecord, read_record
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.folder.saved_policies import SavedPolicy, find_policies
from trajtrainer.policies.onnx.export import build_model
from trajtrainer.tools.verify.changes import Cause, Change, refitted
from trajtrainer.tools.verify.explain import Verdict, explain
from trajtrainer.tools.verify.likelihood import Mode
from trajtrainer.tools.verify.network import Network, network_of_file, network_of_model
from trajtrainer.tools.verify.recording import RecordedDecisions, read_recording

logger = logging.getLogger(__name__)

_MODEL: Final = ".onnx"
_MOST_CHECKPOINTS: Final = 40
_NUMBERED: Final = re.compile(r"-(\d{1,18})$")
_FAR: Final = 5.0  # distance from the training mean that is considered far, in standard deviations
_MANY: Final = 0.05


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        recording: the recorded decisions that were used.
        verdict: the verdict on the recorded actions.
        training: differences between the sensors in the recording and those in the run, with their causes.
        notes: other findings, which do not change the verdict.
    """

    recording: RecordedDecisions
    verdict: Verdict
    training: list[tuple[Cause, str]]
    notes: list[str]

    @property
    def agrees(self) -> bool:
        """True if nothing differs."""
        return self.verdict.cause is None and not self.training


def verify(
    model: str,
    demos: Sequence[str],
    *,
    run: str | None,
    behavior: str | None,
    expected: Mode | None,
    decisions: int | None,
    results: Path,
    raw_image_order: RawImageOrder,
) -> Verification:
    """Compare a recording of a game with the model that acts in it.

    Args:
        model: a run, a checkpoint or an ``.onnx``.
        demos: recordings of the game, or folders of recordings.
        run: a run whose spec and other checkpoints are also compared.
        behavior: the behavior of a run to compare; by default, the recorded behavior.
        expected: how the game should choose actions; None for either mode.
        decisions: maximum number of decisions to use.
        results: the folder that contains the runs.
        raw_image_order: see ``open_demo``.

    Raises:
        TrajtrainerError: a file cannot be read, or the recording and the model do not match.
    """
    recorded = read_recording(demos, raw_image_order, decisions)
    policy_of = partial(_policy_of, results=results, behavior=behavior, recording=recorded)
    own = None if Path(model).suffix == _MODEL else policy_of(model)
    network = network_of_file(Path(model)) if own is None else _network_of_checkpoint(own)
    saved = own if run is None else policy_of(run)
    recording, notes = _of_sensors_seen(network, saved, recorded)
    _check_fit(network, recording)
    notes += _far_from_training(network, recording)
    others, training = [], []
    if saved is not None and (run is not None or not (Path(model).suffix or "@" in model)):
        others = list(_checkpoints(saved))
        if run is not None:
            training = list(_differences(saved, recording))
            notes += _which(network, others, recording)
    return Verification(recording, explain(network, recording, others, expected), training, notes)


def _of_sensors_seen(
    network: Network, saved: SavedPolicy | None, recording: RecordedDecisions
) -> tuple[RecordedDecisions, list[str]]:
    """Remove sensors that the policy has no input for, as in distilled students, and return a note about them."""
    sensors = recording.spec.observation_specs
    record = None if saved is None or network.takes(recording.question.shapes) else _record_of(saved)
    numbers = None if record is None else sensors_seen(record.spec, recording.spec)
    if numbers is None:
        return recording, []
    unseen = ", ".join(repr(sensor.name) for number, sensor in enumerate(sensors) if number not in numbers)
    question = replace(recording.question, obs=tuple(recording.question.obs[number] for number in numbers))
    return (
        replace(recording, spec=with_sensors(recording.spec, numbers), question=question),
        [f"The policy does not see {unseen}. In Unity, agents with its .onnx must not have such a sensor."],
    )


def _record_of(saved: SavedPolicy) -> PolicyRecord | None:
    return read_record(read_checkpoint(saved.checkpoint), str(saved.checkpoint))


def _policy_of(word: str, results: Path, behavior: str | None, recording: RecordedDecisions) -> SavedPolicy:
    """Find the policy for the recorded behavior in a run or checkpoint."""
    found = {behavior_of(each.name): each for each in find_policies(Path(word), results, None)}
    if behavior is not None:
        if behavior not in found:
            raise SettingsError(
                f"{word} has no behavior {behavior!r}{closest(behavior, found)}, only {', '.join(found)}."
            )
        return found[behavior]
    recorded = f"{recording.paths[0]} is a recording of the behavior {recording.behavior!r}"
    if len(found) == 1:
        (only,) = found.values()
        record = _record_of(only)
        if record is not None and recording.behavior not in ("", record.behavior):
            raise SettingsError(
                f"{recorded}, but {word} was trained for {record.behavior!r}. If the behavior was renamed, use "
                f"--behavior {record.behavior}."
            )
        return only
    if recording.behavior not in found:
        raise SettingsError(
            f"{recorded}, but {word} has {', '.join(map(repr, found))}. Choose one of them with --behavior."
        )
    return found[recording.behavior]


def _network_of_checkpoint(saved: SavedPolicy) -> Network:
    path = saved.checkpoint
    found = recover_policy(read_checkpoint(path), source=str(path), models=saved.models)
    return network_of_model(build_model(found.actor, found.spec), path)


def _check_fit(network: Network, recording: RecordedDecisions) -> None:
    """Raise ``CheckpointError`` if the recording does not match the model, and no change could make it match."""
    action = recording.spec.action_spec
    own = (network.report.continuous_size, tuple(network.report.discrete_branches))
    theirs = (action.continuous_size, tuple(action.discrete_branches))
    where = f"{recording.paths[0]} was recorded with different agents than those of {network.name}"
    if own != theirs:
        raise CheckpointError(
            f"{where}: it has {theirs[0]} continuous actions and the discrete branches {list(theirs[1])}, but "
            f"the model has {own[0]} and {list(own[1])}."
        )
    if not network.takes(recording.question.shapes) and not any(refitted(network, recording)):
        sensors = ", ".join(f"{name!r} {shape}" for name, shape in _named(recording.spec))
        wanted = ", ".join(f"{name} {tuple(shape)}" for name, shape in network.shapes.items())
        raise CheckpointError(f"{where}: it has the sensors {sensors}, but the model expects {wanted}.")


def _checkpoints(saved: SavedPolicy) -> Iterator[Change]:
    """Yield the checkpoints of a run as changes, newest first."""
    files = [path for path in saved.checkpoint.parent.glob("*.pt") if path.is_file()]
    numbered = {path: int(found[1]) for path in files if (found := _NUMBERED.search(path.stem))}
    ordered = sorted(numbered, key=lambda path: -numbered[path])
    ordered += sorted(path for path in files if path not in numbered)
    if len(ordered) > _MOST_CHECKPOINTS:
        picked = np.linspace(0, len(ordered) - 1, _MOST_CHECKPOINTS).astype(int)
        logger.info("Found %d checkpoints; comparing %d of them.", len(ordered), _MOST_CHECKPOINTS)
        ordered = [ordered[each] for each in picked]
    for path in ordered:
        try:
            (policy,) = find_policies(path, path.parent, None)
            network = _network_of_checkpoint(policy)
        except TrajtrainerError as error:
            logger.warning("Skipping the checkpoint %s: %s", path, error)
            continue
        what = f"of step {numbered[path]:,} ({path})" if path in numbered else str(path)
        text = f"These are the actions of another model of the run: the checkpoint {what}."
        yield Change(Cause.MODEL, text, network=network)


def _differences(saved: SavedPolicy, recording: RecordedDecisions) -> Iterator[tuple[Cause, str]]:
    """Yield the differences between the sensors of the recorded agents and those in training."""
    record = _record_of(saved)
    if record is None:
        return
    trained, recorded = _named(record.spec), _named(recording.spec)
    before, now = [name for name, _ in trained], [name for name, _ in recorded]
    if not all(now + before):
        return
    if before != now and sorted(before) == sorted(now):
        yield (
            Cause.SENSOR_ORDER,
            f"In training the sensors came in the order {', '.join(before)}; in the game they come in the order "
            f"{', '.join(now)}.",
        )
    shapes = dict(trained)
    for name, shape in recorded:
        if shapes.get(name, shape) != shape:
            text = f"The sensor {name!r} had the shape {shapes[name]} in training and has {shape} now."
            yield Cause.SENSOR_SHAPE, text
    for name in now:
        if name not in shapes:
            yield Cause.SENSOR_SHAPE, f"The game has a sensor {name!r}, which did not exist in training."
    for name in before:
        if name not in now:
            yield Cause.SENSOR_SHAPE, f"The sensor {name!r} from training does not exist in the game."


def _named(spec: BehaviorSpec) -> list[tuple[str, tuple[int, ...]]]:
    return [(sensor.name, tuple(map(int, sensor.shape))) for sensor in spec.observation_specs]


def _which(network: Network, others: Sequence[Change], recording: RecordedDecisions) -> Iterator[str]:
    """Yield a note that identifies the model's checkpoint if it is not the newest one of the run."""
    question = recording.question
    if not network.takes(question.shapes):
        return
    mine = network.answer(question)
    same = [False] * len(others)
    for index, change in enumerate(others):
        assert change.network is not None
        if change.network.takes(question.shapes) and change.network.memory_size == network.memory_size:
            theirs = change.network.answer(question)
            pairs = [(mine.mode, theirs.mode), *zip(mine.log_probs, theirs.log_probs, strict=True)]
            same[index] = all(np.allclose(np.exp(a), np.exp(b), atol=1e-3) for a, b in pairs)
    if not any(same):
        yield (
            f"The model {network.name} does not act like any of the run's checkpoints: it comes from another run, "
            "or from a step that was not kept."
        )
    elif not same[0]:
        yield f"The model {network.name} is not the run's newest: {others[same.index(True)].text.partition(': ')[2]}"


def _far_from_training(network: Network, recording: RecordedDecisions) -> Iterator[str]:
    """Yield notes on observations that rarely occurred in training, according to the model's normalization."""
    if not network.takes(recording.question.shapes):
        return
    for sensor, normalization in network.normalizations.items():
        values = recording.question.obs[sensor]
        off = np.abs((values - normalization.mean) / normalization.deviation)
        share = float((off > _FAR).mean())
        if share > _MANY:
            worst = int(np.median(off, axis=0).argmax())
            yield (
                f"{share:.0%} of the numbers of {recording.labels[sensor]} are more than {_FAR:g} standard "
                f"deviations from their mean in training. Number {worst} is {np.median(values[:, worst]):.4g} "
                f"(median); in training it was {normalization.mean[worst]:.4g} ± {normalization.deviation[worst]:.4g}. "
                "Check its unit and its position in the observation."
            )
