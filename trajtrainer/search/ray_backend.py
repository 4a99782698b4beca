"""Trials on a cluster of Ray: each is a process as on this machine, kept by an actor on the node that it is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from trajtrainer.actors.transports.cluster import connect
from trajtrainer.search.process import TrialHandle, TrialProcess
from trajtrainer.search.trial import TrialTask

# Messages are waited for in one thread while others stop and kill.
_THREADS = 4


class _Keeper:
    """An actor: keeps the process of a trial on its node. With it, the process loses its input and ends in good order.

    Args:
        task: of the run.
    """

    def __init__(self, task: TrialTask) -> None:
        self._process = TrialProcess(task)
        self._messages = self._process.messages()

    def next(self) -> dict[str, Any] | None:
        """Return the next message; None if there is none to come."""
        return next(self._messages, None)

    def stop(self) -> None:
        """See ``TrialHandle``."""
        self._process.stop()

    def kill(self) -> None:
        """See ``TrialHandle``."""
        self._process.kill()

    def end(self) -> str:
        """See ``TrialHandle``."""
        return self._process.end()


class RemoteTrial:
    """A trial on some node. Implements ``TrialHandle``.

    Args:
        ray: the package, connected.
        keeper: the actor.
    """

    def __init__(self, ray: ModuleType, keeper: Any) -> None:
        self._ray = ray
        self._keeper = keeper

    def messages(self) -> Iterator[dict[str, Any]]:
        """See ``TrialHandle``. They end when the node is lost."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            while message := self._ray.get(self._keeper.next.remote()):
                yield message

    def stop(self) -> None:
        """See ``TrialHandle``."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._keeper.stop.remote()

    def kill(self) -> None:
        """See ``TrialHandle``."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._keeper.kill.remote()

    def end(self) -> str:
        """See ``TrialHandle``."""
        try:
            how: str = self._ray.get(self._keeper.end.remote())
        except self._ray.exceptions.RayError as error:
            return f"is lost with its node ({str(error).splitlines()[0]})"
        self._ray.kill(self._keeper)
        return how


def starter(parallel: int) -> Callable[[TrialTask], TrialHandle]:
    """Connect with the cluster of ``RAY_ADDRESS``, or start Ray on this machine, and return what starts trials there.

    Args:
        parallel: trials at once, for each of which a core is reserved.

    Raises:
        SettingsError: Ray is not installed, or there is no cluster at the address.
    """
    ray = connect(None, parallel, "--backend ray").ray
    keeper = ray.remote(num_cpus=1, max_concurrency=_THREADS)(_Keeper)
    return lambda task: RemoteTrial(ray, keeper.remote(task))
