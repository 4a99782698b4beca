"""``trajtrainer.learn``: starts a run from Python instead of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trajtrainer.run.api.arguments import EnvironmentSource, SettingsSource
from trajtrainer.run.api.epochs import EPOCH_STEPS, EpochStats
from trajtrainer.run.api.results import LearnResult
from trajtrainer.run.api.training import Training
from trajtrainer.run.hooks import BestCheckpoint, Evaluation, SavedCheckpoint


def learn(
    settings: SettingsSource = None,
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
    epoch_steps: int = EPOCH_STEPS,
    max_epochs: int | None = None,
    on_epoch: Callable[[EpochStats], object] | None = None,
    stop_when: Callable[[EpochStats], object] | None = None,
    on_evaluation: Callable[[Evaluation], object] | None = None,
    on_best: Callable[[BestCheckpoint], object] | None = None,
    on_checkpoint: Callable[[SavedCheckpoint], object] | None = None,
) -> LearnResult:
    """Train all behaviors of an environment until they are done, like ``trajtrainer learn``.

    >>> import trajtrainer  # doctest: +SKIP
    >>> result = trajtrainer.learn("config/gym/CartPole.yaml", "gym:CartPole-v1", run_id="pole")
    >>> result.behaviors["CartPole-v1"].mean_reward
    500.0

    In the main thread, signals are handled as on the command line. In other threads, signal handlers are not changed.
    The first SIGINT or SIGTERM stops the run, saves everything, and then raises ``KeyboardInterrupt`` or ``SystemExit``
    as usual. Another signal at least 5 s later raises the exception immediately, without saving. If the environment or
    a statistics writer hangs, everything is saved, but the program waits until the call returns or another signal
    arrives. Callbacks are called in the calling thread between two steps of the run, which waits until they return.
    Inside a callback, a signal raises its exception immediately. If a callback raises an exception, the run is stopped
    and everything is saved.

    A process can start several runs in succession. At the end of each run, torch's number of threads, the global random
    generators and the logging handlers are restored. The seed of a run does not affect other runs.

    Args:
        settings: a YAML file, ``builtin:NAME`` for a file that comes with this package, a mapping with the same
            structure, or a ``RunSettings`` object; None for the default settings.
        environment: the environment as for ``--env`` ("gym:CartPole-v1", "pettingzoo:...", a Unity build, ...), or a
            callable that returns a Gymnasium environment (vectorized or not), a PettingZoo environment or an
            ``mlagents_envs`` BaseEnv (``envs.python.factories.from_factory`` describes the callable's arguments). None
            for the environment in the settings or, if they have none, the Unity Editor.
        run_id: name of the run. This and the following arguments override the settings; None keeps the value in the
            settings.
        results_dir: folder that contains all runs.
        resume: continue an earlier run with this ``run_id``.
        force: start from scratch. An earlier run with this ``run_id`` is renamed to ``<run_id>.old``.
        initialize_from: the ``run_id`` of the run whose weights to start with.
        inference: act without training or writing files, until ``episodes`` have ended or SIGINT arrives. In this case
            SIGINT does not raise an exception: the result is returned.
        seed: random seed; -1 for a random one.
        num_envs: the number of copies of the environment.
        env_args: for a Python environment its keyword arguments, as a mapping or as "key=value" strings; for a Unity
            build or a built-in simulation its command line, as a list or a mapping: {"agents": 2} becomes "--agents 2",
            True becomes an option without a value, and names that start with a dash are used unchanged.
        episodes: only with ``inference``: stop when each behavior has finished at least this many episodes.
        torch_device: device of the networks, such as "cpu" or "cuda:1".
        verbose: print the log to stdout, and show progress on a terminal. Otherwise, log records are only passed to
            Python's ``logging``, whose level also applies to ``run_logs/trainer.log``.
        epoch_steps: number of agent steps in an epoch, for all behaviors together; see ``Training.epochs``.
        max_epochs: the number of the last epoch, counting from the first session of the run.
        on_epoch: called with the ``EpochStats`` of each epoch.
        stop_when: also called with the ``EpochStats`` of each epoch; the run ends if it returns True.
        on_evaluation: called with the ``Evaluation`` of a behavior after each evaluation.
        on_best: called with the ``BestCheckpoint`` of a behavior whenever it has a better model than before.
        on_checkpoint: called with the ``SavedCheckpoint`` of each checkpoint, including the last one.

    Raises:
        TrajtrainerError: an error ended the run early, such as a ``SettingsError`` or an ``EnvironmentFaultError``. The
            training up to this point has been saved.
    """
    training = Training(
        settings,
        environment,
        run_id=run_id,
        results_dir=results_dir,
        resume=resume,
        force=force,
        initialize_from=initialize_from,
        inference=inference,
        seed=seed,
        num_envs=num_envs,
        env_args=env_args,
        episodes=episodes,
        torch_device=torch_device,
        verbose=verbose,
        on_epoch=on_epoch,
        stop_when=stop_when,
        on_evaluation=on_evaluation,
        on_best=on_best,
        on_checkpoint=on_checkpoint,
        called="learn()",
    )
    with training:
        for _ in training.epochs(epoch_steps, max_epochs):
            pass
    return training.result
