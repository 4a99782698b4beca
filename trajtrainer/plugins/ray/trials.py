"""Trials on a cluster of Ray: each is one task, which keeps the same process as on this machine on some node.

The search reads the files of its runs and asks them to end by a file, so all nodes see its results folder. If a task
dies with its worker, the process saves everything and ends.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trajtrainer.plugins.ray.cluster import connect

_POLL_S = 0.5

Start = Callable[[Path], Any]
"""Starts the process of a trial, from its configuration, on the machine where it is called."""


def _run(start: Start, configuration: Path) -> str:
    process = start(configuration)
    while process.is_running():
        time.sleep(_POLL_S)
    return str(process.end())


class _RemoteTrial:
    """A trial on some node, or one that waits for a core."""

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
    """Connect with the cluster of ``RAY_ADDRESS``, or start Ray on this machine; yield the function that starts trials.

    Args:
        start_here: starts a trial on the node where it is called.
        parallel: how many trials run at once. A core is reserved for each.

    Raises:
        SettingsError: Ray is not installed, or there is no cluster at the address.
    """
    cluster = connect(None, parallel, "--backend ray")
    try:
        task = cluster.ray.remote(num_cpus=1, max_retries=0)(_run)
        yield lambda configuration: _RemoteTrial(cluster.ray, task.remote(start_here, configuration))
    finally:
        cluster.close()
