"""SAC against ML-Agents' golden updates, and what must hold of any update."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

from tests.learning.algos import mlagents, sac_mlagents
from tests.learning.algos.minibatches import with_rows
from tests.learning.algos.mlagents import Case
from trajtrainer.core.errors import CheckpointError
from trajtrainer.learning.algos.sac import losses as sac_losses
from trajtrainer.learning.algos.sac.networks import BatchedCritics
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.policies.checkpoints.mlagents.convert import from_mlagents
from trajtrainer.settings.components import ScheduleType

CASES = ["sac_continuous", "sac_continuous_two_signals", "sac_discrete", "sac_hybrid", "sac_lstm"]
NEVER_STACKED = "sac_lstm"


def _read(shared_data: Path, name: str) -> Case:
    return Case.read(shared_data / "golden" / "updates" / name)


@pytest.fixture(params=[(name, stacked) for name in CASES for stacked in (True, False) if name != NEVER_STACKED])
def way(request: pytest.FixtureRequest, shared_data: Path) -> tuple[Case, bool]:
    name, stacked = request.param
    return _read(shared_data, name), stacked


def _mlagents_value_target(q: Tensor, continuous: Tensor | None, discrete: Tensor | None) -> Tensor:
    """With both kinds of actions the entropy of the continuous ones has the wrong sign.

    See docs/explanation/mlagents-behavior.md#value-targets.
    """
    if continuous is not None and discrete is not None:
        continuous = -continuous
    return sac_losses.value_target(q, continuous, discrete)


def _mlagents_value_loss(values: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Padding counts (docs/explanation/mlagents-behavior.md#padding)."""
    return sac_losses.value_loss(values, targets, None)


def _mlagents_entropy_target(forbidden: Tensor, sum_by_branch: Tensor, mask: Tensor | None) -> Tensor:
    """Masks do not count."""
    return sac_losses.entropy_target(torch.zeros_like(forbidden), sum_by_branch, mask)


class _MLAgentsLosses:
    """``sac_losses`` with ML-Agents' defects."""

    value_target = staticmethod(_mlagents_value_target)
    value_loss = staticmethod(_mlagents_value_loss)
    entropy_target = staticmethod(_mlagents_entropy_target)

    def __getattr__(self, name: str) -> Any:
        return getattr(sac_losses, name)


@pytest.fixture
def with_mlagents_defects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.learning.algos.sac.sac.losses", _MLAgentsLosses())


def _update(sac: SAC, case: Case, number: int, batch: Minibatch) -> dict[str, float]:
    rate = sac.learning_rate(case.json["step"])
    found = sac.gradient_step(sac_mlagents.with_noise(batch, case, number), rate)
    return {tag: value.item() for tag, value in found.items()} | {"Policy/Learning Rate": rate}


def _assert_golden_updates(case: Case, stacked: bool) -> None:
    sac, batch = sac_mlagents.restored(case, stacked=stacked), sac_mlagents.transitions(case)
    assert isinstance(sac.critics, BatchedCritics) == stacked
    for number, expected in enumerate(case.json["statistics"], start=1):
        found = _update(sac, case, number, batch)
        assert found.keys() == expected.keys()
        for tag, value in expected.items():
            wanted = float("nan") if value is None else value
            assert found[tag] == pytest.approx(wanted, rel=2e-5, abs=1e-5, nan_ok=True), tag
        for kind, value in sac_mlagents.coefficients(case, f"update_{number}_after").items():
            torch.testing.assert_close(sac_mlagents.log_alpha(sac)[kind], value, rtol=1e-5, atol=1e-6)
        if (case.folder / f"after_{number}.pt").exists():
            _assert_state(sac, case.checkpoint(f"after_{number}"))


def _assert_state(sac: SAC, checkpoint: dict[str, Any]) -> None:
    """Weights, normalizers and Adams are ML-Agents'."""
    found = sac_mlagents.state(sac)
    expected = from_mlagents(checkpoint, found)
    for module, entries in found["modules"].items():
        for name, value in entries.items():
            torch.testing.assert_close(
                value, expected["modules"][module][name], rtol=1e-5, atol=1e-5, msg=f"{module}.{name} differs"
            )
    for optimizer, state in found["optimizers"].items():
        theirs = expected["optimizers"][optimizer]["state"]
        assert state["state"].keys() == theirs.keys(), optimizer
        for index, moments in state["state"].items():
            for name, value in moments.items():
                torch.testing.assert_close(value, theirs[index][name], rtol=1e-4, atol=1e-6)


def test_golden_updates(way: tuple[Case, bool], request: pytest.FixtureRequest) -> None:
    case, stacked = way
    if "continuous" not in case.folder.name:
        request.getfixturevalue("with_mlagents_defects")
    _assert_golden_updates(case, stacked)


