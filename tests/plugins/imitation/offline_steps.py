"""Gradient steps of the offline trainers, in closed form and by autograd, from the same weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.learning.algos.recorded import recording
from tests.learning.algos.samples import SPECS
from tests.learning.nn.specs import network
from tests.plugins.imitation.learners import learner
from trajtrainer.plugins.imitation import bc, iql
from trajtrainer.plugins.imitation.offline import Offline

Numbers = dict[str, Any]


def sample(kind: str, spec_name: str, *, closed_form: bool = True) -> Offline:
    spec, hyper = SPECS[spec_name], {"batch_size": 16, "weight_decay": 0.01}
    if kind == "iql":
        hyper |= {"temperature": 1.0, "learning_rate": 1e-3, "critic_learning_rate": 3e-3}
    else:
        hyper |= {"learning_rate": 1e-3}
    with pytest.MonkeyPatch.context() as patch:
        if not closed_form:
            for module in (bc, iql):
                patch.setattr(module, "closed_form", lambda *_: None)
        made = learner(kind, spec, recording(spec, [30, 50, 20]), net=network(normalize=True), hyper=hyper)
    made._copy_normalization()
    return made


def numbers_of(kind: str, spec_name: str) -> tuple[Numbers, Numbers]:
    """Statistics, weights and optimizer states after six steps: in closed form, by autograd."""
    fast, slow = sample(kind, spec_name), sample(kind, spec_name, closed_form=False)
    for name, network_ in slow.networks.items():
        network_.load_state_dict(copy.deepcopy(fast.networks[name].state_dict()))
    found: tuple[Numbers, Numbers] = ({}, {})
    for made, numbers in zip((fast, slow), found, strict=True):
        for number, batch in enumerate(made._rows.minibatches(made._shuffled(0, 16 * 6), 6)):
            numbers |= {f"{tag} {number}": value.float() for tag, value in made.gradient_step(batch, 0).items()}
        for name, module in made.networks.items():
            numbers |= {f"{name}.{entry}": value for entry, value in module.state_dict().items()}
        for name, state in made.optimizer_states().items():
            for index, moments in state["state"].items():
                numbers |= {f"{name} {index} {entry}": value for entry, value in moments.items()}
    return found
