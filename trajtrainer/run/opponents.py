"""Opponents in self-play that come from files: checkpoints, exported models, and the newest ones of other runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.checkpoints.file import read_checkpoint
from trajtrainer.checkpoints.recovered_policy import recover_policy
from trajtrainer.checkpoints.saved_policies import SavedPolicy, find_policies
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import misfits
from trajtrainer.nn.init import derived_seeds
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.trainers.self_play import Player

_EXPORTED = ".onnx"


def check_opponents(settings: RunSettings, behaviors: Mapping[str, TrainerSettings]) -> None:
    """Look whether the files are there, before anything is started.

    Raises:
        CheckpointError: one is not, or is no checkpoint; the message names all of them.
    """
    faults = []
    for name, each in behaviors.items():
        for opponent in each.self_play.opponents if each.self_play is not None else ():
            try:
                _find(opponent, settings, None if each is settings.default_settings else name)
            except CheckpointError as error:
                faults.append(str(error))
    if faults:
        raise CheckpointError("\n".join(faults))


def players_of_files(settings: RunSettings, context: LearningContext, memory_size: int) -> list[Player]:
    """Return the opponents that a behaviour's settings name. Their networks may be others than its own.

    Args:
        settings: of the run.
        context: of the behaviour.
        memory_size: of its policy.

    Raises:
        CheckpointError: a file cannot be read, or is of agents with other sensors or actions, or another memory.
    """
    self_play = context.settings.self_play
    if self_play is None:
        return []
    players = []
    for opponent in self_play.opponents:
        found = _find(opponent, settings, context.behavior)
        acts, reasons = _load(found, context, derived_seeds(context.seed, f"{context.behavior} {opponent}")[0])
        if acts.memory_size != memory_size:
            reasons.append(f"its memory_size is {acts.memory_size}, not {memory_size}")
        if reasons:
            raise CheckpointError(
                f"{_place(context.behavior)}: {found.checkpoint} cannot play against behavior {context.behavior!r}: "
                f"{'; '.join(reasons)}. Give policies of agents with the same sensors, actions and memory."
            )
        players.append(Player(opponent, self_play.initial_elo, acts=acts))
    return players


def _load(found: SavedPolicy, context: LearningContext, seed: int) -> tuple[Acts, list[str]]:
    """Return a policy, and what of it does not fit the behaviour."""
    path, deterministic = found.checkpoint, context.settings.network_settings.deterministic
    if path.suffix == _EXPORTED:
        # Late: no run needs onnx for anything else before its first checkpoint.
        from trajtrainer.onnx.policy import OnnxPolicy

        exported = OnnxPolicy(path, seed=seed, deterministic=deterministic)
        return exported, list(exported.misfits(context.spec))
    recovered = recover_policy(read_checkpoint(path), source=str(path), models=found.models)
    policy = Policy(recovered.actor, seed=seed, deterministic=deterministic, device=context.device)
    return policy, list(misfits(recovered.spec, context.spec))


def _find(opponent: str, settings: RunSettings, behavior: str | None) -> SavedPolicy:
    """Return what an entry of ``opponents`` means; of several behaviors' (None) any.

    Raises:
        CheckpointError: there is no such thing.
    """
    path, results = Path(opponent), Path(settings.checkpoint_settings.results_dir)
    try:
        return find_policies(path, results, None if path.is_file() else behavior)[0]
    except CheckpointError as error:
        raise CheckpointError(f"{_place(behavior)}: {error}") from error


def _place(behavior: str | None) -> str:
    whose = "default_settings" if behavior is None else f"behaviors.{behavior}"
    return f"{whose}.self_play.opponents"
