"""Reading ML-Agents' golden files: its weights into our networks, its buffer fields into our minibatches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import evolve
from mlagents_envs.base_env import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from torch import Tensor, nn

from tests.experience.groups import padded_groups
from tests.learning.algos.minibatches import minibatch_of, with_rows
from trajtrainer.experience.trajectory import PackedGroups
from trajtrainer.learning.algos.poca.groups import gathered, moments_of
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.mlagents import mlagents_keys
from trajtrainer.learning.nn.multi_agent import GroupRows, flat_actions
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.policies.checkpoints.mlagents.convert import from_mlagents
from trajtrainer.settings.components import ALGORITHMS, RewardSignalSettings, ScheduleType
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

Json = dict[str, Any]


def arrays(path: Path) -> dict[str, Any]:
    """Everything in an ``.npz`` file, which is closed again."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@dataclass(frozen=True)
class Case:
    """One golden folder: ``case.json``, ``data.npz`` and checkpoints."""

    folder: Path
    json: Json
    arrays: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Case:
        return cls(folder, json.loads((folder / "case.json").read_text()), arrays(folder / "data.npz"))

    def checkpoint(self, name: str) -> Json:
        loaded: Json = torch.load(self.folder / f"{name}.pt", weights_only=True)
        return loaded

    @property
    def spec(self) -> BehaviorSpec:
        return behavior_spec(self.json["behavior_spec"])

    @property
    def settings(self) -> TrainerSettings:
        return trainer_settings(self.json["settings"])


def behavior_spec(data: Json) -> BehaviorSpec:
    observations = [
        ObservationSpec(
            tuple(one["shape"]),
            tuple(DimensionProperty(p) for p in one["dimension_property"]),
            ObservationType(one["observation_type"]),
            one["name"],
        )
        for one in data["observation_specs"]
    ]
    action = data["action_spec"]
    return BehaviorSpec(observations, ActionSpec(action["continuous_size"], tuple(action["discrete_branches"])))


def network_settings(data: Json) -> NetworkSettings:
    memory = data.get("memory")
    return NetworkSettings(
        normalize=data.get("normalize", False),
        hidden_units=data["hidden_units"],
        num_layers=data["num_layers"],
        memory=MemorySettings(memory["sequence_length"], memory["memory_size"]) if memory else None,
    )


def rnd_settings(data: Json) -> RndSettings:
    return RndSettings(
        gamma=data.get("gamma", 0.99),
        strength=data["strength"],
        network_settings=network_settings(data["network_settings"]),
        learning_rate=data["learning_rate"],
    )


def _signal(name: str, data: Json) -> RewardSignalSettings:
    return rnd_settings(data) if name == "rnd" else RewardSignalSettings(data["gamma"], data["strength"])


def trainer_settings(data: Json) -> TrainerSettings:
    hyper = dict(data["hyperparameters"])
    schedules = {key: ScheduleType(value) for key, value in hyper.items() if key.endswith("_schedule")}
    trainer_type = data.get("trainer_type", "ppo")
    return TrainerSettings(
        trainer_type=trainer_type,
        hyperparameters=ALGORITHMS[trainer_type].settings(**(hyper | schedules)),
        network_settings=network_settings(data["network_settings"]),
        reward_signals={n: _signal(n, one) for n, one in data["reward_signals"].items()},
        max_steps=data["max_steps"],
        time_horizon=data["time_horizon"],
        summary_freq=data["summary_freq"],
        checkpoint_interval=data["checkpoint_interval"],
    )


def with_hyperparameters(settings: TrainerSettings, **changes: Any) -> TrainerSettings:
    return evolve(settings, hyperparameters=evolve(settings.hyperparameters, **changes))


def restore(ppo: PPO, checkpoint: Json) -> None:
    """Takes over ML-Agents' weights and its Adam."""
    state = from_mlagents(checkpoint, _state(ppo))
    ppo.actor.load_state_dict(state["modules"]["actor"])
    ppo.critic.load_state_dict(state["modules"]["critic"])
    ppo.load_optimizer_states(state["optimizers"])


