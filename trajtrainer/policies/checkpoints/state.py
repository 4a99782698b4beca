"""Converts a behavior's state to the content of ``checkpoint.pt`` and back.

::

    Policy, Optimizer:..., Module:..., global_step    networks, optimizers and reward signals, as in ML-Agents
    trajtrainer                                       state that ML-Agents does not save, and ignores:
      learner                                           networks and optimizers that ML-Agents does not have
      rng, reward_optimizers, gradient_steps, ...       the rest of the algorithm's state (``learned_state``)
      version, episodes, summarized                     the trainer's counters (no episodes if it trains on a data set)
      policy                                            the agents' observations and actions (``PolicyRecord``)
      acting_rng, exploration, self_play, judge         state of the behavior's other parts, if they exist
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from trajtrainer.core.errors import CheckpointError, first_line
from trajtrainer.core.numeric import count_in
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.algorithm import Algorithm
from trajtrainer.learning.nn.mlagents import mlagents_keys
from trajtrainer.learning.trainers.trainer import BehaviorTrainer
from trajtrainer.policies.checkpoints.mlagents.convert import EXTRA, LEARNER, from_mlagents, to_mlagents
from trajtrainer.policies.checkpoints.policy_record import RECORD, PolicyRecord

if TYPE_CHECKING:
    from trajtrainer.learning.trainers.self_play import SelfPlay

logger = logging.getLogger(__name__)

_CLONING = "cloning"
_ACTING_RNG, _EXPLORATION, _SELF_PLAY = "acting_rng", "exploration", "self_play"
_SELECTOR = "judge"  # the name of ``ModelSelector`` in version 0.1.0


class Restorable(Protocol):
    """A part of a behavior whose state is saved in the checkpoint."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the part from its state in the checkpoint."""


def to_checkpoint(
    trainer: BehaviorTrainer,
    policy: ActorPolicy,
    self_play: Mapping[str, Any] | None = None,
    selector: Mapping[str, Any] | None = None,
    *,
    step: int | None = None,
) -> dict[str, Any]:
    """Return the content of ``checkpoint.pt``. Tensors are shared with the trainer, so save it before the next step.

    Unfinished episodes, and experience that has not been used for an update, are left out, because the environment of a
    resumed run starts from scratch. ``self_play`` and ``selector`` are the states of these parts, if they exist.
    ``step`` defaults to the trainer's step.
    """
    state, context, settings = learned_state(trainer.algorithm), trainer.context, trainer.context.settings
    actor = trainer.actor
    record = PolicyRecord(
        context.behavior,
        settings.trainer_type,
        actor.spec,
        settings.network_settings,
        actor.head.tanh_squash,
        batch_norm=actor.batch_norm,
        student=actor.sees is not None,
    )
    parts = {_EXPLORATION: policy.exploration_state() or None, _SELF_PLAY: self_play, _SELECTOR: selector}
    extra = {
        **state["extra"],
        **trainer.state(),
        _ACTING_RNG: policy.rng_state(),
        RECORD: record.to_plain(),
        **{name: part for name, part in parts.items() if part is not None},
    }
    return to_mlagents({**state, "step": trainer.step if step is None else step, "extra": extra})


def from_checkpoint(
    content: Mapping[str, Any],
    trainer: BehaviorTrainer,
    policy: ActorPolicy,
    source: str,
    self_play: SelfPlay | None = None,
    selector: Restorable | None = None,
    *,
    reset_step: bool,
) -> None:
    """Restore a behavior's newly created parts from a checkpoint of trajtrainer or ML-Agents, and publish the policy.

    With ``reset_step``, only networks and optimizers are loaded (``--initialize-from``), while steps, counters and
    random generators keep their initial state. ``source`` is the name of the file, for warnings.

    Raises:
        CheckpointError: the checkpoint is damaged or does not match the networks. Parts of it may have been loaded.
    """
    other = None
    held = content.get(EXTRA)
    if isinstance(held, Mapping) and LEARNER in held and isinstance(held.get(RECORD), Mapping):
        kind = held[RECORD].get("trainer_type")
        other = kind if isinstance(kind, str) and kind != trainer.context.settings.trainer_type else None
    if other is not None:
        logger.info(
            "%s has trainer_type %s: only its policy is loaded, and the rest starts from scratch.", source, other
        )
    like = learned_state(trainer.algorithm)
    try:
        state = from_mlagents(content, like, source=source, policy_alone=other is not None)
        extra, step = state["extra"], None if reset_step else state["step"]
        load_learned(trainer.algorithm, state, resumed_at=step)
        trainer.restore(step, extra)
        if reset_step:
            return
        if isinstance(extra.get(_ACTING_RNG), Tensor):
            policy.set_rng_state(extra[_ACTING_RNG])
            policy.load_exploration_state(extra.get(_EXPLORATION, {}))
        if self_play is not None and _SELF_PLAY in extra:
            self_play.restore(extra[_SELF_PLAY])
        if selector is not None:
            selector.restore(extra.get(_SELECTOR, {}))
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{source}: the data next to the weights is damaged ({first_line(error)}). Use another checkpoint of the "
            "run, or load only the weights of this one with --initialize-from."
        ) from error


