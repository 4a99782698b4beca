"""SAC with every kind of observation, action and network."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from attrs import evolve
from mlagents_envs.base_env import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

from tests.learning.algos import sac_mlagents
from tests.learning.algos.minibatches import minibatch_of
from trajtrainer.learning.algos.sac.networks import can_batch
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

_NONE, _MOVES, _VARIES = (
    DimensionProperty.NONE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.VARIABLE_SIZE,
)
VECTOR = ObservationSpec((5,), (_NONE,), ObservationType.DEFAULT, "vector")
GOAL = ObservationSpec((3,), (_NONE,), ObservationType.GOAL_SIGNAL, "goal")
PICTURE = ObservationSpec((3, 20, 20), (_NONE, _MOVES, _MOVES), ObservationType.DEFAULT, "picture")
LIST = ObservationSpec((4, 3), (_VARIES, _NONE), ObservationType.DEFAULT, "list")
PLAIN = NetworkSettings(hidden_units=12, num_layers=2, normalize=True)
RECURRENT = evolve(PLAIN, memory=MemorySettings(sequence_length=3, memory_size=8))
ROWS = 12


def _sac(
    sensors: Sequence[ObservationSpec], actions: ActionSpec, network: NetworkSettings, *, value_network: bool = True
) -> SAC:
    hyper = SACHyperparameters(value_network=value_network)
    settings = TrainerSettings(trainer_type="sac", hyperparameters=hyper, network_settings=network)
    torch.manual_seed(1)
    return sac_mlagents.make_sac(BehaviorSpec(list(sensors), actions), settings)


def _observation(sensor: ObservationSpec, generator: torch.Generator) -> torch.Tensor:
    shape = (ROWS, *sensor.shape)
    if len(sensor.shape) == 3:
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return torch.randn(shape, generator=generator)


def _batch(sensors: Sequence[ObservationSpec], actions: ActionSpec, network: NetworkSettings) -> Minibatch:
    generator = torch.Generator().manual_seed(2)
    memory, branches = network.memory, actions.discrete_branches
    length = memory.sequence_length if memory else 1
    sizes = torch.tensor(branches, dtype=torch.int64)
    discrete = torch.randint(2, (ROWS, len(branches)), generator=generator) % sizes
    loss_mask = torch.ones(ROWS)
    loss_mask[-1] = 0
    memories = torch.randn(2, ROWS // length, memory.memory_size if memory else 0, generator=generator)
    return minibatch_of(
        obs=tuple(_observation(sensor, generator) for sensor in sensors),
        next_obs=tuple(_observation(sensor, generator) for sensor in sensors),
        mask=torch.zeros(ROWS, sum(branches), dtype=torch.bool),
        continuous=torch.rand(ROWS, actions.continuous_size, generator=generator) * 2 - 1,
        discrete=discrete,
        rewards=torch.randn(1, ROWS, generator=generator),
        discount=torch.full((1, ROWS), 0.9),
        noise=torch.randn(ROWS, actions.continuous_size, generator=generator),
        next_mask=torch.zeros(ROWS, sum(branches), dtype=torch.bool),
        next_noise=torch.randn(ROWS, actions.continuous_size, generator=generator),
        memory=memories[0] if memory else None,
        critic_memory=memories[1] if memory else None,
        loss_mask=loss_mask if memory else None,
        sequence_length=length,
    )


@pytest.mark.parametrize("actions", [(2, ()), (0, (3, 2)), (0, (1,)), (1, (2, 3))], ids=str)
@pytest.mark.parametrize("network", [PLAIN, RECURRENT], ids=["plain", "lstm"])
@pytest.mark.parametrize("value_network", [True, False], ids=["v", "twins"])
@pytest.mark.parametrize(
    "sensors",
    [(VECTOR,), (VECTOR, PICTURE), (PICTURE,), (LIST, VECTOR), (LIST,), (VECTOR, GOAL), (GOAL, PICTURE, LIST, VECTOR)],
    ids=lambda sensors: "+".join(sensor.name for sensor in sensors),
)
def test_everything_learns(
    sensors: Sequence[ObservationSpec],
    network: NetworkSettings,
    actions: tuple[int, tuple[int, ...]],
    value_network: bool,
) -> None:
    action_spec = ActionSpec(*actions)
    sac = _sac(sensors, action_spec, network, value_network=value_network)
    batch = _batch(sensors, action_spec, network)
    copies = [module for name, module in sac.values.items() if "target" in name]
    assert len(copies) == (1 if value_network else 2)
    targets = [parameter.clone() for copy in copies for parameter in copy.parameters()]
    found = sac.gradient_step(batch, 1e-3)
    assert all(torch.isfinite(value) for tag, value in found.items() if tag.startswith("Losses/"))
    nothing_to_decide = actions == (0, (1,))
    for parameter in sac.critics.parameters if nothing_to_decide else sac._optimizer.param_groups[0]["params"]:
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().sum() > 0
    for before, after in zip(targets, [parameter for copy in copies for parameter in copy.parameters()], strict=True):
        assert after.grad is None
        assert after.shape == before.shape


@pytest.mark.parametrize(
    ("sensors", "network", "stacks"),
    [
        ((VECTOR,), PLAIN, True),
        ((VECTOR, VECTOR._replace(name="other")), evolve(PLAIN, normalize=False), True),
        ((VECTOR,), RECURRENT, False),
        ((VECTOR, PICTURE), PLAIN, False),
        ((VECTOR, LIST), PLAIN, False),
        ((VECTOR, GOAL), PLAIN, False),
    ],
)
def test_plain_layers_on_vectors_are_evaluated_together(
    sensors: Sequence[ObservationSpec], network: NetworkSettings, stacks: bool
) -> None:
    assert can_batch(_sac(sensors, ActionSpec(1, ()), network).values) == stacks


def test_pictures_are_encoded_once_for_both_actions() -> None:
    sensors, actions = (PICTURE,), ActionSpec(2, ())
    sac, batch = _sac(sensors, actions, PLAIN), _batch(sensors, actions, PLAIN)
    calls = []
    sac.values["q1"].body.encoder.register_forward_hook(lambda *_: calls.append(1))
    sac.gradient_step(batch, 1e-3)
    assert len(calls) == 1
