"""``envpool:ID``: an EnvPool environment, whose copies are stepped by EnvPool's own threads."""

from __future__ import annotations

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs import user_code
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.python.factories import take_reading
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import EnvironmentScheme


def make_envpool(name: str, settings: RunSettings) -> Environment:
    """Create the environment ``envpool:ID``.

    Raises:
        SettingsError: EnvPool is not installed, has no such environment, or does not accept the arguments.
    """
    try:
        import envpool
    except ImportError as error:
        raise SettingsError(
            f"--env {settings.env_settings.env_path} needs the package {error.name}, which is not installed. Install "
            "it with: pip install 'trajtrainer[envpool]'."
        ) from error
    from trajtrainer.plugins.envpool.environment import make_pool

    env = settings.env_settings
    arguments = user_code.keyword_arguments(env.env_args)
    reading = take_reading(envpool.make, arguments)
    return make_pool(name, env.num_envs, env.seed, arguments, **reading)


ROW = EnvironmentScheme(
    example="envpool:ID such as envpool:Pong-v5",
    make=make_envpool,
    takes_wrappers=False,
    no_wrappers="has options instead of wrappers (env_args: [stack_num=4]); gym: supports wrappers",
)