def assert_weights(ppo: PPO, checkpoint: Json, atol: float = 1e-5) -> None:
    """Raises unless the networks have ML-Agents' weights."""
    expected = from_mlagents(checkpoint, _state(ppo))["modules"]
    for network, module in (("actor", ppo.actor), ("critic", ppo.critic)):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(
                value, expected[network][name], rtol=1e-5, atol=atol, msg=f"{network}.{name} differs"
            )


def _state(ppo: PPO) -> Json:
    modules = {"actor": ppo.actor, "critic": ppo.critic}
    return {
        "step": 0,
        "modules": {name: module.state_dict() for name, module in modules.items()},
        "keys": {name: mlagents_keys(module) for name, module in modules.items()},
        "layout": ppo.checkpoint_layout,
        "optimizers": ppo.optimizer_states(),
    }


def gradients(module: nn.Module, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """ML-Agents' gradients under our names, several side by side where our layer is several of its."""
    keys = mlagents_keys(module)
    return {n: torch.cat([theirs[name] for name in keys[n].names]) for n, _ in module.named_parameters()}


def minibatch(case: Case, prefix: str = "batch_", rows: Any = slice(None)) -> Minibatch:
    """ML-Agents' buffer fields as a minibatch; ``advantages`` as they stand there."""
    settings, spec = case.settings, case.spec
    arrays = {n.removeprefix(prefix): case.arrays[n][rows] for n in case.arrays if n.startswith(prefix)}
    memory = settings.network_settings.memory
    length = memory.sequence_length if memory else 1
    signals = list(settings.reward_signals)
    returns = torch.tensor(np.stack([arrays[f"returns__{s}"] for s in signals]), dtype=torch.float32)
    log_probs = [arrays["continuous_log_probs"], arrays["discrete_log_probs"]]
    found = minibatch_of(
        obs=tuple(torch.tensor(arrays[f"obs__{i}"]) for i in range(len(spec.observation_specs))),
        mask=torch.tensor(arrays["action_mask"] == 0),
        continuous=torch.tensor(arrays["continuous_action"]),
        discrete=torch.tensor(arrays["discrete_action"].astype(np.int64)),
        log_prob=torch.tensor(np.concatenate(log_probs, 1)),
        returns=returns,
        old_values=returns,
        advantage=torch.tensor(arrays["advantages"]),
        memory=torch.tensor(arrays["memory"][::length]) if memory else None,
        critic_memory=torch.tensor(arrays["critic_memory"][::length]) if memory else None,
        loss_mask=torch.tensor(arrays["masks"]) if memory else None,
        sequence_length=length,
    )
    if settings.trainer_type != "poca":
        return found
    baselines = np.stack([arrays[f"baselines__{s}"] for s in signals], 1)
    found = with_rows(found, baseline=torch.tensor(baselines))
    return replace(found, groups=_group_rows(found, arrays, spec))


def _group_rows(rows: Minibatch, arrays: Mapping[str, Any], spec: BehaviorSpec) -> GroupRows:
    groups = groupmates(arrays, spec)
    moments = moments_of(np.arange(len(rows)), groups.mates)
    others = groups.others.map(torch.from_numpy)
    obs = [torch.cat(pair) for pair in zip(rows.obs, others.obs, strict=True)]
    continuous, discrete = (torch.cat((rows[name], others[name])) for name in ("continuous", "discrete"))
    actions = flat_actions(continuous, discrete, spec.action_spec)
    return gathered(
        torch.from_numpy(moments.members),
        torch.from_numpy(moments.of_step),
        torch.arange(len(rows)),
        lambda numbers: ([sensor[numbers] for sensor in obs], actions[numbers]),
    )


def groupmates(arrays: Mapping[str, Any], spec: BehaviorSpec) -> PackedGroups:
    """The groupmates of the rows of ML-Agents' buffer."""
    return padded_groups(
        [arrays[f"group_obs__{i}"] for i in range(len(spec.observation_specs))],
        arrays["group_continuous_action"],
        arrays["group_discrete_aaction"],
        arrays["group_obs__0__count"],
    )
