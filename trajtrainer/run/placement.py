"""Starts the actors of a run: one in the main loop, or several in threads, in processes or on nodes of a cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from attrs import evolve

from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.plugins import resolve
from trajtrainer.core.seeds import environment_seed
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Environment, LogFolder
from trajtrainer.envs.select import is_player
from trajtrainer.envs.select import make_environment as environment_of_settings
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.run.actors.messages import ActorTask, NodeLogs, Transport, log_level
from trajtrainer.run.actors.pool import ActorPool
from trajtrainer.run.actors.transports.inline import InlineTransport
from trajtrainer.run.launching import seed_and_make
from trajtrainer.run.run import Run
from trajtrainer.run.user_calls import InUserCode, OneCall
from trajtrainer.settings.actors import ACTOR_BACKENDS
from trajtrainer.settings.environment import UNSEEDED, EnvironmentSettings
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

_SLACK_S = 30.0

EnvironmentFactory = Callable[[RunSettings, RunFolder], Environment]


@contextlib.contextmanager
def learner_on_other_cores(run: Run) -> Iterator[None]:
    """Keep this process off the cores that ``cpu_affinity`` assigns to local actors, if there are other cores."""
    given, taken = run.settings.actors, set[int]()
    is_local = given is not None and run.acts_elsewhere and ACTOR_BACKENDS[given.backend].is_local
    if is_local and given is not None and given.cpu_affinity is not None:
        taken = {core for cores in given.cpu_affinity for core in cores}
    if sys.platform == "linux" and taken:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, before - taken or before)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)
    else:
        yield


def seed_of_environments(
    run: Run, env: EnvironmentSettings, make_environment: EnvironmentFactory, restarts: int = 0
) -> int:
    """Return the seed for starting environments.

    Players always get the seed in the settings, as in ML-Agents. Python environments get a different seed whenever the
    run is resumed or their actor is restarted, so that they do not repeat the first episodes.

    Args:
        run: the run.
        env: settings of the environments.
        make_environment: creates the environments.
        restarts: number of times that their actor has been restarted.
    """
    is_python = make_environment is not environment_of_settings or not is_player(env.env_path or "")
    steps = run.status.steps
    if is_python and (steps or restarts):
        return environment_seed(env.seed, f"environments {steps} {restarts}")
    return env.seed


def start_actors(
    run: Run,
    settings: RunSettings,
    make_environment: EnvironmentFactory,
    connect_launched: Callable[[], Environment] | None = None,
) -> ActorPool | None:
    """Start the actors of a run, and return when the environments of the first one are ready.

    Returns None if all behaviors learn from data sets, so that no actors are needed.

    Args:
        run: the run.
        settings: settings of the environments.
        make_environment: creates the environments of one actor.
        connect_launched: connects and returns the environment of an actor in the loop, if its players have been
            launched; used instead of ``make_environment``.

    Raises:
        SettingsError: actors are not possible with these settings.
        TrajtrainerError: as raised by ``ActorPool``.
    """
    given, env = settings.actors, settings.env_settings
    if run.is_offline:
        is_used = any(run.settings.evaluations_of(each) for each in run.settings.behaviors.values())
        if run.settings.env_settings.env_path is not None and not is_used:
            message = "The environment %s is not started, because all behaviors learn from data sets."
            logger.warning(message, run.settings.env_settings.env_path)
        return None
    if given is None or not run.acts_elsewhere:
        seed = seed_of_environments(run, env, make_environment)
        own = evolve(settings, env_settings=evolve(env, seed=seed))
        make = connect_launched or partial(_environment_in_loop, run, own, make_environment)
        transport = InlineTransport(make, run.timers)
        return ActorPool(transport, env, workers=settings.envs_of_actor, timers=run.timers)
    # Time without a report after which an actor is restarted. It must be long enough for the actor to replace a player
    # that does not answer, which takes up to two waits of ``timeout_wait``. Calls to Python environments may take
    # longer.
    patience_s: float | None = 2 * env.timeout_wait + _SLACK_S
    if env.env_path is not None and not is_player(env.env_path):
        patience_s = None if env.python_timeout < 0 else env.python_timeout + _SLACK_S
    run.actor_report.pool = ActorPool(
        _transport(run, settings, make_environment),
        env,
        workers=settings.envs_of_actor,
        timers=run.timers,
        actors=given,
        patience_s=patience_s,
    )
    return run.actor_report.pool


def _environment_in_loop(run: Run, settings: RunSettings, make_environment: EnvironmentFactory) -> Environment:
    path = run.settings.env_settings.env_path
    if make_environment is environment_of_settings and (path is None or is_player(path)):
        return make_environment(settings, run.folder)
    with run.calls.outside(OneCall(f"The code that makes the environment{'' if path is None else f' {path}'}")):
        environment = make_environment(settings, run.folder)
    return InUserCode(environment, run.calls) if isinstance(environment, InProcessEnvironment) else environment


def _transport(run: Run, settings: RunSettings, make_environment: EnvironmentFactory) -> Transport:
    given = settings.actors
    assert given is not None
    backend = ACTOR_BACKENDS[given.backend]
    assert backend.transport is not None
    make_task = partial(_task, run, settings, make_environment)
    with ACTOR_BACKENDS.blaming(given.backend):
        transport: Transport = resolve(backend.transport)(
            settings, make_task, partial(_log_folder, run.folder), run.timers
        )
    return transport


def _task(
    run: Run, settings: RunSettings, make_environment: EnvironmentFactory, number: int, node: str | None = None
) -> ActorTask:
    given = settings.actors
    assert given is not None
    folder = _log_folder(run.folder, number)
    logs = None if node is None else NodeLogs(folder, node)
    own = settings_of_actor(settings, number)
    pool = run.actor_report.pool
    restarts = 0 if pool is None else pool.members[number].quota.used
    seed = seed_of_environments(run, own.env_settings, make_environment, restarts)
    own = evolve(own, env_settings=evolve(own.env_settings, seed=seed))
    known = RawImageOrder.AUTO if pool is None else pool.image_order
    if known is not RawImageOrder.AUTO:  # already detected before a restart
        own = evolve(own, env_settings=evolve(own.env_settings, raw_image_order=known))
    if make_environment is environment_of_settings:
        where = logs or LogFolder(folder)
        make = partial(environment_of_settings, own, where, ports_of_run=settings.num_ports, waits=False)
    else:
        make = partial(make_environment, own, run.folder)
    cores = None if given.cpu_affinity is None else given.cpu_affinity[number % len(given.cpu_affinity)]
    if ACTOR_BACKENDS[given.backend].has_own_process:
        make = partial(seed_and_make, seed, make)
    return ActorTask(number, make, cores, log_level(number, debug=settings.debug), logs)


def _log_folder(folder: RunFolder, number: int) -> Path | None:
    """Create and return the folder for an actor's logs; None if nothing may be written."""
    if not folder.writes:
        return None
    path = folder.open_logs / f"actor-{number}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def settings_of_actor(settings: RunSettings, number: int) -> RunSettings:
    """Return the settings for one actor's environments: those of the run, with its own ports, seed and overrides."""
    given, env, engine = settings.actors, settings.env_settings, settings.engine_settings
    override = None if given is None else given.override(number)
    first = number * settings.envs_of_actor  # total number of players of all actors with lower numbers
    seed, arguments, path = env.seed + first, env.env_args, env.env_path
    if override is not None:
        seed = seed if override.seed == UNSEEDED else override.seed
        arguments = arguments if override.env_args is None else override.env_args
    find = None if given is None else ACTOR_BACKENDS[given.backend].env_path
    if find is not None and path is not None:
        path = resolve(find)(path, given)
    env = evolve(
        env,
        env_path=path,
        num_envs=settings.envs_of_actor,
        base_port=env.base_port + first,
        seed=seed,
        env_args=arguments,
    )
    if number and engine.no_graphics_monitor:
        engine = evolve(engine, no_graphics=True)
    return evolve(settings, env_settings=env, engine_settings=engine, actors=None)
