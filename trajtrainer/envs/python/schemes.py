"""The environment schemes of Python libraries: ``gym:``, ``pettingzoo:`` and ``python:``."""

from trajtrainer.settings.schemes import EnvironmentScheme

GYMNASIUM = EnvironmentScheme(
    example="gym:ID such as gym:CartPole-v1",
    make="trajtrainer.envs.python.factories:make_gymnasium",
    episode_limit="trajtrainer.envs.python.factories:gymnasium_episode_limit",
)
PETTINGZOO = EnvironmentScheme(
    example="pettingzoo:MODULE such as pettingzoo:butterfly.pistonball_v6",
    make="trajtrainer.envs.python.factories:make_pettingzoo",
)
PYTHON = EnvironmentScheme(
    example="python:PACKAGE.MODULE:FACTORY such as python:my_game.training:make_env",
    make="trajtrainer.envs.python.factories:make_from_factory",
    takes_argument="trajtrainer.envs.python.factories:factory_takes",
    is_module=True,
)
