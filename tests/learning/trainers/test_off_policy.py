"""SAC's trainer as a whole: what it takes, when it updates, what it publishes and saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from mlagents_envs.base_env import BehaviorSpec

from tests.learning.algos.sac_mlagents import log_alpha
from tests.learning.trainers.rig import OffPolicyRig, Trajectory, checkpoint_of, restore, same, vector_spec, weights
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import WORKER_SHIFT, LongArray
from trajtrainer.experience import npz
from trajtrainer.learning.algos.acting import PolicyDivergedError
from trajtrainer.learning.algos.sac.networks import BatchedCritics
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.state import learned_state, load_learned
from trajtrainer.settings.components import RewardSignalSettings
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

SMALL = NetworkSettings(hidden_units=8, num_layers=1)
RECURRENT = evolve(SMALL, memory=MemorySettings(sequence_length=4, memory_size=8))
HYPER = SACHyperparameters(batch_size=8, buffer_size=200, steps_per_update=4, learning_rate=1e-2)


def _settings(**changes: Any) -> TrainerSettings:
    settings = TrainerSettings(
        trainer_type="sac",
        hyperparameters=HYPER,
        network_settings=SMALL,
        max_steps=10_000,
        summary_freq=1000,
        checkpoint_interval=1000,
    )
    return evolve(settings, **changes)


def _two_signals() -> dict[str, RewardSignalSettings]:
    return {
        "extrinsic": RewardSignalSettings(gamma=0.9, strength=0.5),
        "rnd": RndSettings(strength=0.1, network_settings=SMALL),
    }


def _count_updates(rig: OffPolicyRig) -> list[int]:
    """Gets the trainer's step at each gradient step from here on."""
    found: list[int] = []
    update = rig.learner.gradient_step

    def counting(*args: Any, **options: Any) -> Any:
        found.append(rig.trainer.step)
        return update(*args, **options)

    rig.learner.gradient_step = counting  # type: ignore[method-assign]
    return found


