"""Opponents in self-play that come from files: checkpoints, and the newest ones of other runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trajtrainer.algos.acting import Policy
from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.errors import CheckpointError
from trajtrainer.export.checkpoint_file import read_checkpoint
from trajtrainer.export.mlagents_actor import load_actor
from trajtrainer.rundir.saved_policies import find_policies
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.trainers.ratings import Player


def check_opponents(settings: RunSettings, behaviors: Mapping[str, TrainerSettings]) -> None:
    """Look whether the files are there, before anything is started.

    Raises:
        CheckpointError: one is not, or is no checkpoint; the message names all of them.
    """
    faults = []
    for name, each in behaviors.items():
        for opponent in each.self_play.opponents if each.self_play is not None else ():
            try:
                _file_of(opponent, settings, None if each is settings.default_settings else name)
            except CheckpointError as error:
                faults.append(str(error))
    if faults:
        raise CheckpointError("\n".join(faults))


def players_of_files(settings: RunSettings, context: LearningContext, policy: Policy) -> list[Player]:
    """Return the opponents that a behaviour's settings name.

    Args:
        settings: of the run.
        context: of the behaviour.
        policy: with its networks.

    Raises:
        CheckpointError: a file cannot be read, or is of other networks.
    """
    self_play = context.settings.self_play
    if self_play is None:
        return []
    wanted = {name: weights.shape for name, weights in policy.weights().items()}
    players = []
    for opponent in self_play.opponents:
        path = _file_of(opponent, settings, context.behavior)
        content = read_checkpoint(path)
        try:
            actor = load_actor(content, context.spec, network=context.settings.network_settings, source=str(path))
            weights = dict(actor.state_dict())
            if {name: each.shape for name, each in weights.items()} != wanted:
                raise CheckpointError(f"{path} has other networks")
        except CheckpointError as error:
            raise CheckpointError(
                f"{_place(context.behavior)}: {path} cannot play against behavior {context.behavior!r}: its policy is "
                "of other networks. Give checkpoints of agents with the same sensors and actions, trained with the "
                f"same kind of trainer_type and the same network_settings. ({error})"
            ) from error
        players.append(Player(opponent, self_play.initial_elo, weights))
    return players


def _file_of(opponent: str, settings: RunSettings, behavior: str | None) -> Path:
    """Return the checkpoint that an entry of ``opponents`` means; of several behaviors' (None) any.

    Raises:
        CheckpointError: there is none.
    """
    path, results = Path(opponent), Path(settings.checkpoint_settings.results_dir)
    if path.suffix == ".onnx":
        raise CheckpointError(
            f"{_place(behavior)}: found {opponent}, expected a checkpoint (.pt) or the folder or id of a run. The .pt "
            "beside an .onnx has the same policy."
        )
    try:
        return find_policies(path, results, None if path.is_file() else behavior)[0].checkpoint
    except CheckpointError as error:
        raise CheckpointError(f"{_place(behavior)}: {error}") from error


def _place(behavior: str | None) -> str:
    whose = "default_settings" if behavior is None else f"behaviors.{behavior}"
    return f"{whose}.self_play.opponents"
