"""``trajtrainer.learn``: a run from Python instead of the command line."""

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
    """Train all behaviors of an environment until they are done, as ``trajtrainer learn`` does.

    >>> import trajtrainer  # doctest: +SKIP
    >>> result = trajtrainer.learn("config/gym/CartPole.yaml", "gym:CartPole-v1", run_id="pole")
    >>> result.behaviors["CartPole-v1"].mean_reward
    500.0

    Signals are handled as on the command line if this runs in the main thread, and left alone otherwise. The first
    SIGINT or SIGTERM ends the run in an orderly way, with everything saved, and then raises what it would have raised
    anyway, ``KeyboardInterrupt`` or ``SystemExit``. Another signal at least 5 s later raises at once, without saving.
    If the environment or a statistics writer does not return, everything is saved without waiting for it, but the
    program keeps waiting for it until another signal arrives. Functions are called in the calling thread, between two
    steps of the run, which waits in the meantime. There, a signal raises at once. An exception in a function ends the
    run in an orderly way, too.

    A process can do several runs in succession: torch's number of threads, the global random generators and the log's
    handlers are restored. The seed of a run does not affect other runs.

    Args:
        settings: a YAML file, ``builtin:NAME`` for one that comes with this package, a mapping of the same form, or
            settings objects; None for the default settings.
        environment: as after ``--env`` ("gym:CartPole-v1", "pettingzoo:...", a Unity build, ...), or a callable that
            returns a Gymnasium environment (also a vectorized one), a PettingZoo environment or a ``mlagents_envs``
            BaseEnv (``envs.python_environments.from_factory`` describes its arguments). None for the environment of the
            settings, or if they have none, the Unity Editor.
        run_id: this and the following arguments override the settings; None keeps the value of the settings.
        results_dir: folder of all runs.
        resume: continue an earlier run with this ``run_id``.
        force: start again; an earlier run with this ``run_id`` is kept as ``<run_id>.old``.
        initialize_from: the ``run_id`` of a run to start with the weights of.
        inference: only act, and write nothing, until ``episodes`` have ended or SIGINT arrives (which then raises
            nothing: the result is returned).
        seed: -1 draws one.
        num_envs: the number of copies of the environment.
        env_args: for a Python environment its keyword arguments, as a mapping or as "key=value" strings; for a Unity
            build or a built-in simulation its command line, as a list or a mapping: {"agents": 2} is "--agents 2", True
            makes an option without a value, and a name that begins with a dash is used as it is.
        episodes: only with ``inference``: end when each behavior has finished at least this many episodes.
        torch_device: such as "cpu" or "cuda:1".
        verbose: print the log to stdout, and on a terminal show progress. Otherwise the log goes to the program's own
            ``logging``, whose level also applies to ``run_logs/trainer.log``.
        epoch_steps: agent steps of an epoch, of all behaviors together; see ``Training.epochs``.
        max_epochs: the number of the last epoch; epochs of earlier sessions count.
        on_epoch: called with the ``EpochStats`` of each epoch.
        stop_when: called with the same; the run ends if it returns True.
        on_evaluation: called with the ``Evaluation`` of a behavior after each evaluation.
        on_best: called with the ``BestCheckpoint`` of a behavior whenever it has a better model than before.
        on_checkpoint: called with the ``SavedCheckpoint`` of each checkpoint, including the last one.

    Raises:
        TrajtrainerError: ended the run early, as a subclass (``SettingsError``, ``EnvironmentFaultError``, ...). What
            had been trained by then has been saved.
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
