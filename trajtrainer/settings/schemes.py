"""Registry of environment schemes, as used in ``env_path: SCHEME:NAME``."""

from __future__ import annotations

from dataclasses import dataclass

from trajtrainer.core.plugins import Reference, Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentScheme:
    """A kind of environment, which ``env_path`` selects as ``SCHEME:NAME``.

    Exactly one of ``factory``, ``make`` and ``start`` creates the environment. Most schemes only need a ``factory``;
    the other two use internal classes of the trainer, and return an ``Environment`` of all ``num_envs`` copies.

    Attributes:
        example: the expected form of ``env_path``, for messages, such as ``gym:ID such as gym:CartPole-v1``.
        noun: what NAME refers to, for use in messages.
        factory: creates one copy, like the factory of a ``python:`` environment. Called with the name, the arguments
            from ``env_args`` and, if it has parameters with these names, ``worker_id``, ``seed``, ``side_channels`` and
            ``num_envs``. Returns a Gymnasium or PettingZoo environment, a ``BaseEnv`` or an ``Environment`` of one
            worker.
        make: called with the name and the run's settings; creates an environment in this process.
        start: called with the run's settings, ``PlayerLogs``, and the keywords of ``make_environment``; starts players,
            which are separate programs.
        check: called with the name before anything starts; raises a ``TrajtrainerError`` that explains what is wrong
            with it.
        film: called with the run's settings and a ``TakeFrame``; creates one copy whose frames are recorded. Without
            it, an environment in this process is created with ``render_mode="rgb_array"`` if it accepts that argument.
        takes_argument: called with the name and the name of an argument; returns whether ``env_args`` may contain that
            argument. Without it, a factory accepts its own parameters, and the other schemes accept any argument.
        write_arguments: called with a dict of arguments; returns them in the form of ``env_args``. Without it, they are
            written as ``key=value`` for an environment in this process, and as command-line options for a player.
        episode_limit: called with the name and ``env_args``; returns the number of steps after which an episode is
            truncated, or None.
        editor: True if the scheme without a name waits for a program that only the user can start.
        is_path: True if the name is a path, which may be relative to the current folder.
        is_module: True if the name is a module, which may be in the current folder.
        takes_wrappers: True if ``wrappers`` can be applied to each copy.
        no_wrappers: the reason why wrappers cannot be used, as the end of a message.
    """

    example: str
    noun: str = "environment"
    factory: Reference | None = None
    make: Reference | None = None
    start: Reference | None = None
    check: Reference | None = None
    film: Reference | None = None
    takes_argument: Reference | None = None
    write_arguments: Reference | None = None
    episode_limit: Reference | None = None
    editor: bool = False
    is_path: bool = False
    is_module: bool = False
    takes_wrappers: bool = True
    no_wrappers: str = "is not a Python environment"

    def __post_init__(self) -> None:
        if sum(maker is not None for maker in (self.factory, self.make, self.start)) != 1:
            raise TypeError("expected one of factory, make and start")

    @property
    def is_player(self) -> bool:
        """True if the environments are separate programs."""
        return self.start is not None


UNITY = EnvironmentScheme(
    example="the path of a build",
    start="trajtrainer.envs.players:start_unity",
    check="trajtrainer.envs.players:check_build",
    film="trajtrainer.envs.players:film_unity",
    is_path=True,
    takes_wrappers=False,
)
"""Environment for an ``env_path`` without a scheme."""

ENVIRONMENTS: Registry[EnvironmentScheme] = Registry(
    "environment scheme",
    "trajtrainer.environments",
    EnvironmentScheme,
    {
        "sim": EnvironmentScheme(
            example="sim:NAME, as in sim:3DBall",
            start="trajtrainer.envs.players:start_unity",
            check="trajtrainer.envs.players:check_simulation",
            film="trajtrainer.envs.players:film_simulation",
            takes_wrappers=False,
        ),
        "gym": "trajtrainer.envs.python.schemes:GYMNASIUM",
        "pettingzoo": "trajtrainer.envs.python.schemes:PETTINGZOO",
        "python": "trajtrainer.envs.python.schemes:PYTHON",
        "envpool": "trajtrainer.plugins.envpool.scheme:ROW",
        "godot": "trajtrainer.plugins.godot.scheme:ROW",
    },
)
"""Scheme in ``env_path`` -> kind of environment. An ``env_path`` without one of these schemes is a Unity player."""


def split_scheme(env_path: str | None) -> tuple[str | None, str]:
    """Split an ``env_path`` into its scheme (None for Unity players) and its name.

    Raises:
        PluginError: the package that provides the scheme is broken.
    """
    text = env_path or ""
    scheme, colon, name = text.strip().partition(":")
    if scheme not in ENVIRONMENTS:
        return None, text
    row = ENVIRONMENTS[scheme]
    if not colon and row.is_player and not row.editor:
        return None, text  # a build may have the same name as a scheme
    return scheme, name


def find_scheme(env_path: str | None) -> EnvironmentScheme | None:
    """Return the scheme of an ``env_path``; None for Unity players, or if the package that provides it is broken."""
    scheme = (env_path or "").strip().partition(":")[0]
    return ENVIRONMENTS.get(scheme)
