"""The command line of a run: the table of options, the parser generated from it, and the precedence of settings.

Command-line options take precedence over the YAML file, which takes precedence over the defaults
(docs/explanation/mlagents-behavior.md#precedence).
"""

from __future__ import annotations

import argparse
import logging
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.settings.flag import Flag, ValueKind
from trajtrainer.settings.run import SEARCH_SECTION, CheckpointSettings, RunSettings

if TYPE_CHECKING:
    from trajtrainer.settings.checks import Problem
    from trajtrainer.settings.yaml.document import PlacedValue

_LOAD_NOTE = "The --load option is deprecated; use --resume."
_TRAIN_NOTE = "The --train option is deprecated and does nothing: a run trains unless --inference is given."
_REMOVED_NOTE = "The {} option was removed and is ignored: PyTorch is always used."
LOG_FORMATS = ("text", "json")
_TRAINING = {
    "--resume", "--load", "--force", "--run-id", "--initialize-from", "--train", "--inference", "--torch",
    "--tensorflow", "--actors", "--actor-backend", "--ray-address", "--log-format",
    "--metrics-port", "--metrics-file",
}  # fmt: skip
_OTHER_HELP = {
    "--quiet": "Print only warnings and errors",
    "--num-areas": "Number of training areas in each player; a tournament needs it if the games in all areas always "
    "end at the same time",
}
# Matches either a complete command quoted in a message, in which options are left unchanged, or a single option.
_MENTION = re.compile(
    r"(?:trajtrainer|mlagents-learn) [a-z][^.;\n]*|(?:the )?(?<![\w-])--([a-z][a-z-]*)(?: flag| parameter)?"
)
# Python arguments whose names differ from those of the options.
_OTHER_NAMES = {"env": ("environment", "file_name")}
logger = logging.getLogger(__name__)
COMMAND_LINE = "command line"
RESUME_AUTO = "resume_auto"
"""Attribute of the parsed arguments that ``--resume=auto`` sets, for ``run_folder.resume_if_begun``."""
_RESUME_AUTO_HELP = (
    "Continue the run with this run-id if it has a checkpoint, otherwise start it: one command for every start on a "
    "preemptible machine"
)
_ENGINE = "Engine Configuration"
_FOR_THE_START = {"--force", "--initialize-from", "--resume", "--load", "--train"}


