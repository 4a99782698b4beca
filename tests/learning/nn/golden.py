"""ML-Agents' networks, rebuilt here from the golden files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import AnyCritic, SharedCritic, ValueNetwork
from trajtrainer.learning.nn.mlagents import mlagents_keys
from trajtrainer.learning.nn.multi_agent import GroupCritic
from trajtrainer.settings.network import ConditioningType, MemorySettings, NetworkSettings

_Module = TypeVar("_Module", bound=nn.Module)

PPO_CASES = (
    "ppo_buffer_only_two",
    "ppo_buffer_vector",
    "ppo_continuous",
    "ppo_discrete",
    "ppo_goal_hyper",
    "ppo_goal_hyper_one_layer",
    "ppo_goal_none",
    "ppo_hybrid",
    "ppo_lstm",
    "ppo_normalize",
    "ppo_shared_critic",
    "ppo_shared_critic_lstm",
    "ppo_visual_fully_connected",
    "ppo_visual_match3",
    "ppo_visual_nature_cnn",
    "ppo_visual_resnet",
    "ppo_visual_simple",
    "ppo_visual_two_vector",
)
POCA_CASES = ("poca_discrete", "poca_hybrid_two_obs", "poca_lstm")
SAC_CASES = ("sac_continuous", "sac_discrete", "sac_hybrid", "sac_lstm")


def behavior_spec(described: Mapping[str, Any]) -> BehaviorSpec:
    observations = [
        ObservationSpec(
            name=o["name"],
            shape=tuple(o["shape"]),
            dimension_property=tuple(DimensionProperty(p) for p in o["dimension_property"]),
            observation_type=ObservationType(o["observation_type"]),
        )
        for o in described["observation_specs"]
    ]
    action = described["action_spec"]
    return BehaviorSpec(observations, ActionSpec(action["continuous_size"], tuple(action["discrete_branches"])))


def network_settings(described: Mapping[str, Any]) -> NetworkSettings:
    memory = described["memory"]
    return NetworkSettings(
        normalize=described["normalize"],
        hidden_units=described["hidden_units"],
        num_layers=described["num_layers"],
        vis_encode_type=described["vis_encode_type"],
        memory=None if memory is None else MemorySettings(memory["sequence_length"], memory["memory_size"]),
        goal_conditioning_type=ConditioningType(described["goal_conditioning_type"]),
    )


@dataclass
class Case:
    """One golden policy: its description, arrays and ML-Agents' checkpoint."""

    name: str
    described: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    checkpoint: dict[str, dict[str, Any]]

    @property
    def spec(self) -> BehaviorSpec:
        return behavior_spec(self.described["behavior_spec"])

    @property
    def settings(self) -> NetworkSettings:
        return network_settings(self.described["settings"]["network_settings"])

    @property
    def signals(self) -> list[str]:
        return list(self.described["settings"]["reward_signals"])

    @property
    def is_sac(self) -> bool:
        return bool(self.described["trainer_type"] == "sac")

    @property
    def shared_critic(self) -> bool:
        return bool(self.described["settings"]["hyperparameters"].get("shared_critic", False))

    def __getitem__(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def obs(self, prefix: str = "") -> list[Tensor]:
        return [self[f"{prefix}obs_{i}"] for i in range(len(self.spec.observation_specs))]

    def mask(self, prefix: str = "") -> Tensor:
        return self[f"{prefix}action_masks"] == 0

    def memory(self) -> Tensor | None:
        return self["recurrent_in"].squeeze(1) if "recurrent_in" in self else None

    def critic_memory(self) -> Tensor | None:
        return self["critic_memory_in"].squeeze(0) if "critic_memory_in" in self else None

    def actor(self) -> Actor:
        return load_actor(
            Actor(self.spec, self.settings, conditional_sigma=self.is_sac, tanh_squash=self.is_sac),
            self.checkpoint["Policy"],
        )

    def critic(self, actor: Actor) -> AnyCritic:
        if self.shared_critic:
            shared = SharedCritic(actor, self.signals)
            return load(shared, self.checkpoint["Policy"])
        key = "Optimizer:value_network" if self.is_sac else "Optimizer:critic"
        return self.value_network(key)

    def group_critic(self) -> GroupCritic:
        return load(GroupCritic(self.spec, self.settings, self.signals), self.checkpoint["Optimizer:critic"])

    def value_network(self, key: str, prefix: str = "", **shape: Any) -> ValueNetwork:
        critic = ValueNetwork(self.spec, self.settings, self.signals, **shape)
        return load(critic, self.checkpoint[key], prefix)


def policy_case(shared_data: Path, name: str) -> Case:
    folder = shared_data / "golden" / "policies"
    with np.load(folder / f"{name}.npz") as arrays:
        return Case(
            name,
            json.loads((folder / f"{name}.json").read_text()),
            {key: arrays[key] for key in arrays.files},
            torch.load(folder / f"{name}.pt", weights_only=True),
        )


def load(module: _Module, entries: Mapping[str, Tensor], prefix: str = "") -> _Module:
    """Give a network ML-Agents' weights: every one of its entries must be there, in the same shape."""
    weights = {
        ours: torch.cat([entries[prefix + name] for name in key.names])
        if len(key.names) > 1
        else entries[prefix + key.names[0]]
        for ours, key in mlagents_keys(module).items()
    }
    module.load_state_dict(weights)
    return module


def load_actor(actor: Actor, entries: Mapping[str, Tensor]) -> Actor:
    return load(actor, entries)
