"""XQC and minibatches for the tests of its twin."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from tests.learning.algos.minibatches import minibatch_of
from tests.learning.algos.samples import ROWS, SPECS, minibatch
from tests.learning.nn.specs import network
from trajtrainer.core.timers import Timers
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.xqc.closed_form import CriticsClosedForm, closed_form
from trajtrainer.learning.algos.xqc.settings import XQCHyperparameters
from trajtrainer.learning.algos.xqc.xqc import XQC
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.normalization import BatchNorm
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.learning.trainers.factory import create_algorithm
from trajtrainer.settings.components import RewardSignalSettings
from trajtrainer.settings.trainer import TrainerSettings

CASES = [(name, signals, layers) for name in SPECS for signals in (1, 2) for layers in (1, 3)]
Numbers = dict[str, Any]


def make(name: str, signals: int, layers: int, *, by_hand: bool) -> tuple[XQC, Minibatch]:
    """XQC whose normalizations are nothing special, and rows of which the half are as many as the other."""
    rewards = {"extrinsic": RewardSignalSettings(), "rnd": RndSettings()}
    settings = TrainerSettings(
        trainer_type="xqc",
        hyperparameters=XQCHyperparameters(critic_hidden_units=12, critic_num_layers=layers),
        network_settings=network(),
        reward_signals=dict(list(rewards.items())[:signals]),
    )
    context = LearningContext(
        behavior="B",
        spec=SPECS[name],
        settings=settings,
        obs_dtypes=[np.dtype(np.float32)] * len(SPECS[name].observation_specs),
        seed=4,
        device=torch.device("cpu"),
        training=False,
        timers=Timers(),
        is_stopping=lambda: False,
    )
    with mock.patch("trajtrainer.learning.algos.xqc.xqc.closed_form", closed_form if by_hand else lambda *_: None):
        xqc = create_algorithm(context)
    assert isinstance(xqc, XQC)
    assert (xqc.closed_form is not None) == by_hand
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for network_name in ("q1", "q2", "q1_target", "q2_target", "actor"):
            for norm in xqc.networks[network_name].modules():
                if isinstance(norm, BatchNorm):
                    norm.mean.normal_(generator=generator)
                    norm.var.uniform_(0.5, 2.0, generator=generator)
                    norm.scale.uniform_(0.5, 2.0, generator=generator)
                    norm.shift.normal_(generator=generator)
    seen, rng = minibatch(SPECS[name]), torch.Generator().manual_seed(5)
    noise = [torch.randn(seen["continuous"].shape, generator=rng) for _ in range(2)]
    return xqc, minibatch_of(
        obs=seen.obs,
        next_obs=tuple(torch.randn(one.shape, generator=rng) for one in seen.obs),
        mask=seen["mask"],
        continuous=seen["continuous"].tanh(),
        discrete=seen["discrete"],
        rewards=torch.randn(signals, ROWS, generator=rng),
        discount=torch.full((signals, ROWS), 0.9),
        noise=noise[0],
        next_mask=torch.zeros_like(seen["mask"]),
        next_noise=noise[1],
    )


def joint(case: tuple[str, int, int], *, by_hand: bool) -> Numbers:
    """What both say of a batch, and the gradient of every parameter for some gradient of the logits."""
    xqc, batch = make(*case, by_hand=by_hand)
    size = batch["continuous"].shape[1]
    following, critics = xqc.critics.joint(batch, batch["next_noise"].tanh() if size else None)
    logits = []
    for critic in critics:
        critic.backward(critic.logits.cos())
        logits.append(critic.logits)
    statistics = {
        f"{name}.{entry}": value.clone()
        for name in ("q1", "q2")
        for entry, value in xqc.networks[name].state_dict().items()
        if entry.endswith((".mean", ".var"))
    }
    return {"logits": torch.stack(logits), "following": following, **statistics, **gradients(xqc)}


def means(case: tuple[str, int, int], *, by_hand: bool) -> Numbers:
    """Expected returns by running statistics, and their gradient by the action."""
    xqc, batch = make(*case, by_hand=by_hand)
    action = (0.5 * batch["continuous"]).requires_grad_() if batch["continuous"].shape[1] else None
    if isinstance(xqc.critics, CriticsClosedForm):
        found, by_action = xqc.critics.means(batch, action)
        return {"means": found} if action is None else {"means": found, "by action": by_action(found.cos())}
    found = xqc.critics.means(batch, action)
    if action is None:
        return {"means": found}
    (gradient,) = torch.autograd.grad(found.sin().sum(), [action])
    return {"means": found, "by action": gradient}


def policy(case: tuple[str, int, int], *, by_hand: bool) -> Numbers:
    """The policy's loss, the gradients of its parameters and of the entropy coefficients, and what it remembers."""
    xqc, batch = make(*case, by_hand=by_hand)
    with torch.no_grad():  # so that some standard deviations are at their limits
        if xqc.actor.head.log_sigma_layer is not None:
            xqc.actor.head.log_sigma_layer.bias.add_(torch.tensor([-10.0, 0.5, 2.0])[: batch["noise"].shape[1]])
    xqc.deviations = torch.tensor([0.5, 3.0])[: batch["rewards"].shape[1]]
    found = xqc.gradient_step(batch, 0.0)["Losses/Policy Loss"]
    coefficients = {"continuous": xqc.log_alpha_continuous.grad, "discrete": xqc.log_alpha_discrete.grad}
    statistics = {name: one for name, one in xqc.actor.state_dict().items() if name.endswith((".mean", ".var"))}
    return {"loss": found, **gradients(xqc, "actor"), **statistics} | {
        name: one for name, one in coefficients.items() if one is not None
    }


def after(case: tuple[str, int, int], ways: str) -> Numbers:
    """Weights and moments after updates: c by the closed form, r by the reference, - hands them on only."""
    last: XQC | None = None
    for way in ways:
        xqc, batch = make(*case, by_hand=way == "c")
        if last is not None:
            for name, module in xqc.networks.items():
                module.load_state_dict(last.networks[name].state_dict())
            xqc.load_optimizer_states(last.optimizer_states())
            xqc.load_extra_state(last.extra_state(), 0)
        if way != "-":
            xqc.gradient_step(batch, 1e-5)  # Adam makes whole steps of what differs by rounding
        last = xqc
    assert last is not None
    weights = {f"{name}.{key}": value for name, one in last.networks.items() for key, value in one.state_dict().items()}
    for name, state in last.optimizer_states().items():
        for number, moments in state["state"].items():
            weights |= {f"{name} {number} {key}": value for key, value in moments.items()}
    return weights


def gradients(xqc: XQC, network: str = "critics") -> dict[str, Tensor]:
    """The gradients of the critics' parameters, or of the policy's, by their names."""
    parts = ["actor"] if network == "actor" else ["q1", "q2"]
    names = [f"{part}.{name}" for part in parts for name, _ in xqc.networks[part].named_parameters()]
    pieces = xqc._pieces["policy" if network == "actor" else "value"]
    places = dict(zip(names, pieces, strict=True))
    return {name: piece.view(piece.leaf.grad) for name, piece in places.items() if piece.leaf.grad is not None}
