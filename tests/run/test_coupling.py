"""Who waits for whom, by the settings of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trajtrainer.experience.source import ExperienceSource
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.trainers.factory import max_lead
from trajtrainer.learning.trainers.trainer import Trainer
from trajtrainer.run.actors.messages import UNLIMITED
from trajtrainer.run.actors.pacing import ByUpdates, InTurn, Pacing, Shared
from trajtrainer.run.coupling import Coupling, Waiting
from trajtrainer.settings.trainer import TrainerSettings

PPO = TrainerSettings(hyperparameters=PPOHyperparameters(buffer_size=100), max_steps=1000)
SAC = TrainerSettings(trainer_type="sac", hyperparameters=SACHyperparameters(buffer_size=100), max_steps=1000)
THREADED = TrainerSettings(hyperparameters=PPOHyperparameters(buffer_size=100), threaded=True)


def coupling(settings: TrainerSettings, elsewhere: tuple[int, int] | None, *, is_training: bool = True) -> Coupling:
    return Coupling.of(settings, elsewhere=elsewhere, is_training=is_training)


@pytest.mark.parametrize(
    ("found", "waiting", "kind", "is_concurrent"),
    [
        (coupling(PPO, None), Waiting.ONE_LOOP, Pacing, False),
        (coupling(THREADED, None), Waiting.THREAD, Shared, True),
        (coupling(PPO, (1, 0)), Waiting.TURNS, InTurn, False),
        (coupling(SAC, (1, 0)), Waiting.TURNS, InTurn, False),
        (coupling(PPO, (2, 0)), Waiting.UPDATES, ByUpdates, True),
        (coupling(PPO, (1, 1)), Waiting.UPDATES, ByUpdates, True),
        (coupling(SAC, (2, 0)), Waiting.ROWS, Shared, True),
        (coupling(PPO, (1, 0), is_training=False), Waiting.ROWS, Shared, True),
    ],
)
def test_the_settings_decide_who_waits(
    found: Coupling, waiting: Waiting, kind: type[Pacing], is_concurrent: bool
) -> None:
    source = found.source()
    pacing = found.pacing(trainer(source), None)
    assert (found.waiting, type(pacing), source.is_concurrent) == (waiting, kind, is_concurrent)


def test_the_lead_is_that_of_the_lag_or_of_the_algorithm() -> None:
    assert coupling(PPO, (2, 1)).lead == 2 * 101
    assert coupling(PPO, (2, 0)).lead == 101
    assert coupling(SAC, (2, 1)).lead == max_lead(SAC)
    assert coupling(PPO, None).lead == coupling(THREADED, None).lead == 0, "what is finished is handed over at once"


def test_nobody_collects_beyond_the_end_of_the_training() -> None:
    for settings, elsewhere in ((PPO, (2, 1)), (SAC, (2, 1))):
        found = coupling(settings, elsewhere)
        assert found.pacing(trainer(found.source(), first_step=400), None).add_actor(0).steps == 1001 - 400
    threaded = coupling(THREADED, None)
    assert threaded.pacing(trainer(threaded.source()), None).add_actor(0).steps >= UNLIMITED, "as in one loop"


def test_nobody_collects_for_a_behavior_whose_training_has_been_ended() -> None:
    found = coupling(PPO, (2, 1))
    stub = trainer(found.source())
    pacing = found.pacing(stub, None)
    assert not pacing.is_full
    stub.should_still_train = False  # type: ignore[misc]
    assert pacing.is_full


def trainer(source: ExperienceSource, first_step: int = 0) -> Trainer:
    stub: Any = SimpleNamespace(
        context=SimpleNamespace(behavior="Walker", training=True, settings=PPO),
        source=source,
        first_step=first_step,
        publisher=SimpleNamespace(version=0),
        left=lambda: (10, 10),
        should_still_train=True,
        is_due=lambda: True,
    )
    return cast(Trainer, stub)
