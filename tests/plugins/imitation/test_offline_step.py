"""Which offline trainers have a closed form, whose numbers ``test_parity`` checks, and what they save."""

from __future__ import annotations

import pytest
import torch

from tests.learning.algos.recorded import recording
from tests.learning.nn.specs import behavior, camera, network, vector
from tests.plugins.imitation.learners import learner
from tests.plugins.imitation.offline_steps import sample
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.plugins.imitation.bc import Cloner
from trajtrainer.plugins.imitation.iql import IQL
from trajtrainer.plugins.imitation.settings import BCHyperparameters


@pytest.mark.parametrize("kind", ["bc", "iql"])
def test_a_saved_state_is_taken_over(kind: str) -> None:
    made = sample(kind, "hybrid")
    for batch in made._rows.minibatches(made._shuffled(0, 32), 2):
        made.gradient_step(batch, 0)
    states = made.optimizer_states()
    fresh = sample(kind, "hybrid")
    fresh.load_optimizer_states(states)
    for name, state in fresh.optimizer_states().items():
        torch.testing.assert_close(state["state"], states[name]["state"], rtol=0, atol=0)


def test_only_plain_networks_have_a_closed_form() -> None:
    spec = behavior([vector(4)], 2)
    hyper = BCHyperparameters()
    assert Cloner(Actor(spec, network()), hyper).closed_form is not None
    assert Cloner(Actor(spec, network(memory=8)), hyper).closed_form is None
    assert Cloner(Actor(spec, network(), conditional_sigma=True, tanh_squash=True), hyper).closed_form is None
    assert Cloner(Actor(behavior([camera(3, 20, 20)]), network()), hyper).closed_form is None
    pictures = behavior([camera(1, 20, 20)], 2)
    iql = learner("iql", pictures, recording(pictures, [6, 5]), hyper={"batch_size": 4})
    assert isinstance(iql, IQL)
    assert iql.closed_form is None
