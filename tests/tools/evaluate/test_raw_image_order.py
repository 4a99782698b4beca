"""``evaluate`` looks at the images of the player at hand, whatever the run's player sent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.run.image_builds import write_build
from tests.run.test_raw_image_order import NAME, TOLD, run
from trajtrainer.cli.main import main

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script is a build")


def test_models_see_the_same_in_either_player(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "chw")
    results = {}
    for kind in ("hwc", "chw"):
        build = write_build(tmp_path, kind)
        common = [f"--env={build}", f"--results-dir={tmp_path / 'results'}", "--seed=3", "--torch-device=cpu"]
        common.append(f"--base-port={free_port()}")
        out = tmp_path / f"{kind}.json"
        capsys.readouterr()
        assert main(["evaluate", "run", "--episodes=4", "--deterministic", f"--json={out}", *common]) == 0
        found = json.loads(out.read_text())["results"][0]["behaviors"][NAME]
        results[kind] = {key: found[key] for key in ("episodes", "mean", "std", "length", "decisions")}
        told = capsys.readouterr().err
        assert f"{TOLD} {kind}, based on the first " in told
        assert ("although they were chw when the model was trained" in told) is (kind == "hwc")
    assert results["hwc"] == results["chw"]
