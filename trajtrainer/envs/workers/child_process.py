"""A child process as its parent holds it: pipes, shared memory, its end."""

from __future__ import annotations

from collections.abc import Mapping

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.child import ChildTask, EnvironmentMaker, run_child
from trajtrainer.envs.workers.shared_batches import SharedActions, SharedSteps
from trajtrainer.envs.workers.shared_memory import MemoryAddress, SharedMemory
from trajtrainer.envs.workers.spawned import SpawnedProcess

_FIRST_BYTES = 16384


class ChildProcess:
    """A child process with its shared memory, from its launch to its end.

    Attributes:
        pipe: to the process.
    """

    def __init__(self, number: int, make_environment: EnvironmentMaker, log_level: int) -> None:
        self._worker = number
        self._events = SharedSteps(SharedMemory.create(_FIRST_BYTES))
        self._actions = SharedActions(SharedMemory.create(_FIRST_BYTES))
        task = ChildTask(number, make_environment, self._events.memory.address, self._actions.memory.address, log_level)
        self._process = SpawnedProcess(run_child, task, f"environment-{number}", daemon=True)
        self.pipe = self._process.pipe
        self.post = self._process.post
        self.kill = self._process.kill

    @property
    def pid(self) -> int | None:
        """The process id; None after its end."""
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
            self._worker, steps, extras.new_specs, extras.statistics, extras.is_reset, extras.raw_images
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

    def bury(self, timeout_s: float) -> str:
        """Wait for its end, end it after ``timeout_s`` seconds, free everything; return how it ended."""
        how = self._process.bury(timeout_s)
        self._events.close()
        self._actions.close()
        return how


def _larger(size: int) -> int:
    """Return room for somewhat more than what is needed now."""
    return 2 * size