FLAGS: tuple[Flag, ...] = (
    Flag("--env", "env_settings.env_path", ValueKind.TEXT,
        "Unity player to start. Without it, the run waits for the Editor on port 5004. sim:NAME is a built-in "
        "simulation, godot:PATH a Godot game (godot alone: the one in the Godot editor), gym:ID a Gymnasium "
        "environment, envpool:ID an EnvPool environment, pettingzoo:MODULE a PettingZoo environment, "
        "python:MODULE:FACTORY an environment that your own function returns, and installed packages may add schemes",
        "PATH"),
    Flag("--resume", "checkpoint_settings.resume", ValueKind.SWITCH,
        "Continue an earlier run with this run-id where it stopped"),
    Flag("--load", "checkpoint_settings.load_model", ValueKind.SWITCH, "", note=_LOAD_NOTE),
    Flag("--deterministic", "deterministic", ValueKind.SWITCH,
        "Take the most likely action (mean, or highest probability) instead of a random one"),
    Flag("--force", "checkpoint_settings.force", ValueKind.SWITCH,
        "Use a run-id that already has data; the earlier run is kept as RUN_ID.old"),
    Flag("--run-id", "checkpoint_settings.run_id", ValueKind.TEXT,
        "Name of the run: its folder below results-dir", "ID"),
    Flag("--initialize-from", "checkpoint_settings.initialize_from", ValueKind.TEXT,
        "Start with the weights of another run, at step 0", "RUN_ID"),
    Flag("--seed", "env_settings.seed", ValueKind.WHOLE, "Seed of the run and its players; -1 draws one", "N"),
    Flag("--train", "checkpoint_settings.train_model", ValueKind.SWITCH, "", note=_TRAIN_NOTE),
    Flag("--inference", "checkpoint_settings.inference", ValueKind.SWITCH,
        "Only run the trained policy, until stopped; nothing is written"),
    Flag("--base-port", "env_settings.base_port", ValueKind.WHOLE,
        "Port of the first player; the others use the ports after it. Without --env, it is always 5004", "N"),
    Flag("--num-envs", "env_settings.num_envs", ValueKind.WHOLE,
        "Number of players, or copies of another environment, to run in parallel", "N"),
    Flag("--num-areas", "env_settings.num_areas", ValueKind.WHOLE, "Number of training areas in each player", "N"),
    Flag("--listen-address", "env_settings.listen_address", ValueKind.TEXT,
        "Address on which to listen for players; 0.0.0.0 also accepts other machines and containers", "ADDRESS"),
    Flag("--raw-image-order", "env_settings.raw_image_order", ValueKind.TEXT,
        "Order of raw images from players with Unity package 3.0 or newer: hwc, chw, or auto to detect it", "ORDER"),
    Flag("--debug", "debug", ValueKind.SWITCH, "Print debug lines, the players' own output, and tracebacks"),
    Flag("--quiet", "", ValueKind.SWITCH,
        "Print only warnings and errors; the log in the run's folder has everything"),
    Flag("--log-format", "", ValueKind.TEXT,
        "How to print log lines: text, or json for one JSON object per line", "FORMAT", choices=LOG_FORMATS),
    Flag("--metrics-port", "monitoring.metrics_port", ValueKind.WHOLE,
        "Serve metrics for Prometheus on this port, to this machine only; 0 picks a free one", "N"),
    Flag("--metrics-file", "monitoring.metrics_file", ValueKind.TEXT,
        "Write metrics for Prometheus to this file after each summary", "FILE"),
    Flag("--env-args", "env_settings.env_args", ValueKind.REST,
        "Everything that follows is passed to the player's command line, or as key=value to the constructor of a "
        "Python environment"),
    Flag("--wrapper", "env_settings.wrappers", ValueKind.WORDS,
        "Wrap each copy of a Gymnasium or PettingZoo environment; repeat it to add outer wrappers: "
        "gymnasium.wrappers:FrameStackObservation stack_size=4", "PACKAGE.MODULE:WRAPPER KEY=VALUE"),
    Flag("--max-lifetime-restarts", "env_settings.max_lifetime_restarts", ValueKind.WHOLE,
        "Maximum number of restarts of each crashed player in one run; -1 for no limit", "N"),
    Flag("--restarts-rate-limit-n", "env_settings.restarts_rate_limit_n", ValueKind.WHOLE,
        "Maximum number of restarts of each player within --restarts-rate-limit-period-s; -1 for no limit", "N"),
    Flag("--restarts-rate-limit-period-s", "env_settings.restarts_rate_limit_period_s", ValueKind.WHOLE,
        "Period of --restarts-rate-limit-n, in seconds", "S"),
    Flag("--torch", "", ValueKind.REMOVED, "Removed; ignored", note=_REMOVED_NOTE.format("--torch")),
    Flag("--tensorflow", "", ValueKind.REMOVED, "Removed; ignored", note=_REMOVED_NOTE.format("--tensorflow")),
    Flag("--results-dir", "checkpoint_settings.results_dir", ValueKind.TEXT,
        "Folder that contains the folders of all runs", "DIR"),
    Flag("--actors", "actors.count", ValueKind.WHOLE,
        "Number of actors that act while the learner learns, each in a process with its own environments", "N"),
    Flag("--actor-backend", "actors.backend", ValueKind.TEXT,
        "Where actors run: inline (in the learner's loop), thread, process or ray", "BACKEND"),
    Flag("--ray-address", "actors.ray.address", ValueKind.TEXT,
        "Ray cluster for the actors: HOST:PORT, or auto for the one on this machine; without it, one is started here",
        "ADDRESS"),
    Flag("--timeout-wait", "env_settings.timeout_wait", ValueKind.WHOLE,
        "How long to wait for each response from a player, in seconds", "S"),
    Flag("--python-timeout", "env_settings.python_timeout", ValueKind.WHOLE,
        "How long one call to a Python environment may take, in seconds; -1 for no limit", "S"),
    Flag("--width", "engine_settings.width", ValueKind.WHOLE,
        "Width of the player's window in pixels", "N", _ENGINE),
    Flag("--height", "engine_settings.height", ValueKind.WHOLE,
        "Height of the player's window in pixels", "N", _ENGINE),
    Flag("--quality-level", "engine_settings.quality_level", ValueKind.WHOLE,
        "The player's quality level (QualitySettings.SetQualityLevel)", "N", _ENGINE),
    Flag("--time-scale", "engine_settings.time_scale", ValueKind.REAL,
        "How fast time passes in the player (Time.timeScale)", "X", _ENGINE),
    Flag("--target-frame-rate", "engine_settings.target_frame_rate", ValueKind.WHOLE,
        "Maximum frames per second; -1 leaves it to the player (Application.targetFrameRate)", "N", _ENGINE),
    Flag("--capture-frame-rate", "engine_settings.capture_frame_rate", ValueKind.WHOLE,
        "Frames per second of game time (Time.captureFramerate)", "N", _ENGINE),
    Flag("--no-graphics", "engine_settings.no_graphics", ValueKind.SWITCH,
        "Start every player with -nographics -batchmode", group=_ENGINE),
    Flag("--no-graphics-monitor", "engine_settings.no_graphics_monitor", ValueKind.SWITCH,
        "Like --no-graphics, but for all players except the first", group=_ENGINE),
    Flag("--torch-device", "torch_settings.device", ValueKind.TEXT,
        "Device to train on, such as cpu, cuda or cuda:1; without it, cuda if available, otherwise cpu", "DEVICE",
        "Torch Configuration"),
)  # fmt: skip