@pytest.mark.usefixtures("with_mlagents_defects")
def test_golden_updates_of_sequences(shared_data: Path) -> None:
    _assert_golden_updates(_read(shared_data, NEVER_STACKED), stacked=False)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("with_mlagents_defects")
def test_golden_gradients(shared_data: Path, name: str) -> None:
    case = _read(shared_data, name)
    sac = sac_mlagents.restored(case, stacked=False)
    sac_mlagents.gradients_of(sac, sac_mlagents.with_noise(sac_mlagents.transitions(case), case, 1))
    homes = {"critic": "Optimizer:value_network/", "q1": "Optimizer:q_network/q1_network."}
    homes |= {"actor": "Policy/", "q2": "Optimizer:q_network/q2_network."}
    for name, prefix in homes.items():
        module = sac_mlagents.modules(sac)[name]
        _assert_gradients(module, mlagents.gradients(module, _below(case, f"gradient_{prefix}")))
    for kind, log_alpha in (("continuous", sac.log_alpha_continuous), ("discrete", sac.log_alpha_discrete)):
        if f"gradient_log_ent_coef_{kind}" in case.arrays and log_alpha.grad is not None:
            expected = torch.tensor(case.arrays[f"gradient_log_ent_coef_{kind}"])
            torch.testing.assert_close(log_alpha.grad, expected, rtol=1e-5, atol=1e-5)


def _below(case: Case, prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): torch.tensor(case.arrays[n]) for n in case.arrays if n.startswith(prefix)}


def _assert_gradients(module: nn.Module, expected: dict[str, Tensor]) -> None:
    found = dict(module.named_parameters())
    assert expected
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].grad, gradient, rtol=1e-5, atol=1e-5, msg=f"{name} differs")


# What ML-Agents gets wrong: ours gives other numbers than the golden ones, and the right ones.


