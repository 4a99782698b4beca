"""``trajtrainer record``: plays with a policy and records its actions, or those of an expert in the same states."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from trajtrainer.core.errors import DemonstrationError, SettingsError
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.experience.recordings.demo_file import SUFFIX
from trajtrainer.experience.recordings.pairing import Trajectory
from trajtrainer.experience.recordings.source import DemonstrationSource, Summary, summarize
from trajtrainer.learning.algos.acting import Policy
from trajtrainer.policies.play.models import ActingOptions, Roles, find_models
from trajtrainer.run import acting
from trajtrainer.run.device import set_threads
from trajtrainer.run.launching import LaunchedPlayers
from trajtrainer.run.preflight import Preflight
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.run import RunSettings
from trajtrainer.tools import recordings
from trajtrainer.tools.record.recording import Recording, record

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The command line options of a recording.

    Attributes:
        policy: the policy that acts: ``random``, ``heuristic``, or a model (see ``find_models``).
        expert: the policy whose decisions are recorded, in the same form; None to record those of ``policy``.
        episodes: number of episodes of the behavior and each team.
        length: maximum number of steps to write per episode; None for all steps.
        behavior: name of the behavior to record; None if the environment has only one.
        output: path of the file to write.
    """

    policy: str
    expert: str | None
    episodes: int
    length: int | None
    behavior: str | None
    output: Path


def record_to_file(
    wanted: RecordOptions, settings: RunSettings, players: LaunchedPlayers | None
) -> tuple[Summary, int]:
    """Record episodes, and write them to a file.

    Args:
        wanted: what to record, and the file to write.
        settings: settings from ``acting.for_inference``.
        players: the players, if they have been launched.

    Returns:
        A summary of the recording, and the exit code: 0, or 1 or that of a signal if the recording ended early.

    Raises:
        TrajtrainerError: a policy, a file or the environment does not exist or does not match the others, or the
            environment failed before any episode ended.
    """
    results = Path(settings.checkpoint_settings.results_dir)
    with Preflight() as check:
        check(recordings.check_target, wanted.output)
        options = acting.check_acting(check, settings)
        actor = check(_Role, wanted.policy, results, options)
        expert = None if wanted.expert is None else check(_Role, wanted.expert, results, options)
    set_threads()
    roles = [role for role in (expert, actor) if role is not None]
    parameters = {name: value for role in roles for name, value in role.parameters.items()}
    acting.log_parameters(parameters)
    stop = StopRequest()
    behaviors: dict[str, None] = {}

    def announce(specs: Mapping[str, BehaviorSpec]) -> None:
        behaviors.update(dict.fromkeys(BehaviorId.parse(behavior_id).name for behavior_id in specs))
        if wanted.behavior is None:
            _check_single(behaviors)
        for role in reversed(roles):
            role.announce(specs)

    with acting.opened(settings, stop, players=players) as environment:
        found: dict[str, Recording] = {}
        if environment is not None:
            found = record(
                environment,
                actor.policy,
                wanted.episodes,
                seed=settings.env_settings.seed,
                experts=None if expert is None else expert.policy,
                parameters=parameters,
                announce=announce,
                stopped=lambda: stop.requested,
            )
    name = next(iter(behaviors), "") if wanted.behavior is None else wanted.behavior
    recording = found.get(name)
    if recording is None or not recording.trajectories:
        raise DemonstrationError(f"Nothing was recorded: no episode of {name or 'a behavior'} ended.")
    trajectories = recording.trajectories
    if wanted.length is not None:
        trajectories = [_shortened(each, wanted.length) for each in trajectories]
    source = DemonstrationSource(wanted.output, recording.spec, recording.name, lambda: iter(trajectories))
    recordings.write(wanted.output, source)
    if recording.failure is not None:
        logger.error("%s The episodes recorded before that were written.", recording.failure)
    return summarize(source), acting.exit_code(recording.failure, stop)


def _check_single(behaviors: Collection[str]) -> None:
    if len(behaviors) > 1:
        raise SettingsError(
            f"The environment has the behaviors {', '.join(behaviors)}, but a {SUFFIX} file can contain only one: "
            "choose one with --behavior."
        )


def _shortened(trajectory: Trajectory, length: int) -> Trajectory:
    steps = trajectory.steps
    if len(steps) <= length:
        return trajectory
    return Trajectory(steps.slice(0, length), steps.slice(length, length + 1))


class _Role:
    """The policies for all behaviors, given by one command line argument (``--policy`` or ``--expert``).

    Attributes:
        parameters: environment parameters that the model's run was trained with.
    """

    def __init__(self, word: str, results: Path, options: ActingOptions) -> None:
        models = find_models([word], results, options, scripted=True)
        if len(models) != 1:
            raise SettingsError(f"{word} matches {len(models)} models, expected one.")
        self._roles = Roles(models)
        self.parameters = acting.parameters_of_run(models[0])
        self.announce = self._roles.announce

    def policy(self, behavior: BehaviorId, _: BehaviorSpec, seed: int) -> Policy:
        return self._roles.policy(0, behavior.name, seed)
