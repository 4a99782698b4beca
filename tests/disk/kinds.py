"""What the campaign lets fail: runs, and commands that write one file. Tools have more in ``tests/tools/*/disk.py``."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import yaml

from tests.experience.recordings.making import write_demo
from trajtrainer import testing
from trajtrainer.cli.main import main
from trajtrainer.core import atomic
from trajtrainer.core.filenames import EVENT_FILE_PREFIX
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.trainers.trainer import Trainer
from trajtrainer.policies.checkpoints.manager import CheckpointManager
from trajtrainer.policies.folder.event_file import masked_crc
from trajtrainer.policies.play.loaded_policy import load_policy

RESULTS = "results"
LAMP = "python:tests.run.api.test_learn_api:Lamp"
PLAYED = [f"--env={LAMP}", "--seed=1", f"--results-dir={RESULTS}", "--episodes=2"]
# Files that must not go once they were there.
_LASTING = {"checkpoint.pt", "training_status.json", "last_replay_buffer.npz", "best.pt", "configuration.yaml"}
Tell = Callable[[dict[str, Any]], object]


class Kind(ABC):
    """Something that writes files. All paths are relative to the working folder of a case.

    ``prepare`` makes what is there before, once for all cases; ``act`` is what an operation fails in; ``go_on`` is what
    a user does next, and yields what is wrong with what came out.
    """

    num_commands = 1
    leaves_temporaries = False
    """Whether a process that ended in the midst may leave hidden files that nobody takes away."""

    @abstractmethod
    def prepare(self) -> None: ...

    @abstractmethod
    def act(self, tell: Tell) -> int:
        """Return the exit code. ``tell`` notes a fact for ``go_on``."""

    @abstractmethod
    def go_on(self, told: Sequence[dict[str, Any]]) -> Iterator[str]: ...


def trainer(kind: str, max_steps: int, **changes: Any) -> dict[str, Any]:
    """A behavior that saves a checkpoint every 16 steps."""
    hyper: dict[str, Any] = {"batch_size": 8, "buffer_size": 16}
    if kind == "sac":
        hyper |= {"buffer_size": 64, "buffer_init_steps": 8, "steps_per_update": 8, "save_replay_buffer": True}
    return {
        "trainer_type": kind,
        "hyperparameters": hyper,
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "keep_checkpoints": 1,
        "checkpoint_interval": 16,
        "max_steps": max_steps,
        "time_horizon": 8,
        "summary_freq": 16,
        **changes,
    }


def configuration(behavior: str, settings: dict[str, Any], **sections: Any) -> str:
    """Write a configuration; returns its path."""
    content = {"behaviors": {behavior: settings}, "torch_settings": {"device": "cpu"}, **sections}
    Path("run.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return "run.yaml"


class Learning(Kind):
    """A run. It trains to step 32 and is then resumed to step 48.

    Args:
        kind: ``trainer_type``.
        behavior: of the environment.
        env: that is stepped in this process.
        earlier: options with which the run goes on from, or overwrites, one of 16 steps; None is a new run.
        changes: of the settings.
    """

    def __init__(
        self, kind: str, behavior: str, env: str, *, earlier: Sequence[str] | None = None, **changes: Any
    ) -> None:
        self._kind, self._behavior, self._env = kind, behavior, env
        self._earlier, self._changes = earlier, changes

    def prepare(self) -> None:
        if self._earlier is None:
            return
        if self._learn(16) != 0:
            raise RuntimeError("the earlier run failed")
        shutil.copy(Path(RESULTS, "run", self._behavior, "checkpoint.pt"), "earlier.pt")

    def act(self, tell: Tell) -> int:
        save, publish = CheckpointManager._save, atomic.publish

        def saving(manager: CheckpointManager, step: int, *arguments: Any) -> Any:
            tell({"begun": step})
            saved = save(manager, step, *arguments)
            tell({"saved": step})
            return saved

        def publishing(temporary: Path, path: Path, **options: bool) -> None:
            publish(temporary, path, **options)
            tell({"published": str(path)})

        CheckpointManager._save = saving  # type: ignore[method-assign,assignment]
        atomic.publish = publishing
        return self._learn(32, *(self._earlier or ()))

    def go_on(self, told: Sequence[dict[str, Any]]) -> Iterator[str]:
        saved = [each["saved"] for each in told if "saved" in each]
        earlier = 0 if self._earlier is None else _step_of(Path("earlier.pt"))
        is_in_place = self._earlier is not None and not Path(RESULTS, "run.old").is_dir()
        newest = max([*saved, earlier if is_in_place else 0])
        old = Path(RESULTS, "run" if is_in_place else "run.old", self._behavior, "checkpoint.pt")
        if self._earlier == ["--force"] and old.read_bytes() != Path("earlier.pt").read_bytes():
            yield "the earlier run is not what it was"
        published = {each["published"] for each in told if "published" in each}
        yield from (f"{path} is gone" for path in published if Path(path).name in _LASTING and not Path(path).exists())
        counted: list[int] = []
        count = Trainer._count

        def counting(self: Trainer, packed: PackedSteps) -> bool:
            counted.append(len(packed))
            return count(self, packed)

        Trainer._count = counting  # type: ignore[method-assign]
        is_there = Path(RESULTS, "run").is_dir()
        if self._learn(48, *(["--resume"] if is_there else [])) != 0:
            yield "it cannot be resumed"
            return
        final = _step_of(Path(RESULTS, "run", self._behavior, "checkpoint.pt"))
        begin = final - sum(counted)
        possible = {each["begun"] for each in told if "begun" in each} | {newest}
        if begin not in possible or begin < newest:
            yield f"resumed from step {begin}, but {newest} was saved (begun: {sorted(possible)})"
        has_replay = any(path.endswith("last_replay_buffer.npz") for path in published)
        if has_replay and "Loaded" not in Path("output.txt").read_text():
            yield "the replay was not loaded"
        status = json.loads(Path(RESULTS, "run", "run_logs", "training_status.json").read_text())
        if status[self._behavior]["final_checkpoint"]["steps"] != final or final < 48:
            yield f"ended at step {final}, the status tells of {status[self._behavior]['final_checkpoint']}"
        listed = {f"{self._behavior}-{each['steps']}.pt" for each in status[self._behavior]["checkpoints"]}
        there = {path.name for path in Path(RESULTS, "run", self._behavior).glob(f"{self._behavior}-*.pt")}
        if listed != there:
            yield f"the status lists {sorted(listed)}, there are {sorted(there)}"

    def _learn(self, max_steps: int, *options: str) -> int:
        path = configuration(self._behavior, trainer(self._kind, max_steps, **self._changes))
        return main(
            ["learn", path, f"--env={self._env}", "--run-id=run", f"--results-dir={RESULTS}", "--seed=1", *options]
        )


def _step_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"]["_GlobalSteps__global_step"])


class Commands(Kind):
    """Commands that write one file each, over one that is there.

    Args:
        commands: their words, the file last.
    """

    leaves_temporaries = True

    def __init__(self, commands: Sequence[list[str]]) -> None:
        self._commands = [
            ["export", "run", f"--results-dir={RESULTS}", "--output", f"{RESULTS}/exported.onnx"],
            *commands,
        ]
        self.num_commands = len(self._commands)

    def prepare(self) -> None:
        Learning("ppo", "Lamp", LAMP).act(lambda _: None)
        spec = load_policy(f"{RESULTS}/run/Lamp.onnx").spec
        write_demo(Path("lamp.demo"), testing.random_steps(spec), spec, "Lamp")
        for command in self._commands:
            Path(command[-1]).write_bytes(b"old")

    def act(self, tell: Tell) -> int:
        codes = []
        for command in self._commands:
            codes.append(main(command))
            tell({"output": command[-1], "code": codes[-1]})
        return max(codes)

    def go_on(self, told: Sequence[dict[str, Any]]) -> Iterator[str]:
        for each in told:
            content = Path(each["output"]).read_bytes()
            if (content == b"old") != bool(each["code"]):
                yield f"{each['output']}: exit code {each['code']}, but it begins with {content[:20]!r}"
        for command in self._commands:
            Path(command[-1]).unlink()
            if main(command) != 0:
                yield f"{command} fails afterwards"
            yield from damage(Path(command[-1]), may_be_cut=False)


def make_kinds(commands: Sequence[list[str]]) -> dict[str, Kind]:
    """The kinds of runs, and the commands, by name."""
    lamp, duel = ("Lamp", LAMP), ("Duel", "python:tests.envs.duel:Duel")
    self_play = {"save_steps": 8, "team_change": 16, "swap_steps": 8, "window": 2}
    return {
        "ppo": Learning("ppo", *lamp, keep_best=2),
        "resume": Learning("ppo", *lamp, earlier=["--resume"]),
        "force": Learning("ppo", *lamp, earlier=["--force"]),
        "sac": Learning("sac", *lamp),
        "selfplay": Learning("ppo", *duel, self_play=self_play),
        "commands": Commands(commands),
    }


def damage(path: Path, *, may_be_cut: bool) -> Iterator[str]:
    """What is wrong with a file under its final name.

    Args:
        path: of the file.
        may_be_cut: what is only ever appended to may end in the midst of a record, as after the end of a process.
    """
    if path.read_bytes() == b"old":
        return
    fetched = any(part.startswith("lamp") for part in path.parts)  # whose content is none
    try:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix == ".yaml":
            yaml.safe_load(path.read_bytes())
        elif path.suffix == ".pt" and not fetched:
            torch.load(path, weights_only=True)
        elif path.suffix == ".onnx" and not fetched:
            onnx.checker.check_model(onnx.load(path))
        elif path.suffix == ".npz":
            _read_archive(path)
        elif path.suffix == ".journal":
            lines = path.read_bytes().split(b"\n")
            for line in lines[:-1]:
                json.loads(line)
            if lines[-1] and not may_be_cut:
                yield f"{path} ends in the midst of a line"
        elif path.name.startswith(EVENT_FILE_PREFIX):
            _read_events(path.read_bytes(), may_be_cut=may_be_cut)
    except Exception as error:
        yield f"{path} is damaged: {type(error).__name__}: {error}"


def _read_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    with np.load(path) as arrays:
        for name in arrays:
            assert arrays[name] is not None


def _read_events(data: bytes, *, may_be_cut: bool) -> None:
    at = 0
    while at < len(data):
        head = data[at : at + 12]
        size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
        record = data[at + 12 : at + 12 + size]
        if len(head) < 12 or len(data) < at + 16 + size:
            assert may_be_cut, f"cut at {at} of {len(data)}"
            return
        assert struct.unpack("<I", head[8:])[0] == masked_crc(head[:8])
        assert struct.unpack("<I", data[at + 12 + size : at + 16 + size])[0] == masked_crc(record)
        at += 16 + size


def empty(folder: Path) -> None:
    """Make an empty folder the working folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
