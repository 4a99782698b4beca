"""Who may see the page: the checks before every request, and the headers of every response.

- The ``Host`` header has to be a name of this machine, so that no page of the web can reach this one by letting its own
  name point here (DNS rebinding).
- Beyond this machine every request needs the token, in a cookie that no script can read, or as ``Bearer``.
- What changes something needs a header that only our own page can send (CSRF), on every machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_WEEK_S = 7 * 24 * 3600
_CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A stranger's connection is not kept for further requests.
_CLOSE = {"Connection": "close"}
_MOST_REQUESTS = 100
CSRF_HEADER = "X-Trajtrainer-Page"


def is_loopback(host: str) -> bool:
    """Return whether a server at this address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what.

    Attributes:
        host: the address that the server has.
        port: its port.
        token: what every request needs; None where only this machine gets here.
        csrf: what a request that changes something needs.
    """

    host: str
    port: int
    token: str | None
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """The name of the cookie with the token: cookies are those of a machine, not of a port."""
        return f"trajtrainer_page_{self.port}"

    def knows_host(self, header: str) -> bool:
        """Return whether a ``Host`` header means this machine."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in _LOOPBACK or name == self.host.lower():
            return True
        if is_loopback(self.host):
            return False
        # An address is no name that somebody could let point here, and the token is asked for besides.
        return _is_address(name) or name in (socket.gethostname().lower(), f"{socket.gethostname().lower()}.local")

    def has_token(self, given: str | None) -> bool:
        """Return whether this is the token."""
        return self.token is None or (
            given is not None and secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode())
        )

    def may_change(self, request: Request) -> bool:
        """Return whether a request comes from our own page, so that it may change something."""
        headers = request.headers
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        origin = headers.get("origin")
        if origin is not None and "sec-fetch-site" not in headers and urlsplit(origin).netloc != headers.get("host"):
            return False
        return secrets.compare_digest(headers.get(CSRF_HEADER, "").encode("utf-8", "replace"), self.csrf.encode())


class Guard:
    """Lets through what ``access`` allows."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        if scope["type"] != "http":  # there is no other kind
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(Headers(scope=scope), QueryParams(scope["query_string"]), scope["path"])
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._requests -= 1

    def _refusal(self, headers: Headers, query: QueryParams, path: str) -> Response | None:
        """Return the answer to a request that goes no further; None lets it through."""
        access = self._access
        if not access.knows_host(headers.get("host", "")):
            text = "This server does not have that name. Open the address that 'trajtrainer page' printed.\n"
            return PlainTextResponse(text, 421, _CLOSE)
        if self._is_known(headers):
            if self._requests < _MOST_REQUESTS:
                return None
            return PlainTextResponse("Too many requests at once. Try again in a moment.\n", 503, {"Retry-After": "1"})
        if path == "/" and access.token is not None and access.has_token(query.get("token")):
            answer = RedirectResponse(".", 303)  # so that the token stands in no address line
            # "lax": whoever follows a link from a mail to here is let in as well.
            answer.set_cookie(access.cookie, access.token, _WEEK_S, httponly=True, samesite="lax")
            return answer
        return PlainTextResponse(
            "This page needs a token. Open the address with 'token=' in it that 'trajtrainer page' printed.\n",
            401,
            {"WWW-Authenticate": "Bearer", **_CLOSE},
        )

    def _is_known(self, headers: Headers) -> bool:
        """Return whether a request has the token, or none is needed."""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if self._access.token is None or (kind.lower() == "bearer" and self._access.has_token(bearer.strip())):
            return True
        return self._access.has_token(cookie_parser(headers.get("cookie", "")).get(self._access.cookie))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


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