ACTING_FLAGS: tuple[Flag, ...] = tuple(
    evolve(flag, help=_OTHER_HELP.get(flag.option, flag.help)) for flag in FLAGS if flag.option not in _TRAINING
)
"""Options of commands that run policies in an environment without training."""


@contextmanager
def python_names(arguments: Collection[str]) -> Iterator[None]:
    """Rewrite errors for Python callers: replace options with Python arguments, or else with settings keys.

    Args:
        arguments: names of all arguments of the caller.
    """
    try:
        yield
    except TrajtrainerError as error:
        error.args = tuple(in_python(part, arguments) if isinstance(part, str) else part for part in error.args)
        raise


def in_python(text: str, arguments: Collection[str]) -> str:
    """Replace options in a message with Python arguments.

    >>> in_python("Use --resume, or choose another --run-id, or set --base-port.", ("resume", "run_id"))
    'Use resume=True, or choose another run_id, or set env_settings.base_port.'
    """

    def spelled(mention: re.Match[str]) -> str:
        flag = next((flag for flag in FLAGS if flag.option == f"--{mention[1]}"), None)
        if flag is None:
            return mention[0]
        is_switch = flag.kind is ValueKind.SWITCH
        for name in _OTHER_NAMES.get(flag.name, (flag.name,)):
            if name in arguments:
                return f"{name}=True" if is_switch else name
        return f"{flag.path}: true" if is_switch and flag.path else flag.path or flag.option

    return _MENTION.sub(spelled, text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run. Options that are not given have no attribute in the parsed arguments."""
    parser.add_argument(
        "trainer_config_path",
        nargs="?",
        default=None,
        metavar="CONFIG",
        help="YAML file with the configuration, or builtin:NAME for a shipped one (builtin:ppo/3DBall)",
    )
    add_options(parser, FLAGS)
    add_resume_auto(parser)


def add_resume_auto(parser: argparse.ArgumentParser) -> None:
    """Add ``--resume=auto`` to a parser that has ``--resume``."""
    # The value is part of the option's name, so that --resume remains a switch that never consumes the next argument.
    parser.add_argument(
        "--resume=auto", dest=RESUME_AUTO, default=argparse.SUPPRESS, action="store_true", help=_RESUME_AUTO_HELP
    )
    # argparse would consider this abbreviation of --resume ambiguous, because --resume=auto starts with it as well.
    parser.add_argument(
        "--resum", dest="resume", default=argparse.SUPPRESS, action="store_true", help=argparse.SUPPRESS
    )


def add_options(parser: argparse.ArgumentParser, flags: Iterable[Flag]) -> None:
    """Add the given options to a parser."""
    groups: dict[str | None, argparse._ActionsContainer] = {None: parser}
    for flag in flags:
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        groups[flag.group].add_argument(flag.option, dest=flag.name, default=argparse.SUPPRESS, **_keywords(flag))


def _keywords(flag: Flag) -> dict[str, Any]:
    default = getattr(flag.default, "value", flag.default)
    shown = f"{flag.help} (default: {default})" if flag.path and default not in (None, False) else flag.help
    keywords: dict[str, Any] = {"help": shown if flag.help else argparse.SUPPRESS}
    if flag.kind in (ValueKind.SWITCH, ValueKind.REMOVED):
        return {**keywords, "action": "store_true"}
    if flag.kind is ValueKind.REST:
        return {**keywords, "nargs": argparse.REMAINDER, "metavar": "ARG"}
    if flag.kind is ValueKind.WORDS:
        return {**keywords, "nargs": "*", "action": _Words, "metavar": tuple((flag.metavar or "").split())}
    if flag.kind in (ValueKind.WHOLE, ValueKind.REAL):
        keywords["type"] = partial(_number, flag.kind)
    return {**keywords, "metavar": flag.metavar, "choices": flag.choices}


class _Words(argparse.Action):
    """Joins the words of each occurrence into one string, quoted as in a shell. Adds nothing if there are no words."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _option: str | None = None
    ) -> None:
        words: Sequence[str] = values
        text = words[0] if len(words) == 1 else shlex.join(words)
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, ()), *([text] if words else [])])


