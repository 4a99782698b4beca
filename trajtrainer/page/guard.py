"""Who may see the page: the checks before every request, and the headers of every response.

- The ``Host`` header has to be a name of this machine, so that no page of the web can reach this one by letting its own
  name point here (DNS rebinding).
- Beyond this machine every request needs the token, in a cookie that no script can read, or as ``Bearer``.
- What changes something needs a header that only our own page can send (CSRF), on every machine.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers, query: QueryParams, path: str) -> Response | None:
        """Return the answer to a request that goes no further; None lets it through."""
        access = self._access
        if not access.knows_host(headers.get("host", "")):
            return PlainTextResponse(
                "This server is not known by that name. Open the address that 'trajtrainer page' has printed.\n", 421
            )
        if access.token is None:
            return None
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and access.has_token(bearer.strip()):
            return None
        if access.has_token(cookie_parser(headers.get("cookie", "")).get(access.cookie)):
            return None
        if path == "/" and access.has_token(query.get("token")):
            answer = RedirectResponse(".", 303)  # so that the token stands in no address line
            # "lax": whoever follows a link from a mail to here is let in as well.
            answer.set_cookie(access.cookie, access.token, _WEEK_S, httponly=True, samesite="lax")
            return answer
        return PlainTextResponse(
            "This page needs its token. Open the address with 'token=' in it that 'trajtrainer page' has printed.\n",
            401,
            {"WWW-Authenticate": "Bearer"},
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
