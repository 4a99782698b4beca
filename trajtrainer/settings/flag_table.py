"""The table of the command line's options: option -> place in the settings (docs/mlagents-behavior.md#command-line)."""

from __future__ import annotations

import enum
from typing import Any

from attrs import evolve, frozen

from trajtrainer.settings.run import RunSettings


class Kind(enum.Enum):
    """The way in which an option takes its value."""

    TEXT = enum.auto()
    WHOLE = enum.auto()
    REAL = enum.auto()
    SWITCH = enum.auto()
    REST = enum.auto()  # everything after it belongs to it
    WORDS = enum.auto()  # the words after it are one text; given again, it makes a list of them
    REMOVED = enum.auto()  # accepted, and nothing else


class Group(enum.Enum):
    """Headings of the help."""

    RUN = "options"
    ENGINE = "Engine Configuration"
    TORCH = "Torch Configuration"


@frozen
class Flag:
    """One option.

    Attributes:
        option: as it is typed.
        path: the settings that it sets ("section.field"); empty for one that sets nothing.
        kind: how it takes its value.
        help: one sentence; empty hides the option.
        metavar: what stands for its value in the help.
        group: where it stands in the help.
        note: what is logged when it is used.
    """

    option: str
    path: str
    kind: Kind
    help: str
    metavar: str | None = None
    group: Group = Group.RUN
    note: str | None = None

    @property
    def name(self) -> str:
        """The attribute of the parsed arguments."""
        return self.option.removeprefix("--").replace("-", "_")

    @property
    def default(self) -> Any:
        """The value that the settings have without the option."""
        value: Any = _DEFAULTS if self.path else None
        for key in self.path.split(".") if self.path else ():
            value = getattr(value, key, None)  # a section may be left out as a whole
        return value


_DEFAULTS = RunSettings()

_LOAD_NOTE = "The --load option is deprecated; use --resume."
_TRAIN_NOTE = "The --train option is deprecated and does nothing: a run trains unless --inference is given."
_REMOVED_NOTE = "The {} option was removed and is ignored: there is only PyTorch."

