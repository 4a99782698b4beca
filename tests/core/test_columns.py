"""The table of columns: one place to add a column, from where it reaches both kinds of learners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from tests.experience.streams import OBS_DTYPES, mixed_spec
from tests.learning.trainers.acting import Acting
from trajtrainer.core import columns
from trajtrainer.core.columns import Column, Columns, Moment, Store, concatenate, entries_of
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.envs.sim.simulation import EnvironmentParameters, SimulationOptions
from trajtrainer.envs.sim.walks import Basic
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.settings.trainer import TrainerSettings


def test_rows_are_taken_sliced_joined_and_mapped_alike_in_both_libraries() -> None:
    rows = Columns(
        {"obs.0": np.arange(6.0).reshape(3, 2), "reward": np.arange(3.0), "mask": np.zeros((3, 0), np.bool_)}
    )
    for some, index in ((rows, np.array([2, 0])), (rows.map(torch.from_numpy), torch.tensor([2, 0]))):
        taken = some.take(index)
        assert (len(some), len(taken)) == (3, 2)
        assert taken["reward"].tolist() == [2, 0]
        assert taken.obs[0].tolist() == [[4, 5], [0, 1]]
        assert tuple(taken["mask"].shape) == (2, 0)
        part = some.slice(1, 3)
        part["reward"][0] = 7
        assert some["reward"].tolist() == [0, 7, 2], "slices are views"
        some["reward"][1] = 1
    joined = concatenate([rows, rows.slice(0, 1)])
    assert joined["reward"].tolist() == [0, 1, 2, 0]
    assert rows.with_columns({"reward": np.ones(3)})["reward"].tolist() == [1, 1, 1]
    assert rows["reward"].tolist() == [0, 1, 2]


def test_every_column_comes_from_somewhere() -> None:
    """A column is filled from the batch's field of its name."""
    brought = {
        Moment.OBSERVED: {field.name for field in fields(StepBatch)} | {"memory"},
        Moment.FOLLOWED: {field.name for field in fields(StepBatch)},
        Moment.DECIDED: {field.name for field in fields(ActionBatch)},
    }
    for column in columns.TABLE:
        if column.moment in brought:
            assert column.name in brought[column.moment]
        if Store.EVENT in column.stores:
            assert column.name in brought[Moment.OBSERVED]


def test_entries_have_the_shapes_of_the_behavior() -> None:
    entries = entries_of(Store.POOL, mixed_spec(), OBS_DTYPES, memory_size=6)
    assert entries["memory"].shape == (6,)
    assert entries["log_prob"].shape == (entries["continuous"].shape[0] + entries["discrete"].shape[0],)
    assert [entries[name].dtype for name in ("obs.0", "obs.1")] == list(OBS_DTYPES)
    with pytest.raises(ValueError, match="sensors"):
        entries_of(Store.POOL, mixed_spec(), [np.float32])


@pytest.mark.parametrize(("kind", "update"), [("ppo", PPO.gradient_step), ("sac", SAC.gradient_step)])
def test_a_new_column_is_one_line_and_comes_to_the_learner(
    kind: str, update: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Store.POOL | Store.UPDATE | Store.REPLAY
    monkeypatch.setattr(columns, "TABLE", [*columns.TABLE, Column("entropy", "<f4", (), Moment.DECIDED, stores)])
    learner: type[Any] = {"ppo": PPO, "sac": SAC}[kind]
    seen: list[Minibatch] = []

    def watched(self: Any, minibatch: Minibatch, *rest: Any, **options: Any) -> Any:
        seen.append(minibatch)
        return update(self, minibatch, *rest, **options)

    monkeypatch.setattr(learner, update.__name__, watched)
    hyper: Any = PPOHyperparameters(batch_size=16, buffer_size=64)
    if kind == "sac":
        hyper = SACHyperparameters(batch_size=16, buffer_size=1000, buffer_init_steps=32)
    settings = TrainerSettings(trainer_type=kind, hyperparameters=hyper, time_horizon=8)
    simulation = Basic(SimulationOptions(), np.random.default_rng(0), EnvironmentParameters())
    acting = Acting(simulation, settings)
    positions: list[int] = []
    act = acting.policy.act

    def numbered(obs: tuple[Any, ...], *rest: Any) -> ActionBatch:
        actions = act(obs, *rest)
        actions.entropy[:] = np.arange(len(positions), len(positions) + len(actions))
        positions.extend(obs[0].argmax(1).tolist())
        return actions

    monkeypatch.setattr(acting.policy, "act", numbered)
    while not seen:
        acting.step()
        acting.trainer.advance()
    for minibatch in seen:
        numbers = minibatch["entropy"].int().tolist()
        assert len(numbers) == len(minibatch) == 16
        seen_there = minibatch.obs[0] if minibatch.encoded is None else minibatch.encoded
        observed = seen_there.argmax(1).tolist()
        assert [positions[number] for number in numbers] == observed, "each row has that of its own decision"
