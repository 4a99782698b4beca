"""A build whose second behavior appears in the midst of the run: its agents, and with them its announcement."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

from trajtrainer.envs.sim import conversation
from trajtrainer.envs.sim.__main__ import main
from trajtrainer.envs.sim.world import World, output_message, written
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

_ROOT = Path(__file__).resolve().parents[2]


def write_build(folder: Path, names: str, step: int) -> Path:
    """A program that plays ``names`` (A+B); B comes with message ``step``."""
    build = folder / "late.x86_64"
    build.write_text(
        f"#!{sys.executable}\n"
        f"import sys\nsys.path.insert(0, {str(_ROOT)!r})\n"
        f"from tests.run.late_player import play\nsys.exit(play({names!r}, {step}, sys.argv[1:]))\n"
    )
    build.chmod(build.stat().st_mode | stat.S_IXUSR)
    return build


def play(names: str, step: int, arguments: list[str]) -> int:
    """The program."""

    class LateWorld(World):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._messages = 0
            self._late = self._games[1:]
            self._games = self._games[:1]

        def step(self, actions: Any) -> list[bytes]:
            self._messages += 1
            entries = super().step(actions)
            if self._messages == step:
                for game, behaviors in self._late:
                    entries += written(behaviors, game.reset())
                    announced.extend(behavior.parameters() for behavior in behaviors)
                self._games += self._late
            return entries

    announced: list[pb.BrainParametersProto] = []

    def with_announcement(infos: list[bytes], side_channel: bytes, announcement: bytes = b"") -> bytes:
        if announced:
            announcement = pb.UnityRLInitializationOutputProto(brain_parameters=announced).SerializeToString()
            announced.clear()
        return output_message(infos, side_channel, announcement)

    assert {"World", "output_message"} <= vars(conversation).keys()
    vars(conversation)["World"] = LateWorld
    vars(conversation)["output_message"] = with_announcement
    return main([names, *arguments])
