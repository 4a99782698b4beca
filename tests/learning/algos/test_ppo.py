"""PPO and POCA against ML-Agents' golden updates, and what must hold of any update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from tests.learning.algos import mlagents
from tests.learning.algos.minibatches import with_rows
from tests.learning.algos.mlagents import Case
from tests.learning.algos.samples import learner
from trajtrainer.learning.algos.poca.poca import POCA
from trajtrainer.learning.algos.poca.settings import POCAHyperparameters
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import SharedCritic, ValueNetwork
from trajtrainer.learning.nn.multi_agent import GroupCritic

CASES = [
    "poca_discrete",
    "poca_hybrid",
    "ppo_continuous",
    "ppo_continuous_fresh",
    "ppo_discrete",
    "ppo_hybrid",
    "ppo_lstm",
    "ppo_schedules_constant",
    "ppo_shared_critic",
    "ppo_visual_simple_shared",
]
EXTRA_TAGS = {"Policy/Approximate KL", "Policy/Clip Fraction", "Policy/Gradient Norm"}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, shared_data: Path) -> Case:
    return Case.read(shared_data / "golden" / "updates" / request.param)


def _ppo(case: Case, **changes: Any) -> PPO:
    settings = mlagents.with_hyperparameters(case.settings, **changes)
    hyper = settings.hyperparameters
    signals = list(settings.reward_signals)
    actor = Actor(case.spec, settings.network_settings)
    if isinstance(hyper, POCAHyperparameters):
        groups = GroupCritic(case.spec, settings.network_settings, signals)
        ppo = learner(case.spec, actor, groups, settings, POCA)
    else:
        assert isinstance(hyper, PPOHyperparameters)
        shared = hyper.shared_critic
        critic = SharedCritic(actor, signals) if shared else ValueNetwork(case.spec, settings.network_settings, signals)
        ppo = learner(case.spec, actor, critic, settings)
    mlagents.restore(ppo, case.checkpoint("start"))
    return ppo


def test_golden_updates(case: Case) -> None:
    ppo, minibatch = _ppo(case), mlagents.minibatch(case)
    for number, expected in enumerate(case.json["statistics"], start=1):
        schedule = ppo.schedule(case.json["step"])
        found = {tag: value.item() for tag, value in ppo.gradient_step(minibatch, schedule).items()}
        assert found.keys() >= EXTRA_TAGS
        found |= {
            "Policy/Learning Rate": schedule.learning_rate,
            "Policy/Epsilon": schedule.epsilon,
            "Policy/Beta": schedule.beta,
        }
        for tag, value in expected.items():
            assert found[tag] == pytest.approx(value, rel=2e-5, abs=1e-5), tag
        if (case.folder / f"after_{number}.pt").exists():
            atol = 5e-5 if isinstance(ppo, POCA) else 1e-5
            mlagents.assert_weights(ppo, case.checkpoint(f"after_{number}"), atol)


def test_golden_gradients(case: Case) -> None:
    ppo = _ppo(case)
    loss, _ = ppo.loss(mlagents.minibatch(case), ppo.schedule(case.json["step"]))
    loss.backward()  # type: ignore[no-untyped-call]
    policy = _below(case, "gradient_Policy/")
    for module, expected in ((ppo.actor, policy), (ppo.critic, _below(case, "gradient_Optimizer:critic/") or policy)):
        found = {name: p.grad for name, p in module.named_parameters()}
        for name, gradient in mlagents.gradients(module, expected).items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5, msg=f"{name} differs")


def _below(case: Case, prefix: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): torch.tensor(case.arrays[n]) for n in case.arrays if n.startswith(prefix)}


def test_entropy_weight_counts_against_the_loss(shared_data: Path) -> None:
    case = Case.read(shared_data / "golden" / "updates" / "ppo_hybrid")
    ppo, minibatch = _ppo(case), mlagents.minibatch(case)
    schedule = ppo.schedule(0)
    with torch.no_grad():
        distribution, _ = ppo.actor.distribution(minibatch.obs, minibatch["mask"])
        more, _ = ppo.loss(minibatch, type(schedule)(1e-3, 0.2, 0.5))
        less, _ = ppo.loss(minibatch, type(schedule)(1e-3, 0.2, 0.0))
    torch.testing.assert_close(less - more, 0.5 * distribution.entropy().mean())


@pytest.mark.parametrize("name", ["ppo_continuous", "poca_hybrid"])
def test_value_clipping_is_inert_until_switched_on(shared_data: Path, name: str) -> None:
    case = Case.read(shared_data / "golden" / "updates" / name)
    minibatch = mlagents.minibatch(case)
    far = with_rows(minibatch, old_values=minibatch["value"].t() + 5.0)
    losses = {}
    for clipping in (False, True):
        ppo = _ppo(case, value_clipping=clipping)
        with torch.no_grad():
            losses[clipping] = [ppo.loss(m, ppo.schedule(0))[1]["Losses/Value Loss"].item() for m in (minibatch, far)]
    assert losses[False][0] == losses[False][1]
    # The old values of the golden minibatch are its returns, with which clipping changes nothing.
    assert losses[True][0] == pytest.approx(losses[False][0], rel=1e-6)
    assert losses[True][1] > losses[False][0]


def test_clipping_of_baselines_is_always_on(shared_data: Path) -> None:
    case = Case.read(shared_data / "golden" / "updates" / "poca_hybrid")
    poca, minibatch = _ppo(case), mlagents.minibatch(case)
    far = with_rows(minibatch, baseline=minibatch["baseline"] + 5.0)
    with torch.no_grad():
        near_loss, far_loss = (poca.loss(one, poca.schedule(0))[1] for one in (minibatch, far))
    assert far_loss["Losses/Baseline Loss"] > near_loss["Losses/Baseline Loss"]
    assert far_loss["Losses/Value Loss"] == near_loss["Losses/Value Loss"]


def test_state_continues_identically(shared_data: Path) -> None:
    case = Case.read(shared_data / "golden" / "updates" / "ppo_discrete")
    minibatch = mlagents.minibatch(case)
    first, second = _ppo(case), _ppo(case)
    first.gradient_step(minibatch, first.schedule(10))
    second.actor.load_state_dict(first.actor.state_dict())
    second.critic.load_state_dict(first.critic.state_dict())
    second.load_optimizer_states(first.optimizer_states())
    for ppo in (first, second):
        ppo.gradient_step(minibatch, ppo.schedule(20))
    for ours, theirs in zip(first.actor.parameters(), second.actor.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_state_of_another_network_is_refused(shared_data: Path) -> None:
    folder = shared_data / "golden" / "updates"
    small, large = _ppo(Case.read(folder / "ppo_discrete")), _ppo(Case.read(folder / "ppo_continuous"))
    with pytest.raises(ValueError, match=r"Adam's exp_avg 4 has the shape \(5, 16\), expected"):
        large.load_optimizer_states(small.optimizer_states())


def test_diagnostics_are_left_out_on_request(shared_data: Path) -> None:
    case = Case.read(shared_data / "golden" / "updates" / "ppo_discrete")
    ppo = _ppo(case)
    found = ppo.gradient_step(mlagents.minibatch(case), ppo.schedule(0), diagnostics=False)
    assert found.keys() == {"Losses/Policy Loss", "Losses/Value Loss"}
    assert not any(value.requires_grad for value in found.values())


def test_nothing_is_learned_at_the_end_of_the_schedules(shared_data: Path) -> None:
    case = Case.read(shared_data / "golden" / "updates" / "ppo_continuous_fresh")
    ppo = _ppo(case)
    before = [p.clone() for p in ppo.actor.parameters()]
    ppo.gradient_step(mlagents.minibatch(case), ppo.schedule(evolve(case.settings, max_steps=1000).max_steps * 100))
    for old, new in zip(before, ppo.actor.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=1e-8)
