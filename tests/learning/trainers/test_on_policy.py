"""The PPO trainer as a whole: what it takes, counts, publishes, saves and learns."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve

from tests.learning.trainers.rig import Rig, Trajectory, checkpoint_of, restore, same, vector_spec, weights
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.steps import Aggregation, agent_ids
from trajtrainer.learning.algos.acting import ActorPolicy, PolicyDivergedError
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.policies.checkpoints.file import check_entries, read_checkpoint
from trajtrainer.policies.checkpoints.mlagents.convert import EXTRA, STEP, STEP_ENTRY
from trajtrainer.policies.checkpoints.state import learned_state, load_learned
from trajtrainer.settings.components import RewardSignalSettings
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

SMALL = NetworkSettings(hidden_units=8, num_layers=1)
RECURRENT = evolve(SMALL, memory=MemorySettings(sequence_length=4, memory_size=8))


def _settings(**changes: Any) -> TrainerSettings:
    hyper = PPOHyperparameters(batch_size=8, buffer_size=32, num_epoch=2, learning_rate=1e-2)
    settings = TrainerSettings(
        hyperparameters=hyper, network_settings=SMALL, max_steps=10_000, summary_freq=1000, checkpoint_interval=1000
    )
    return evolve(settings, **changes)


def _two_signals() -> dict[str, RewardSignalSettings]:
    return {
        "extrinsic": RewardSignalSettings(gamma=0.9, strength=0.5),
        "rnd": RndSettings(strength=0.1, network_settings=SMALL),
    }


def test_summaries_and_checkpoints_of_one_drain_have_the_golden_steps(shared_data: Path) -> None:
    path = shared_data / "golden" / "schedules" / "summaries_and_checkpoints.json"
    for flow in json.loads(path.read_text())["flows"]:
        rig = Rig(_settings(summary_freq=flow["summary_freq"], checkpoint_interval=flow["checkpoint_interval"]))
        for one in flow["trajectories"]:
            rig.put(Trajectory(one["length"]))
        rig.trainer.advance()
        events = [event for one in flow["trajectories"] for event in one["events"]]
        assert [step for step, _ in rig.recorder.summaries] == [step for kind, step in events if kind == "summary"]
        assert rig.checkpoints == [step for kind, step in events if kind == "checkpoint"]
        assert rig.trainer.step == flow["trajectories"][-1]["step_after"]


def test_a_summary_holds_what_came_before_its_boundary() -> None:
    rig = Rig(_settings(summary_freq=20))
    rig.put(*(Trajectory(8, ended=True, agent=i, columns={"reward": np.full(8, i, np.float32)}) for i in range(5)))
    rig.trainer.advance()
    ((first, early), (second, late)) = rig.recorder.summaries
    assert (first, second) == (20, 40)
    assert list(early["Environment/Cumulative Reward"].values) == [0.0, 8.0]
    assert list(late["Environment/Cumulative Reward"].values) == [16.0, 24.0]
    assert early["Environment/Cumulative Reward"].aggregation is Aggregation.HISTOGRAM
    assert early["Is Training"].aggregated == 1.0
    assert early["Step"].aggregated == 16.0
    assert rig.trainer.episodes.best_reward == pytest.approx(12.0)


@pytest.mark.parametrize("network", [SMALL, RECURRENT], ids=["plain", "lstm"])
def test_one_drain_equals_many(network: NetworkSettings) -> None:
    hyper = PPOHyperparameters(batch_size=8, buffer_size=500)
    trajectories = [Trajectory(n, ended=n % 2 == 0, interrupted=n == 4, agent=n % 3) for n in (5, 4, 7, 1, 2, 9, 3)]
    rigs = []
    for size in (1, 3, 7):
        rig = Rig(_settings(network_settings=network, hyperparameters=hyper, reward_signals=_two_signals()))
        for start in range(0, len(trajectories), size):
            rig.put(*trajectories[start : start + size])
            rig.trainer.advance()
        rigs.append(rig)
    expected, *others = ({n: rig.learner._buffer.column(n) for n in rig.learner._buffer._rows} for rig in rigs)
    for found in others:
        for name, column in found.items():
            torch.testing.assert_close(column, expected[name], rtol=1e-5, atol=1e-5, msg=name)
    first, *rest = (rig.statistics() for rig in rigs)
    for statistics in rest:
        assert statistics == {tag: pytest.approx(values, rel=1e-5, abs=1e-5) for tag, values in first.items()}


def test_explained_variance_leaves_padding_out() -> None:
    hyper = PPOHyperparameters(batch_size=8, buffer_size=500, num_epoch=1)
    rig = Rig(_settings(network_settings=RECURRENT, hyperparameters=hyper))
    rig.put(*(Trajectory(1, ended=True, agent=i, columns={"reward": np.full(1, i, np.float32)}) for i in range(9)))
    rig.trainer.advance()
    buffer = rig.learner._buffer
    values, returns = (buffer.column(name)[::4].sum(1).numpy() for name in ("value", "returns"))
    assert len(buffer.column("value")) == 36
    statistics = rig.learner.update(9, lambda _: None)
    expected = 1 - np.var(returns - values) / np.var(returns)
    assert statistics["Policy/Explained Variance"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("num_rows", "num_epoch"), [(40, 1), (40, 3), (8, 3), (8, 20), (8 * 20, 2)])
def test_diagnostics_come_from_minibatches_after_which_the_policy_has_moved(num_rows: int, num_epoch: int) -> None:
    hyper = PPOHyperparameters(batch_size=8, buffer_size=500, num_epoch=num_epoch)
    rig = Rig(_settings(hyperparameters=hyper))
    rig.put(Trajectory(num_rows))
    rig.trainer.advance()
    reports = [diagnostics for diagnostics, _ in rig.learner._minibatches({})]
    assert len(reports) == num_epoch * num_rows // 8
    assert any(reports[len(reports) // 2 :])
    assert not reports[0]
    assert sum(reports) <= max(1, len(reports) // 5)


def test_rows_are_given_back_before_the_update() -> None:
    rig = Rig(_settings())
    rig.put(Trajectory(40, ended=True), Trajectory(3))
    free_in_update = []
    update = rig.learner.gradient_step

    def spy(*args: Any, **kwargs: Any) -> Any:
        free_in_update.append(rig.pool.num_free == rig.pool.capacity)
        return update(*args, **kwargs)

    rig.learner.gradient_step = spy  # type: ignore[method-assign]
    assert rig.trainer.advance()
    assert free_in_update
    assert all(free_in_update)


def test_nothing_to_do() -> None:
    rig = Rig(_settings())
    assert not rig.trainer.advance()
    assert rig.policies.latest("B") is None


def test_updates_when_the_buffer_is_more_than_full() -> None:
    rig = Rig(_settings())
    rig.put(Trajectory(32))
    rig.trainer.advance()
    assert rig.policies.latest("B") is None
    rig.put(Trajectory(1))
    rig.trainer.advance()
    update = rig.policies.latest("B")
    assert update is not None
    assert update.version == 1
    assert not update.partial
    assert rig.learner._buffer.num_rows == 0
    hyper = rig.trainer.context.settings.hyperparameters
    assert isinstance(hyper, PPOHyperparameters)
    assert rig.learner.gradient_steps == hyper.num_epoch * (33 // hyper.batch_size)
    statistics = rig.statistics()
    assert statistics.keys() >= {
        "Losses/Policy Loss",
        "Losses/Value Loss",
        "Policy/Learning Rate",
        "Policy/Epsilon",
        "Policy/Beta",
        "Policy/Approximate KL",
        "Policy/Clip Fraction",
        "Policy/Gradient Norm",
        "Policy/Explained Variance",
        "Perf/Update Seconds",
        "Policy/Extrinsic Value Estimate",
    }
    assert statistics["Policy/Epsilon"] == [pytest.approx(0.2 - 0.1 * 33 / 10_000)]


def test_padding_counts_for_the_buffer() -> None:
    rig = Rig(_settings(network_settings=RECURRENT))
    rig.put(*(Trajectory(1, agent=i) for i in range(9)))
    rig.trainer.advance()
    assert rig.policies.latest("B") is not None


def test_a_buffer_smaller_than_a_minibatch_is_one_minibatch() -> None:
    rig = Rig(_settings(hyperparameters=PPOHyperparameters(batch_size=64, buffer_size=16)))
    before = weights(rig.trainer)
    rig.put(Trajectory(17))
    rig.trainer.advance()
    assert not same(before, weights(rig.trainer))


def test_a_published_policy_is_a_copy() -> None:
    rig = Rig(_settings())
    update = rig.published()
    before = copy.deepcopy(dict(update.weights))
    rig.put(Trajectory(33))
    rig.trainer.advance()
    assert all(torch.equal(before[name], value) for name, value in update.weights.items())
    assert not same(list(before.values()), list(rig.published().weights.values()))


@pytest.mark.parametrize("shared", [False, True])
def test_normalizers_are_published_at_once(shared: bool) -> None:
    hyper = PPOHyperparameters(shared_critic=shared)
    rig = Rig(_settings(network_settings=evolve(SMALL, normalize=True), hyperparameters=hyper))
    policy = ActorPolicy(rig.trainer.actor, seed=0)
    rig.put(Trajectory(6, columns={"obs.0": np.full((7, 4), 3.0, np.float32)}))
    rig.trainer.advance()
    update = rig.policies.latest("B")
    assert update is not None
    assert update.partial
    assert update.version == 0
    assert {name.rsplit(".", 1)[1] for name in update.weights} == {"steps", "mean", "variance"}
    policy.load(update)
    normalizer = rig.trainer.actor.body.encoder.normalizers()[0]
    assert int(normalizer.steps) == (13 if shared else 7)
    assert torch.equal(policy._entries["body.encoder.sensors.0.mean"], normalizer.mean)
    again = update.weights["body.encoder.sensors.0.mean"].clone()
    rig.put(Trajectory(6))
    rig.trainer.advance()
    assert torch.equal(update.weights["body.encoder.sensors.0.mean"], again), "a snapshot"


def test_nothing_is_learned_beyond_max_steps() -> None:
    rig = Rig(_settings(max_steps=50, checkpoint_interval=25))
    rig.put(Trajectory(25, ended=True), Trajectory(25, ended=True), Trajectory(25, ended=True))
    trains = [rig.trainer.should_still_train]
    rig.trainer.advance()
    assert rig.learner._buffer.num_rows == 50, "the third trajectory crosses max_steps"
    assert rig.policies.latest("B") is None, "no update any more"
    assert [*trains, rig.trainer.should_still_train] == [True, False]
    assert len(rig.trainer.episodes.reward_buffer) == 3, "episodes are still counted"
    rig.put(Trajectory(40), Trajectory(40))
    rig.trainer.advance()
    assert rig.learner._buffer.num_rows == 50
    assert rig.checkpoints == [25, 50], "weights that no longer change are not saved again and again"


def test_a_step_count_of_exactly_max_steps_still_trains() -> None:
    rig = Rig(_settings(max_steps=40))
    rig.put(Trajectory(40))
    rig.trainer.advance()
    assert rig.trainer.should_still_train
    assert rig.policies.latest("B") is not None


def test_inference_counts_episodes_and_nothing_else() -> None:
    rig = Rig(
        _settings(
            network_settings=evolve(SMALL, normalize=True),
            reward_signals=_two_signals(),
            summary_freq=50,
            checkpoint_interval=50,
        ),
        training=False,
    )
    before = weights(rig.trainer)
    for _ in range(4):
        rig.put(Trajectory(40, ended=True, columns={"reward": np.ones(40, np.float32)}))
        assert rig.trainer.advance()
    assert same(before, weights(rig.trainer))
    assert list(rig.trainer.episodes.reward_buffer) == [40.0] * 4
    assert not rig.trainer.has_enough
    assert rig.checkpoints == []
    assert rig.policies.latest("B") is None
    assert rig.pool.num_free == rig.pool.capacity
    assert [step for step, _ in rig.recorder.summaries] == [50, 100, 150]
    _, values = rig.recorder.summaries[0]
    assert values["Is Training"].aggregated == 0.0
    assert values.keys() == {"Step", "Is Training", "Environment/Cumulative Reward", "Policy/Extrinsic Reward"}


def test_checkpoint_reward_is_that_of_episodes_since_the_last_update() -> None:
    rig = Rig(_settings())
    found = [rig.trainer.episodes.reward_since_update]
    for reward in (1.0, 3.0):
        rig.put(Trajectory(1, ended=True, columns={"reward": np.array([reward], np.float32)}))
    rig.trainer.advance()
    found.append(rig.trainer.episodes.reward_since_update)
    rig.put(Trajectory(40))
    rig.trainer.advance()
    found.append(rig.trainer.episodes.reward_since_update)
    assert found == [None, 2.0, None]
    assert list(rig.trainer.episodes.reward_buffer) == [1.0, 3.0]


def test_reward_buffer_size() -> None:
    rig = Rig(_settings())
    rig.trainer.episodes.set_reward_buffer_size(2)
    rig.put(*(Trajectory(1, ended=True, columns={"reward": np.array([i], np.float32)}) for i in range(4)))
    rig.trainer.advance()
    assert list(rig.trainer.episodes.reward_buffer) == [2.0, 3.0]


@pytest.mark.parametrize("network", [SMALL, RECURRENT], ids=["plain", "lstm"])
def test_an_abort_forgets_unfinished_episodes_of_a_worker(network: NetworkSettings) -> None:
    rig = Rig(_settings(network_settings=network))
    here, there = (int(agent_ids(worker, np.array([1]))[0]) for worker in (0, 1))
    one = {"reward": np.ones(1, np.float32)}
    rig.put(Trajectory(1, agent=here, columns=one), Trajectory(1, agent=there, columns=one))
    rig.source.abort_episodes(1)
    rig.trainer.advance()
    rig.put(Trajectory(1, True, agent=here, columns=one), Trajectory(1, True, agent=there, columns=one))
    rig.trainer.advance()
    assert list(rig.trainer.episodes.reward_buffer) == [2.0, 1.0]


@pytest.mark.parametrize("network", [SMALL, RECURRENT], ids=["plain", "lstm"])
def test_an_abort_stands_between_the_old_episode_and_the_new_one(network: NetworkSettings) -> None:
    rig = Rig(_settings(network_settings=network))
    agent, other = (int(agent_ids(worker, np.array([1]))[0]) for worker in (1, 2))
    begin = {"obs.0": np.full((2, 4), 0.5, np.float32), "memory": np.zeros((1, rig.trainer.actor.memory_size), "f4")}
    rig.put(Trajectory(1, agent=agent, columns={"reward": np.full(1, 80, np.float32)}))
    rig.source.abort_episodes(1)
    rig.put(Trajectory(1, agent=agent, columns={"reward": np.full(1, 2, np.float32), **begin}))
    rig.put(Trajectory(1, agent=other, columns={"reward": np.full(1, 7, np.float32), **begin}))
    rig.put(Trajectory(1, ended=True, agent=agent, columns={"reward": np.full(1, 3, np.float32)}))
    rig.source.abort_episodes(2)
    rig.put(Trajectory(1, ended=True, agent=other, columns={"reward": np.full(1, 1, np.float32)}))
    rig.trainer.advance()
    assert list(rig.trainer.episodes.reward_buffer) == [5.0, 1.0]
    _, first, second, *_ = rig.learner._buffer.column("value")[:: rig.learner._buffer.sequence_length]
    assert torch.equal(first, second), "the value network begins the new episode without a memory"
    assert rig.pool.num_free == rig.pool.capacity


def test_an_abort_alone_is_taken_in() -> None:
    rig = Rig(_settings())
    rig.source.abort_episodes(0)
    assert rig.trainer.advance()
    assert not rig.trainer.advance()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("network", [SMALL, RECURRENT], ids=["plain", "lstm"])
def test_an_update_ends_between_two_gradient_steps(
    network: NetworkSettings, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hyper = PPOHyperparameters(batch_size=8, buffer_size=32, num_epoch=2, shared_critic=shared)
    settings = _settings(hyperparameters=hyper, network_settings=network)
    rig = Rig(settings)
    update = rig.learner.gradient_step
    after: list[list[torch.Tensor]] = []
    rig.is_stopping = lambda: len(after) == 3

    def stop_soon(*args: Any, **options: Any) -> Any:
        found = update(*args, **options)
        after.append(weights(rig.trainer))
        return found

    monkeypatch.setattr(rig.learner, "gradient_step", stop_soon)
    rig.put(Trajectory(33, ended=True))
    rig.trainer.advance()
    assert len(after) == 3, "of 8"
    state = copy.deepcopy(checkpoint_of(rig.trainer))
    assert {float(one["step"]) for one in state["Optimizer:value_optimizer"]["state"].values()} == {3.0}
    assert int(state[STEP][STEP_ENTRY]) == 33
    assert rig.policies.latest("B") is not None, "what was learned is published"
    rig.put(Trajectory(40, ended=True))
    rig.trainer.advance()
    assert (len(after), rig.trainer.step) == (3, 73), "counted, but nothing new begins"
    resumed = Rig(settings, seed=1)
    restore(resumed.trainer, state, reset_step=False)
    assert same(weights(resumed.trainer), after[-1])
    _train(resumed)
    assert not same(weights(resumed.trainer), after[-1])


def test_group_rewards_count_and_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(_settings())
    for _ in range(2):
        columns = {"reward": np.ones(2, np.float32), "group_reward": np.full(2, 10.0, np.float32)}
        rig.put(Trajectory(2, ended=True, columns=columns))
        rig.trainer.advance()
    assert rig.statistics()["Policy/Extrinsic Reward"] == [22.0, 22.0]
    assert list(rig.trainer.episodes.reward_buffer) == [2.0, 2.0], "the agents' own"
    assert caplog.text.count("receives group rewards") == 1


def test_every_member_counts_for_lessons_where_the_algorithm_knows_no_groups() -> None:
    rig = Rig(_settings())
    for group in (0, 7):
        columns = {"group": np.full(2, group, np.int32), "group_reward": np.full(2, 10.0, np.float32)}
        rig.put(Trajectory(2, ended=True, columns=columns))
        rig.trainer.advance()
    assert list(rig.trainer.episodes.group_reward_buffer) == [20.0], "group 0 is none"


def _train(rig: Rig, rounds: int = 3) -> None:
    for i in range(rounds):
        rig.put(Trajectory(33, ended=True, agent=i))
        rig.trainer.advance()


def test_a_seed_repeats_a_run_and_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = Rig(_settings(reward_signals=_two_signals())), Rig(_settings(reward_signals=_two_signals()))
    assert same(weights(first.trainer), weights(second.trainer))
    _train(first)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    _train(second)
    assert same(weights(first.trainer), weights(second.trainer))


def test_weights_depend_on_seed_and_behavior() -> None:
    rigs = [Rig(_settings()), Rig(_settings(), seed=1), Rig(_settings(), behavior="C")]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not same(weights(rigs[i].trainer), weights(rigs[j].trainer))
    Rig(_settings(), seed=-1)


@pytest.mark.parametrize("network", [evolve(SMALL, normalize=True), RECURRENT], ids=["normalized", "lstm"])
def test_a_restored_trainer_goes_on_identically(network: NetworkSettings, tmp_path: Path) -> None:
    settings = _settings(network_settings=network, reward_signals=_two_signals(), summary_freq=50)
    first, second = Rig(settings), Rig(settings, seed=3)
    _train(first)
    torch.save(checkpoint_of(first.trainer), tmp_path / "checkpoint.pt")
    checkpoint = read_checkpoint(tmp_path / "checkpoint.pt")
    restore(second.trainer, checkpoint, reset_step=False)
    assert second.trainer.step == first.trainer.step == 99
    restored = second.policies.latest("B")
    assert restored is not None
    assert restored.version == 3
    assert not restored.partial
    second.rng = np.random.default_rng(8)
    first.rng = np.random.default_rng(8)
    first.recorder.summaries.clear()
    for rig in (first, second):
        _train(rig, 4)
    assert same(weights(first.trainer), weights(second.trainer))
    assert list(first.trainer.episodes.reward_buffer) == list(second.trainer.episodes.reward_buffer)
    assert first.trainer.episodes.best_reward == second.trainer.episodes.best_reward
    assert [step for step, _ in first.recorder.summaries] == [step for step, _ in second.recorder.summaries]
    ours, theirs = (rig.policies.latest("B") for rig in (first, second))
    assert ours is not None
    assert theirs is not None
    assert ours.version == theirs.version == 7
    assert first.learner.gradient_steps == second.learner.gradient_steps > 0


def test_initialising_takes_the_networks_and_starts_anew() -> None:
    first, second = Rig(_settings()), Rig(_settings(), seed=3)
    _train(first)
    restore(second.trainer, checkpoint_of(first.trainer), reset_step=True)
    assert same(weights(first.trainer), weights(second.trainer))
    assert second.trainer.step == 0
    assert not second.trainer.episodes.reward_buffer
    assert second.published().version == 1  # 0 is of policies that have learned nothing


def test_a_checkpoint_without_extras_is_enough() -> None:
    first, second = Rig(_settings()), Rig(_settings(), seed=3)
    _train(first)
    checkpoint = checkpoint_of(first.trainer)
    del checkpoint[EXTRA]
    restore(second.trainer, checkpoint, reset_step=False)
    assert second.trainer.step == 99


def test_a_checkpoint_of_other_networks_is_an_error() -> None:
    first, second = Rig(_settings()), Rig(_settings(network_settings=evolve(SMALL, hidden_units=16)))
    with pytest.raises(CheckpointError, match="'B': the checkpoint does not fit these networks"):
        load_learned(second.learner, learned_state(first.learner))


def test_divergence_is_an_error_with_a_remedy() -> None:
    rig = Rig(_settings())
    rig.put(Trajectory(33, columns={"reward": np.full(33, np.nan, np.float32)}))
    with pytest.raises(PolicyDivergedError, match=r"weights have diverged\. Lower learning_rate"):
        rig.trainer.advance()


@pytest.mark.parametrize(
    ("changes", "before", "waiting", "due"),
    [
        ({}, 0, 15, False),
        ({}, 0, 16, True),  # half the buffer
        ({"network_settings": evolve(SMALL, normalize=True)}, 0, 3, False),
        ({"network_settings": evolve(SMALL, normalize=True)}, 0, 4, True),  # a minibatch
        ({"hyperparameters": PPOHyperparameters(batch_size=20, buffer_size=32)}, 0, 19, False),
        ({"hyperparameters": PPOHyperparameters(batch_size=20, buffer_size=32)}, 0, 20, True),  # a minibatch
        ({"network_settings": RECURRENT}, 28, 3, False),  # padded to 4 rows
        ({"network_settings": RECURRENT}, 28, 5, True),  # padded to 8 rows
        ({}, 30, 2, False),
        ({}, 30, 3, True),  # more than the buffer of 32
        ({"summary_freq": 10}, 8, 1, False),
        ({"summary_freq": 10}, 8, 2, True),
        ({"checkpoint_interval": 10}, 8, 2, True),
        ({"max_steps": 9}, 8, 1, False),
        ({"max_steps": 9}, 8, 2, True),
    ],
)
def test_few_steps_are_worth_no_drain(changes: dict[str, Any], before: int, waiting: int, due: bool) -> None:
    rig = Rig(_settings(**{"hyperparameters": PPOHyperparameters(batch_size=4, buffer_size=32), **changes}))
    if before:
        rig.put(Trajectory(before))
        rig.trainer.advance()
    rig.put(Trajectory(waiting))
    assert rig.trainer.is_due() is due
    rig.source.abort_episodes(None)
    assert rig.trainer.is_due()


def test_it_learns_in_a_thread_of_its_own() -> None:
    rig = Rig(_settings())
    rig.put(Trajectory(33))
    thread = threading.Thread(target=rig.trainer.advance)
    thread.start()
    thread.join(timeout=300)
    assert not thread.is_alive()
    assert rig.policies.latest("B") is not None
    timers = rig.timers.to_dict()
    assert any("process_trajectory" in json.dumps(child) for child in timers["children"].values())


def test_timers_bear_the_names_of_mlagents() -> None:
    rig = Rig(_settings(checkpoint_interval=10))
    _train(rig)
    children = rig.timers.to_dict()["children"]
    assert children["process_trajectory"]["children"].keys() == {"RLTrainer._checkpoint"}
    assert children["_update_policy"]["children"]["TorchPPOOptimizer.update"]["count"] == 3 * 2 * 4


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("memory", [None, MemorySettings(sequence_length=2, memory_size=8)])
def test_it_learns_which_action_is_good(memory: MemorySettings | None, shared: bool) -> None:
    """One step per episode; the reward is the nearness of the first action to 0.5 and of the branch to 1."""
    hyper = PPOHyperparameters(batch_size=64, buffer_size=256, learning_rate=1e-2, shared_critic=shared, num_epoch=4)
    network = NetworkSettings(hidden_units=16, num_layers=1, memory=memory)
    rig = Rig(_settings(hyperparameters=hyper, network_settings=network), vector_spec(1, 1, (3,)))
    policy = ActorPolicy(rig.trainer.actor, seed=0)
    obs = np.ones((257, 1), np.float32)
    means = []
    for _ in range(25):
        update = rig.policies.latest("B")
        if update is not None:
            policy.load(update)
        actions = policy.act((obs,), np.zeros((257, 3), np.bool_), np.zeros((257, policy.memory_size), np.float32))
        reward = (actions.discrete[:, 0] == 1) - np.abs(actions.env_continuous[:, 0] - 0.5)
        means.append(float(reward.mean()))
        for i in range(257):
            columns = {
                "obs.0": obs[:2],
                "continuous": actions.continuous[i : i + 1],
                "discrete": actions.discrete[i : i + 1],
                "log_prob": actions.log_prob[i : i + 1],
                "reward": reward[i : i + 1].astype(np.float32),
                "memory": np.zeros((1, policy.memory_size), np.float32),
            }
            rig.put(Trajectory(1, ended=True, agent=i, columns=columns))
        rig.trainer.advance()
    assert means[0] < 0.1
    assert means[-1] > 0.5


@pytest.mark.parametrize("reward", [1e20, -3.4e38])
def test_rewards_whose_sums_overflow_are_limited_and_warned_of_once(
    reward: float, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(_settings())
    for _ in range(2):
        column = np.ones(40, np.float32)
        column[7::9] = reward
        rig.put(Trajectory(40, ended=True, columns={"reward": column, "group_reward": column}))
        rig.trainer.advance()
    assert all(bool(torch.isfinite(entry).all()) for entry in rig.trainer.actor.state_dict().values())
    checkpoint = checkpoint_of(rig.trainer)
    assert checkpoint["Optimizer:value_optimizer"]["state"], "there was an update"
    check_entries(checkpoint)
    (warning,) = [record.getMessage() for record in caplog.records if "float32 cannot hold" in record.getMessage()]
    assert "Behavior 'B'" in warning
    assert "signal extrinsic" in warning