def _number(kind: ValueKind, text: str) -> int | float:
    from trajtrainer.settings.checks import InvalidValueError
    from trajtrainer.settings.yaml.document import real_number, whole_number

    read: Callable[[object], int | float] = whole_number if kind is ValueKind.WHOLE else real_number
    try:
        return read(text)
    except InvalidValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def to_resume(arguments: argparse.Namespace) -> list[str]:
    """Return the command-line arguments for resuming a run that was started with ``arguments``."""
    words = [] if arguments.trainer_config_path is None else [arguments.trainer_config_path]
    rest = []
    for flag in FLAGS:
        if not hasattr(arguments, flag.name) or flag.option in _FOR_THE_START or flag.kind is ValueKind.REMOVED:
            continue
        value = getattr(arguments, flag.name)
        if flag.kind is ValueKind.REST:
            rest = [flag.option, *value]
        elif flag.kind is ValueKind.WORDS:
            words += [f"{flag.option}={text}" for text in value] or [flag.option]
        else:
            words.append(flag.option if flag.kind is ValueKind.SWITCH else f"{flag.option}={value}")
    return [*words, "--resume", *rest]


def resolve(arguments: argparse.Namespace, *, converts: bool = False) -> RunSettings:
    """Return the settings of a run from parsed arguments.

    Args:
        arguments: parsed arguments.
        converts: accept files from old versions of ML-Agents, and log what is lost in the conversion.

    Raises:
        SettingsError: the file is missing, or the file or the options contain errors.
    """
    from trajtrainer.settings.presets import config_path
    from trajtrainer.settings.yaml.convert import read_file
    from trajtrainer.settings.yaml.old_forms import convert, is_old

    path = arguments.trainer_config_path
    if path is None:
        return resolve_options(arguments)
    root, problems = read_file(config_path(path))
    if SEARCH_SECTION in root.mapping:
        logger.info("The section 'search' of %s is ignored: it is for 'trajtrainer search'.", path)
    converts = converts and is_old(root)
    for note in convert(root) if converts else ():
        logger.warning("%s", note)
    return run_settings_with(
        root, given(arguments), problems, behaviors_required=True, recordings_required=not converts
    )


