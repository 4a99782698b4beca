"""The main process's hold on a worker's process: its pipes, its shared blocks, its end."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from multiprocessing.context import SpawnProcess

from trajtrainer.envs import worker_messages as messages
from trajtrainer.envs.shared_block import BlockAddress, SharedBlock
from trajtrainer.envs.worker_batches import ActionBlock, EventBlock
from trajtrainer.envs.worker_process import EnvironmentMaker, WorkerTask, run_worker
from trajtrainer.steps import ActionBatch, EnvironmentEvent

_FIRST_BLOCK = 16384


class WorkerProcess:
    """A worker's process with its pipes and blocks, from its launch to its end.

    Attributes:
        how_it_ended: set by ``finish``.
    """

    def __init__(self, number: int, make_environment: EnvironmentMaker, log_level: int) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.pipe, pipe_of_worker = spawning.Pipe()
        lifeline_of_worker, self._lifeline = spawning.Pipe(duplex=False)
        self.how_it_ended = "is running"
        self._worker = number
        self._events = EventBlock(SharedBlock.create(_FIRST_BLOCK))
        self._actions = ActionBlock(SharedBlock.create(_FIRST_BLOCK))
        task = WorkerTask(
            number,
            make_environment,
            pipe_of_worker,
            lifeline_of_worker,
            self._events.block.address,
            self._actions.block.address,
            log_level,
        )
        self._process: SpawnProcess = spawning.Process(
            target=run_worker, args=(task,), name=f"environment-{number}", daemon=True
        )
        with _without_main_module():
            self._process.start()
        # Copies of the worker's ends here would hide its death.
        pipe_of_worker.close()
        lifeline_of_worker.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def forget_behaviors(self) -> None:
        """For another environment in this process."""
        self._events.forget()
        self._actions.forget()

    def event(self, extras: messages.EventExtras | None) -> EnvironmentEvent:
        """What stands in the block."""
        if extras is None:
            return EnvironmentEvent(self._worker, self._events.read())
        for behavior_id, spec, observation_types in extras.layouts:
            self._events.announce(behavior_id, spec, observation_types)
            self._actions.announce(behavior_id, spec.action_spec)
        steps = self._events.read()
        return EnvironmentEvent(
            self._worker, steps, extras.new_specs, extras.statistics, extras.is_reset, extras.misread_elsewhere
        )

    def write_actions(self, actions: Mapping[str, ActionBatch]) -> BlockAddress | None:
        """Puts the actions into the block; returns where it is if it is a new one."""
        needed = self._actions.room_for(actions)
        address = None
        if needed > self._actions.block.size:
            self._actions.use(SharedBlock.create(_larger(needed)))
            address = self._actions.block.address
        self._actions.write(actions)
        return address

    def enlarge_events(self, size: int) -> BlockAddress:
        """Another block for events; returns where it is."""
        self._events.use(SharedBlock.create(_larger(size)))
        return self._events.block.address

    def unlink_blocks(self) -> None:
        """The worker has opened the blocks: their names are of no use any more."""
        self._events.block.unlink()
        self._actions.block.unlink()

    def cut_lifeline(self) -> None:
        """Makes the worker kill its environment and end."""
        with contextlib.suppress(OSError):
            self._lifeline.close()

    def kill(self) -> None:
        """Ends the process. Its environment must notice by itself."""
        self._process.kill()

    def finish(self, timeout_s: float) -> None:
        """Waits for the end, ends what is left after ``timeout_s`` seconds, frees everything."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self.how_it_ended = _how_it_ended(self._process.exitcode)
        self._process.close()
        self.pipe.close()
        self.cut_lifeline()
        self._events.close()
        self._actions.close()


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Keeps a new process from running the user's script (again), which multiprocessing does for functions in it.

    A worker needs nothing from there; a script without ``if __name__ == "__main__"`` would start worker after worker,
    and one that imports torch would cost each of them its memory.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _larger(size: int) -> int:
    """Room for somewhat more than what is needed now."""
    return 2 * size


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by the signal {signal.Signals(-code).name}"
    return f"ended with the exit code {code}"
