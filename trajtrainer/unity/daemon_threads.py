"""Threads for gRPC that never keep the program from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Task(NamedTuple):
    future: Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class DaemonThreads(Executor):
    """A fixed number of daemon threads.

    The threads of ``ThreadPoolExecutor`` are joined when the program ends. One of them that waits for the answer to a
    player's message, because an error skipped the environment's ``close``, would then wait for ever.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{index}", daemon=True) for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put(_Task(future, function, arguments, keywords))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Ends the threads after what was submitted. Tasks that have not begun are done even so."""
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if task.future.set_running_or_notify_cancel():
                try:
                    task.future.set_result(task.function(*task.arguments, **task.keywords))
                except BaseException as error:
                    task.future.set_exception(error)
            del task  # a request of many megabytes must not live until the next one comes
