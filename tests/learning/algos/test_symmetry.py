"""Minibatches with the mirror images of their rows (``hyperparameters.symmetry``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs.sim.scripts import make as make_simulation
from tests.learning.algos.sac_mlagents import make_sac
from tests.learning.algos.samples import make, minibatch, without_closed_form
from tests.learning.nn.specs import behavior, camera, entities, network, vector
from tests.learning.trainers.rig import OffPolicyRig, Rig, TrainerRig, Trajectory, checkpoint_of, restore, same, weights
from trajtrainer.core.columns import Columns
from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.envs.sim.balance_ball import BalanceBall
from trajtrainer.envs.sim.simulation import SimulatedActions
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.algos.symmetry import Symmetry
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.settings.components import RewardSignalSettings
from trajtrainer.settings.symmetry import MirrorSettings, SymmetrySettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import dump, load, read_file, run_settings

CPU = torch.device("cpu")
SPEC = behavior([vector(4, "Eyes"), vector(3, "Legs")], 3, (3, 2, 2))
MIRROR = SymmetrySettings(
    observations={
        "Eyes": MirrorSettings(indices=[1, 0, 2, 3], signs=[-1, -1, 1, -1]),
        "1": MirrorSettings(signs=[1, -1, 1]),
    },
    continuous_actions=MirrorSettings(indices=[0, 2, 1], signs=[-1, 1, 1]),
    discrete_actions=[[0, 2, 1], [1, 0], [1, 0]],
    branches=[0, 2, 1],
)


def batch_of(spec: BehaviorSpec = SPEC) -> Minibatch:
    """What both algorithms learn from."""
    given = minibatch(spec)
    rows, generator = len(given), torch.Generator().manual_seed(9)
    noise = torch.randn(2, rows, spec.action_spec.continuous_size, generator=generator)
    more = {
        "next_mask": given["mask"].flip(0),
        "rewards": torch.randn(rows, 1, generator=generator),
        "discount": torch.full((rows, 1), 0.9),
        "noise": noise[0],
        "next_noise": noise[1],
    }
    more |= {f"next_obs.{i}": one.flip(0) for i, one in enumerate(given.obs)}
    return given.with_rows(more)


def image(batch: Minibatch) -> Minibatch:
    """The mirror images alone, with the original's noise mirrored, too."""
    found = Symmetry(MIRROR, SPEC, CPU)(batch)
    rows = {name: column.chunk(2)[1] for name, column in found.rows.items()}
    return batch.with_rows(rows)


def test_each_row_in_the_mirror_by_the_plain_rule() -> None:
    batch = batch_of()
    both = Symmetry(MIRROR, SPEC, CPU)(batch)
    rows = len(batch)
    assert len(both) == 2 * rows
    assert both.mirrored
    for name, column in batch.rows.items():
        assert torch.equal(both[name][:rows], column), name
    for row in range(rows):
        eyes, legs = (one[row].tolist() for one in batch.obs)
        first, second = (one[rows + row].tolist() for one in both.obs)
        assert first == [-eyes[1], -eyes[0], eyes[2], -eyes[3]]
        assert second == [legs[0], -legs[1], legs[2]]
        x, y, z = batch["continuous"][row].tolist()
        assert both["continuous"][rows + row].tolist() == [-x, z, y]
        turn, left, right = batch["discrete"][row].tolist()
        assert both["discrete"][rows + row].tolist() == [[0, 2, 1][turn], 1 - right, 1 - left]
        mask = batch["mask"][row].tolist()
        assert both["mask"][rows + row].tolist() == [mask[i] for i in (0, 2, 1, 6, 5, 4, 3)]
        old = batch["log_prob"][row].tolist()
        assert both["log_prob"][rows + row].tolist() == [old[i] for i in (0, 2, 1, 3, 5, 4)]
    for name in ("advantage", "returns", "value", "rewards", "discount"):
        assert torch.equal(both[name][rows:], batch[name])
    for name in ("obs.0", "obs.1"):
        assert torch.equal(both[f"next_{name}"][rows:], both[name][rows:].flip(0))
    assert torch.equal(both["next_mask"][rows:], both["mask"][rows:].flip(0))
    assert not (both["noise"][rows:] == batch["noise"]).any(), "a draw of its own"
    assert torch.equal(both["noise"][rows:].sort(0)[0], batch["noise"].sort(0)[0])


