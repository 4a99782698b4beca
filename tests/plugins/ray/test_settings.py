"""The options of a run whose actors are on a cluster."""

from __future__ import annotations

from tests.settings.command_line import parse_command_line
from trajtrainer.settings.actors import ActorSettings, RaySettings


def test_options_make_the_section() -> None:
    settings = parse_command_line(["--env", "Game", "--actor-backend", "ray", "--ray-address", "auto"])
    assert settings.actors == ActorSettings(backend="ray", ray=RaySettings(address="auto"))
