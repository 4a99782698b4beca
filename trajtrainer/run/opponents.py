"""Loads self-play opponents from checkpoints, exported models, or other runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.local_paths import without_folders
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import mismatches
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.trainers.self_play import Player
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.folder.saved_policies import SavedPolicy, find_policies
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

_EXPORTED = ".onnx"


def check_opponents(settings: RunSettings, behaviors: Mapping[str, TrainerSettings]) -> None:
    """Check that the files of all opponents exist. Called before anything is started.

    Raises:
        CheckpointError: some files do not exist or are not checkpoints; the message has one line per file.
    """
    faults = []
    for name, each in behaviors.items():
        for opponent in each.self_play.opponents if each.self_play is not None else ():
            try:
                _saved_policy(opponent, settings, None if each is settings.default_settings else name)
            except CheckpointError as error:
                faults.append(str(error))
    if faults:
        raise CheckpointError("\n".join(faults))


def players_of_files(settings: RunSettings, context: LearningContext, memory_size: int) -> list[Player]:
    """Load the opponents in the settings of a behavior. Their networks may differ from the behavior's network.

    Args:
        settings: settings of the run.
        context: learning context of the behavior.
        memory_size: memory size of the behavior's policy.

    Raises:
        CheckpointError: a file cannot be read, or its sensors, actions or memory differ.
    """
    self_play = context.settings.self_play
    if self_play is None:
        return []
    players: list[Player] = []
    for opponent in self_play.opponents:
        found = _saved_policy(opponent, settings, context.behavior)
        path, seed = found.checkpoint, derived_seeds(context.seed, f"{context.behavior} {opponent}")[0]
        deterministic = context.settings.network_settings.deterministic
        acts: Policy
        if path.suffix == _EXPORTED:
            # Lazy import: onnx is slow to import, and otherwise not needed until the first checkpoint.
            from trajtrainer.policies.onnx.policy import OnnxPolicy

            acts = exported = OnnxPolicy(path, seed=seed, deterministic=deterministic)
            reasons = list(exported.mismatches(context.spec))
        else:
            recovered = recover_policy(read_checkpoint(path), source=str(path), models=found.models)
            acts = ActorPolicy(recovered.actor, seed=seed, deterministic=deterministic, device=context.device)
            reasons = list(mismatches(recovered.spec, context.spec))
        if acts.memory_size != memory_size:
            reasons.append(f"its memory_size is {acts.memory_size}, not {memory_size}")
        if reasons:
            raise CheckpointError(
                f"{_place(context.behavior)}: {found.checkpoint} cannot play against behavior {context.behavior!r}: "
                f"{'; '.join(reasons)}. Opponents need the same sensors, actions and memory."
            )
        # Checkpoints store the ratings under these names. Omit folders, because checkpoints may be shared with others.
        name, names = without_folders(opponent), {player.name for player in players}
        while name in names:
            name += "'"
        players.append(Player(name, self_play.initial_elo, acts=acts))
    return players


def _saved_policy(opponent: str, settings: RunSettings, behavior: str | None) -> SavedPolicy:
    """Return the checkpoint that an entry of ``opponents`` refers to.

    If ``behavior`` is None, any behavior is accepted.

    Raises:
        CheckpointError: the checkpoint does not exist.
    """
    path, results = Path(opponent), Path(settings.checkpoint_settings.results_dir)
    try:
        return find_policies(path, results, None if path.is_file() else behavior)[0]
    except CheckpointError as error:
        raise CheckpointError(f"{_place(behavior)}: {error}") from error


def _place(behavior: str | None) -> str:
    whose = "default_settings" if behavior is None else f"behaviors.{behavior}"
    return f"{whose}.self_play.opponents"
