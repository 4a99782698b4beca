"""``steps_per_update: auto``: how many gradient steps are due, and that a trainer makes them without new experience."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.learning.trainers.rig import OffPolicyRig, Trajectory, checkpoint_of, restore
from trajtrainer.learning.algos.off_policy import AutoPace, Pace
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings

FIRST = 20


@dataclass
class Messages:
    number: int = 0

    def __call__(self) -> int:
        return self.number


def settings(steps_per_update: float | str = "auto") -> TrainerSettings:
    return TrainerSettings(
        trainer_type="sac",
        hyperparameters=SACHyperparameters(
            batch_size=8,
            buffer_size=500,
            buffer_init_steps=FIRST,
            steps_per_update=steps_per_update,  # type: ignore[arg-type]
        ),
        network_settings=NetworkSettings(hidden_units=8, num_layers=1),
        max_steps=500,
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5), st.integers(0, 20)), max_size=30), st.integers(0, 200))
def test_there_are_at_most_two_per_step(rounds: list[tuple[int, int, int]], first: int) -> None:
    """Each round: agent steps that arrive, messages, and how often the loop asks until the next message."""
    messages = Messages()
    pace, step, made = AutoPace(first, messages), 0, 0
    for steps, arrived, asked in rounds:
        step += steps
        messages.number += arrived
        for _ in range(asked):
            due = pace.due(step)
            pace.made(due)
            made += due
            assert made <= 2 * max(0, step - first)
    assert pace.count == 1 + made


def test_every_message_is_followed_by_one() -> None:
    messages = Messages()
    pace = AutoPace(FIRST, messages)
    messages.number = 30
    assert pace.due(FIRST) == 0
    made = 0
    for step in range(FIRST + 1, FIRST + 101):
        messages.number += 1
        due = pace.due(step)
        assert due == 1
        pace.made(due)
        made += due
    assert made == 100


def test_messages_that_arrive_together_are_owed_one_each_and_none_after_that() -> None:
    messages = Messages()
    pace = AutoPace(0, messages)
    assert pace.due(100) == 1
    messages.number = 40
    assert pace.due(100) == 40
    pace.made(15)
    assert pace.due(100) == 25
    pace.made(25)
    assert pace.due(100) == 1


def test_an_environment_that_pauses_does_not_start_endless_updates() -> None:
    messages = Messages()
    pace, made = AutoPace(0, messages), 0
    for step in range(1, 5001):
        messages.number += 1
        due = pace.due(step)
        made += due
        pace.made(due)
    assert made == 5000
    while pace.due(5000):
        pace.made(1)
        made += 1
    assert made == 5000 - 1 + 2000


def test_what_arrives_at_once_is_kept_whole() -> None:
    pace = AutoPace(0, Messages())
    pace.due(3000)
    assert pace.allowed == 6000


def test_resuming_keeps_counts_and_what_is_allowed() -> None:
    pace = AutoPace(FIRST, Messages())
    pace.made(pace.due(50))
    again = AutoPace(FIRST, Messages())
    again.load(pace.state(), 50)
    assert again.state() == pace.state()
    assert (again.count, again.allowed) == (2, 59)


def test_after_a_change_of_the_setting_the_new_pace_starts_at_that_step() -> None:
    number = Pace(4.0, FIRST)
    number.made(number.due(1000))
    auto = AutoPace(FIRST, Messages())
    auto.load(number.state(), 1000)
    assert auto.count == number.count
    assert auto.due(1000) == 0
    assert auto.due(1010) == 1
    assert auto.allowed == 20
    back = Pace(4.0, FIRST)
    back.load(auto.state(), 1010)
    assert back.due(1010) <= 1  # the last one may be due, as the count is rounded down
    assert back.due(1050) in (10, 11)


def test_a_trainer_learns_without_new_experience_until_nothing_is_allowed() -> None:
    rig = OffPolicyRig(settings())
    rig.put(Trajectory(FIRST))
    rig.trainer.advance()
    assert not rig.trainer.learns_alone
    rig.put(Trajectory(10))
    rig.trainer.advance()
    for made in range(1, 21):
        assert rig.learner.gradient_steps == made
        assert rig.trainer.learns_alone == rig.trainer.is_due() == (made < 20)
        version = rig.trainer.publisher.version
        rig.trainer.advance()
        assert rig.trainer.publisher.version == version + (made < 20)


def test_no_update_starts_when_the_run_is_about_to_end() -> None:
    rig = OffPolicyRig(settings())
    rig.put(Trajectory(FIRST + 10))
    rig.trainer.advance()
    found = [rig.trainer.learns_alone]
    rig.is_stopping = lambda: True
    found.append(rig.trainer.learns_alone)
    rig.is_stopping = lambda: False
    rig.trainer.end()
    found.append(rig.trainer.learns_alone)
    assert found == [True, False, False]


def test_with_a_number_nothing_is_learned_without_new_experience() -> None:
    rig = OffPolicyRig(settings(2))
    rig.put(Trajectory(FIRST + 10))
    rig.trainer.advance()
    assert rig.learner.gradient_steps == 4
    assert not rig.trainer.learns_alone


def test_the_state_goes_through_a_checkpoint() -> None:
    first = OffPolicyRig(settings())
    first.put(Trajectory(FIRST + 10))
    first.trainer.advance()
    again = OffPolicyRig(settings())
    restore(again.trainer, checkpoint_of(first.trainer), reset_step=False)
    assert again.learner.extra_state()["sac"]["pace"] == first.learner.extra_state()["sac"]["pace"]