FLAGS: tuple[Flag, ...] = (
    Flag("--env", "env_settings.env_path", Kind.TEXT,
        "Unity player to start. Without it, the run waits for the Editor on port 5004; sim:NAME is a "
        "built-in simulation, godot:PATH a game of Godot (godot alone the one in its editor), gym:ID a Gymnasium "
        "environment, envpool:ID one of EnvPool, pettingzoo:MODULE one of PettingZoo, python:MODULE:FACTORY what your "
        "own function returns", "PATH"),
    Flag("--resume", "checkpoint_settings.resume", Kind.SWITCH,
        "Go on with an earlier run of this run-id where it stopped"),
    Flag("--load", "checkpoint_settings.load_model", Kind.SWITCH, "", note=_LOAD_NOTE),
    Flag("--deterministic", "deterministic", Kind.SWITCH,
        "Take the most likely action (mean, or highest probability) instead of a random one"),
    Flag("--force", "checkpoint_settings.force", Kind.SWITCH,
        "Use a run-id that has data already; the earlier run is kept as RUN_ID.old"),
    Flag("--run-id", "checkpoint_settings.run_id", Kind.TEXT, "Name of the run: its folder below results-dir", "ID"),
    Flag("--initialize-from", "checkpoint_settings.initialize_from", Kind.TEXT,
        "Start with the weights of another run, at step 0", "RUN_ID"),
    Flag("--seed", "env_settings.seed", Kind.WHOLE, "Seed of the run and its players; -1 draws one", "N"),
    Flag("--train", "checkpoint_settings.train_model", Kind.SWITCH, "", note=_TRAIN_NOTE),
    Flag("--inference", "checkpoint_settings.inference", Kind.SWITCH,
        "Only act with the trained policy, without end; nothing is written"),
    Flag("--base-port", "env_settings.base_port", Kind.WHOLE,
        "Port of the first player; each further one takes the next. Without --env it is always 5004", "N"),
    Flag("--num-envs", "env_settings.num_envs", Kind.WHOLE,
        "How many players (or copies of another environment) run at the same time", "N"),
    Flag("--num-areas", "env_settings.num_areas", Kind.WHOLE, "How many training areas each player sets up", "N"),
    Flag("--listen-address", "env_settings.listen_address", Kind.TEXT,
        "Address to wait for players on; 0.0.0.0 lets other machines and containers in", "ADDRESS"),
    Flag("--raw-image-order", "env_settings.raw_image_order", Kind.TEXT,
        "How a player of a Unity package 3.0 or newer sends raw images: hwc, chw, or auto to find it out from them",
        "ORDER"),
    Flag("--debug", "debug", Kind.SWITCH, "Log in detail, show the players' own output, and tracebacks of errors"),
    Flag("--quiet", "", Kind.SWITCH,
        "Print warnings and errors only; the log in the run's folder has everything"),
    Flag("--env-args", "env_settings.env_args", Kind.REST,
        "Everything after this goes to the player's command line, or as key=value to the constructor of a "
        "Python environment"),
    Flag("--wrapper", "env_settings.wrappers", Kind.WORDS,
        "Wrap each copy of a Gymnasium or PettingZoo environment; given again, around the one before: "
        "gymnasium.wrappers:FrameStackObservation stack_size=4", "PACKAGE.MODULE:WRAPPER KEY=VALUE"),
    Flag("--max-lifetime-restarts", "env_settings.max_lifetime_restarts", Kind.WHOLE,
        "How often a crashed player is started again in one run; -1 without limit", "N"),
    Flag("--restarts-rate-limit-n", "env_settings.restarts_rate_limit_n", Kind.WHOLE,
        "How often within the period of --restarts-rate-limit-period-s; -1 without limit", "N"),
    Flag("--restarts-rate-limit-period-s", "env_settings.restarts_rate_limit_period_s", Kind.WHOLE,
        "That period, in seconds", "S"),
    Flag("--torch", "", Kind.REMOVED, "Removed; ignored", note=_REMOVED_NOTE.format("--torch")),
    Flag("--tensorflow", "", Kind.REMOVED, "Removed; ignored", note=_REMOVED_NOTE.format("--tensorflow")),
    Flag("--results-dir", "checkpoint_settings.results_dir", Kind.TEXT,
        "Folder that has the folders of all runs", "DIR"),
    Flag("--actors", "actors.count", Kind.WHOLE,
        "Let so many actors act while the learner learns, each in a process with environments of its own", "N"),
    Flag("--actor-backend", "actors.backend", Kind.TEXT,
        "Where actors are: inline (in the learner's loop), thread, process or ray", "BACKEND"),
    Flag("--ray-address", "actors.ray.address", Kind.TEXT,
        "Cluster of Ray for the actors: HOST:PORT, or auto for that of this machine; without it one is started here",
        "ADDRESS"),
    Flag("--timeout-wait", "env_settings.timeout_wait", Kind.WHOLE,
        "How long to wait for each answer of a player, in seconds", "S"),
    Flag("--python-timeout", "env_settings.python_timeout", Kind.WHOLE,
        "How long one call of a Python environment may take, in seconds; -1 without limit", "S"),
    Flag("--width", "engine_settings.width", Kind.WHOLE, "Width of the player's window in pixels", "N", Group.ENGINE),
    Flag("--height", "engine_settings.height", Kind.WHOLE,
        "Height of the player's window in pixels", "N", Group.ENGINE),
    Flag("--quality-level", "engine_settings.quality_level", Kind.WHOLE,
        "The player's quality level (QualitySettings.SetQualityLevel)", "N", Group.ENGINE),
    Flag("--time-scale", "engine_settings.time_scale", Kind.REAL,
        "How fast time passes in the player (Time.timeScale)", "X", Group.ENGINE),
    Flag("--target-frame-rate", "engine_settings.target_frame_rate", Kind.WHOLE,
        "Frames per second at most; -1 leaves it to the player (Application.targetFrameRate)", "N", Group.ENGINE),
    Flag("--capture-frame-rate", "engine_settings.capture_frame_rate", Kind.WHOLE,
        "Frames per second of game time (Time.captureFramerate)", "N", Group.ENGINE),
    Flag("--no-graphics", "engine_settings.no_graphics", Kind.SWITCH,
        "Start every player with -nographics -batchmode", group=Group.ENGINE),
    Flag("--no-graphics-monitor", "engine_settings.no_graphics_monitor", Kind.SWITCH,
        "The same for all players but the first", group=Group.ENGINE),
    Flag("--torch-device", "torch_settings.device", Kind.TEXT,
        "Device to train on, such as cpu, cuda or cuda:1; without it cuda where there is one, else cpu", "DEVICE",
        Group.TORCH),
)  # fmt: skip

_TRAINING = {
    "--resume", "--load", "--force", "--run-id", "--initialize-from", "--train", "--inference", "--torch",
    "--tensorflow", "--actors", "--actor-backend", "--ray-address",
}  # fmt: skip
_OTHER_HELP = {
    "--quiet": "Print warnings and errors only",
    "--num-areas": "How many training areas each player has; a tournament needs it where games in all of them always "
    "end together",
}
ACTING_FLAGS: tuple[Flag, ...] = tuple(
    evolve(flag, help=_OTHER_HELP.get(flag.option, flag.help)) for flag in FLAGS if flag.option not in _TRAINING
)
"""Those of commands that act with policies in an environment, and train nothing."""

_NOT_SEARCHED = {"--inference", "--seed", "--load", "--train", "--torch", "--tensorflow"}
_SEARCH_HELP = {
    "--run-id": "Name of the search: its folder below results-dir, in which the runs of all trials are",
    "--resume": "Go on with an earlier search of this run-id; trials that were interrupted go on where they were",
    "--force": "Use a run-id that has been used before; what is there is kept as RUN_ID.old",
    "--initialize-from": "Start every trial with the weights of another run, at step 0",
}
SEARCH_FLAGS: tuple[Flag, ...] = tuple(
    evolve(flag, help=_SEARCH_HELP.get(flag.option, flag.help)) for flag in FLAGS if flag.option not in _NOT_SEARCHED
)
"""Those of a search."""
