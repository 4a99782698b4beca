"""The state of a behaviour in a checkpoint: ML-Agents' layout, and beside it what ML-Agents forgets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from trajtrainer.algos.acting import Policy
from trajtrainer.checkpoints.mlagents.convert import from_mlagents, to_mlagents
from trajtrainer.checkpoints.mlagents.layout import EXTRA
from trajtrainer.checkpoints.policy_record import PolicyRecord
from trajtrainer.checkpoints.recovered_policy import RECORD
from trajtrainer.core.errors import CheckpointError, first_line
from trajtrainer.settings.trainer import ALGORITHMS
from trajtrainer.trainers.self_play import SelfPlay
from trajtrainer.trainers.trainer import Trainer

logger = logging.getLogger(__name__)

_ACTING_RNG = "acting_rng"
_EXPLORATION = "exploration"
_LEARNER = "learner"
_SELF_PLAY = "self_play"
_JUDGE = "judge"


class Restores(Protocol):
    """A part of a behaviour whose state stands in the checkpoint."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""


def to_checkpoint(
    trainer: Trainer,
    policy: Policy,
    self_play: Mapping[str, Any] | None = None,
    judge: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the content of ``checkpoint.pt``. Tensors are shared with the trainer, so save it before the next step.

    Args:
        trainer: of the behaviour.
        policy: of the acting side.
        self_play: its state, if there is self-play.
        judge: its state, if there is training.
    """
    state = _mlagents_part(trainer)
    context = trainer.context
    record = PolicyRecord(
        context.behavior,
        context.settings.trainer_type,
        context.spec,
        context.settings.network_settings,
        tanh_squash=trainer.actor.head.tanh_squash,
    )
    state["extra"] |= {_ACTING_RNG: policy.rng_state(), RECORD: record.to_plain()}
    if exploration := policy.exploration_state():
        state["extra"][_EXPLORATION] = exploration
    if self_play is not None:
        state["extra"][_SELF_PLAY] = self_play
    if judge is not None:
        state["extra"][_JUDGE] = judge
    return to_mlagents(state)


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a checkpoint with tensors of its own, on the CPU. What is there twice stays one."""
    memo: dict[int, Tensor] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in memo:
                memo[id(value)] = value.detach().to("cpu", copy=True)
            return memo[id(value)]
        if isinstance(value, Mapping):
            return {key: copy(inner) for key, inner in value.items()}
        return type(value)(map(copy, value)) if isinstance(value, list | tuple) else value

    return {key: copy(value) for key, value in state.items()}


def is_ours(content: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was written here and not by ML-Agents."""
    return EXTRA in content


def from_checkpoint(
    content: Mapping[str, Any],
    trainer: Trainer,
    policy: Policy,
    source: str,
    self_play: SelfPlay | None = None,
    judge: Restores | None = None,
    *,
    reset_step: bool,
) -> None:
    """Restore a trainer and the acting policy from a checkpoint of ours or of ML-Agents.

    Args:
        content: of the file.
        trainer: freshly made.
        policy: of the acting side, freshly made.
        source: the file's name, for warnings.
        self_play: of the behaviour, freshly made; restored if the checkpoint holds its state.
        judge: of the behaviour; likewise.
        reset_step: begin a new run with these weights (``--initialize-from``).

    Raises:
        CheckpointError: the checkpoint is of other networks, or damaged.
    """
    like = _mlagents_part(trainer)
    other = _other_algorithm(content, trainer.context.settings.trainer_type)
    if other is not None:
        logger.info("%s is of trainer_type %s: its policy is taken over, all else begins anew.", source, other)
    state = from_mlagents(content, like, source=source, policy_alone=other is not None)
    try:
        learner = like["extra"].get(_LEARNER, {})
        for part, entries in (state["extra"].get(_LEARNER, learner) if other is None else learner).items():
            state[part] |= entries
        trainer.restore(state, reset_step=reset_step)
        rng = state["extra"].get(_ACTING_RNG)
        if isinstance(rng, Tensor) and not reset_step:
            policy.set_rng_state(rng)
            policy.load_exploration_state(state["extra"].get(_EXPLORATION, {}))
        if self_play is not None and not reset_step and _SELF_PLAY in state["extra"]:
            self_play.restore(state["extra"][_SELF_PLAY])
        if judge is not None and not reset_step:
            judge.restore(state["extra"].get(_JUDGE, {}))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{source}: what stands beside the weights is damaged ({first_line(error)}). Take another checkpoint of "
            "the run, or its weights alone with --initialize-from."
        ) from error


def _other_algorithm(content: Mapping[str, Any], trainer_type: str) -> str | None:
    """Return the trainer type of a checkpoint of ours with networks that ML-Agents does not know, if it is another."""
    extra = content.get(EXTRA)
    if not isinstance(extra, Mapping) or _LEARNER not in extra:
        return None
    record = extra.get(RECORD)
    kind = record.get("trainer_type") if isinstance(record, Mapping) else None
    return kind if isinstance(kind, str) and kind != trainer_type else None


def _mlagents_part(trainer: Trainer) -> dict[str, Any]:
    """Return a trainer's state, in which ``extra`` has the networks and optimizers that ML-Agents does not know."""
    state = trainer.checkpoint_state()
    if not ALGORITHMS[trainer.context.settings.trainer_type].in_mlagents:
        modules, optimizers = state["modules"], state["optimizers"]
        others = {name: module for name, module in modules.items() if name != "actor"}
        state["extra"][_LEARNER] = {"modules": others, "optimizers": optimizers}
        state |= {"modules": {"actor": modules["actor"]}, "optimizers": {}}
    return state
