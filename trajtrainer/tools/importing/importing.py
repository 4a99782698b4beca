"""The steps of an import: read the other trainer's file, look at the environment, fit the policy to it, write it."""

import itertools
import logging
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.filenames import check_run_id
from trajtrainer.core.printable import shortened
from trajtrainer.core.spelling import closest
from trajtrainer.envs.select import check as check_environment
from trajtrainer.policies.checkpoints.file import load_tensors
from trajtrainer.policies.onnx.export import export_policy, write_model
from trajtrainer.run.acting import INTERRUPTED, for_inference, opened
from trajtrainer.run.preflight import Preflight
from trajtrainer.run.signals import StopRequest
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.suggestions import Seen
from trajtrainer.tools.importing.fit import MismatchError, fitted_actor, fitted_sensors, own_actor, write_run
from trajtrainer.tools.importing.onnx_model import ForeignModel, for_unity, read_onnx_model
from trajtrainer.tools.importing.policy import ForeignPolicy, Hints
from trajtrainer.tools.importing.stable_baselines3 import WEIGHTS, read_stable_baselines3
from trajtrainer.tools.importing.state_dicts import read_state_dict
from trajtrainer.tools.importing.weights import load_safetensors, read_statistics
from trajtrainer.tools.importing.weights import opened as opened_file
from trajtrainer.tools.output import check_target
from trajtrainer.tools.survey import survey

logger = logging.getLogger(__name__)

_MODEL = ".onnx"


def import_policy(
    source: Path,
    output: Path,
    settings: RunSettings,
    hints: Hints,
    *,
    statistics: Path | None,
    behavior: str | None,
    overwrite: bool,
) -> int:
    """Import a policy, describe it in the log, and return the exit code.

    Args:
        source: the other trainer's file.
        output: path of an ``.onnx`` file, or the folder of a new run.
        settings: environment settings.
        hints: options for what the file does not contain, without the statistics.
        statistics: path of the file with the statistics.
        behavior: name of the behavior; None if the environment has only one.
        overwrite: whether an existing ``.onnx`` may be replaced.

    Raises:
        TrajtrainerError: a file or the environment does not exist, the policy does not match the agents, or required
            information is missing. In this case, nothing is written.
    """
    wants_run = output.suffix != _MODEL
    with Preflight() as check:
        if wants_run:
            check(_check_folder, output)
        else:
            check(check_target, output, overwrite=overwrite)
        check(check_environment, settings.env_settings.env_path)
        if statistics is not None:
            hints = replace(hints, statistics=check(read_statistics, statistics))
        found = check(read_policy, source, hints)
        if wants_run and isinstance(found, ForeignModel):
            check.errors.append(
                CheckpointError(f"{source} can only be converted to a model, not to a run: use -o NAME{_MODEL}.")
            )
    stop = StopRequest()
    looking = for_inference(settings)
    with opened(looking, stop) as environment:
        if environment is None:
            return stop.exit_code or INTERRUPTED
        behaviors, _ = survey(environment, looking.env_settings.seed, lambda: stop.requested)
    if stop.requested:
        return stop.exit_code or INTERRUPTED
    seen = _chosen(behaviors, behavior)
    try:
        if isinstance(found, ForeignModel):
            write_model(for_unity(found, fitted_sensors(found, seen.spec), seen.spec), output)
        else:
            actor = fitted_actor(found, hints, seen.spec)
            logger.info("%s contains a policy (%s) after %d steps of training.", source, found.trainer, found.step)
            if wants_run:
                own, trainer = own_actor(found, actor, found.statistics or hints.statistics, seen.spec)
                write_run(output, seen.name, found, own, trainer, settings)
            else:
                export_policy(actor, seen.spec, output)
    except MismatchError as error:
        reason = shortened(str(error))
        raise CheckpointError(f"{source} cannot be imported for {seen.name!r}: {reason}.") from error
    has_names = isinstance(found, ForeignPolicy) and found.has_names
    if hints.statistics is None and (isinstance(found, ForeignModel) or found.statistics is None):
        logger.warning(
            "%s does not say whether its observations were normalized before the network (VecNormalize, "
            "NormalizeObservation). They are assumed not to be. If they were, %s.",
            source,
            "this policy cannot be imported" if has_names else "pass --statistics",
        )
    sensors = seen.spec.observation_specs
    if len(sensors) > 1 and not has_names:  # the file does not say which numbers come from which sensor
        ends = list(itertools.accumulate(int(sensor.shape[0]) for sensor in sensors))
        ranges = zip([0, *ends], ends, sensors, strict=False)
        order = ", ".join(f"{start} to {end - 1} are {sensor.name}" for start, end, sensor in ranges)
        logger.info("The inputs of the policy: %s. They must be in the same order as in training.", order)
    logger.info("Wrote %s.", output)
    return 0


def _check_folder(output: Path) -> None:
    check_run_id(output.name, "-o")
    if output.exists() or not output.parent.is_dir():
        found = "already exists" if output.exists() else "is in a folder that does not exist"
        raise SettingsError(f"{output} {found}. Expected the folder of a new run, or a file NAME{_MODEL}.")


def _chosen(behaviors: Sequence[Seen], name: str | None) -> Seen:
    """Return the behavior to import the policy for.

    Raises:
        SettingsError: there is no behavior with this name, or no name is given and there are several behaviors.
    """
    by_name = {seen.name: seen for seen in behaviors}
    if name is None and len(behaviors) == 1:
        return behaviors[0]
    if name not in by_name:
        found = f"no behavior {name!r}{closest(name, by_name)}" if name else "several behaviors"
        raise SettingsError(f"The environment has {found}. Choose with --behavior one of {', '.join(by_name)}.")
    return by_name[name]


def read_policy(path: Path, hints: Hints) -> ForeignPolicy | ForeignModel:
    """Read a policy of Stable-Baselines3 or sb3-contrib, a state dict of CleanRL or rsl_rl, or an ``.onnx`` file.

    Raises:
        CheckpointError: the file is missing, damaged, of an unknown kind, or would have to be unpickled; or required
            information is neither in the file nor in ``hints``.
    """
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return read_onnx_model(path, hints)
    with opened_file(path) as file:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if WEIGHTS in archive.namelist():
                    return read_stable_baselines3(archive, hints)
        file.seek(0)
        return read_state_dict(load_safetensors(file) if suffix == ".safetensors" else load_tensors(file), hints)
