"""The hand-written backward passes of the offline trainers, beside autograd."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.algos.recorded import learner, recording
from tests.fast.samples import SPECS
from tests.nn.specs import behavior, camera, network, vector
from trajtrainer.algos.bc.optimizer import BC
from trajtrainer.algos.iql.optimizer import IQL, IQLNetworks
from trajtrainer.algos.offline.learner import OfflineLearner
from trajtrainer.fast.offline_step import FastBC, FastIQL, cloning_step
from trajtrainer.nn.actor import Actor
from trajtrainer.settings.trainer import BCHyperparameters, IQLHyperparameters


def steps_of(kind: str, made: OfflineLearner) -> tuple[Any, Any, list[dict[str, nn.Module]]]:
    """Return both ways from the same weights, and the networks of each."""
    ours: list[dict[str, Any]] = [{name: copy.deepcopy(one) for name, one in made.networks.items()} for _ in range(2)]
    if kind == "bc":
        hyper = BCHyperparameters(weight_decay=0.01)
        return BC(ours[0]["actor"], hyper), FastBC(ours[1]["actor"], hyper), ours
    iql = IQLHyperparameters(weight_decay=0.01, temperature=1.0)
    return IQL(IQLNetworks(**ours[0]), iql), FastIQL(IQLNetworks(**ours[1]), iql), ours


def assert_close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("spec_name", SPECS)
@pytest.mark.parametrize("kind", ["bc", "iql"])
def test_a_hand_written_step_is_that_of_autograd(kind: str, spec_name: str) -> None:
    spec = SPECS[spec_name]
    made = learner(kind, spec, recording(spec, [30, 50, 20]), net=network(normalize=True), hyper={"batch_size": 16})
    made._copy_normalization()
    slow, fast, (expected, found) = steps_of(kind, made)
    rates = [1e-3, 3e-3][: 1 + (kind == "iql")]
    for batch in made._rows.minibatches(made._shuffled(0, 16 * 6), 6):
        statistics, others = slow(batch, rates), fast(batch, rates)
        assert statistics.keys() == others.keys()
        for tag, value in statistics.items():
            assert_close(others[tag].float(), value, tag)
    for name, one in expected.items():
        for entry, value in one.state_dict().items():
            assert_close(found[name].state_dict()[entry], value, f"{name}.{entry}")
    states = fast.states()
    for name, state in slow.states().items():
        for index, moments in state["state"].items():
            for entry, value in moments.items():
                assert_close(states[name]["state"][index][entry], value, f"{name} {index} {entry}")
    _, fresh, _ = steps_of(kind, made)
    fresh.load_states(states)
    for name, state in fresh.states().items():
        torch.testing.assert_close(state["state"], states[name]["state"], rtol=0, atol=0)


def test_only_plain_networks_are_fast() -> None:
    spec = behavior([vector(4)], 2)
    hyper = BCHyperparameters()
    assert isinstance(cloning_step(Actor(spec, network()), hyper), FastBC)
    assert isinstance(cloning_step(Actor(spec, network(memory=8)), hyper), BC)
    assert isinstance(cloning_step(Actor(spec, network(), conditional_sigma=True, tanh_squash=True), hyper), BC)
    assert isinstance(cloning_step(Actor(behavior([camera(3, 20, 20)]), network()), hyper), BC)
    pictures = behavior([camera(1, 20, 20)], 2)
    iql = learner("iql", pictures, recording(pictures, [6, 5]), hyper={"batch_size": 4})
    assert isinstance(iql._step, IQL)
