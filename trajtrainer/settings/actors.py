"""``actors``: number of actors and where they run. Not in ML-Agents (docs/operate/actors.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from attrs import asdict, field, frozen
from attrs.validators import optional

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.settings.checks import Fault, fraction, mismatch, not_negative, raise_faults, registered
from trajtrainer.settings.checks import count as at_least_one
from trajtrainer.settings.environment import UNSEEDED, Sampler, seed_check

INLINE: Final = "inline"
_PIPE = "trajtrainer.run.actors.transports.pipe"


@frozen
class ActorBackend:
    """A backend that runs actors.

    Attributes:
        transport: called with the run's settings, a function that returns the ``ActorTask`` of an actor's number, a
            function that returns the folder of its logs, and the timers; returns a ``Transport``. None if the actor
            runs in the learner's loop.
        check: called with the ``ActorSettings`` before anything starts; raises ``SettingsError`` if this machine lacks
            something the actors need.
        has_own_process: True if each actor runs in its own process.
        is_local: True if the actors run on this machine and share its cores with the learner.
        env_path: called with ``env_path`` and the ``ActorSettings``; returns the ``env_path`` that an actor uses.
    """

    transport: Reference | None
    check: Reference | None = None
    has_own_process: bool = True
    is_local: bool = True
    env_path: Reference | None = None


ACTOR_BACKENDS: Registry[ActorBackend] = Registry(
    "actor backend",
    "trajtrainer.actor_backends",
    ActorBackend,
    {
        INLINE: ActorBackend(None, has_own_process=False),  # as ML-Agents does
        "thread": ActorBackend(f"{_PIPE}:thread_transport", has_own_process=False),
        "process": ActorBackend(f"{_PIPE}:process_transport"),
        "ray": "trajtrainer.plugins.ray.row:ROW",
    },
)
"""``actors.backend`` -> backend."""


@frozen
class ActorOverride:
    """``overrides``: settings for one actor, or for all actors without their own entry.

    Other settings are taken from the run.

    Attributes:
        actor: index of the actor, from 0. Without it, the entry applies to all actors that have no entry.
        env_args: arguments of the actor's environments.
        seed: seed of the actor's environments.
        environment_parameters: values for this actor. They take precedence over the run's lessons.
        exploration_noise: additional exploration of this actor, 0 to 1: the standard deviation of noise added to
            continuous actions (which range from -1 to 1), and the probability of replacing the action of a discrete
            branch by a uniformly random one.
    """

    actor: int | None = field(default=None, validator=optional(not_negative))
    env_args: list[str] | None = None
    seed: int = field(default=UNSEEDED, validator=seed_check)
    environment_parameters: dict[str, Sampler] | None = None
    exploration_noise: float = field(default=0.0, validator=fraction)

    def __attrs_post_init__(self) -> None:
        own = (self.env_args, self.seed, self.environment_parameters, self.exploration_noise)
        if own == (None, UNSEEDED, None, 0.0):
            expected = "at least one of env_args, seed, environment_parameters and exploration_noise"
            raise_faults([Fault((), f"changes nothing; expected {expected}")])


@frozen
class RuntimeEnvSettings:
    """``runtime_env``: files and packages that Ray sets up on a node before an actor starts. The keys are those of Ray.

    Attributes:
        working_dir: folder to copy to all nodes (up to 100 MiB), or a URI. Relative paths are resolved in it.
        py_modules: Python packages to copy to the nodes, as folders or URIs.
        pip: packages to install with pip.
        env_vars: environment variables for the actors.
    """

    working_dir: str | None = None
    py_modules: list[str] | None = None
    pip: list[str] | None = None
    env_vars: dict[str, str] | None = None


@frozen
class RaySettings:
    """``ray``: the cluster, and the resources of each actor; see [Clusters](operate/clusters.md).

    Attributes:
        address: address of a cluster: ``HOST:PORT``, or ``auto`` for the one on this machine. Defaults to the
            environment variable ``RAY_ADDRESS``; if that is not set, a cluster is started on this machine for the run.
        num_cpus: number of cores to reserve for each actor.
        resources: custom resources that each actor needs, by their names in the cluster, such as ``{players: 1}``.
        runtime_env: files and packages that Ray sets up on a node before an actor starts.
    """

    address: str | None = None
    num_cpus: float = field(default=1.0, validator=not_negative)
    resources: dict[str, float] | None = None
    runtime_env: RuntimeEnvSettings | None = None

    def needs(self) -> dict[str, float]:
        """Return the resources of an actor, by their names in Ray."""
        return {"CPU": self.num_cpus, **(self.resources or {})}

    def runtime_env_of_ray(self) -> dict[str, Any] | None:
        """Return ``runtime_env`` in the form that Ray expects."""
        if self.runtime_env is None:
            return None
        return {name: value for name, value in asdict(self.runtime_env).items() if value is not None}


@frozen
class ActorSettings:
    """``actors``: number of actors, and where they run; see [Actors](operate/actors.md).

    Attributes:
        backend: where the actors run: ``inline`` (in the learner's loop), ``thread``, ``process`` or ``ray``.
        count: number of actors.
        envs: number of environments per actor. Defaults to ``env_settings.num_envs``.
        max_policy_lag: maximum number of policy versions that an actor may be behind the learner. With 0, actors wait
            for each new policy, so every buffer is collected with the newest one. Higher values let actors continue
            during updates.
        cpu_affinity: cores of each actor, as one list per actor. If there are more actors than lists, the lists are
            reused from the start.
        overrides: settings that differ for some actors.
        ray: settings of the cluster, for backend ``ray``.
    """

    backend: str = field(default="process", validator=registered(ACTOR_BACKENDS))
    count: int = field(default=1, validator=at_least_one)
    envs: int | None = field(default=None, validator=optional(at_least_one))
    max_policy_lag: int = field(default=1, validator=not_negative)
    cpu_affinity: list[list[int]] | None = None
    overrides: list[ActorOverride] = field(factory=list)
    ray: RaySettings = field(factory=RaySettings)

    def __attrs_post_init__(self) -> None:
        raise_faults(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if self.backend == INLINE and self.count > 1:
            expected = "1 with backend inline, which acts in the learner's loop (use backend process for more actors)"
            yield mismatch(("count",), self.count, expected)
        if self.cpu_affinity is not None and not all(self.cpu_affinity):
            message = "has an empty list of cores; expected lists of core numbers such as [[0], [1]]"
            yield Fault(("cpu_affinity",), message)
        is_empty = self.ray in (RaySettings(), RaySettings(runtime_env=RuntimeEnvSettings()))
        if self.backend != "ray" and not is_empty:
            yield Fault(("ray",), "has no effect: it is only for backend ray")
        seen: set[int | None] = set()
        for index, override in enumerate(self.overrides):
            path = ("overrides", str(index), "actor")
            if override.actor is not None and override.actor >= self.count:
                expected = f"an actor's number, from 0 to {self.count - 1}, as count is {self.count}"
                yield mismatch(path, override.actor, expected)
            if override.actor in seen:
                yield Fault(path, "already has another entry; expected at most one entry for each actor")
            seen.add(override.actor)

    def override(self, actor: int) -> ActorOverride | None:
        """Return the overrides for an actor; None if there are none."""
        by_actor = {each.actor: each for each in self.overrides}
        return by_actor.get(actor, by_actor.get(None))
