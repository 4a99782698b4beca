"""Reading ML-Agents' golden SAC files: its weights into our networks, its buffer fields into our transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests.learning.algos.minibatches import minibatch_of, with_rows
from tests.learning.algos.mlagents import Case, Json
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.timers import Timers
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.sac.sac import LAYOUT, SAC
from trajtrainer.learning.nn.init import seeded
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import mlagents_keys
from trajtrainer.learning.rewards.signal import create_reward_signals
from trajtrainer.policies.checkpoints.mlagents.convert import from_mlagents
from trajtrainer.settings.trainer import TrainerSettings

CPU = torch.device("cpu")


def make_sac(spec: BehaviorSpec, settings: TrainerSettings, *, stacked: bool = True) -> SAC:
    """SAC with networks of these settings and a replay without room; ``stacked`` False takes the way of large
    networks."""
    context = LearningContext(
        behavior="B",
        spec=spec,
        settings=settings,
        obs_dtypes=[np.dtype(np.float32)] * len(spec.observation_specs),
        seed=0,
        device=CPU,
        training=False,
        timers=Timers(),
        is_stopping=lambda: False,
    )
    networks = SAC.make_networks(context)
    with seeded(0):
        signals = create_reward_signals(spec, settings, CPU)
    with mock.patch("trajtrainer.learning.algos.sac.networks.LARGEST", 1_000_000 if stacked else 0):
        return SAC(context, networks, signals)


def modules(sac: SAC) -> dict[str, Any]:
    return dict(sac.networks)


def log_alpha(sac: SAC) -> dict[str, Tensor]:
    found: dict[str, Tensor] = sac.extra_state()["sac"]["log_alpha"]
    return found


def load_log_alpha(sac: SAC, values: Mapping[str, Tensor]) -> None:
    sac.load_extra_state({"sac": {"log_alpha": values}}, 0)


def gradients_of(sac: SAC, batch: Minibatch) -> dict[str, Tensor]:
    """Write the gradients of a step that changes no weights; returns its statistics."""
    return sac.gradient_step(batch, 0.0)


def state(sac: SAC) -> Json:
    """In the form of ``checkpoints.mlagents.convert``."""
    return {
        "step": 0,
        "modules": {name: module.state_dict() for name, module in modules(sac).items()},
        "keys": {name: mlagents_keys(module) for name, module in modules(sac).items()},
        "layout": LAYOUT,
        "optimizers": sac.optimizer_states(),
    }


def restored(case: Case, *, stacked: bool = True) -> SAC:
    """SAC with the weights, Adams and entropy coefficients that ML-Agents started from."""
    sac = make_sac(case.spec, case.settings, stacked=stacked)
    loaded = from_mlagents(case.checkpoint("start"), state(sac))
    for name, module in modules(sac).items():
        module.load_state_dict(loaded["modules"][name])
    sac.load_optimizer_states(loaded["optimizers"])
    load_log_alpha(sac, coefficients(case, "start"))
    for network in sac.values.values():
        network.body.copy_normalization(sac.actor.body)
    return sac


def coefficients(case: Case, when: str) -> dict[str, Tensor]:
    kinds = ("discrete", "continuous")
    return {kind: torch.from_numpy(case.arrays[f"{when}_log_ent_coef_{kind}"]) for kind in kinds}


def transitions(case: Case, prefix: str = "batch_", rows: Any = slice(None)) -> Minibatch:
    """ML-Agents' buffer fields, without noise."""
    spec, memory = case.spec, case.settings.network_settings.memory
    arrays: Mapping[str, Any] = {
        n.removeprefix(prefix): case.arrays[n][rows] for n in case.arrays if n.startswith(prefix)
    }
    length = memory.sequence_length if memory else 1
    sensors = range(len(spec.observation_specs))
    signals = create_reward_signals(spec, case.settings, CPU)
    ends = torch.tensor([[float(not signal.ignore_done)] for signal in signals])
    gamma = torch.tensor([[signal.gamma] for signal in signals])
    return minibatch_of(
        obs=tuple(torch.tensor(arrays[f"obs__{i}"]) for i in sensors),
        next_obs=tuple(torch.tensor(arrays[f"next_obs__{i}"]) for i in sensors),
        mask=torch.tensor(arrays["action_mask"] == 0),
        continuous=torch.tensor(arrays["continuous_action"]),
        discrete=torch.tensor(arrays["discrete_action"].astype(np.int64)),
        rewards=torch.tensor(np.stack([arrays[f"rewards__{signal.name}"] for signal in signals])),
        discount=gamma * (1.0 - ends * torch.tensor(arrays["done"].astype(np.float32))),
        noise=torch.zeros(len(arrays["done"]), spec.action_spec.continuous_size),
        memory=torch.tensor(arrays["memory"][::length]) if memory else None,
        critic_memory=torch.tensor(arrays["critic_memory"][::length]) if memory else None,
        loss_mask=torch.tensor(arrays["masks"]) if memory else None,
        sequence_length=length,
    )


def with_noise(batch: Minibatch, case: Case, update: int) -> Minibatch:
    """With the noise that ML-Agents drew in its update ``update`` (1, 2, 3)."""
    name = f"update_{update}_draw_0_randn_like"
    return with_rows(batch, noise=torch.tensor(case.arrays[name])) if name in case.arrays else batch
