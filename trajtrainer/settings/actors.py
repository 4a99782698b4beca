"""``actors``: who acts, and where. Nothing of it is in ML-Agents (docs/actors.md)."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from attrs import field, frozen
from attrs.validators import optional

from trajtrainer.settings.checks import Fault, at_least, fraction, misfit, not_negative, refuse
from trajtrainer.settings.environment import UNSEEDED, Sampler, seed_check

_number = at_least(1, "a whole number")


class Backend(enum.Enum):
    """The place where actors run."""

    INLINE = "inline"  # in the learner's loop, as ML-Agents does
    THREAD = "thread"
    PROCESS = "process"
    RAY = "ray"


@frozen
class ActorOverride:
    """``overrides``: what is different for one actor, or for all that no other entry names.

    Left out, each is that of the run.

    Attributes:
        actor: its number, from 0 on; left out: all that no other entry names.
        env_args: arguments of its environments.
        seed: of its environments.
        environment_parameters: go before those of the run's lessons.
        exploration_noise: a standard deviation that is added to continuous actions (from -1 to 1), and the probability
            that a branch is drawn evenly.
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
            refuse([Fault((), f"changes nothing, expected {expected}")])


@frozen
class ActorSettings:
    """``actors``: how many act, and where; see [Actors](actors.md).

    Attributes:
        backend: where they run: ``inline`` in the learner's loop, ``thread``, ``process`` or ``ray``.
        count: how many there are.
        envs: environments of each; left out: ``env_settings.num_envs``.
        max_policy_lag: how many versions older than the newest a policy may be that acts. 0: an actor waits for the
            policy that its next buffer must come from.
        cpu_affinity: the cores of each actor, the first one's first; begins anew after the last list.
        overrides: what is different for single actors.
    """

    backend: Backend = Backend.PROCESS
    count: int = field(default=1, validator=_number)
    envs: int | None = field(default=None, validator=optional(_number))
    max_policy_lag: int = field(default=1, validator=not_negative)
    cpu_affinity: list[list[int]] | None = None
    overrides: list[ActorOverride] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        refuse(self._faults())

    def _faults(self) -> Iterator[Fault]:
        if self.backend is Backend.INLINE and self.count > 1:
            expected = "1 with backend inline, which acts in the learner's loop (backend process has several)"
            yield misfit(("count",), self.count, expected, ("backend",))
        if self.cpu_affinity is not None and not all(self.cpu_affinity):
            yield Fault(
                ("cpu_affinity",), "has no cores for some actor, expected lists of core numbers such as [[0], [1]]"
            )
        seen: set[int | None] = set()
        for index, override in enumerate(self.overrides):
            path = ("overrides", str(index), "actor")
            if override.actor is not None and override.actor >= self.count:
                expected = f"an actor's number, from 0 to {self.count - 1}, as count is {self.count}"
                yield misfit(path, override.actor, expected, ("count",))
            if override.actor in seen:
                yield Fault(path, "is named by another entry already, expected one entry for each actor", (path,))
            seen.add(override.actor)

    def override(self, actor: int) -> ActorOverride | None:
        """Return what is different for an actor; None for nothing."""
        by_actor = {each.actor: each for each in self.overrides}
        return by_actor.get(actor, by_actor.get(None))
