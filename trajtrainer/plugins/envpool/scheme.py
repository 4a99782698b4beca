"""``envpool:ID``: an EnvPool environment, whose copies are stepped by EnvPool's own threads."""

from __future__ import annotations

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.protocol import Environment
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import EnvironmentScheme


def make_envpool(name: str, settings: RunSettings) -> Environment:
    """Make the environment ``envpool:ID``.

    Raises:
        SettingsError: EnvPool is not installed, has no such environment, or does not accept the arguments.
    """
    try:
        import envpool  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            f"--env {settings.env_settings.env_path} needs the package {error.name}, which is not installed. Install "
            "it with: pip install 'trajtrainer[envpool]'."
        ) from error
    from trajtrainer.plugins.envpool.environment import make_pool

    return make_pool(name, settings.env_settings)


ROW = EnvironmentScheme(
    example="envpool:ID such as envpool:Pong-v5",
    make=make_envpool,
    takes_wrappers=False,
    no_wrappers="has options for what wrappers do (env_args: [stack_num=4]); gym: takes wrappers",
)
