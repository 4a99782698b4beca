"""Trials on a Ray cluster.

Each trial is a Ray task, which starts the same process on a node that would otherwise be started locally.

The search reads the files of its runs, and writes a file to stop a run, so all nodes need access to the results folder.
If a task is lost because its Ray worker died, the trial's process saves everything and ends.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trajtrainer.plugins.ray.cluster import connect

_POLL_S = 0.5

Start = Callable[[Path], Any]
"""Function that starts a trial's process on the machine where it is called, given the path of the configuration."""


def _run(start: Start, configuration: Path) -> str:
    process = start(configuration)
    while process.is_running():
        time.sleep(_POLL_S)
    return str(process.end())


class _RemoteTrial:
    """A trial that is running on a node or waiting for a free core."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray = ray
        self._task = task

    def is_running(self) -> bool:
        return not self._ray.wait([self._task], timeout=0)[0]

    def kill(self) -> None:
        self._ray.cancel(self._task, force=True)

    def end(self) -> str:
        try:
            return str(self._ray.get(self._task))
        except self._ray.exceptions.RayError as error:
            return f"its process is lost with its node ({str(error).splitlines()[0]})"


@contextlib.contextmanager
def starter(start_here: Start, parallel: int) -> Iterator[Callable[[Path], _RemoteTrial]]:
    """Connect to the cluster at ``RAY_ADDRESS``, or start Ray on this machine. Yield the function that starts trials.

    Args:
        start_here: starts a trial on the node where it is called.
        parallel: number of trials that run at once. One core is reserved for each of them.

    Raises:
        SettingsError: Ray is not installed, or there is no cluster at the address.
    """
    with contextlib.closing(connect(None, parallel, "--backend ray")) as cluster:
        task = cluster.ray.remote(num_cpus=1, max_retries=0)(_run)
        yield lambda configuration: _RemoteTrial(cluster.ray, task.remote(start_here, configuration))
