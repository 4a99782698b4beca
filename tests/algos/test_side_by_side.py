"""Work on two cores, and that a gradient step made there is the one made on one."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.algos.test_stacked_networks import ROWS, minibatch
from tests.nn.specs import behavior, camera, network, vector
from trajtrainer.algos import ppo as ppo_module
from trajtrainer.algos import side_by_side
from trajtrainer.algos.ppo import PPO
from trajtrainer.algos.side_by_side import SideBySide
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import Critic
from trajtrainer.nn.init import seeded
from trajtrainer.settings.trainer import TrainerSettings


@pytest.mark.parametrize("cores", [1, 2])
def test_results_come_in_the_order_of_the_arguments(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: cores)
    found = SideBySide().run(lambda number: (number, threading.current_thread()), [(1,), (2,)])
    assert [number for number, _ in found] == [1, 2]
    assert len({thread for _, thread in found}) == cores


@pytest.mark.parametrize("wrong", [0, 1])
def test_errors_come_through(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 2)

    def divide(number: int) -> float:
        return 1 / number

    arguments = [(1,), (1,)]
    arguments[wrong] = (0,)
    threads = SideBySide()
    with pytest.raises(ZeroDivisionError):
        threads.run(divide, arguments)
    assert threads.run(divide, [(1,), (2,)]) == [1.0, 0.5]


def test_a_long_gradient_step_is_the_same_on_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that are not stacked: with a camera."""
    spec = behavior([camera(3, 20, 20), vector(4)], 2, (3,))
    batch = minibatch(spec)
    assert len(batch) == ROWS

    def weights_after_steps(long_s: float, cores: int) -> tuple[list[torch.Tensor], set[str]]:
        monkeypatch.setattr(ppo_module, "_LONG_S", long_s)
        monkeypatch.setattr(side_by_side, "usable_cores", lambda: cores)
        with seeded(5):
            actor, critic = Actor(spec, network()), Critic(spec, network(), ("extrinsic", "rnd"))
        ppo = PPO(actor, critic, TrainerSettings(network_settings=network()))
        threads: set[str] = set()
        monkeypatch.setattr(ppo, "_actor_loss", _noting(threads, ppo._actor_loss))
        monkeypatch.setattr(ppo, "_critic_loss", _noting(threads, ppo._critic_loss))
        for _ in range(8):
            statistics = ppo.update(batch, ppo.coefficients(0))
        assert statistics.keys() >= {"Losses/Policy Loss", "Losses/Value Loss", "Policy/Gradient Norm"}
        return [*actor.parameters(), *critic.parameters(), *statistics.values()], threads

    alone, one_thread = weights_after_steps(1e9, 2)
    together, two_threads = weights_after_steps(0.0, 2)
    assert len(one_thread) == 1
    assert len(two_threads) == 2
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    assert len(weights_after_steps(0.0, 1)[1]) == 1


def _noting(threads: set[str], loss_of: object) -> object:
    def noting(*arguments: object) -> object:
        threads.add(threading.current_thread().name)
        return loss_of(*arguments)  # type: ignore[operator]

    return noting