def _targets(sac: SAC, batch: Minibatch) -> Tensor:
    found = []
    with pytest.MonkeyPatch.context() as patch:
        value_loss = sac_losses.value_loss

        def spy(values: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
            found.append(targets)
            return value_loss(values, targets, mask)

        patch.setattr(sac_losses, "value_loss", spy)
        sac_mlagents.gradients_of(sac, batch)
    return found[0]


def test_entropy_of_continuous_actions_is_paid_for_beside_discrete_ones_too(shared_data: Path) -> None:
    case = _read(shared_data, "sac_hybrid")
    losses = []
    for log_alpha in (-20.0, 0.0):
        sac = sac_mlagents.restored(case)
        nothing = torch.full_like(sac.log_alpha_discrete, -20.0)
        sac_mlagents.load_log_alpha(sac, {"discrete": nothing, "continuous": torch.tensor([log_alpha])})
        batch = sac_mlagents.with_noise(sac_mlagents.transitions(case), case, 1)
        losses.append(_targets(sac, batch)[0])
    without, with_entropy = losses
    expected = -torch.tensor(case.arrays["update_1_sampled_log_probs_continuous"]).sum(1)
    torch.testing.assert_close(with_entropy[0] - without[0], expected, rtol=1e-4, atol=1e-4)


def test_mlagents_number_for_both_kinds_of_actions_is_not_ours(shared_data: Path) -> None:
    case = _read(shared_data, "sac_hybrid")
    found = _update(sac_mlagents.restored(case), case, 1, sac_mlagents.transitions(case))
    expected = case.json["statistics"][0]
    assert found["Losses/Value Loss"] != pytest.approx(expected["Losses/Value Loss"], rel=1e-2)
    for tag in ("Losses/Policy Loss", "Losses/Q1 Loss", "Losses/Q2 Loss"):
        assert found[tag] == pytest.approx(expected[tag], rel=2e-5), tag


def test_the_entropy_wanted_is_a_fifth_of_what_masks_allow() -> None:
    """A branch of 3 and one of 2, of which two states of three allow but one action."""
    forbidden = torch.tensor([[0, 0, 0, 0, 1], [1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]).bool()
    sum_by_branch = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 2)
    expected = 0.2 * torch.tensor([(math.log(3) + math.log(2)) / 3, math.log(2) / 3])
    torch.testing.assert_close(sac_losses.entropy_target(forbidden, sum_by_branch, None), expected)
    of_first = sac_losses.entropy_target(forbidden, sum_by_branch, torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(of_first, 0.2 * torch.tensor([math.log(3), 0.0]))
    assert (_mlagents_entropy_target(forbidden, sum_by_branch, None) > expected).all()


def test_a_coefficient_does_not_grow_for_entropy_that_masks_forbid(shared_data: Path) -> None:
    """Where one action of each branch is allowed there is no entropy, and none is wanted; ML-Agents wants it anyway, so
    that its coefficients grow without end."""
    case = _read(shared_data, "sac_discrete")
    batch = sac_mlagents.transitions(case)
    forced = with_rows(batch, mask=torch.tensor([[0, 1, 1, 0, 1]]).bool().expand_as(batch["mask"]))
    sac = sac_mlagents.restored(case)
    sac_mlagents.gradients_of(sac, forced)
    assert sac.log_alpha_discrete.grad is not None
    assert sac.log_alpha_discrete.grad.abs().max() < 1e-5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trajtrainer.learning.algos.sac.sac.losses", _MLAgentsLosses())
        sac_mlagents.gradients_of(sac, forced)
    assert (sac.log_alpha_discrete.grad < -0.05).all()


def _without_padding(case: Case) -> tuple[Minibatch, Minibatch]:
    """The golden sequences, with their padding filled with other numbers, and only those without padding."""
    batch = sac_mlagents.with_noise(sac_mlagents.transitions(case), case, 1)
    assert batch.loss_mask is not None
    padding = batch.loss_mask == 0
    assert padding.any()
    columns = {
        "obs.0": torch.where(padding[:, None], 7.0, batch.obs[0]),
        "next_obs.0": torch.where(padding[:, None], -7.0, batch.next_obs[0]),
        "rewards": torch.where(padding, 100.0, batch["rewards"].t()),
        "noise": torch.where(padding[:, None], 3.0, batch["noise"]),
    }
    rubbish = with_rows(batch, **columns)
    return batch, rubbish


def test_padding_changes_nothing(shared_data: Path) -> None:
    case = _read(shared_data, "sac_lstm")
    clean, rubbish = _without_padding(case)
    first, second = sac_mlagents.restored(case), sac_mlagents.restored(case)
    sac_mlagents.gradients_of(first, clean)
    sac_mlagents.gradients_of(second, rubbish)
    for ours, theirs in zip(*(each._optimizer.param_groups[0]["params"] for each in (first, second)), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    found = sac_mlagents.gradients_of(second, rubbish)
    for tag, value in sac_mlagents.gradients_of(first, clean).items():
        torch.testing.assert_close(found[tag], value, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.usefixtures("with_mlagents_defects")
def test_padding_changes_mlagents_losses(shared_data: Path) -> None:
    case = _read(shared_data, "sac_lstm")
    clean, rubbish = _without_padding(case)
    sac = sac_mlagents.restored(case)
    found = [sac_mlagents.gradients_of(sac, batch)["Losses/Q1 Loss"].item() for batch in (clean, rubbish)]
    assert found[0] != pytest.approx(found[1], rel=0.1)


# Any update.


def test_a_state_is_copied_when_it_is_loaded(shared_data: Path) -> None:
    case = _read(shared_data, "sac_continuous")
    first, second = sac_mlagents.restored(case), sac_mlagents.restored(case)
    second.load_optimizer_states(first.optimizer_states())
    before = [moments["exp_avg"].clone() for moments in first.optimizer_states()["value"]["state"].values()]
    _update(second, case, 1, sac_mlagents.transitions(case))
    after = [moments["exp_avg"] for moments in first.optimizer_states()["value"]["state"].values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_state_of_another_network_is_refused(shared_data: Path) -> None:
    small, large = (sac_mlagents.restored(_read(shared_data, name)) for name in ("sac_discrete", "sac_continuous"))
    with pytest.raises(ValueError, match=r"Adam's exp_avg 4 has the shape \(5, 16\), expected"):
        large.load_optimizer_states(small.optimizer_states())
    with pytest.raises(CheckpointError, match="entropy coefficients do not fit the agents' actions"):
        sac_mlagents.load_log_alpha(large, sac_mlagents.log_alpha(small))


def test_moments_of_some_parameters(shared_data: Path) -> None:
    case = _read(shared_data, "sac_continuous")
    sac = sac_mlagents.restored(case)
    states = sac.optimizer_states()
    del states["policy"]["state"][0]
    states["entropy"]["state"].clear()
    sac.load_optimizer_states(states)
    assert 0 not in sac.optimizer_states()["policy"]["state"]
    assert sac.optimizer_states()["entropy"]["state"] == {}
    _update(sac, case, 1, sac_mlagents.transitions(case))
    assert sac.optimizer_states()["entropy"]["state"][1]["step"] == 1


def test_the_target_follows_by_tau(shared_data: Path) -> None:
    case = _read(shared_data, "sac_continuous")
    settings = mlagents.with_hyperparameters(case.settings, tau=0.25)
    for stacked in (True, False):
        sac = sac_mlagents.make_sac(case.spec, settings, stacked=stacked)
        networks = sac_mlagents.modules(sac)
        before = [parameter.clone() for parameter in networks["target"].parameters()]
        _update(sac, case, 1, sac_mlagents.transitions(case))
        critic, target = networks["critic"].parameters(), networks["target"].parameters()
        for old, new, followed in zip(before, target, critic, strict=True):
            torch.testing.assert_close(new, 0.75 * old + 0.25 * followed)
            assert not new.requires_grad


def test_what_goes_into_a_loss(shared_data: Path) -> None:
    """The policy's loss reaches the policy only, and its gradients are those of the first Q network alone."""
    case = _read(shared_data, "sac_hybrid")
    batch = sac_mlagents.with_noise(sac_mlagents.transitions(case), case, 1)
    for stacked in (True, False):
        gradients = []
        for spoilt in (None, "q2", "critic", "target"):
            sac = sac_mlagents.restored(case, stacked=stacked)
            if spoilt is not None:
                with torch.no_grad():
                    for parameter in sac_mlagents.modules(sac)[spoilt].parameters():
                        parameter.mul_(2.0)
            sac_mlagents.gradients_of(sac, batch)
            gradients.append([p.grad for p in sac.actor.parameters()])
        for other in gradients[1:]:
            for ours, theirs in zip(gradients[0], other, strict=True):
                torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_a_coefficient_falls_while_there_is_more_entropy_than_wanted(shared_data: Path, name: str) -> None:
    case = _read(shared_data, name)
    sac, batch = sac_mlagents.restored(case), sac_mlagents.transitions(case)
    entropy = sac.decide(batch.obs, batch["mask"], batch["noise"], batch.memory, batch.sequence_length)
    sac_mlagents.gradients_of(sac, batch)
    if entropy.continuous_entropy is not None:
        mean = sac_losses.mean_of_rows(entropy.continuous_entropy, batch.loss_mask)
        assert sac.log_alpha_continuous.grad is not None
        assert (sac.log_alpha_continuous.grad > 0) == (mean > -case.spec.action_spec.continuous_size)
    if entropy.discrete_entropy is not None:
        means = sac_losses.mean_of_rows(entropy.discrete_entropy, batch.loss_mask)
        targets = sac_losses.entropy_target(batch["mask"], sac._sum_by_branch, batch.loss_mask)
        assert sac.log_alpha_discrete.grad is not None
        assert torch.equal(sac.log_alpha_discrete.grad > 0, means > targets)


def test_nothing_is_learned_at_the_end_of_a_schedule(shared_data: Path) -> None:
    case = _read(shared_data, "sac_continuous")
    linear = mlagents.with_hyperparameters(case.settings, learning_rate_schedule=ScheduleType.LINEAR)
    settings = evolve(linear, max_steps=1000)
    sac = sac_mlagents.make_sac(case.spec, settings)
    assert sac.learning_rate(500) == pytest.approx(5e-4, rel=1e-3)
    before = [parameter.clone() for parameter in sac.actor.parameters()]
    sac.gradient_step(sac_mlagents.transitions(case), sac.learning_rate(100_000))
    for old, new in zip(before, sac.actor.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=1e-8)


def test_coefficients_start_where_the_settings_say(shared_data: Path) -> None:
    case = _read(shared_data, "sac_hybrid")
    sac = sac_mlagents.make_sac(case.spec, mlagents.with_hyperparameters(case.settings, init_entcoef=0.1))
    for value in sac_mlagents.log_alpha(sac).values():
        torch.testing.assert_close(value.exp(), torch.full_like(value, 0.1))


def test_deterministic_actions_are_squashed(shared_data: Path) -> None:
    """ML-Agents' are not (docs/explanation/mlagents-behavior.md#actions)."""
    case = _read(shared_data, "sac_continuous")
    sac, batch = sac_mlagents.restored(case), sac_mlagents.transitions(case)
    with torch.no_grad():
        sac.actor.head.mu.weight.mul_(50.0)  # type: ignore[union-attr]
        policy, _ = sac.actor.distribution(batch.obs, batch["mask"])
    assert policy.mu.abs().max() > 1.0
    assert policy.deterministic().continuous.abs().max() <= 1.0


def test_networks_are_of_sacs_kind(shared_data: Path) -> None:
    case = _read(shared_data, "sac_hybrid")
    sac = sac_mlagents.make_sac(case.spec, case.settings)
    assert isinstance(sac.actor, Actor)
    assert sac.actor.head.conditional_sigma
    assert sac.actor.head.tanh_squash
    assert isinstance(sac.networks["q1"], ValueNetwork)
    assert sac.networks["q1"].heads.outputs == 5
    networks = sac_mlagents.modules(sac)
    for one, other in zip(networks["critic"].parameters(), networks["target"].parameters(), strict=True):
        assert torch.equal(one, other), "the target begins as a copy"
