"""Reads state dicts of CleanRL and rsl_rl. The names of the layers identify the trainer."""

import re
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from trajtrainer.policies.checkpoints.file import NoCheckpointError
from trajtrainer.tools.importing.policy import (
    ForeignPolicy,
    Head,
    HeadKind,
    Hints,
    ObservationStatistics,
    WithTanh,
    linear,
)
from trajtrainer.tools.importing.weights import NO_ACTIVATION, Weights, activated

_OLD_RSL_RL, _RSL_RL = "model_state_dict", "actor_state_dict"
_NORMALIZER = "obs_norm_state_dict"
_EPSILON = 1e-2  # rsl_rl's EmpiricalNormalization adds this to the standard deviation
_STD_RANGE = (1e-6, 1e6)  # rsl_rl clamps standard deviations to this range
# CleanRL's SAC squashes the logarithm of the standard deviation to this range.
_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 2.0
_OURS: Final = ("Policy", "global_step")
_SEQUENCES: Final = {
    "actor_mean": ("PPO of CleanRL", "actor_logstd", ""),
    "mlp": ("PPO of rsl_rl", "distribution.log_std_param", "distribution.std_param"),
    "actor": ("PPO of rsl_rl", "log_std", "std"),
    "network": ("DQN of CleanRL", "", ""),
}
"""Prefix of the actor's layers -> the trainer, and the names of the log standard deviations and standard deviations."""


def read_state_dict(content: Any, hints: Hints) -> ForeignPolicy:
    """Read the policy in an object from ``torch.save``, or in the tensors of a ``.safetensors`` file.

    Args:
        content: a state dict, a tuple of state dicts of which the first is the actor's (CleanRL), or a checkpoint of
            rsl_rl.
        hints: contains the activation, which these files do not store.

    Raises:
        NoCheckpointError: there are unsupported layers, or ``hints`` lacks required information.
    """
    if isinstance(content, list | tuple) and content:
        content = content[0]
    step, statistics = 0, None
    if isinstance(content, Mapping):
        if any(name in content for name in _OURS):
            raise NoCheckpointError("this is a checkpoint of ML-Agents or trajtrainer. Use trajtrainer export")
        step = content.get("iter", 0)
        step = step if isinstance(step, int) and 0 <= step < 2**62 else 0
        if isinstance(content.get(_NORMALIZER), Mapping):
            statistics = _statistics(Weights(content[_NORMALIZER]), "")
        content = next((content[name] for name in (_OLD_RSL_RL, _RSL_RL) if name in content), content)
    weights = Weights(content)
    weights.drop("critic.", "critic_obs_normalizer.")
    for prefix in ("actor_obs_normalizer.", "obs_normalizer."):
        statistics = _statistics(weights, prefix) or statistics
    # Unsupported layers are the more serious problem, so a missing activation is only reported if there are none.
    trainer, layers, head = _network(weights, hints.activation or "tanh")
    weights.finish()
    if hints.activation is None and not all(isinstance(layer, nn.Linear | WithTanh) for layer in layers):
        raise NoCheckpointError(NO_ACTIVATION)
    return ForeignPolicy(trainer, nn.Sequential(*layers), head, statistics=statistics, step=step)


def _network(weights: Weights, activation: str) -> tuple[str, list[nn.Module], Head]:
    if weights.names("fc_mean.") or weights.names("fc_mu."):
        return _squashed(weights, activation)
    prefix = next((name for name in _SEQUENCES if weights.names(f"{name}.0.")), None)
    if prefix is None:
        weights.finish()
        raise NoCheckpointError("it has no layers of an actor")
    *hidden, layer = weights.sequence(prefix)
    layers = activated(hidden, activation)
    trainer, logarithm, deviation = _SEQUENCES[prefix]
    log_sigma, sigma = weights.take(logarithm), weights.take(deviation)
    if log_sigma is None and sigma is not None:
        log_sigma = sigma.clamp(*_STD_RANGE).log()
    if log_sigma is None and prefix == "actor":
        return "PPO of CleanRL", layers, Head(HeadKind.LOGITS, layer)
    if prefix == "network":
        return trainer, layers, Head(HeadKind.VALUES, layer)
    if log_sigma is not None:
        if log_sigma.numel() != layer.out_features:
            shapes = f"{log_sigma.numel()} standard deviations for {layer.out_features} actions"
            raise NoCheckpointError(f"it has {shapes}; only one for each is supported")
        log_sigma = log_sigma.reshape(1, -1)
    return trainer, layers, Head(HeadKind.MEANS, layer, log_sigma)


def _squashed(weights: Weights, activation: str) -> tuple[str, list[nn.Module], Head]:
    """Read SAC, TD3 or DDPG of CleanRL. Their tanh always covers the whole action space, so no bounds are needed."""
    weights.drop("action_scale", "action_bias")
    numbers = sorted(
        int(match[1]) for name in weights.names("fc") if (match := re.fullmatch(r"fc(\d{1,3})\.weight", name))
    )
    if numbers != list(range(1, len(numbers) + 1)):
        raise NoCheckpointError(f"its layers are called fc{numbers}, expected fc1, fc2, ...")
    hidden = [weights.linear(f"fc{number}") for number in numbers]
    layers = activated(hidden, activation)
    if weights.names("fc_mu."):
        return "TD3 or DDPG of CleanRL", layers, Head(HeadKind.SQUASHED, weights.linear("fc_mu"))
    mean, noise = weights.linear("fc_mean"), weights.linear("fc_logstd")
    actions = mean.out_features
    if noise.weight.shape != mean.weight.shape:
        raise NoCheckpointError("fc_logstd and fc_mean have different shapes")
    # log sigma = min + (max - min) / 2 (tanh(layer) + 1). WithTanh computes the tanh, the last layer the rest.
    half = (_LOG_STD_MAX - _LOG_STD_MIN) / 2
    means = linear(torch.cat((mean.weight, torch.zeros(actions, actions)), 1), mean.bias)
    log_sigma = linear(
        torch.cat((torch.zeros(actions, mean.in_features), half * torch.eye(actions)), 1),
        torch.full((actions,), _LOG_STD_MIN + half),
    )
    return "SAC of CleanRL", [*layers, WithTanh(noise)], Head(HeadKind.SQUASHED, means, log_sigma)


def _statistics(weights: Weights, prefix: str) -> ObservationStatistics | None:
    """Return the statistics of rsl_rl's EmpiricalNormalization, or None if there are none."""
    mean, deviation = weights.take(f"{prefix}_mean"), weights.take(f"{prefix}_std")
    count = weights.take(f"{prefix}count")
    weights.drop(f"{prefix}_var")
    if mean is None or deviation is None:
        return None
    if mean.shape != deviation.shape:
        raise NoCheckpointError(
            f"the mean and deviation of its observations differ in shape: {prefix}_mean, {prefix}_std"
        )
    number = None if count is None or count.numel() != 1 else float(count)
    return ObservationStatistics(mean.flatten(), (deviation.flatten() + _EPSILON).square(), count=number)