def test_what_is_mirrored_twice_is_as_before() -> None:
    batch = batch_of()
    twice = image(image(batch))
    for name, column in batch.rows.items():
        if "noise" not in name:
            assert torch.equal(twice[name], column), name


def test_what_is_not_listed_stays_the_same() -> None:
    batch = batch_of()
    both = Symmetry(SymmetrySettings(), SPEC, CPU)(batch)
    for name, column in batch.rows.items():
        if "noise" not in name:
            assert torch.equal(both[name][len(batch) :], column), name


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_gradient_of_ppo_is_the_mean_of_both(by_hand: bool) -> None:
    def made(**hyper: Any) -> PPO:
        return make(SPEC, network(normalize=True), **hyper)[2]

    plain = made() if by_hand else without_closed_form(made)
    ppo = made(symmetry=MIRROR) if by_hand else without_closed_form(lambda: made(symmetry=MIRROR))
    assert (ppo.closed_form is not None) == by_hand
    batch, schedule = batch_of(), plain.schedule(0)
    found, statistics = [], []
    for each, given in ((plain, batch), (plain, image(batch)), (ppo, batch)):
        each._adam = mock.Mock(param_groups=[{}])
        statistics.append(each.gradient_step(given, schedule))
        found.append([leaf.grad.clone() for leaf in each.leaves if leaf.grad is not None])
    for first, second, both in zip(*found, strict=True):
        torch.testing.assert_close(both, (first + second) / 2, rtol=1e-4, atol=1e-6)
    for tag in ("Policy/Approximate KL", "Policy/Clip Fraction"):  # nobody acted in the mirror
        torch.testing.assert_close(statistics[2][tag], statistics[0][tag])
        assert statistics[1][tag] != statistics[0][tag]


def test_advantages_of_a_minibatch_are_normalized_before_they_are_mirrored() -> None:
    ppo = make(SPEC, network(), symmetry=MIRROR, normalize_advantage_per_mini_batch=True)[2]
    assert ppo.closed_form is not None
    with mock.patch.object(ppo.closed_form, "differentiate", wraps=ppo.closed_form.differentiate) as called:
        ppo.gradient_step(batch_of(), ppo.schedule(0))
    first, second = called.call_args.args[0]["advantage"].chunk(2)
    assert torch.equal(first, second)
    assert abs(first.mean().item()) < 1e-5


@pytest.mark.parametrize("value_network", [True, False])
@pytest.mark.parametrize("stacked", [True, False])
def test_a_gradient_of_sac_is_the_mean_of_both(value_network: bool, stacked: bool) -> None:
    def gradients(given: Minibatch, symmetry: SymmetrySettings | None) -> dict[str, Tensor]:
        torch.manual_seed(1)
        hyper = SACHyperparameters(value_network=value_network, symmetry=symmetry)
        settings = TrainerSettings(trainer_type="sac", hyperparameters=hyper, network_settings=network())
        sac = make_sac(SPEC, settings, stacked=stacked)
        sac.gradient_step(given, 0.0)
        leaves = [*sac.actor.parameters(), *sac.critics.parameters]
        return {str(i): leaf.grad.clone() for i, leaf in enumerate(leaves) if leaf.grad is not None}

    batch = batch_of()
    batch = batch.with_rows({"continuous": batch["continuous"].tanh()})
    first, second, both = gradients(batch, None), gradients(image(batch), None), gradients(batch, MIRROR)
    assert first.keys() == both.keys()
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, (first[name] + second[name]) / 2, rtol=1e-3, atol=1e-6)


def test_everything_that_does_not_fit_the_agents_is_said_at_once() -> None:
    mirror = SymmetrySettings(
        observations={"Eyes": MirrorSettings(signs=[1, -1]), "Ears": MirrorSettings(), "2": MirrorSettings()},
        continuous_actions=MirrorSettings(indices=[1, 0]),
        discrete_actions=[[0, 1]],
        branches=[0],
    )
    spec = behavior([vector(4, "Eyes"), camera(3, 20, 20), entities(3, 2)], 3, (3, 2))
    with pytest.raises(UnsupportedError) as caught:
        Symmetry(mirror, spec, CPU)
    assert str(caught.value) == (
        "symmetry does not fit the behavior: sensor 1 'camera' has the shape (3, 20, 20), but only vectors can be "
        "mirrored; sensor 2 'entities' has the shape (3, 2), but only vectors can be mirrored; observations names "
        "'Ears', but the sensors are 0 'Eyes', 1 'camera', 2 'entities'; sensor 0 'Eyes' has 4 numbers, but 2 are "
        "listed; continuous_actions has 3 numbers, but 2 are listed; discrete_actions has branches of [2] actions, but "
        "the agents have branches of [3, 2]; branches has 2 numbers, but 1 are listed."
    )
    with pytest.raises(UnsupportedError, match=r"branches swaps branches of different sizes, \[3, 2\]"):
        Symmetry(SymmetrySettings(branches=[1, 0]), behavior([vector(1)], 0, (3, 2)), CPU)


