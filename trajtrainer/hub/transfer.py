"""What the hub answers, as it arrives, and never waited for without end.

A thread of its own reads from the network, because a server can hold a reader in many ways: it can trickle a byte per
second into a file, a header or a redirect, each within the time limit of a single read.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Mapping
from typing import Any

from trajtrainer.hub.client import Hub, HubError

# For a single read, or for a connection.
TIMEOUT_S = 30.0
# In each window of waiting, at least this rate has to be reached. Together with the announced size, which is checked
# too, this bounds the whole transfer.
WINDOW_S = 60.0
LOWEST_RATE = 5_000.0  # bytes per second; a connection by modem reaches it
# A finished request counts as this many bytes, so that many small files on a line with long delays are no failure.
_BYTES_PER_REQUEST = 20_000
_MOST_WAITING = 16  # chunks
_LONGEST_REFUSAL = 1 << 20


class Pace:
    """Ends a transfer that makes hardly any progress.

    Only the time spent waiting for the hub counts, not that of a slow disk here.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waited_s = 0.0
        self._received = 0

    def next(self, arrived: queue.Queue[Any]) -> Any:
        """Return what arrives next.

        Raises:
            HubError: it takes too long.
        """
        while True:
            begun_s = time.monotonic()
            try:
                return arrived.get(timeout=max(0.0, WINDOW_S - self._waited_s))
            except queue.Empty:
                pass
            finally:
                self._waited_s += time.monotonic() - begun_s
                self._check()

    def add(self, amount: int) -> None:
        """Count bytes that have arrived."""
        self._received += amount

    def _check(self) -> None:
        if self._waited_s < WINDOW_S:
            return
        expected = LOWEST_RATE * WINDOW_S
        if self._received < expected:
            raise HubError(
                f"The hub at {self._hub.endpoint} is too slow: {self._received / 1e3:,.1f} kB arrived in "
                f"{self._waited_s:.0f} s, expected at least {expected / 1e3:,.0f} kB. Nothing was kept. Try again "
                "with a better connection."
            )
        self._waited_s, self._received = 0.0, 0


def received(hub: Hub, url: str, pace: Pace, params: Mapping[str, Any] | None = None) -> Generator[bytes, None, None]:
    """Yield the body of an answer in pieces, as they arrive.

    Raises:
        HubError: it arrives too slowly.
        Exception: whatever the package for the hub raises where the hub refuses or does not answer.
    """
    arrived: queue.Queue[bytes | BaseException | None] = queue.Queue(_MOST_WAITING)
    abandoned = threading.Event()
    session = hub.package.utils.get_session()

    def read() -> None:
        try:
            with session.stream(
                "GET", url, params=params, headers=hub.headers(), timeout=TIMEOUT_S, follow_redirects=True
            ) as answer:
                hub.package.utils.hf_raise_for_status(answer if answer.status_code < 400 else _refusal(answer))
                for chunk in answer.iter_bytes():
                    arrived.put(chunk)
                    if abandoned.is_set():
                        return
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    threading.Thread(target=read, name=f"download of {hub.repository}", daemon=True).start()
    try:
        while (item := pace.next(arrived)) is not None:
            if isinstance(item, BaseException):
                raise item
            pace.add(len(item))
            yield item
        pace.add(_BYTES_PER_REQUEST)
    finally:
        abandoned.set()
        with contextlib.suppress(queue.Empty):  # the thread may be waiting for room
            while True:
                arrived.get_nowait()


def _refusal(answer: Any) -> Any:
    """Return a refused answer that has been read; not more of it than any reason needs."""
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk[: _LONGEST_REFUSAL - len(body)]
        if len(body) >= _LONGEST_REFUSAL:
            break
    about_the_body = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in answer.headers.multi_items() if name.lower() not in about_the_body]
    return type(answer)(answer.status_code, headers=headers, content=bytes(body), request=answer.request)
