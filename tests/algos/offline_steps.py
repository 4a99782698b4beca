"""Steps of the offline trainers, hand-written and by autograd, from the same weights."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from tests.algos.recorded import learner, recording
from tests.algos.samples import SPECS
from tests.nn.specs import network
from trajtrainer.algos.bc.optimizer import BC
from trajtrainer.algos.bc.settings import BCHyperparameters
from trajtrainer.algos.iql.optimizer import IQL, IQLNetworks
from trajtrainer.algos.iql.settings import IQLHyperparameters
from trajtrainer.algos.offline.closed_form import FastBC, FastIQL
from trajtrainer.algos.offline.learner import OfflineLearner

Numbers = dict[str, Any]


def steps_of(kind: str, made: OfflineLearner) -> tuple[Any, Any, list[dict[str, nn.Module]]]:
    """Return both ways from the same weights, and the networks of each."""
    ours: list[dict[str, Any]] = [{name: copy.deepcopy(one) for name, one in made.networks.items()} for _ in range(2)]
    if kind == "bc":
        hyper = BCHyperparameters(weight_decay=0.01)
        return BC(ours[0]["actor"], hyper), FastBC(ours[1]["actor"], hyper), ours
    iql = IQLHyperparameters(weight_decay=0.01, temperature=1.0)
    return IQL(IQLNetworks(**ours[0]), iql), FastIQL(IQLNetworks(**ours[1]), iql), ours


def sample(kind: str, spec_name: str) -> OfflineLearner:
    spec = SPECS[spec_name]
    made = learner(kind, spec, recording(spec, [30, 50, 20]), net=network(normalize=True), hyper={"batch_size": 16})
    made._copy_normalization()
    return made


def numbers_of(kind: str, spec_name: str) -> tuple[Numbers, Numbers]:
    """Statistics, weights and optimizer states after six steps: hand-written, by autograd."""
    made = sample(kind, spec_name)
    slow, fast, networks = steps_of(kind, made)
    rates = [1e-3, 3e-3][: 1 + (kind == "iql")]
    found: tuple[Numbers, Numbers] = ({}, {})
    for number, batch in enumerate(made._rows.minibatches(made._shuffled(0, 16 * 6), 6)):
        for step, numbers in zip((fast, slow), found, strict=True):
            numbers |= {f"{tag} {number}": value.float() for tag, value in step(batch, rates).items()}
    for step, one, numbers in zip((fast, slow), networks[::-1], found, strict=True):
        for name, module in one.items():
            numbers |= {f"{name}.{entry}": value for entry, value in module.state_dict().items()}
        for name, state in step.states().items():
            for index, moments in state["state"].items():
                numbers |= {f"{name} {index} {entry}": value for entry, value in moments.items()}
    return found