def learned_state(algorithm: Algorithm) -> dict[str, Any]:
    """Return the state of an algorithm and its reward signals, as described in ``mlagents.convert``, without ``step``.

    Tensors are copied only if they are views of larger tensors, because torch would save the larger ones as a whole.
    """
    networks, rewards, layout = algorithm.networks, _reward_modules(algorithm), algorithm.checkpoint_layout
    reward_optimizers = {signal.name: signal.optimizer_state() for signal in algorithm.signals}
    return {
        "modules": {
            name: {
                entry: tensor.clone(memory_format=torch.contiguous_format)
                if tensor.untyped_storage().nbytes() > tensor.nbytes
                else tensor
                for entry, tensor in network.state_dict().items()
            }
            for name, network in networks.items()
        },
        "optimizers": algorithm.optimizer_states(),
        "rewards": {name: module.state_dict() for name, module in rewards.items()},
        "keys": {name: mlagents_keys({**networks, **rewards}[name]) for name in (*layout.networks, *rewards)},
        "layout": layout,
        "extra": {
            "rng": {name: generator.get_state() for name, generator in _generators(algorithm).items()},
            "reward_optimizers": {name: state for name, state in reward_optimizers.items() if state is not None},
            "gradient_steps": algorithm.gradient_steps,
            **({} if algorithm.cloning is None else {_CLONING: algorithm.cloning.state()}),
            **algorithm.extra_state(),
        },
    }


def load_learned(algorithm: Algorithm, state: Mapping[str, Any], *, resumed_at: int | None = None) -> None:
    """Load a state returned by ``learned_state``; ``rewards`` and ``extra`` may be absent.

    If ``resumed_at``, the step of a resumed trainer, is given, counters and random generators are also restored. A
    generator whose saved state is missing, or from another kind of device, keeps its current state.

    Raises:
        CheckpointError: the state does not match the networks. Parts of it may have been loaded.
    """
    extra = state.get("extra", {})
    try:
        for name, network in algorithm.networks.items():
            network.load_state_dict(state["modules"][name])
        for name, module in _reward_modules(algorithm).items():
            if name in state.get("rewards", {}):
                module.load_state_dict(state["rewards"][name])
        algorithm.load_optimizer_states(state["optimizers"])
        for signal in algorithm.signals:
            if signal.name in extra.get("reward_optimizers", {}):
                signal.load_optimizer_state(extra["reward_optimizers"][signal.name])
        if algorithm.cloning is not None and _CLONING in extra:
            algorithm.cloning.load_state(extra[_CLONING])
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"Behavior {algorithm.context.behavior!r}: the checkpoint does not fit these networks. Use the "
            f"network_settings, reward_signals and trainer_type that it was saved with. ({error})"
        ) from error
    if resumed_at is not None:
        for name, generator in _generators(algorithm).items():
            saved = extra.get("rng", {}).get(name)
            if saved is not None and saved.shape == generator.get_state().shape:
                generator.set_state(saved)
        algorithm.gradient_steps = count_in(extra.get("gradient_steps", 0))
        algorithm.load_extra_state(extra, resumed_at)


def _generators(algorithm: Algorithm) -> dict[str, torch.Generator]:
    cloning = algorithm.cloning
    return {**algorithm.generators(), **({} if cloning is None else cloning.generators())}


def _reward_modules(algorithm: Algorithm) -> dict[str, nn.Module]:
    return {name: module for signal in algorithm.signals for name, module in signal.modules().items()}


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a checkpoint's content, with all tensors on the CPU. Shared tensors are copied only once."""
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
    """Return whether a checkpoint was written by trajtrainer rather than ML-Agents."""
    return EXTRA in content
