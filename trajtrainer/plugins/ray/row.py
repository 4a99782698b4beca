"""The actor backend ``ray``: actors on the machines of a Ray cluster (docs/operate/clusters.md)."""

from __future__ import annotations

from pathlib import Path

from trajtrainer.core.errors import SettingsError
from trajtrainer.envs.select import absolute
from trajtrainer.plugins.ray.cluster import NAME
from trajtrainer.plugins.ray.cluster import check as check_cluster
from trajtrainer.settings.actors import ActorBackend, ActorSettings


def check(actors: ActorSettings) -> None:
    """Check that the cluster exists or that Ray can be started, without starting anything.

    Raises:
        SettingsError: Ray is not installed, there is no cluster at the address, or a folder to send to the nodes is
            missing.
    """
    check_cluster(actors.ray.address, NAME)
    folder = (actors.ray.runtime_env_of_ray() or {}).get("working_dir")
    if folder is not None and "://" not in folder and not Path(folder).is_dir():
        raise SettingsError(f"actors.ray.runtime_env.working_dir is {folder}, but there is no such folder.")


def env_path(path: str, actors: ActorSettings) -> str:
    """Return the path of the environment on the nodes. It is absolute, unless its folder is copied to the nodes."""
    is_sent = actors.ray.runtime_env is not None and actors.ray.runtime_env.working_dir is not None
    return path if is_sent else absolute(path)


ROW = ActorBackend("trajtrainer.plugins.ray.transport:make_transport", check, is_local=False, env_path=env_path)