HYPER: dict[str, Any] = {
    "ppo": PPOHyperparameters(batch_size=8, buffer_size=32, symmetry=MIRROR),
    "sac": SACHyperparameters(batch_size=8, buffer_size=100, steps_per_update=4, symmetry=MIRROR),
}


def rig_of(trainer_type: str, **more: Any) -> TrainerRig:
    settings = TrainerSettings(
        trainer_type=trainer_type,
        hyperparameters=HYPER[trainer_type],
        network_settings=network(normalize=True),
        reward_signals={"extrinsic": RewardSignalSettings(), "rnd": RndSettings()},
        **more,
    )
    return (Rig if trainer_type == "ppo" else OffPolicyRig)(settings, SPEC)


@pytest.mark.parametrize("trainer_type", HYPER)
def test_a_trainer_learns_and_goes_on_after_a_checkpoint(trainer_type: str) -> None:
    first, second = rig_of(trainer_type), rig_of(trainer_type)
    rnd = first.trainer.algorithm.signals[1]
    first.put(*(Trajectory(8, ended=True, agent=agent) for agent in range(5)))
    with mock.patch.object(rnd, "update", wraps=rnd.update) as learned:
        first.trainer.advance()
    assert first.trainer.algorithm.gradient_steps > 0
    assert {len(call.args[0]) for call in learned.call_args_list} == {8}, "reward signals learn from what was acted"
    restore(second.trainer, checkpoint_of(first.trainer), reset_step=False)
    assert same(weights(first.trainer), weights(second.trainer))
    if trainer_type == "ppo":
        for rig in (first, second):
            rig.rng = np.random.default_rng(3)
            rig.put(*(Trajectory(8, ended=True, agent=agent) for agent in range(5)))
            rig.trainer.advance()
        assert same(weights(first.trainer), weights(second.trainer))


def test_the_example_mirrors_what_the_simulation_does() -> None:
    """A ball that begins in the mirror, on a platform that is turned in the mirror, remains a mirror image."""
    file = Path(__file__).resolve().parents[3] / "config" / "ppo" / "3DBall_symmetric.yaml"
    hyper = run_settings(*read_file(file)).behaviors["3DBall"].hyperparameters
    assert isinstance(hyper, PPOHyperparameters)
    assert hyper.symmetry is not None
    game = make_simulation("3DBall", 3, agents=2)
    assert isinstance(game, BalanceBall)
    mirrored = Symmetry(hyper.symmetry, game.spec, CPU)
    step, random, number = game.reset(), np.random.default_rng(0), 0
    game._tilt[:, 1] = game._tilt[:, 0] * [-1, 1]
    game._ball[:, :, 1] = game._ball[:, :, 0] * [-1, 1, 1]
    while not len(step.ended):
        drawn = torch.from_numpy(random.uniform(-1, 1, (1, 2)).astype(np.float32))
        rows = {"obs.0": torch.from_numpy(step.observations[0][:1]), "continuous": drawn}
        both = mirrored(Minibatch(Columns(rows), Columns({})))
        if number:
            np.testing.assert_allclose(both.obs[0].numpy(), step.observations[0], atol=1e-5)
        step = game.step(SimulatedActions(both["continuous"].numpy(), np.zeros((2, 0), np.int32)))
        number += 1
    assert number > 5
    assert step.ended.tolist() == [0, 1]


def test_settings_survive_a_dump() -> None:
    text = """
behaviors:
  A:
    trainer_type: ppo
    hyperparameters:
      symmetry:
        observations: {Eyes: {indices: [1, 0], signs: [-1, -1]}, 1: {signs: [1]}}
        discrete_actions: [[0, 2, 1]]
"""
    settings = load(text, "a.yaml")
    hyper = settings.behaviors["A"].hyperparameters
    assert isinstance(hyper, PPOHyperparameters)
    assert hyper.symmetry is not None
    assert hyper.symmetry.observations["1"] == MirrorSettings(signs=[1])
    assert load(dump(settings), "again.yaml") == settings
