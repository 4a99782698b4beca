"""A fetch from the hub whose file operations fail: tests/disk/campaign.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.disk.kinds import RESULTS, Kind, Tell
from tests.hub_stand_in import Hub
from trajtrainer.cli.main import main

PRELOADED = (
    "huggingface_hub.utils",
    "trajtrainer.tools.hub.pull",
)


class Pulling(Kind):
    """A run that is fetched from the hub.

    Args:
        hub: serves on loopback in another process or thread; ``HF_ENDPOINT`` names it.
        force: over a run that is there.
    """

    def __init__(self, hub: Hub, *, force: bool) -> None:
        self._force = force
        self.files = {
            "README.md": b"# A model\n",
            "configuration.yaml": b"behaviors: {}\n",
            "Lamp/checkpoint.pt": bytes(range(256)) * 400,
            "Lamp.onnx": bytes(range(256)) * 40,
        }
        hub.models["anna/lamp"] = self.files

    def prepare(self) -> None:
        if self._force:
            Path(RESULTS, "lamp").mkdir(parents=True)
            Path(RESULTS, "lamp", "mine").write_text("mine")

    def act(self, tell: Tell) -> int:
        return self._pull()

    def go_on(self, told: Sequence[dict[str, Any]]) -> Iterator[str]:
        target = Path(RESULTS, "lamp")
        mine = [each for each in Path(RESULTS).glob("lamp*") if (each / "mine").is_file()]
        if self._force and not mine:
            yield "the earlier run is gone"
        if target.exists() and target not in mine:
            yield from self._incomplete(target)
        if self._pull(*(["--force"] if target.exists() else [])) != 0:
            yield "it cannot be fetched again"
            return
        yield from self._incomplete(target)
        if self._force and not [each for each in Path(RESULTS).glob("lamp.old*") if (each / "mine").is_file()]:
            yield "the earlier run is gone at the end"

    def _incomplete(self, target: Path) -> Iterator[str]:
        for name, content in self.files.items():
            path = target / name
            if not path.is_file() or path.read_bytes() != content:
                yield f"{path} is not whole"

    def _pull(self, *options: str) -> int:
        options = (*options, "--force") if self._force and "--force" not in options else options
        return main(["pull", "anna/lamp", f"--results-dir={RESULTS}", *options])


def kinds(hub: Hub) -> dict[str, Kind]:
    """What the campaign lets fail."""
    return {"pull": Pulling(hub, force=False), "pull-force": Pulling(hub, force=True)}