def _draw(rig: OffPolicyRig, numbers: LongArray) -> Minibatch:
    """A batch of these steps or sequences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.learner._batches, "_numbers", lambda count: numbers)
        (batch,) = rig.learner._batches._draw(1)
    return batch


def _train(rig: OffPolicyRig, rounds: int = 3) -> None:
    for i in range(rounds):
        rig.put(Trajectory(20, ended=True, interrupted=i % 2 == 0, agent=i))
        rig.trainer.advance()


def test_updates_come_at_the_pace_of_the_steps() -> None:
    rig = OffPolicyRig(_settings(hyperparameters=evolve(HYPER, buffer_init_steps=25)))
    updates = _count_updates(rig)
    for _ in range(6):
        rig.put(Trajectory(10))
        rig.trainer.advance()
    # Counts begin at 1, as ML-Agents' do: (30 - 25) / 1 > 4, (40 - 25) / 2 > 4, ...
    assert updates == [30, 40, 40, 50, 50, 50, 60, 60]
    assert rig.learner.gradient_steps == len(updates)


def test_nothing_is_learned_from_less_than_a_batch() -> None:
    rig = OffPolicyRig(_settings())
    updates = _count_updates(rig)
    rig.put(Trajectory(7))
    rig.trainer.advance()
    assert updates == []
    rig.put(Trajectory(1))
    rig.trainer.advance()
    assert updates == [8]


def test_a_full_replay_smaller_than_a_batch_is_learned_from() -> None:
    rig = OffPolicyRig(_settings(hyperparameters=evolve(HYPER, batch_size=64, buffer_size=16)))
    updates = _count_updates(rig)
    rig.put(Trajectory(40))
    rig.trainer.advance()
    assert len(updates) == 9


def test_only_an_update_publishes_the_whole_policy() -> None:
    rig = OffPolicyRig(_settings(network_settings=evolve(SMALL, normalize=True)))
    rig.put(Trajectory(3))
    rig.trainer.advance()
    update = rig.policies.latest("B")
    assert update is not None
    assert update.partial
    assert update.version == 0
    rig.put(Trajectory(20))
    rig.trainer.advance()
    update = rig.policies.latest("B")
    assert update is not None
    assert not update.partial
    assert update.version == 1
    rig.put(Trajectory(1))
    rig.trainer.advance()
    update = rig.policies.latest("B")
    assert update is not None
    assert update.partial, "no update is due after one more step"


def test_statistics() -> None:
    rig = OffPolicyRig(_settings(reward_signals=_two_signals()), vector_spec(4, 2, (3, 2)))
    _train(rig)
    found = rig.statistics()
    assert found.keys() >= {
        "Losses/Policy Loss",
        "Losses/Value Loss",
        "Losses/Q1 Loss",
        "Losses/Q2 Loss",
        "Losses/RND Loss",
        "Policy/Continuous Entropy Coeff",
        "Policy/Discrete Entropy Coeff",
        "Policy/Learning Rate",
        "Policy/Extrinsic Value",
        "Policy/Rnd Value",
        "Policy/Extrinsic Reward",
        "Environment/Cumulative Reward",
        "Perf/Update Seconds",
    }
    assert len(found["Losses/Q1 Loss"]) == 14
    assert len(found["Policy/Extrinsic Value"]) == 3


def test_the_value_networks_have_the_actors_normalizer() -> None:
    rig = OffPolicyRig(_settings(network_settings=evolve(SMALL, normalize=True)))
    rig.put(Trajectory(6, columns={"obs.0": np.full((7, 4), 3.0, np.float32)}))
    rig.trainer.advance()
    bodies = [rig.trainer.actor.body, *(each.body for each in rig.learner.values.values())]
    normalizers = [body.encoder.normalizers()[0] for body in bodies]
    for one in normalizers:
        assert int(one.steps) == 7
        assert torch.equal(one.mean, normalizers[0].mean)


def test_a_terminated_step_has_no_future_and_an_interrupted_one_has() -> None:
    signals = {
        "extrinsic": RewardSignalSettings(gamma=0.9),
        "rnd": RndSettings(gamma=0.8, strength=0.1, network_settings=SMALL),
    }
    rig = OffPolicyRig(_settings(reward_signals=signals))
    rig.put(Trajectory(2, ended=True), Trajectory(2, ended=True, interrupted=True), Trajectory(2))
    rig.take_in()
    batch = _draw(rig, np.arange(6))
    np.testing.assert_allclose(batch["discount"].t()[0], [0.9, 0.0, 0.9, 0.9, 0.9, 0.9])
    np.testing.assert_allclose(batch["discount"].t()[1], [0.8] * 6, err_msg="novelty goes on after the end")


def test_rewards_are_evaluated_when_drawn() -> None:
    rig = OffPolicyRig(_settings(reward_signals=_two_signals()))
    columns = {"reward": np.arange(6, dtype=np.float32), "group_reward": np.full(6, 10.0, np.float32)}
    rig.put(Trajectory(6, columns=columns))
    rig.take_in()
    before = _draw(rig, np.array([5, 0, 3]))
    np.testing.assert_allclose(before["rewards"].t()[0], [7.5, 5.0, 6.5], err_msg="own and group's, half strength")
    _train(rig, 6)
    after = _draw(rig, np.array([5, 0, 3]))
    assert torch.equal(before["rewards"].t()[0], after["rewards"].t()[0])
    assert not torch.allclose(before["rewards"].t()[1], after["rewards"].t()[1]), "RND has learned meanwhile"


def test_sequences_keep_their_padding_out_of_rewards() -> None:
    rig = OffPolicyRig(_settings(network_settings=RECURRENT, reward_signals=_two_signals()))
    rig.put(Trajectory(6, columns={"reward": np.arange(1, 7, dtype=np.float32)}))
    rig.take_in()
    batch = _draw(rig, np.array([1, 0]))
    np.testing.assert_allclose(batch["rewards"].t()[0], [2.5, 3.0, 0.0, 0.0, 0.5, 1.0, 1.5, 2.0])
    assert batch.loss_mask is not None
    assert batch.loss_mask.tolist() == [1, 1, 0, 0, 1, 1, 1, 1]
    assert batch.memory is not None
    assert batch.critic_memory is not None
    assert batch.critic_memory is not None
    assert batch.memory.shape == batch.critic_memory.shape == (2, 8)
    assert batch.sequence_length == 4


def test_batches_come_in_blocks_and_all_of_them() -> None:
    rig = OffPolicyRig(_settings())
    rig.put(Trajectory(50))
    rig.take_in()
    sizes = [len(block) for block in rig.learner._batches.blocks(75)]
    assert sizes == [32, 32, 11]
    assert list(rig.learner._batches.blocks(0)) == []


def test_drawing_together_is_drawing_one_after_the_other() -> None:
    draws = []
    for parts in ((6,), (1, 2, 3)):
        rig = OffPolicyRig(_settings())
        rig.put(Trajectory(50))
        rig.take_in()
        blocks = [block for count in parts for block in rig.learner._batches.blocks(count)]
        draws.append([batch for block in blocks for batch in block])
    for ours, theirs in zip(*draws, strict=True):
        assert torch.equal(ours.obs[0], theirs.obs[0])
        assert torch.equal(ours.next_obs[0], theirs.next_obs[0])


def test_nothing_is_learned_beyond_max_steps() -> None:
    rig = OffPolicyRig(_settings(max_steps=50))
    updates = _count_updates(rig)
    for _ in range(4):
        rig.put(Trajectory(20, ended=True))
        rig.trainer.advance()
    assert rig.learner.replay.num_steps == 40
    assert max(updates) == 40
    assert not rig.trainer.should_still_train


def test_inference_counts_episodes_and_nothing_else() -> None:
    rig = OffPolicyRig(_settings(network_settings=evolve(SMALL, normalize=True)), training=False)
    before = weights(rig.trainer)
    _train(rig)
    assert same(before, weights(rig.trainer))
    assert len(rig.trainer.episodes.reward_buffer) == 3
    assert rig.learner.replay.num_steps == 0
    assert rig.policies.latest("B") is None
    assert rig.pool.num_free == rig.pool.capacity


@pytest.mark.parametrize(
    "network",
    [evolve(SMALL, normalize=True), RECURRENT, evolve(SMALL, hidden_units=300)],
    ids=["normalized", "lstm", "large"],
)
@pytest.mark.parametrize("actions", [(2, ()), (0, (3, 2)), (2, (3,))], ids=["continuous", "discrete", "both"])
def test_a_seed_repeats_a_run_and_leaves_the_global_generators_alone(
    network: NetworkSettings, actions: tuple[int, tuple[int, ...]]
) -> None:
    settings, spec = _settings(network_settings=network, reward_signals=_two_signals()), vector_spec(4, *actions)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = OffPolicyRig(settings, spec), OffPolicyRig(settings, spec)
    start = weights(first.trainer)
    assert same(start, weights(second.trainer))
    _train(first)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    _train(second)
    assert same(weights(first.trainer), weights(second.trainer))
    assert not same(start, weights(first.trainer))
    is_stacked = isinstance(first.learner.critics, BatchedCritics)
    assert is_stacked == (network.memory is None and network.hidden_units < 300)


def _restored(first: OffPolicyRig, settings: TrainerSettings, spec: BehaviorSpec, path: Path) -> OffPolicyRig:
    """Another trainer with all that a checkpoint of ``first`` holds, and with its replay."""
    second = OffPolicyRig(settings, spec, seed=3)
    torch.save(checkpoint_of(first.trainer), path / "checkpoint.pt")
    checkpoint = read_checkpoint(path / "checkpoint.pt")
    restore(second.trainer, checkpoint, reset_step=False)
    return second


def _copy_replay(first: OffPolicyRig, second: OffPolicyRig, path: Path) -> None:

    npz.write_replay(first.learner.replay, path / "replay.npz")
    npz.read_replay(second.learner.replay, path / "replay.npz")


@pytest.mark.parametrize("network", [evolve(SMALL, normalize=True), RECURRENT], ids=["normalized", "lstm"])
@pytest.mark.parametrize("actions", [(2, ()), (0, (3, 2)), (2, (3,))], ids=["continuous", "discrete", "both"])
def test_a_restored_trainer_goes_on_identically(
    network: NetworkSettings, actions: tuple[int, tuple[int, ...]], tmp_path: Path
) -> None:
    hyper = evolve(HYPER, buffer_size=50, buffer_init_steps=10, reward_signal_steps_per_update=7)
    settings = _settings(network_settings=network, reward_signals=_two_signals(), hyperparameters=hyper)
    spec = vector_spec(4, *actions)
    first = OffPolicyRig(settings, spec)
    _train(first, 5)
    second = _restored(first, settings, spec, tmp_path)
    _copy_replay(first, second, tmp_path)
    assert same(weights(first.trainer), weights(second.trainer))
    first.rng, second.rng = np.random.default_rng(8), np.random.default_rng(8)
    updates = [_count_updates(rig) for rig in (first, second)]
    for rig in (first, second):
        _train(rig, 4)
    assert updates[0] == updates[1] != []
    assert same(weights(first.trainer), weights(second.trainer))
    for kind, value in log_alpha(first.learner).items():
        assert torch.equal(value, log_alpha(second.learner)[kind])


def test_entropy_coefficients_are_saved(tmp_path: Path) -> None:
    """ML-Agents begins with ``init_entcoef`` again (docs/explanation/mlagents-behavior.md#entropy-coefficients)."""
    settings, spec = _settings(), vector_spec(4, 2, (3, 2))
    first = OffPolicyRig(settings, spec)
    _train(first)
    expected = log_alpha(first.learner)
    assert all((value != 0).all() for value in expected.values())
    second = _restored(first, settings, spec, tmp_path)
    for kind, value in log_alpha(second.learner).items():
        assert torch.equal(value, expected[kind])


def test_a_checkpoint_of_mlagents_begins_with_the_settings_coefficients(tmp_path: Path) -> None:
    settings = _settings()
    first, second = OffPolicyRig(settings), OffPolicyRig(settings, seed=3)
    _train(first)
    theirs = checkpoint_of(first.trainer)
    del theirs["trajtrainer"]
    assert {"Optimizer:q_network", "Optimizer:value_network", "Optimizer:target_network"} <= theirs.keys()
    assert {f"Optimizer:{name}_optimizer" for name in ("policy", "value", "entropy")} <= theirs.keys()
    restore(second.trainer, theirs, reset_step=False)
    assert same(weights(first.trainer), weights(second.trainer))
    assert log_alpha(second.learner)["continuous"] == 0.0
    assert second.trainer.step == 60
    assert not second.learner._pace.due(60)
    states = [rig.learner.optimizer_states()["entropy"]["state"][1] for rig in (first, second)]
    assert torch.equal(states[0]["exp_avg"], states[1]["exp_avg"])


def test_initialising_takes_the_networks_and_starts_anew() -> None:
    first, second = OffPolicyRig(_settings()), OffPolicyRig(_settings(), seed=3)
    _train(first)
    restore(second.trainer, checkpoint_of(first.trainer), reset_step=True)
    assert same(weights(first.trainer), weights(second.trainer))
    assert second.trainer.step == 0
    assert second.learner._pace.count == 1
    assert log_alpha(second.learner)["continuous"] == 0.0
    _train(second)


def test_other_networks_are_refused() -> None:
    first = OffPolicyRig(_settings())
    second = OffPolicyRig(_settings(network_settings=evolve(SMALL, hidden_units=12)))
    with pytest.raises(CheckpointError, match="does not fit these networks"):
        load_learned(second.learner, learned_state(first.learner))


def test_an_abort_forgets_the_value_networks_memories_of_a_worker() -> None:
    rig = OffPolicyRig(_settings(network_settings=RECURRENT))
    rig.put(Trajectory(5, agent=1), Trajectory(5, agent=1 << WORKER_SHIFT | 1))
    rig.trainer.advance()
    assert rig.learner._estimator is not None
    assert len(rig.learner._estimator._memories) == 2
    rig.source.abort_episodes(1)
    rig.trainer.advance()
    assert list(rig.learner._estimator._memories) == [1]


def test_diverged_weights_are_told() -> None:
    rig = OffPolicyRig(_settings())
    rig.put(Trajectory(20, columns={"reward": np.full(20, np.inf, np.float32)}))
    with pytest.raises(PolicyDivergedError, match="Losses/Q1 Loss"):
        rig.trainer.advance()


def test_rows_are_given_back_before_the_update_when_nobody_acts_meanwhile() -> None:
    rig = OffPolicyRig(_settings())
    free: list[bool] = []
    update = rig.learner.gradient_step

    def spy(*args: Any, **options: Any) -> Any:
        free.append(rig.pool.num_free == rig.pool.capacity)
        return update(*args, **options)

    rig.learner.gradient_step = spy  # type: ignore[method-assign]
    rig.put(Trajectory(40, ended=True), Trajectory(3))
    rig.trainer.advance()
    assert free
    assert all(free)
