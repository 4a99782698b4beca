"""A child process as its parent holds it: pipes, shared memory, its end."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from multiprocessing.context import SpawnProcess

from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.child import ChildTask, EnvironmentMaker, run_child
from trajtrainer.envs.workers.shared_batches import SharedActions, SharedSteps
from trajtrainer.envs.workers.shared_memory import MemoryAddress, SharedMemory
from trajtrainer.steps import ActionBatch, EnvironmentEvent

_FIRST_BYTES = 16384


class ChildProcess:
    """A child process with its pipes and shared memory, from its launch to its end.

    Attributes:
        how_it_ended: set by ``finish``.
    """

    def __init__(self, number: int, make_environment: EnvironmentMaker, log_level: int) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.pipe, pipe_of_child = spawning.Pipe()
        lifeline_of_child, self._lifeline = spawning.Pipe(duplex=False)
        self.how_it_ended = "is running"
        self._worker = number
        self._events = SharedSteps(SharedMemory.create(_FIRST_BYTES))
        self._actions = SharedActions(SharedMemory.create(_FIRST_BYTES))
        task = ChildTask(
            number,
            make_environment,
            pipe_of_child,
            lifeline_of_child,
            self._events.memory.address,
            self._actions.memory.address,
            log_level,
        )
        self._process: SpawnProcess = spawning.Process(
            target=run_child, args=(task,), name=f"environment-{number}", daemon=True
        )
        with without_main_module():
            self._process.start()
        # Copies of the child's ends here would hide its death.
        pipe_of_child.close()
        lifeline_of_child.close()

    @property
    def pid(self) -> int | None:
        """The process id; None before the start."""
        return self._process.pid

    def forget_behaviors(self) -> None:
        """Forget all behaviours, for another environment in this child."""
        self._events.forget()
        self._actions.forget()

    def event(self, extras: messages.EventExtras | None) -> EnvironmentEvent:
        """Return the event that stands in the shared memory."""
        if extras is None:
            return EnvironmentEvent(self._worker, self._events.read())
        for behavior_id, spec, observation_types in extras.layouts:
            self._events.announce(behavior_id, spec, observation_types)
            self._actions.announce(behavior_id, spec.action_spec)
        steps = self._events.read()
        return EnvironmentEvent(
            self._worker, steps, extras.new_specs, extras.statistics, extras.is_reset, extras.misread_elsewhere
        )

    def write_actions(self, actions: Mapping[str, ActionBatch]) -> MemoryAddress | None:
        """Write the actions into their memory; return its address if it is new."""
        needed = self._actions.room_for(actions)
        address = None
        if needed > self._actions.memory.size:
            self._actions.use(SharedMemory.create(_larger(needed)))
            address = self._actions.memory.address
        self._actions.write(actions)
        return address

    def enlarge_events(self, size: int) -> MemoryAddress:
        """Make larger memory for events; return its address."""
        self._events.use(SharedMemory.create(_larger(size)))
        return self._events.memory.address

    def unlink_memory(self) -> None:
        """Free the names of the shared memory, which the child has opened."""
        self._events.memory.unlink()
        self._actions.memory.unlink()

    def cut_lifeline(self) -> None:
        """Make the child kill its environment and end."""
        with contextlib.suppress(OSError):
            self._lifeline.close()

    def kill(self) -> None:
        """End the child. Its environment must notice by itself."""
        self._process.kill()

    def finish(self, timeout_s: float) -> None:
        """Wait for the end, end what is left after ``timeout_s`` seconds, free everything."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self.how_it_ended = how_it_ended(self._process.exitcode)
        self._process.close()
        self.pipe.close()
        self.cut_lifeline()
        self._events.close()
        self._actions.close()


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Keep a new process from running the user's script (again), which multiprocessing does for functions in it.

    A child needs nothing from there; a script without ``if __name__ == "__main__"`` would start child after child,
    and one that imports torch would cost each of them its memory.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _larger(size: int) -> int:
    """Return room for somewhat more than what is needed now."""
    return 2 * size


def how_it_ended(code: int | None) -> str:
    """Return the end of a process in words that complete "The process ..."."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by the signal {signal.Signals(-code).name}"
    return f"ended with the exit code {code}"
