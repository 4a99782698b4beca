"""What is refused before anything starts."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.trainers.rig import Rig
from trajtrainer.errors import UnsupportedError
from trajtrainer.settings.rewards import CuriositySettings
from trajtrainer.settings.trainer import (
    BehavioralCloningSettings,
    POCAHyperparameters,
    SACHyperparameters,
    TrainerSettings,
)
from trajtrainer.trainers.factory import check_supported

SAC = TrainerSettings(trainer_type="sac", hyperparameters=SACHyperparameters())
POCA = TrainerSettings(trainer_type="poca", hyperparameters=POCAHyperparameters())


def test_all_trainers_are_supported() -> None:
    check_supported({"Ball": TrainerSettings(), "Walker": SAC, "Soccer": POCA})


def test_everything_missing_is_named_at_once() -> None:
    curious = evolve(
        TrainerSettings(),
        reward_signals={"curiosity": CuriositySettings()},
        behavioral_cloning=BehavioralCloningSettings(demo_path="x"),
    )
    with pytest.raises(UnsupportedError) as caught:
        check_supported({"B": TrainerSettings(), "C": POCA, "D": curious})
    lines = str(caught.value).splitlines()
    assert [line.split(" is not built yet")[0] for line in lines] == [
        "Behavior 'D': curiosity",
        "Behavior 'D': behavioral_cloning",
    ]


def test_the_factory_refuses_too() -> None:
    with pytest.raises(UnsupportedError, match="behavioral_cloning is not built yet"):
        Rig(evolve(POCA, behavioral_cloning=BehavioralCloningSettings(demo_path="x")))
