"""Controls who may access the page, and limits the resources that unauthenticated connections can use.

``Guard`` checks every request and adds headers to every response:

- The ``Host`` header must be a name of this machine, so that no website can reach the page by resolving its own name to
  this address (DNS rebinding).
- If the server can be reached from other machines, every request needs the token, either in a cookie that scripts
  cannot read or as ``Bearer``.
- A request that changes something needs a header that only this page can send (against CSRF), even on this machine.
- The number of requests that are processed at the same time is limited.

``Connection`` limits connections before they have sent a request. Uvicorn has a single limit for all connections, and
no deadline for a request. With its ``limit_concurrency``, a few hundred idle connections from anywhere on the network
would lock out the owner of the page. Here, only connections that have not yet sent a complete request are limited. They
have a fixed deadline, however slowly they send, and the newest connection is never the one that is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from trajtrainer.core.listening import is_loopback

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WEEK_S = 7 * 24 * 3600
_CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# Connections without a valid token are not kept open for further requests.
_CLOSE = {"Connection": "close"}
_MAX_REQUESTS = 100  # maximum number of requests processed at the same time
CSRF_HEADER = "X-Trajtrainer-Page"
REQUEST_S = 10.0
"""A request's headers must be complete within this time."""
STALLED_S = 60.0
"""How long a response may wait for a client that does not read it."""
_MAX_WAITING = 128


@dataclass(frozen=True, slots=True)
class Access:
    """The secrets and the address that decide which requests are allowed.

    Attributes:
        host: the address that the server listens on.
        port: the server's port.
        token: the token that every request needs; None if only this machine can reach the server.
        csrf: the secret that every request needs if it changes something.
    """

    host: str
    port: int
    token: str | None
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """Name of the cookie with the token. It includes the port, because servers on all ports share cookies."""
        return f"trajtrainer_page_{self.port}"

    def knows_host(self, header: str) -> bool:
        """Return whether a ``Host`` header names this machine."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in _LOOPBACK or name == self.host.lower():
            return True
        if is_loopback(self.host):
            return False
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True  # DNS rebinding needs a name, and the token is still checked
        return name in (socket.gethostname().lower(), f"{socket.gethostname().lower()}.local")

    def has_token(self, given: str | None) -> bool:
        """Return whether the given token is correct, or no token is needed."""
        return self.token is None or (
            given is not None and secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode())
        )

    def may_change(self, headers: Headers) -> bool:
        """Return whether a request comes from this server's page and may therefore change something."""
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        origin = headers.get("origin")
        if origin is not None and "sec-fetch-site" not in headers and urlsplit(origin).netloc != headers.get("host"):
            return False
        return secrets.compare_digest(headers.get(CSRF_HEADER, "").encode("utf-8", "replace"), self.csrf.encode())


class Guard:
    """Middleware that only lets through requests that ``access`` allows."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the server has no websockets and no lifespan events
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # Browsers revalidate the page, so that an update of the package takes effect at once. They never store
                # data of runs.
                headers.setdefault("Cache-Control", "no-store" if scope["path"].startswith("/api/") else "no-cache")
            await send(message)

        refusal = self._refusal(Headers(scope=scope), QueryParams(scope["query_string"]), scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._requests -= 1

    def _refusal(self, headers: Headers, query: QueryParams, scope: Scope) -> Response | None:
        """Return the response to a request that is refused or redirected, or None if it may pass."""
        access = self._access
        if not access.knows_host(headers.get("host", "")):
            text = "This server does not have that name. Open the address that 'trajtrainer page' printed.\n"
            return PlainTextResponse(text, 421, _CLOSE)
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        cookie = cookie_parser(headers.get("cookie", "")).get(access.cookie)
        if (kind.lower() == "bearer" and access.has_token(bearer.strip())) or access.has_token(cookie):
            if self._requests >= _MAX_REQUESTS:
                text = "Too many requests at once. Try again in a moment.\n"
                return PlainTextResponse(text, 503, {"Retry-After": "1"})
            if scope["method"] == "POST" and not access.may_change(headers):
                return JSONResponse({"error": "This request did not come from the page."}, 403)
            return None
        if scope["path"] == "/" and access.token is not None and access.has_token(query.get("token")):
            answer = RedirectResponse(".", 303)  # removes the token from the address bar
            # "lax" also sends the cookie when someone follows a link, for example in an email.
            answer.set_cookie(access.cookie, access.token, _WEEK_S, httponly=True, samesite="lax")
            return answer
        return PlainTextResponse(
            "This page needs a token. Open the address with 'token=' that 'trajtrainer page' printed.\n",
            401,
            {"WWW-Authenticate": "Bearer", **_CLOSE},
        )


class Connection(H11Protocol):
    """A connection, with deadlines and a limit for connections that have not sent a request yet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since = self.loop.time()
        self._request_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        # A connection without a cycle has not sent a complete request yet.
        waiting = [each for each in self.connections if isinstance(each, Connection) and each.cycle is None]
        if len(waiting) > _MAX_WAITING:
            # Drop the oldest connection of the address with the most connections.
            crowd = Counter(each._host for each in waiting)
            oldest = min(waiting, key=lambda each: (-crowd[each._host], each._since))
            oldest.transport.abort()
            self.connections.discard(oldest)  # connection_lost would do this too late, in the next loop iteration

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # Receiving part of a request does not extend the deadline.
        if self.conn.their_state is h11.IDLE:
            self._await_request()
        else:
            self._request_timer = _cancel(self._request_timer)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader_timer is None:
            self._reader_timer = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader_timer = _cancel(self._reader_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._request_timer = _cancel(self._request_timer)
        self._reader_timer = _cancel(self._reader_timer)

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
