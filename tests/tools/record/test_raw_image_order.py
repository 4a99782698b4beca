"""``record`` looks at the images of the player at hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.ports import free_port
from tests.run.image_builds import write_build
from trajtrainer.cli.main import main
from trajtrainer.experience.recordings.conversions import archive_source

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script is a build")


def test_recordings_are_the_same_in_either_player(tmp_path: Path) -> None:
    episodes = {}
    for kind in ("hwc", "chw"):
        file = tmp_path / f"{kind}.npz"
        common = [f"--env={write_build(tmp_path, kind)}", "--seed=3", "--torch-device=cpu"]
        common.append(f"--base-port={free_port()}")
        assert main(["record", "--policy=random", f"--output={file}", "--episodes=4", *common]) == 0
        episodes[kind] = list(archive_source(file).trajectories())
    assert len(episodes["hwc"]) == len(episodes["chw"])
    for one, other in zip(episodes["hwc"], episodes["chw"], strict=True):
        np.testing.assert_array_equal(one.steps.obs[0], other.steps.obs[0])
