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
    """Train all behaviours of an environment and return when they are done, as ``trajtrainer learn`` does.

    >>> import trajtrainer  # doctest: +SKIP
    >>> result = trajtrainer.learn("config/gym/CartPole.yaml", "gym:CartPole-v1", run_id="pole")
    >>> result.behaviors["CartPole-v1"].mean_reward
    500.0

    Signals are handled as on the command line while it runs in the main thread (elsewhere they are left alone): the
    first SIGINT or SIGTERM ends the run in good order, everything saved, and then raises what it would have raised
    without us, ``KeyboardInterrupt`` or ``SystemExit``; another one, 5 s later or more, raises at once, without saving.
    If the environment or a statistics writer does not return, everything is saved without it, but the program goes on
    to wait for it until another signal comes.
    Functions are called in the thread that called this, between two steps of the run, which waits meanwhile: a signal
    raises at once there, and what a function raises ends the run in good order, too.

    Several runs may follow one another in a process: torch's thread count, the global random generators and the log's
    handlers are left as they were. The seed of one run does not touch another.

    Args:
        settings: a YAML file, ``builtin:NAME`` for one that comes with this package, a mapping of the same form, or
            settings objects; None for the default settings.
        environment: as after ``--env`` ("gym:CartPole-v1", "pettingzoo:...", a Unity build, ...), or a callable that
            returns a Gymnasium environment (also a vectorized one), a PettingZoo environment or a ``mlagents_envs``
            BaseEnv (see ``envs.python_environments.from_factory`` for what it is called with). None: what the settings
            say, and if they say nothing, the Unity Editor.
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
        epoch_steps: agent steps of an epoch, of all behaviors together; see ``Training.epochs``.
        max_epochs: end with the epoch of this number; those of an earlier run that is resumed count.
        on_epoch: called with the ``EpochStats`` of each epoch.
        stop_when: called with the same; what it returns tells whether to end here.
        on_evaluation: called with the ``Evaluation`` of a behavior whenever one has been made.
        on_best: called with the ``BestCheckpoint`` of a behavior whenever it has a better model than before.
        on_checkpoint: called with the ``SavedCheckpoint`` of each checkpoint, the last one, too.

    Raises:
        TrajtrainerError: whatever ended the run early, as a subclass that tells what (``SettingsError``,
            ``EnvironmentFaultError``, ...). What had been trained was saved before.
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
