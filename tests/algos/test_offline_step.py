"""Which offline trainers take the hand-written steps, whose numbers ``test_parity`` holds, and what they save."""

from __future__ import annotations

import pytest
import torch

from tests.algos.offline_steps import sample, steps_of
from tests.algos.recorded import learner, recording
from tests.nn.specs import behavior, camera, network, vector
from trajtrainer.algos.bc.optimizer import BC
from trajtrainer.algos.bc.settings import BCHyperparameters
from trajtrainer.algos.iql.optimizer import IQL
from trajtrainer.algos.offline.closed_form import FastBC, cloning_step
from trajtrainer.nn.actor import Actor


@pytest.mark.parametrize("kind", ["bc", "iql"])
def test_a_saved_state_is_taken_over(kind: str) -> None:
    made = sample(kind, "hybrid")
    _, fast, _ = steps_of(kind, made)
    for batch in made._rows.minibatches(made._shuffled(0, 32), 2):
        fast(batch, [1e-3, 3e-3][: 1 + (kind == "iql")])
    states = fast.states()
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
