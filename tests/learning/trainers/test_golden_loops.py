"""A whole policy update over a buffer against ML-Agents', with ML-Agents' order of minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.experience.packing import packed_steps
from tests.learning.algos.mlagents import Case, groupmates
from tests.learning.trainers.rig import Rig, restore
from trajtrainer.learning.algos.ppo import losses
from trajtrainer.learning.algos.ppo.losses import normalized
from trajtrainer.policies.checkpoints.mlagents.convert import from_mlagents
from trajtrainer.policies.checkpoints.state import learned_state


@pytest.fixture(params=["poca", "ppo", "ppo_lstm"])
def case(request: pytest.FixtureRequest, shared_data: Path) -> Case:
    return Case.read(shared_data / "golden" / "loops" / request.param)


def _rig(case: Case) -> Rig:
    rig = Rig(case.settings, case.spec)
    restore(rig.trainer, case.checkpoint("start"), reset_step=True)
    rig.trainer.step = case.json["step"]
    return rig


def _fill(rig: Rig, case: Case) -> None:
    """The buffer as one trajectory; for the LSTM, whose rows are padded already, with the padding marked."""
    data = {n.removeprefix("buffer_"): case.arrays[n] for n in case.arrays if n.startswith("buffer_")}
    buffer, n = rig.learner._buffer, case.json["buffer_rows"]
    length = buffer.sequence_length
    packed = packed_steps(
        obs=(data["obs__0"],),
        mask=data["action_mask"] == 0,
        continuous=data["continuous_action"],
        discrete=data["discrete_action"].astype(np.int32),
        log_prob=np.concatenate([data["continuous_log_probs"], data["discrete_log_probs"]], 1),
        memory=data.get("memory", np.zeros((n, 0), np.float32)),
        reward=data["environment_rewards"],
        group_reward=data["group_reward"],
        group=np.zeros(n, np.int32),
        done=np.zeros(n, np.bool_),
        interrupted=np.zeros(n, np.bool_),
        version=np.zeros(n, np.int32),
        bootstrap_obs=(data["obs__0"][:1],),
        bootstrap_memory=np.zeros((1, 0), np.float32),
        offset=np.array([0, n], np.int32),
        terminated=np.array([False]),
        ended=np.array([False]),
        agent=np.array([0]),
    )
    returns = np.stack([data[f"returns__{s.name}"] for s in rig.learner.signals]).astype(np.float32)
    memory = torch.from_numpy(data["critic_memory"][::length]) if "critic_memory" in data else None
    learned = {"value": returns.T, "returns": returns.T, "advantage": data["advantages"]}
    if case.settings.trainer_type == "poca":
        packed = replace(packed, groups=groupmates(data, case.spec))
        baselines = np.stack([data[f"baselines__{s.name}"] for s in rig.learner.signals]).astype(np.float32)
        learned["baseline"] = baselines.T
    buffer.append(packed, learned, {"critic_memory": memory})
    if buffer.loss_mask is not None:
        buffer.loss_mask.copy_(torch.from_numpy(data["masks"]))


def _orders(case: Case, length: int) -> Iterator[Tensor]:
    """The permutation of the sequences behind each epoch's minibatches; the dropped tail in any order."""
    sequences = case.json["buffer_rows"] // length
    batches = [case.arrays[f"minibatch_{k}_rows"][::length] // length for k in range(case.json["minibatches"])]
    per_epoch = sequences // len(batches[0])
    for start in range(0, len(batches), per_epoch):
        used = np.concatenate(batches[start : start + per_epoch])
        yield torch.from_numpy(np.concatenate([used, np.setdiff1d(np.arange(sequences), used)]))


def _normalized_with_padding(advantage: Tensor, mask: Tensor | None, weight: Tensor | None) -> Tensor:
    """As ML-Agents does it; ours leaves the padding out (documented difference)."""
    return normalized(advantage, None, weight)


def test_golden(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = _rig(case)
    _fill(rig, case)
    orders = _orders(case, rig.learner._buffer.sequence_length)
    monkeypatch.setattr(rig.learner, "_epoch_order", lambda _: next(orders))
    monkeypatch.setattr(losses, "normalized", _normalized_with_padding)
    monkeypatch.setattr(rig.learner, "is_ready", lambda _: True)  # The buffer of the recording is smaller.
    rig.trainer.advance()
    assert next(orders, None) is None
    found = rig.statistics()
    for tag, values in case.json["statistics"].items():
        assert found[tag] == pytest.approx(values, rel=2e-5, abs=1e-5), tag
    state = learned_state(rig.learner)
    expected = from_mlagents(case.checkpoint("after"), state)
    atol = 5e-5 if case.settings.trainer_type == "poca" else 1e-5
    for part in ("modules", "rewards"):
        for module, entries in state[part].items():
            for name, value in entries.items():
                message = f"{module}.{name} differs"
                torch.testing.assert_close(value, expected[part][module][name], rtol=1e-5, atol=atol, msg=message)
    _assert_same_moments(state["optimizers"]["adam"]["state"], expected["optimizers"]["adam"]["state"])
    assert rig.learner._buffer.num_rows == 0


def _assert_same_moments(found: dict[int, Any], expected: dict[int, Any]) -> None:
    assert found.keys() == expected.keys()
    for index, moments in found.items():
        for name, value in moments.items():
            torch.testing.assert_close(value, expected[index][name], rtol=1e-4, atol=1e-6)


def test_padding_does_not_enter_the_normalized_advantages(shared_data: Path) -> None:
    case = Case.read(shared_data / "golden" / "loops" / "ppo_lstm")
    rig = _rig(case)
    _fill(rig, case)
    buffer = rig.learner._buffer
    mask = buffer.loss_mask
    assert mask is not None
    assert 0 < mask.sum() < len(mask)
    advantage = normalized(buffer.column("advantage"), mask)
    assert advantage[mask > 0].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert advantage[mask > 0].std(correction=0).item() == pytest.approx(1.0, abs=1e-5)
