"""The policies of the shipped configurations, each kind once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.learning.nn.specs import behavior, camera, vector
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.timers import Timers
from trajtrainer.envs.sim.registry import SIMULATIONS
from trajtrainer.envs.sim.simulation import EnvironmentParameters
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.trainers.factory import algorithm_class
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import read_file, run_settings

_CONFIG = Path(__file__).resolve().parents[3] / "config"

# Vector, continuous actions, branches of what need not be installed here.
_OTHERS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "Acrobot-v1": (6, 0, (3,)),
    "BipedalWalker-v3": (24, 4, ()),
    "CartPole-v1": (4, 0, (2,)),
    "CartPoleNoVel-v1": (2, 0, (2,)),
    "FrozenLake-v1": (16, 0, (4,)),
    "HalfCheetah-v5": (17, 6, ()),
    "Hopper-v5": (11, 3, ()),
    "LunarLander-v3": (8, 0, (4,)),
    "LunarLanderContinuous-v3": (8, 2, ()),
    "MiniGrid-DoorKey-5x5-Flat-v0": (147, 0, (7,)),
    "MiniGrid-DoorKey-5x5-v0": (147, 0, (7,)),
    "shared_policy": (4, 2, ()),
    "MountainCar-v0": (2, 0, (3,)),
    "MountainCarContinuous-v0": (2, 1, ()),
    "Pendulum-v1": (3, 1, ()),
    "PendulumNoVel-v1": (2, 1, ()),
    "Swimmer-v5": (8, 2, ()),
    "Walker2d-v5": (17, 6, ()),
    "agent": (21, 0, (50,)),
}


def spec_of(name: str, network: NetworkSettings) -> BehaviorSpec:
    """What the agents of a configuration's behavior see and do."""
    if name in _OTHERS:
        size, continuous, branches = _OTHERS[name]
        return behavior([vector(size)], continuous, branches)
    if name in ("ALE/Pong-v5", "Pong-v5"):
        return behavior([camera(4, 84, 84)], 0, (6,))
    if name == "player":
        return behavior([camera(2, 6, 7)], 0, (7,))
    for simulation, kind in SIMULATIONS.items():
        options: Any = kind.options
        more = {"velocity": True} if network.critic_only and simulation == name else {}
        made: Any = kind.create(options(**more), np.random.default_rng(0), EnvironmentParameters())
        for role, part in getattr(made, "roles", {simulation: made}).items():
            if name == role.partition("?")[0]:
                spec: BehaviorSpec = part.spec
                return spec
    raise KeyError(name)


def shipped(only: Sequence[str] = ()) -> Iterator[tuple[str, BehaviorSpec, NetworkSettings, dict[str, bool]]]:
    """Yields name, spec, network and what is different for off-policy algorithms; each combination once.

    Args:
        only: how the names begin; empty for all.
    """
    seen = set()
    for path in sorted(_CONFIG.rglob("*.yaml")):
        of_file = f"of {path.parent.name} {path.stem}"
        if only and not any(of_file.startswith(f"of {each.partition(' of ')[2]}") for each in only):
            continue
        for behavior_name, settings in run_settings(*read_file(path)).behaviors.items():
            name = f"{behavior_name} {of_file}"
            if only and not name.startswith(tuple(only)):
                continue
            network = settings.network_settings
            spec = spec_of(behavior_name, network)
            kind = _kind(spec, settings)
            key = (str(spec), str(network), str(kind))
            if key not in seen:
                seen.add(key)
                yield name, spec, network, kind


def _kind(spec: BehaviorSpec, settings: TrainerSettings) -> dict[str, bool]:
    """How the algorithm makes its actor."""
    dtypes = [np.dtype(np.float32)] * len(spec.observation_specs)
    context = LearningContext(
        behavior="B",
        spec=spec,
        settings=settings,
        obs_dtypes=dtypes,
        seed=0,
        device=torch.device("cpu"),
        training=True,
        timers=Timers(),
        is_stopping=lambda: False,
    )
    actor = algorithm_class(settings.trainer_type).make_networks(context)["actor"]
    assert isinstance(actor, Actor)
    head = actor.head
    return {
        "conditional_sigma": head.conditional_sigma,
        "tanh_squash": head.tanh_squash,
        "batch_norm": actor.batch_norm,
    }


def make(spec: BehaviorSpec, network: NetworkSettings, kind: dict[str, bool]) -> Actor:
    """An actor whose biases, sigmas and normalizers are not what they begin as."""
    generator = torch.Generator().manual_seed(5)
    actor = Actor(spec, network, **kind)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.02, generator=generator))
    actor.update_normalization(
        [torch.empty(20, *o.shape).normal_(2.0, 3.0, generator=generator) for o in spec.observation_specs]
    )
    return actor
