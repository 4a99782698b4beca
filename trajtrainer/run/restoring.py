"""Restores a behavior from an earlier session of its run, or initializes it from another run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.state import from_checkpoint, is_ours
from trajtrainer.run.behavior import Behavior

logger = logging.getLogger(__name__)


def restore(behavior: Behavior, order: RawImageOrder) -> None:
    """Restore a new behavior according to the settings: resume, start with the weights of another run, or do nothing.

    Raises:
        CheckpointError: a file cannot be read or does not match the behavior.
    """
    run, trainer, policy = behavior.run, behavior.trainer, behavior.learner.policy
    if run.folder.resume:
        loaded = behavior.checkpoints.resume()
        selector = behavior.selector
        if selector is not None:
            selector.best_models.restore()
        run.status.set_stopped(trainer.context.behavior, None)
        if loaded is not None:
            from_checkpoint(
                loaded.state, trainer, policy, str(loaded.path), behavior.self_play, selector, reset_step=False
            )
            if behavior.self_play is not None and not behavior.self_play.is_restored:
                behavior.self_play.begin_at(trainer.step, run.status.elo(behavior.name))
            _warn_about_misread_pictures(loaded.state, loaded.path, order)
            logger.info("Resuming training from step %d.", trainer.step)
            if behavior.replay is not None:
                behavior.replay.load()
        return
    listed = behavior.name in run.settings.behaviors
    path = run.folder.initial_weights(behavior.name, trainer.context.settings.init_path, listed=listed)
    if path is not None:
        logger.info("Initializing from %s.", path)
        state = read_checkpoint(path)
        from_checkpoint(state, trainer, policy, str(path), reset_step=True)
        _warn_about_misread_pictures(state, path, order)
        logger.info("Starting training from step 0 and saving to %s.", behavior.checkpoints.folder.path)


def _warn_about_misread_pictures(state: Mapping[str, Any], path: Path, order: RawImageOrder) -> None:
    if order is RawImageOrder.HWC and not is_ours(state):
        logger.warning(
            "The weights in %s were trained by ML-Agents, which reads the uncompressed pictures from this game's Unity "
            "package in the wrong order (height, width, channels as channels, height, width). They have learned from "
            "scrambled pictures, and will see correct ones from now on. Expect lower rewards at first, or start from "
            "scratch. Pictures sent as PNG are not affected.",
            path,
        )