def resolve_options(arguments: argparse.Namespace, sections: Mapping[str, object] | None = None) -> RunSettings:
    """Return the settings from parsed options only, without a configuration file.

    Args:
        arguments: parsed arguments.
        sections: sections of a configuration, from other options of the command.

    Raises:
        SettingsError: the options or sections contain errors.
    """
    from trajtrainer.settings.checks import Place
    from trajtrainer.settings.yaml.document import from_mapping

    root = from_mapping(sections or {}, Place(COMMAND_LINE))
    return run_settings_with(root, given(arguments), behaviors_required=False)


def given(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the value of each option that was given, by ``Flag.name``."""
    return {flag.name: getattr(arguments, flag.name) for flag in FLAGS if hasattr(arguments, flag.name)}


def run_settings_with(
    root: PlacedValue,
    options: Mapping[str, object],
    problems: Iterable[Problem] = (),
    *,
    behaviors_required: bool,
    source: str = COMMAND_LINE,
    recordings_required: bool = True,
) -> RunSettings:
    """Return the settings from a configuration's tree, which is modified, and from options, which take precedence.

    Args:
        root: tree of the configuration.
        options: ``Flag.name`` -> value, for options that were given.
        problems: problems already found in the configuration.
        behaviors_required: True if there is a configuration file, which must then cover every behavior.
        source: origin of the options, for messages.
        recordings_required: record missing recordings in the settings, to report them when the run starts; otherwise,
            only log warnings.

    Raises:
        SettingsError: the configuration or the options contain errors.
    """
    from trajtrainer.settings.checks import Place
    from trajtrainer.settings.demonstrations import locate
    from trajtrainer.settings.yaml.convert import run_settings
    from trajtrainer.settings.yaml.document import PlacedValue, from_mapping

    chosen = [flag for flag in FLAGS if flag.name in options]
    for flag in chosen:
        if flag.note is not None:
            logger.warning(flag.note)
        if flag.path:
            place = Place(source, None, (flag.option if source == COMMAND_LINE else flag.name,))
            *sections, name = flag.path.split(".")
            inner = root
            for section in sections:
                inner = inner.mapping.setdefault(section, PlacedValue({}, place))
            # If the file has something other than a mapping here, this value is lost, but the file is reported as
            # invalid anyway.
            inner.mapping[name] = from_mapping(options[flag.name], place)
    missing = list(locate(root))
    if not recordings_required:
        for problem in missing:
            logger.warning("%s", problem)
        missing = []
    settings = run_settings(root, problems, missing=missing, behaviors_required=behaviors_required)
    checkpoints = _resume_or_initialize(settings.checkpoint_settings, {flag.option for flag in chosen})
    return evolve(settings, checkpoint_settings=checkpoints)


def _resume_or_initialize(checkpoints: CheckpointSettings, given: Collection[str]) -> CheckpointSettings:
    """Keep only one of ``resume`` and ``initialize_from``.

    The command line takes precedence over the file. Otherwise, ``resume`` takes precedence
    (docs/explanation/mlagents-behavior.md#precedence).
    """
    checkpoints = evolve(checkpoints, resume=checkpoints.resume or checkpoints.load_model)
    if not checkpoints.resume or checkpoints.initialize_from is None:
        return checkpoints
    if "--initialize-from" in given and not {"--resume", "--load"} & set(given):
        logger.warning("--initialize-from was given, so 'resume' of the configuration is ignored.")
        return evolve(checkpoints, resume=False, load_model=False)
    logger.warning("The run is resumed, so initialize_from (%s) is ignored.", checkpoints.initialize_from)
    return evolve(checkpoints, initialize_from=None)
