"""``trajtrainer verify``: checks whether a game acts like the policy in training, or why not (docs/deploy/verify.md).

Shape legend: N decisions, O an observation's own shape.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, concatenate
from trajtrainer.core.errors import CheckpointError, DemonstrationError, SettingsError, TrajtrainerError
from trajtrainer.core.filenames import behavior_of
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorId, BehaviorSpec, sensors_seen, with_sensors
from trajtrainer.experience.recordings.demo_file import demo_paths, open_demo
from trajtrainer.experience.recordings.pairing import as_dtype, check_spec, pieces
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.policy_record import read_record
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.checkpoints.saved_policies import SavedPolicy, find_policies
from trajtrainer.policies.onnx.export import build_model
from trajtrainer.settings.checks import closest
from trajtrainer.tools.verify.changes import Cause, Change, label_of, refitted
from trajtrainer.tools.verify.explain import Verdict, explain
from trajtrainer.tools.verify.likelihood import Mode, PlayedActions
from trajtrainer.tools.verify.network import Network, Question, network_of_file, network_of_model

logger = logging.getLogger(__name__)

_MODEL: Final = ".onnx"
_MOST_CHECKPOINTS: Final = 40
_NUMBERED: Final = re.compile(r"-(\d{1,18})$")
_FAR: Final = 5.0  # distance from the mean in training that counts as far, in standard deviations
_MANY: Final = 0.05

MOST_DECISIONS: Final = 2000
_FEWEST_DECISIONS: Final = 200
_MOST_NUMBERS: Final = 4_000_000  # numbers in all observations; a limit, because every change processes all of them


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The command line options of a verification.

    Attributes:
        model: a run, a checkpoint or an ``.onnx``.
        demos: recordings of the game, or folders of recordings.
        run: a run whose spec and other checkpoints are also compared.
        behavior: the behavior of a run to compare; by default, the recorded behavior.
        expected: how the game should choose actions; None for either mode.
        decisions: maximum number of decisions to use.
        results: the folder that contains the runs.
        raw_image_order: see ``open_demo``.
    """

    model: str
    demos: tuple[str, ...]
    run: str | None = None
    behavior: str | None = None
    expected: Mode | None = None
    decisions: int | None = None
    results: Path = Path("results")
    raw_image_order: RawImageOrder = RawImageOrder.AUTO


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
    training: tuple[tuple[Cause, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """True if nothing differs."""
        return self.verdict.agrees and not self.training


def verify(request: VerifyRequest) -> Verification:
    """Compare a recording of a game with the model that acts in it.

    Raises:
        TrajtrainerError: a file cannot be read, or the recording and the model do not match.
    """
    recorded = read_recording(request.demos, request.raw_image_order, request.decisions)
    own = None if Path(request.model).suffix == _MODEL else _policy_of(request.model, request, recorded)
    network = network_of_file(Path(request.model)) if own is None else _network_of_checkpoint(own)
    saved = own if request.run is None else _policy_of(request.run, request, recorded)
    recording, notes = _of_sensors_seen(network, saved, recorded)
    _check_fit(network, recording)
    notes += _far_from_training(network, recording)
    others, training = [], []
    if saved is not None and (request.run is not None or not (Path(request.model).suffix or "@" in request.model)):
        others = list(_checkpoints(saved))
        if request.run is not None:
            training = list(_differences(saved, recording))
            notes += _which(network, others, recording)
    specs = recording.spec.observation_specs
    verdict = explain(network, recording.question, recording.actions, specs, others=others, expected=request.expected)
    return Verification(recording, verdict, tuple(training), tuple(notes))


def _of_sensors_seen(
    network: Network, saved: SavedPolicy | None, recording: RecordedDecisions
) -> tuple[RecordedDecisions, list[str]]:
    """Remove the sensors that the policy does not see, which is normal for a student. Also return a note on them."""
    sensors = recording.spec.observation_specs
    spec = None if saved is None or network.takes([tuple(sensor.shape) for sensor in sensors]) else _spec_of(saved)
    numbers = None if spec is None else sensors_seen(spec, recording.spec)
    if numbers is None:
        return recording, []
    unseen = ", ".join(repr(sensor.name) for number, sensor in enumerate(sensors) if number not in numbers)
    question = replace(recording.question, obs=tuple(recording.question.obs[number] for number in numbers))
    return (
        replace(recording, spec=with_sensors(recording.spec, numbers), question=question),
        [f"The policy does not see {unseen}. In Unity, agents with its .onnx must not have such a sensor."],
    )


def _spec_of(saved: SavedPolicy) -> BehaviorSpec | None:
    record = read_record(read_checkpoint(saved.checkpoint), str(saved.checkpoint))
    return None if record is None else record.spec


def _policy_of(word: str, request: VerifyRequest, recording: RecordedDecisions) -> SavedPolicy:
    """Find the policy for the recorded behavior in a run or checkpoint."""
    found = {behavior_of(each.name): each for each in find_policies(Path(word), request.results, None)}
    if request.behavior is not None:
        if request.behavior not in found:
            raise SettingsError(
                f"{word} has no behavior {request.behavior!r}{closest(request.behavior, found)}, only "
                f"{', '.join(found)}."
            )
        return found[request.behavior]
    if len(found) == 1:
        only = next(iter(found.values()))
        record = read_record(read_checkpoint(only.checkpoint), str(only.checkpoint))
        name = record.behavior if record is not None else None
        if recording.behavior and name is not None and name != recording.behavior:
            raise SettingsError(
                f"{recording.paths[0]} is a recording of the behavior {recording.behavior!r}, but {word} was trained "
                f"for {name!r}. If the behavior was renamed, use --behavior {name}."
            )
        return only
    if recording.behavior not in found:
        raise SettingsError(
            f"{recording.paths[0]} is a recording of the behavior {recording.behavior!r}, but {word} has "
            f"{', '.join(map(repr, found))}. Choose one of them with --behavior."
        )
    return found[recording.behavior]


def _network_of_checkpoint(saved: SavedPolicy) -> Network:
    source = str(saved.checkpoint)
    found = recover_policy(read_checkpoint(saved.checkpoint), source=source, models=saved.models)
    return network_of_model(build_model(found.actor, found.spec), source)


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
    specs = recording.spec.observation_specs
    shapes = [tuple(sensor.shape) for sensor in specs]
    if not network.takes(shapes) and not any(refitted(network, recording.question, specs)):
        sensors = ", ".join(f"{sensor.name!r} {tuple(sensor.shape)}" for sensor in specs)
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
        yield Change(
            Cause.MODEL,
            f"These are the actions of another model of the run: the checkpoint {what}.",
            network=network,
        )


def _differences(saved: SavedPolicy, recording: RecordedDecisions) -> Iterator[tuple[Cause, str]]:
    """Yield the differences between the sensors of the recorded agents and those in training."""
    spec = _spec_of(saved)
    if spec is None:
        return
    trained, recorded = _named(spec), _named(recording.spec)
    before, now = [name for name, _ in trained], [name for name, _ in recorded]
    if not all(now) or not all(before):
        return
    if before != now and sorted(before) == sorted(now):
        yield (
            Cause.SENSOR_ORDER,
            f"In training the sensors came in the order {', '.join(before)}; in the game they come in the order "
            f"{', '.join(now)}.",
        )
    shapes = dict(trained)
    for name, shape in recorded:
        if name in shapes and shapes[name] != shape:
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
    """Yield a note on which checkpoint of the run the model is, if it is not the newest one."""
    shapes = recording.question.shapes
    if not network.takes(shapes):
        return
    mine = network.answer(recording.question)
    same = []
    for change in others:
        assert change.network is not None
        if change.network.takes(shapes) and change.network.memory_size == network.memory_size:
            theirs = change.network.answer(recording.question)
            pairs = [(mine.mode, theirs.mode), *zip(mine.log_probs, theirs.log_probs, strict=True)]
            same.append(all(np.allclose(np.exp(a), np.exp(b), atol=1e-3) for a, b in pairs))
    if not any(same):
        yield (
            f"The model {network.name} does not act like any of the run's checkpoints: it comes from another run, "
            "or from a step that was not kept."
        )
    elif not same[0]:
        yield f"The model {network.name} is not the run's newest: {others[same.index(True)].text.partition(': ')[2]}"


def _far_from_training(network: Network, recording: RecordedDecisions) -> Iterator[str]:
    """Yield notes on observations that rarely occurred in training, according to the model's normalization."""
    specs = recording.spec.observation_specs
    if not network.takes([tuple(sensor.shape) for sensor in specs]):
        return
    for sensor, normalization in network.normalizations.items():
        values = recording.question.obs[sensor]
        off = np.abs((values - normalization.mean) / normalization.deviation)
        share = float((off > _FAR).mean())
        if share > _MANY:
            worst = int(np.median(off, axis=0).argmax())
            yield (
                f"{share:.0%} of the numbers of {label_of(sensor, specs[sensor])} are more than {_FAR:g} standard "
                f"deviations from their mean in training. Number {worst} is {np.median(values[:, worst]):.4g} "
                f"(median); in training it was {normalization.mean[worst]:.4g} ± {normalization.deviation[worst]:.4g}. "
                "Check its unit and its position in the observation."
            )


@dataclass(frozen=True, slots=True)
class RecordedDecisions:
    """The first decisions of one or more recordings.

    Attributes:
        paths: paths of the files.
        behavior: name of the behavior without its team; empty if the file does not contain it.
        spec: spec of the recorded observations and actions.
        question: the policy's inputs.
        actions: the recorded actions.
        is_whole: True if these are all decisions of the recordings.
    """

    paths: tuple[Path, ...]
    behavior: str
    spec: BehaviorSpec
    question: Question
    actions: PlayedActions
    is_whole: bool


def read_recording(
    paths: Sequence[str | Path], raw_image_order: RawImageOrder, most_decisions: int | None = None
) -> RecordedDecisions:
    """Read recordings of one behavior.

    Args:
        paths: ``.demo`` files, or folders of them.
        raw_image_order: see ``open_demo``.
        most_decisions: maximum number of decisions to use; by default 2,000, or fewer if the images are large.

    Raises:
        DemonstrationError: a recording is missing, damaged, or of a different behavior than the first one; or there are
            no decisions.
    """
    files = [open_demo(path, raw_image_order) for path in demo_paths(paths)]
    first = files[0]
    for file in files:
        check_spec(file.behavior.spec, first.behavior.spec, file.path, str(first.path))
    spec = first.behavior.spec
    numbers = sum(math.prod(sensor.shape) for sensor in spec.observation_specs)
    usual = int(np.clip(_MOST_NUMBERS // max(1, numbers), _FEWEST_DECISIONS, MOST_DECISIONS))
    most = usual if most_decisions is None else most_decisions
    parts: list[Columns[NDArray[Any]]] = []
    starts: list[NDArray[np.bool_]] = []
    for file in files:
        begins = True
        for piece in pieces(file, allow_chosen=False) if sum(map(len, parts)) <= most else ():
            # Which steps of this piece, and whether the first step of the next piece, start an episode.
            first_steps = np.zeros(len(piece.steps) + 1, np.bool_)
            first_steps[0] = begins
            first_steps[piece.ends] = True
            begins = bool(first_steps[-1])
            parts.append(piece.steps)
            starts.append(first_steps[:-1])
            if sum(map(len, parts)) > most:
                break
    steps = concatenate(parts)
    if not len(steps):
        raise DemonstrationError(f"{first.path} contains no decisions. Record at least one episode.")
    kept = steps.slice(0, most)
    obs = tuple(np.ascontiguousarray(as_dtype(column, np.dtype(np.float32))) for column in kept.obs)
    question = Question(obs, kept["mask"], np.concatenate(starts)[:most])
    actions = PlayedActions(kept["continuous"], kept["discrete"].astype(np.int64))
    name = BehaviorId.parse(first.behavior.id).name if first.behavior.id else ""
    return RecordedDecisions(tuple(file.path for file in files), name, spec, question, actions, len(kept) == len(steps))
