"""Registry of environments: what ``SCHEME:NAME`` means in ``env_path``."""

from __future__ import annotations

from dataclasses import dataclass

from trajtrainer.core.plugins import Reference, Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentScheme:
    """A kind of environments that ``env_path`` names as ``SCHEME:NAME``.

    Exactly one of ``factory``, ``make`` and ``start`` makes them. A ``factory`` is all that most kinds need; the others
    are called with objects of the trainer, and return an ``Environment`` of all ``num_envs`` copies.

    Attributes:
        example: what to give, for messages, such as ``gym:ID such as gym:CartPole-v1``.
        noun: what the name names, for messages.
        factory: makes one copy, like the factory of a ``python:`` environment: called with the name and the arguments
            of ``env_args``, and, where it has parameters of these names, ``worker_id``, ``seed``, ``side_channels`` and
            ``num_envs``. It returns a Gymnasium or PettingZoo environment, a ``BaseEnv`` or an ``Environment`` of one
            worker.
        make: called with the name and the run's settings; makes an environment in this process.
        start: called with the run's settings, ``PlayerLogs``, ``ports_of_run`` and ``here`` (see ``connect_player``);
            starts players, which are programs of their own.
        check: called with the name before anything is started; raises a ``TrajtrainerError`` that says what is wrong
            with it.
        film: called with the run's settings and a ``TakeFrame``; makes one copy that is filmed. Without it, an
            environment in this process is made with ``render_mode="rgb_array"`` where it takes that.
        takes_argument: called with the name and an argument's name: whether ``env_args`` may have that argument.
            Without it, a factory takes its parameters, and everything else any argument.
        write_arguments: called with a dict, which it writes as ``env_args``. Without it, as ``key=value`` for an
            environment in this process, and as options of a command line for a player.
        episode_limit: called with the name and ``env_args``: after how many steps an episode is truncated, or None.
        editor: whether the scheme alone waits for a program that only the user can start.
        is_path: whether the name is a path, which a change of the current folder changes.
        is_module: whether the name is a module, which may lie in the current folder.
        takes_wrappers: whether ``wrappers`` go around each copy.
        no_wrappers: why not, as the end of a message.
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
        """Whether its environments are programs of their own."""
        return self.start is not None


UNITY = EnvironmentScheme(
    example="the path of a build",
    start="trajtrainer.envs.players:start_unity",
    check="trajtrainer.envs.players:check_build",
    film="trajtrainer.envs.players:film_unity",
    is_path=True,
    takes_wrappers=False,
)
"""What has no scheme."""
_SIMULATION = EnvironmentScheme(
    example="sim:NAME, as in sim:3DBall",
    start="trajtrainer.envs.players:start_unity",
    check="trajtrainer.envs.players:check_simulation",
    film="trajtrainer.envs.players:film_simulation",
    takes_wrappers=False,
)

ENVIRONMENTS: Registry[EnvironmentScheme] = Registry(
    "environment scheme",
    "trajtrainer.environments",
    EnvironmentScheme,
    {
        "sim": _SIMULATION,
        "gym": "trajtrainer.envs.python.schemes:GYMNASIUM",
        "pettingzoo": "trajtrainer.envs.python.schemes:PETTINGZOO",
        "python": "trajtrainer.envs.python.schemes:PYTHON",
        "envpool": "trajtrainer.plugins.envpool.scheme:ROW",
        "godot": "trajtrainer.plugins.godot.scheme:ROW",
    },
)
"""Scheme of ``env_path`` -> kind of environments. What has none of these schemes is a Unity player."""


def split_scheme(env_path: str | None) -> tuple[str | None, str]:
    """Split an ``env_path`` into its scheme, None for Unity players, and the name that follows it.

    Raises:
        PluginError: the package that has the scheme is broken.
    """
    text = env_path or ""
    scheme, colon, name = text.strip().partition(":")
    if scheme not in ENVIRONMENTS:
        return None, text
    row = ENVIRONMENTS[scheme]
    if not colon and row.is_player and not row.editor:
        return None, text  # the file of a build may have that name
    return scheme, name


def find_scheme(env_path: str | None) -> EnvironmentScheme | None:
    """The kind of an ``env_path``; None for Unity players, and where the package that has the scheme is broken."""
    scheme = (env_path or "").strip().partition(":")[0]
    return ENVIRONMENTS.get(scheme)
