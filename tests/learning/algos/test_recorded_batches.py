"""SAC whose batches are partly recorded steps (``hyperparameters.demonstrations``)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.learning.algos.recorded import recording
from tests.learning.nn.specs import behavior, camera, network, vector
from tests.learning.trainers.rig import OffPolicyRig, Trajectory, checkpoint_of, restore, same, vector_spec, weights
from tests.run.runs import behaviors_settings, learn
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.experience.replay import Replay
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.off_policy import ReplayBatches
from trajtrainer.learning.algos.sac.demonstrated_returns import DemonstratedReturns
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.rewards.rnd import RndReward
from trajtrainer.learning.rewards.settings import RndSettings
from trajtrainer.learning.rewards.signal import ExtrinsicReward
from trajtrainer.settings.components import RewardSignalSettings
from trajtrainer.settings.demonstrations import DemonstrationSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.tools.recordings import find_sources, write

CPU = torch.device("cpu")
PENDULUM = Path(__file__).resolve().parents[3] / "config" / "demos" / "Pendulum.demo"
RECORDED = DemonstrationSettings(str(PENDULUM))
GAMMA = 0.9


def packed_of(spec: BehaviorSpec, lengths: tuple[int, ...], seed: int) -> PackedSteps:
    """Trajectories whose first number of the first sensor is above 100 where ``seed`` is not 0."""
    packed = recording(spec, lengths, seed)
    if seed:
        packed.obs[0].reshape(len(packed), -1)[:, 0] = 100 + np.arange(len(packed))
    return packed


def batches_of(spec: BehaviorSpec, *, n_step: int = 1, ratio: float = 0.5, size: int = 8) -> ReplayBatches:
    own, recorded = (Replay.of(spec, packed_of(spec, (5, 3, 9), seed)) for seed in (0, 1))
    return ReplayBatches(
        own,
        [ExtrinsicReward(spec, RewardSignalSettings(gamma=GAMMA), CPU)],
        batch_size=size,
        action_size=int(spec.action_spec.continuous_size),
        seed=3,
        device=CPU,
        n_step=n_step,
        decides_next=True,
        recorded=recorded,
        ratio=ratio,
    )


def drawn(batches: ReplayBatches, count: int = 40, **how: bool) -> list[Minibatch]:
    return [batch for block in batches.blocks(count, **how) for batch in block]


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 4), (0.25, 2), (0.01, 1), (0.99, 7)])
def test_each_batch_has_its_part_of_recorded_steps(ratio: float, expected: int) -> None:
    for batch in drawn(batches_of(behavior([vector(3)], 2, (3,)), ratio=ratio)):
        assert len(batch) == 8
        assert (batch.obs[0][:, 0] > 50).tolist() == [False] * (8 - expected) + [True] * expected
        assert len(batch["noise"]) == len(batch["next_noise"]) == 8


@pytest.mark.parametrize(("own_steps", "expected"), [(400, 4), (850, 4), (900, 3), (2550, 2), (5950, 1), (7650, 0)])
def test_a_recorded_step_is_drawn_at_most_fifty_times_as_often_as_another(own_steps: int, expected: int) -> None:
    """17 steps are recorded. One more of the 8 rows would be too many, unless half of them are recorded already."""
    batches = batches_of(behavior([vector(3)], 2))
    with mock.patch.object(Replay, "num_steps", property(lambda self: 17 if self is batches._recorded else own_steps)):
        (batch,) = drawn(batches, 1)
        assert batches.num_recorded == expected
    recorded = int((batch.obs[0][:, 0] > 50).sum())
    assert recorded == expected
    assert recorded * own_steps <= 50 * (8 - recorded) * 17
    assert recorded == 4 or (recorded + 1) * own_steps > 50 * (7 - recorded) * 17


@pytest.mark.parametrize("n_step", [1, 3])
def test_recorded_steps_are_followed_by_what_followed_them(n_step: int) -> None:
    """Also several steps later, but never beyond the end of their trajectory."""
    spec = behavior([vector(3)], 2)
    packed = packed_of(spec, (5, 3, 9), 1)
    seen = set()
    for batch in drawn(batches_of(spec, n_step=n_step)):
        for row in range(4, 8):
            step = int(batch.obs[0][row, 0]) - 100
            trajectory = int(np.searchsorted(packed.offset, step, side="right")) - 1
            end = int(packed.offset[trajectory + 1])
            last = min(step + n_step, end) - 1
            reward = sum(GAMMA**i * packed["reward"][step + i] for i in range(last + 1 - step))
            assert batch["rewards"][row, 0].item() == pytest.approx(reward, rel=1e-5, abs=1e-6)
            is_over = last + 1 == end and bool(packed.terminated[trajectory])
            discount = 0.0 if is_over else GAMMA ** (last + 1 - step)
            assert batch["discount"][row, 0].item() == pytest.approx(discount)
            after = packed.bootstrap.obs[0][trajectory] if last + 1 == end else packed.obs[0][last + 1]
            np.testing.assert_array_equal(batch.next_obs[0][row].numpy(), after)
            np.testing.assert_array_equal(batch["continuous"][row].numpy(), packed["continuous"][step])
            seen.add(step)
    assert len(seen) == len(packed)


def test_pictures_may_be_bytes_on_one_side_only() -> None:
    spec = behavior([camera(1, 20, 20)], 2)
    own = recording(spec, (5, 3))
    pictured = {"obs.0": np.full(own.obs[0].shape, 51, np.uint8)}
    after = own.bootstrap.with_columns({"obs.0": np.full(own.bootstrap.obs[0].shape, 51, np.uint8)})
    recorded = PackedSteps(own.steps.with_columns(pictured), after, own.offset, own.terminated, own.ended, own.agent)
    batches = batches_of(spec)
    batches._recorded = Replay.of(spec, recorded)
    batch = drawn(batches, 1)[0]
    assert batch.obs[0].dtype == torch.float32
    torch.testing.assert_close(batch.obs[0][4:], torch.full((4, 1, 20, 20), 0.2))


def rig(demonstrations: DemonstrationSettings | None = RECORDED, **changes: Any) -> OffPolicyRig:
    hyper = SACHyperparameters(batch_size=8, buffer_size=200, steps_per_update=4, demonstrations=demonstrations)
    settings = TrainerSettings(
        trainer_type="sac",
        hyperparameters=hyper,
        network_settings=network(normalize=True),
        reward_signals={
            "extrinsic": RewardSignalSettings(),
            "rnd": RndSettings(normalize=True, network_settings=network(normalize=True)),
        },
        **changes,
    )
    return OffPolicyRig(settings, vector_spec(3, 1))


def test_nothing_but_the_gradient_knows_recorded_steps() -> None:
    """They stay out of normalizers, the scale of rewards, and what networks of reward signals learn from."""
    found = rig()
    rnd = found.learner.signals[1]
    assert isinstance(rnd, RndReward)
    found.put(Trajectory(40, columns={"obs.0": np.full((40, 3), 7.0, np.float32)}))
    gradient_step = found.learner.gradient_step
    with (
        mock.patch.object(found.learner, "gradient_step", wraps=gradient_step) as learned,
        mock.patch.object(rnd, "update", wraps=rnd.update) as of_reward,
    ):
        found.trainer.advance()
    assert learned.call_count == of_reward.call_count == 9
    for call in learned.call_args_list:
        assert (call.args[0].obs[0] == 7).all(1).tolist() == [True] * 4 + [False] * 4
    for call in of_reward.call_args_list:
        assert len(call.args[0]) == 8
        assert (call.args[0].obs[0] == 7).all()
    normalizers = [found.learner.actor.body.encoder, *(one.body.encoder for one in found.learner.values.values())]
    for encoder in (*normalizers, rnd.predictor.encoder, rnd.target.encoder):
        assert 6 < encoder.normalizers()[0].mean.min() <= encoder.normalizers()[0].mean.max() < 7


def test_an_archive_does_as_well(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", *find_sources([str(PENDULUM)]))
    found = Replay.of(vector_spec(3, 1), load_demonstrations([tmp_path / "a.npz"]).packed)
    other = Replay.of(vector_spec(3, 1), load_demonstrations([PENDULUM]).packed)
    numbers = np.arange(other.num_steps)
    for name, column in other.sample(numbers).rows.items():
        np.testing.assert_array_equal(found.sample(numbers).rows[name], column)


def learns_from_a_recording_and_goes_on(folder: Path, trainer_type: str, **changes: Any) -> None:
    hyper: dict[str, Any] = {"batch_size": 32, "demonstrations": {"demo_path": str(PENDULUM)}, **changes}
    network = {"hidden_units": 16, "num_layers": 1}
    settings = {
        "trainer_type": trainer_type,
        "hyperparameters": hyper,
        "network_settings": network,
        "summary_freq": 100,
    }
    for steps, how in ((200, "--seed=1"), (450, "--resume")):
        given = behaviors_settings(**{"Pendulum-v1": settings | {"max_steps": steps}})
        run = learn(folder, given, "--env=gym:Pendulum-v1", how)
        assert run.exit_code == 0, run.output
    assert [step for step, _ in run.scalars("Pendulum-v1")["Losses/Q1 Loss"]][-1] > 200


def test_a_run_learns_from_a_recording_and_goes_on(tmp_path: Path) -> None:
    learns_from_a_recording_and_goes_on(tmp_path, "sac", buffer_init_steps=50)


def test_recordings_of_other_agents_are_refused() -> None:
    settings = rig().trainer.context.settings
    with pytest.raises(DemonstrationError, match=r"Pendulum\.demo: the sensor .* was recorded with the shape \(3,\)"):
        OffPolicyRig(settings, vector_spec(4, 1))
    OffPolicyRig(settings, vector_spec(4, 1), training=False)


# Recordings that are no better than the agents


def test_batches_have_recorded_steps_while_these_earn_more() -> None:
    """The returns of the recording are below -100. A tag shows its part of each batch."""
    found, gradient_step = rig(), SAC.gradient_step
    for reward, recorded in ((-1000.0, 4), (1000.0, 0), (-10.0, 0), (-10_000.0, 4)):
        columns = {"obs.0": np.full((40, 3), 7.0, np.float32), "reward": np.full(40, reward / 40, np.float32)}
        found.put(Trajectory(40, ended=True, columns=columns))
        with mock.patch.object(SAC, "gradient_step", autospec=True, side_effect=gradient_step) as learned:
            found.trainer.advance()
        assert learned.call_count >= 9
        for call in learned.call_args_list:
            assert (call.args[1].obs[0] == 7).all(1).tolist() == [True] * (8 - recorded) + [False] * recorded
        assert found.statistics()["Policy/Demonstration Ratio"] == [recorded / 8]


def test_the_log_tells_what_was_recorded(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="trajtrainer"):
        rig()
    (line,) = [message for message in caplog.messages if "demonstrations" in message]
    assert re.fullmatch(r"Behavior 'B': the demonstrations have \d+ steps and a mean return of -\d+(\.\d)?\.", line)


def test_recordings_that_earn_less_change_nothing() -> None:
    """The weights are those that training without them finds."""
    ends = []
    for demonstrations in (RECORDED, None):
        found = rig(demonstrations=demonstrations)
        for _ in range(3):
            found.put(Trajectory(40, ended=True))
            found.trainer.advance()
        ends.append(weights(found.trainer))
    assert same(*ends)


def test_a_resumed_run_knows_what_the_agents_earned() -> None:
    found, resumed = rig(), rig()
    found.put(Trajectory(40, ended=True))
    found.trainer.advance()
    restore(resumed.trainer, checkpoint_of(found.trainer), reset_step=False)
    resumed.put(Trajectory(40))
    resumed.trainer.advance()
    assert resumed.statistics()["Policy/Demonstration Ratio"] == [0.0]


def episodes_of(*returns: float) -> DemonstratedReturns:
    """Of recorded episodes of two steps, whose second earns nothing."""
    packed = recording(vector_spec(3, 1), (2,) * len(returns))
    reward = np.stack((np.array(returns), np.zeros(len(returns))), 1).astype(np.float32).ravel()
    return DemonstratedReturns(replace(packed, steps=packed.steps.with_columns({"reward": reward})))


def own_steps(agent: int, *rewards: float, ended: bool) -> PackedSteps:
    packed = recording(vector_spec(3, 1), (len(rewards),))
    steps = packed.steps.with_columns({"reward": np.array(rewards, np.float32)})
    return replace(packed, steps=steps, ended=np.array([ended]), agent=np.array([agent]))


def test_whole_episodes_are_compared() -> None:
    """Over several trajectories, and not across a restart of the agents' worker."""
    episodes = episodes_of(4.0, 2.0)
    episodes.add(own_steps(1, 1.0, 1.0, ended=False))
    episodes.add(own_steps(2, 5.0, ended=False))
    assert (episodes.state(), episodes.are_better) == ([], True)
    episodes.reset_worker(0)
    episodes.add(own_steps(1, 2.0, 0.5, ended=True))
    assert (episodes.state(), episodes.are_better) == ([2.5], True)
    episodes.add(own_steps(1, 1.0, 1.5, ended=False))
    episodes.add(own_steps(1, 1.0, ended=True))
    assert (episodes.state(), episodes.are_better) == ([2.5, 3.5], False)  # a mean of 3, as recorded

    later = episodes_of(4.0, 2.5)
    later.load_state(episodes.state())
    assert later.are_better


def test_the_latest_hundred_episodes_count() -> None:
    episodes = episodes_of(0.05)
    for number in range(130):
        episodes.add(own_steps(1, 10.0 if number < 30 else 0.0, ended=True))
        assert episodes.are_better == (number == 129)
    assert len(episodes.state()) == 100


def test_recordings_that_were_cut_off_say_nothing() -> None:
    packed = recording(vector_spec(3, 1), (4,))
    episodes = DemonstratedReturns(replace(packed, ended=np.array([False])))
    episodes.add(own_steps(1, 1e9, ended=True))
    assert episodes.are_better
