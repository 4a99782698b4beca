"""``scripts/frames``: prints the depth of the call stack from a run's loop to the two places that do the work.

Trains ``sim:3DBall`` for two updates, and inspects the stack when a complete message has been read from the player's
socket, and when the last matrix product of the gradient is computed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import trajtrainer
from trajtrainer.envs.unity.http2 import Call

PACKAGE = Path(trajtrainer.__file__).parent
LOOP = str(PACKAGE / "run" / "loop.py")
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "matmul"}
SETTINGS: dict[str, Any] = {
    "behaviors": {
        "3DBall": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 64, "buffer_size": 256, "num_epoch": 1},
            "network_settings": {"hidden_units": 32, "num_layers": 2},
            "max_steps": 600,
        }
    },
    "torch_settings": {"device": "cpu"},
}


class Deepest:
    """A profile function that keeps the deepest stack of each kind, from the loop's frame to the innermost one."""

    def __init__(self) -> None:
        self.message: list[CodeType] = []
        self.product: list[CodeType] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "return" and isinstance(argument, Call):
            self.message = max(self.message, _from_loop(frame), key=len)
        elif event == "c_call" and argument.__name__ in PRODUCTS:
            stack = _from_loop(frame)
            if any(code.co_name == "backward" for code in stack):
                self.product = max(self.product, stack, key=len)


def _from_loop(frame: FrameType | None) -> list[CodeType]:
    """Return the functions of a stack, starting at the loop; [] if the stack does not contain the loop."""
    codes = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith("<"):  # skip generated code, such as constructors
            codes.append(frame.f_code)
        frame = frame.f_back
    codes.reverse()
    return codes[next((place for place, code in enumerate(codes) if code.co_filename == LOOP), len(codes)) :]


def main() -> int:
    deepest = Deepest()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(deepest)
        try:
            trajtrainer.learn(SETTINGS, "sim:3DBall", results_dir=folder, verbose=False)
        finally:
            sys.setprofile(None)
    found = {"a complete message": deepest.message, "the gradient's last matrix product": deepest.product}
    for what, codes in found.items():
        print(f"{len(codes)} frames from the loop to {what}:")
        for code in codes:
            print(f"  {'/'.join(Path(code.co_filename).parts[-2:])}: {code.co_qualname}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
