"""Suggests settings of XQC for ``trajtrainer init``."""

from __future__ import annotations

from trajtrainer.core.spec import ObservationKind, observation_kind
from trajtrainer.learning.algos.xqc.settings import width_for
from trajtrainer.settings.suggestions import NO_MEMORY, Choice, Section, Seen, replay

_FEW_NUMBERS, _FEW_ACTIONS = 50, 2


def suggested(seen: Seen) -> Section | None:
    """Suggest settings like config/xqc/HalfCheetah.yaml; None for small tasks, images and discrete actions."""
    actions = seen.spec.action_spec
    if actions.discrete_size or (seen.numbers <= _FEW_NUMBERS and actions.continuous_size <= _FEW_ACTIONS):
        return None
    if any(observation_kind(sensor) is ObservationKind.VISUAL for sensor in seen.spec.observation_specs):
        return None
    units, layers = Choice(width_for(seen.numbers), seen.size), Choice(4)
    critics = {
        "critic_hidden_units": units,
        "critic_num_layers": layers,
        "learning_rate": Choice(3e-4),
        "learning_rate_schedule": Choice("constant", "a decreasing learning rate learns more slowly"),
    }
    return {
        "hyperparameters": replay(seen, 256) | critics,
        "network_settings": {"hidden_units": units, "num_layers": layers, "memory": NO_MEMORY},
    }
