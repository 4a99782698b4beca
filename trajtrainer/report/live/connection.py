"""What a connection may cost while nobody knows whose it is, and when its other end is gone.

Uvicorn has one limit for all connections and no deadline for a request: with ``limit_concurrency`` some hundred
connections that send nothing, from anybody on the network, keep out the owner of the page. Here only connections that
have not sent a request yet are limited. They have a deadline, however much they send by the drop, and the newest is
never the one that has to go. How many requests are answered at once is the guard's to limit, behind the token.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Seconds in which the head of a request has to be complete."""
STALLED_S = 60.0
"""Seconds for which an answer may wait for its reader."""
_MOST_WAITING = 128


class Connection(H11Protocol):
    """One connection of a browser, or of something that pretends to be one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since = self.loop.time()
        self._request_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request. With too many that wait, the oldest of the most crowded address goes."""
        super().connection_made(transport)
        self._await_request()
        waiting = [each for each in self.connections if isinstance(each, Connection) and each._is_waiting]
        if len(waiting) > _MOST_WAITING:
            crowd = Counter(each._host for each in waiting)
            oldest = min(waiting, key=lambda each: (-crowd[each._host], each._since))
            oldest.transport.abort()
            self.connections.discard(oldest)  # at once: it is lost only in the loop's next round

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request. A piece alone does not move the deadline."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_request()
        else:
            self._request_timer = _cancel(self._request_timer)

    def pause_writing(self) -> None:
        """Give the reader of an answer some time to go on."""
        super().pause_writing()
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """See ``pause_writing``."""
        super().resume_writing()
        self._reader_timer = _cancel(self._reader_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._request_timer = _cancel(self._request_timer)
        self._reader_timer = _cancel(self._reader_timer)

    @property
    def _is_waiting(self) -> bool:
        return self.cycle is None

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""

    def _await_request(self) -> None:
        if self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_S, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
