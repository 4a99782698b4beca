"""``trajtrainer.learn``: a run from Python instead of the command line."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from attrs import evolve

from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.select import from_factory, make_environment, to_env_args
from trajtrainer.errors import SettingsError
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.learn import Session, train
from trajtrainer.run.logs import ConsoleHandler, banner, console_logging
from trajtrainer.run.signals import StopRequest
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.settings.builtin import config_path
from trajtrainer.settings.checks import InvalidValueError
from trajtrainer.settings.convert import read_file, to_mapping
from trajtrainer.settings.document import Entry, from_mapping
from trajtrainer.settings.flags import settle_with
from trajtrainer.settings.problems import Place
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.scalars import whole_number
from trajtrainer.timers import Timers

_SOURCE = "learn()"

EnvironmentSource = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BehaviorResult:
    """The result of one behaviour.

    Attributes:
        name: of the behaviour.
        steps: agent steps trained so far, those of a resumed run included.
        mean_reward: mean return of the last episodes (at most 100); None if none ended in this run.
        num_episodes: how many these are.
        checkpoint: what ``resume`` and ``initialize_from`` read; None if nothing was written (inference).
        onnx: the exported policy; None if it was not written or could not be exported.
    """

    name: str
    steps: int
    mean_reward: float | None
    num_episodes: int
    checkpoint: Path | None
    onnx: Path | None


@dataclass(frozen=True, slots=True)
class LearnResult:
    """The result of ``learn``.

    Attributes:
        behaviors: name -> result, in order of appearance.
        run_folder: where everything is (absolute, like all paths here).
        settings: those of the run, with everything filled in and the seed settled.
    """

    behaviors: Mapping[str, BehaviorResult]
    run_folder: Path
    settings: RunSettings


def learn(
    settings: str | Path | Mapping[str, Any] | RunSettings | None = None,
    environment: EnvironmentSource | None = None,
    *,
    run_id: str | None = None,
    results_dir: str | Path | None = None,
    resume: bool | None = None,
    force: bool | None = None,
    initialize_from: str | None = None,
    inference: bool | None = None,
    seed: int | None = None,
    num_envs: int | None = None,
    env_args: Mapping[str, Any] | Sequence[str] | None = None,
    episodes: int | None = None,
    torch_device: str | None = None,
    verbose: bool = True,
) -> LearnResult:
    """Train all behaviours of an environment and return when they are done, as ``trajtrainer learn`` does.

    >>> import trajtrainer  # doctest: +SKIP
    >>> result = trajtrainer.learn("config/gym/CartPole.yaml", "gym:CartPole-v1", run_id="pole")
    >>> result.behaviors["CartPole-v1"].mean_reward
    500.0

    Signals are handled as on the command line while it runs in the main thread (elsewhere they are left alone): the
    first SIGINT or SIGTERM ends the run in good order, everything saved, and then raises what it would have raised
    without us, ``KeyboardInterrupt`` or ``SystemExit``; another one, 5 s later or more, raises at once, without saving.
    Several runs may follow one another in a process: torch's thread count, the global random generators and the log's
    handlers are left as they were. The seed of one run does not touch another.

    Args:
        settings: a YAML file, ``builtin:NAME`` for one that comes with this package, a mapping of the same form, or
            settings objects; None for the default settings.
        environment: as after ``--env`` ("gym:CartPole-v1", "pettingzoo:...", a Unity build, ...), or a callable that
            returns a Gymnasium environment, a PettingZoo environment or a ``mlagents_envs`` BaseEnv (see
            ``envs.select.from_factory`` for what it is called with). None: what the settings say, and if they say
            nothing, the Unity Editor.
        run_id: these and the following go before the settings; None leaves them as they are there.
        results_dir: folder of all runs.
        resume: go on with an earlier run of this ``run_id``.
        force: start anew; an earlier run of this ``run_id`` is kept as ``<run_id>.old``.
        initialize_from: ``run_id`` of a run whose weights to start with.
        inference: only act, until ``episodes`` have ended or SIGINT comes (which raises nothing then: the result is
            returned); nothing is written.
        seed: -1 draws one.
        num_envs: copies of the environment.
        env_args: keyword arguments of a Python environment, as a mapping or "key=value" texts; the command line of a
            Unity build or a built-in simulation, as a list or a mapping: {"agents": 2} is "--agents 2", True an option
            without a value, and a name that begins with a dash stays as it is.
        episodes: with ``inference`` alone: end when each behavior has ended this many episodes, at least.
        torch_device: such as "cpu" or "cuda:1".
        verbose: print the log, and progress on a terminal, to stdout. Otherwise the log goes where the program's
            ``logging`` sends it, and ``run_logs/trainer.log`` has what passes the level of that.

    Raises:
        TrajtrainerError: whatever ended the run early, as a subclass that tells what (``SettingsError``,
            ``EnvironmentFaultError``, ...). What had been trained was saved before.
    """
    options: dict[str, object] = {
        "run_id": run_id,
        "results_dir": None if results_dir is None else str(results_dir),
        "resume": resume,
        "force": force,
        "initialize_from": initialize_from,
        "inference": inference,
        "seed": seed,
        "num_envs": num_envs,
        "env_args": None if isinstance(env_args, Mapping) else env_args,
        "torch_device": torch_device,
        "env": _name_of(environment),
    }
    given = {key: value for key, value in options.items() if value is not None}
    stop = _StopInPython()
    timers = Timers()
    with _undisturbed(), _console(verbose=verbose) as handler:
        with timers("run_training.settings"):
            settled = _settle(settings, given)
            if isinstance(env_args, Mapping):
                settled = _with_env_args(settled, env_args)
            if episodes is not None:
                settled = _with_episodes(settled, episodes)
        if handler is not None:
            handler.show(debug=settled.debug)
            handler.say(banner())
        run = train(settled, handler, _maker(environment), stop, timers)
    if not (settled.checkpoint_settings.inference and stop.signal is signal.SIGINT):
        _raise_for(stop)
    return _result(run)


def _name_of(environment: EnvironmentSource | None) -> str | None:
    """Return the name as it stands in configuration.yaml."""
    if environment is None or isinstance(environment, str):
        return environment
    if not callable(environment):
        raise SettingsError(
            f"learn(): environment is a {type(environment).__name__}, expected a text as after --env, or a callable "
            "that returns an environment (each copy is made by a call)."
        )
    name = getattr(environment, "__qualname__", type(environment).__qualname__)
    return f"python:{getattr(environment, '__module__', '?')}:{name}"


def _maker(environment: EnvironmentSource | None) -> Callable[[RunSettings, RunFolder], Environment]:
    if environment is None or isinstance(environment, str):
        return make_environment
    return lambda settings, _: from_factory(environment, settings)


def _settle(settings: str | Path | Mapping[str, Any] | RunSettings | None, options: dict[str, object]) -> RunSettings:
    place = Place(_SOURCE)
    if settings is None:
        return settle_with(Entry({}, place), options, behaviors_required=False, source=_SOURCE)
    if isinstance(settings, RunSettings):
        if not options:
            return settings
        root = from_mapping(to_mapping(settings), place)
        settled = settle_with(root, options, behaviors_required=settings.behaviors_required, source=_SOURCE)
        return evolve(settled, deterministic=settings.deterministic)
    if isinstance(settings, Mapping):
        return settle_with(from_mapping(settings, place), options, behaviors_required=True, source=_SOURCE)
    root, problems = read_file(config_path(settings))
    return settle_with(root, options, problems, behaviors_required=True, source=_SOURCE)


def _with_env_args(settings: RunSettings, env_args: Mapping[str, Any]) -> RunSettings:
    env = settings.env_settings
    return evolve(settings, env_settings=evolve(env, env_args=to_env_args(env.env_path, env_args)))


def _with_episodes(settings: RunSettings, episodes: int) -> RunSettings:
    if not settings.checkpoint_settings.inference:
        raise SettingsError(
            "learn(): episodes goes with inference=True only. Training ends at the max_steps of its behaviors."
        )
    try:
        number = whole_number(from_mapping(episodes, Place(_SOURCE)).content)
        return evolve(settings, inference_episodes=number)
    except InvalidValueError as error:
        raise SettingsError(f"learn(): episodes: {error}.") from error


def _console(*, verbose: bool) -> AbstractContextManager[ConsoleHandler | None]:
    return console_logging(debug=False) if verbose else contextlib.nullcontext()


def _result(run: Session) -> LearnResult:
    behaviors = {name: _behavior_result(name, behavior, run.folder) for name, behavior in run.behaviors.items()}
    return LearnResult(MappingProxyType(behaviors), run.folder.path.absolute(), run.settings)


def _behavior_result(name: str, behavior: Behavior, folder: RunFolder) -> BehaviorResult:
    rewards = behavior.trainer.episodes.recent
    files = behavior.checkpoints.folder

    def written(path: Path) -> Path | None:
        return path.absolute() if folder.writes and path.is_file() else None

    return BehaviorResult(
        name=name,
        steps=behavior.trainer.step,
        mean_reward=float(np.mean(rewards)) if rewards else None,
        num_episodes=len(rewards),
        checkpoint=written(files.checkpoint),
        onnx=written(files.exported),
    )


class _StopInPython(StopRequest):
    """In a program that is not ours a further signal must not end the process (a notebook's kernel, say)."""

    def abort(self, number: int) -> None:
        self.is_aborted = True
        self.emergency()
        if threading.current_thread() is threading.main_thread():
            self.signal = signal.Signals(number)
            _raise_for(self)


def _raise_for(stop: StopRequest) -> None:
    if stop.signal is signal.SIGINT:
        raise KeyboardInterrupt
    if stop.signal is not None:
        sys.exit(stop.exit_code)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Put back what belongs to the whole process."""
    threads = torch.get_num_threads()
    # The device's generators are never used: all of ours are objects of their own.
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)
