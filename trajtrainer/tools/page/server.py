"""The page's server: static files, and data of runs as JSON, server-sent events and downloads."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, BinaryIO
from urllib.parse import quote

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from trajtrainer.core.errors import RunFolderError
from trajtrainer.core.listening import listen
from trajtrainer.core.metrics import CONTENT_TYPE
from trajtrainer.core.version import __version__
from trajtrainer.policies.folder.contained_folder import Parts
from trajtrainer.tools.page.guard import Access, Connection, Guard
from trajtrainer.tools.page.viewer import MOST_RUNS_AT_ONCE, Viewer

_MOST_STREAMS = 24
_PAUSE_S = 1.0
_PAUSE_WHILE_READING_S = 0.05
_SIGN_OF_LIFE_S = 15.0
_CHUNK = 1 << 18
_LONGEST_BODY = 1 << 18
_FILMS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
_RANGE = re.compile(r"bytes=(?=-?\d)(\d{0,18})-(\d{0,18})")


class Api:
    """The endpoints below ``/api``.

    Args:
        viewer: provides the data of the runs.
        access: see ``Access``; the page receives its CSRF secret.
        is_ending: returns whether the server is shutting down, so that streams must end.
    """

    def __init__(self, viewer: Viewer, access: Access, is_ending: Callable[[], bool]) -> None:
        self._viewer = viewer
        self._access = access
        self._is_ending = is_ending
        self._streams = 0
        # Only one stream at a time looks for changes, to leave threads for other requests.
        self._one_at_a_time: anyio.CapacityLimiter | None = None

    @property
    def routes(self) -> list[Route]:
        """The routes below ``/api``."""
        viewer = self._viewer
        answers: dict[str, Callable[[QueryParams], Any]] = {
            "/session": self._session,
            "/runs": lambda _query: viewer.summaries(),
            "/run": lambda query: viewer.details(query.get("run", "")),
            "/tags": lambda query: viewer.tags(query.getlist("run")),
            "/series": self._series,
            "/log": lambda query: viewer.log(query.get("run", ""), query.get("name", "")),
            "/table": lambda _query: viewer.table(),
            "/groups": lambda query: viewer.groups(query.getlist("run")),
        }

        def route(path: str, answer: Callable[[QueryParams], Any]) -> Route:
            def respond(request: Request) -> Response:
                return _json(answer(request.query_params))

            return Route(path, respond)

        return [
            *(route(path, answer) for path, answer in answers.items()),
            Route("/file", self.file),
            Route("/film", self.film),
            Route("/stream", self.stream),
            Route("/stop", self.stop, methods=["POST"]),
            Route("/notes", self.notes, methods=["POST"]),
        ]

    def _session(self, _query: QueryParams) -> dict[str, Any]:
        """Return the data that the page loads first. Browsers do not let other sites read it."""
        viewer = self._viewer
        return {
            "version": __version__,
            "now": time.time(),
            "results": str(viewer.runs.folder.path),
            "only": viewer.runs.only,
            "csrf": self._access.csrf,
            "is_windows": os.name == "nt",
            "most_runs": MOST_RUNS_AT_ONCE,
        }

    def _series(self, query: QueryParams) -> dict[str, Any]:
        """Return a statistic of several runs. With ``seeds=together``, there is one line per group of seeds."""
        series = self._viewer.series_over_seeds if query.get("seeds") == "together" else self._viewer.series
        return series(
            query.getlist("run"),
            query.get("behavior", ""),
            query.get("tag", ""),
            int(_number(query.get("points"), 600.0)),
            (_number(query.get("from"), -math.inf), _number(query.get("to"), math.inf)),
            by_time=query.get("by") == "time",
        )

    def file(self, request: Request) -> Response:
        """Return a file of a run as a download."""
        parts = self._file(request)
        name = quote(parts[-1], safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return self._content(request, parts, "application/octet-stream", headers)

    def film(self, request: Request) -> Response:
        """Return a video to play in the page."""
        parts = self._file(request)
        kind = _FILMS.get(os.path.splitext(parts[-1])[1].lower())
        if kind is None:
            raise RunFolderError(f"{'/'.join(parts)} cannot be shown.")
        return self._content(request, parts, kind, {})

    def _file(self, request: Request) -> Parts:
        query = request.query_params
        return self._viewer.file(query.get("run", ""), query.get("path", ""))

    def _content(self, request: Request, parts: Parts, kind: str, headers: dict[str, str]) -> Response:
        """Return a file, or the range of it that the request asks for (RFC 9110, section 14)."""
        try:
            file = self._viewer.runs.folder.open(parts)
        except OSError as error:
            raise RunFolderError(f"{'/'.join(parts)} cannot be read.") from error
        size = os.fstat(file.fileno()).st_size
        first, behind, status = 0, size, 200
        headers["Accept-Ranges"] = "bytes"
        asked = _RANGE.fullmatch(request.headers.get("range", ""))
        if asked and size:
            if asked[1]:
                first, behind = int(asked[1]), min(size, int(asked[2]) + 1) if asked[2] else size
            else:  # a suffix range: the last bytes of the file
                first = max(0, size - int(asked[2]))
            if first >= behind:
                file.close()
                return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
            status = 206
            headers["Content-Range"] = f"bytes {first}-{behind - 1}/{size}"
            file.seek(first)
        headers["Content-Length"] = str(behind - first)
        return _ClosingResponse(_pieces(file, behind - first), file.close, kind, headers, status)

    async def notes(self, request: Request) -> Response:
        """Change the notes about a run. The body is a JSON object with the new attributes.

        A new ``text`` needs ``seen``, the text that it replaces, because someone else may have changed the text.
        """
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _LONGEST_BODY:
                return _json({"error": "The note is too long."}, 413)
        try:
            changes = json.loads(body)
            if not isinstance(changes, dict):
                raise ValueError("Expected a JSON object.")
            seen = changes.pop("seen", None)
            if ("text" in changes) != isinstance(seen, str):
                raise ValueError("A change of the text must include 'seen', the text that it replaces.")
            annotate = partial(self._viewer.annotate, request.query_params.get("run", ""), changes, seen)
            await anyio.to_thread.run_sync(annotate)
        except (ValueError, RecursionError) as error:
            return _json({"error": str(error)}, 400)
        return _json({})

    def stop(self, request: Request) -> Response:
        """Ask a run to save everything and exit."""
        self._viewer.stop(request.query_params.get("run", ""))
        return _json({})

    async def stream(self, request: Request) -> Response:
        """Send events for as long as the browser listens: the list of runs, and the ids of runs that have changed."""
        if self._streams >= _MOST_STREAMS:
            return _json({"error": "Too many pages are open. Close one of them."}, 503)
        self._streams += 1
        watched = request.query_params.getlist("run")[:MOST_RUNS_AT_ONCE]
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

        def end() -> None:
            self._streams -= 1

        return _ClosingResponse(self._events(watched), end, "text/event-stream", headers)

    async def _events(self, watched: list[str]) -> AsyncIterator[str]:
        if self._one_at_a_time is None:
            self._one_at_a_time = anyio.CapacityLimiter(1)
        look = partial(anyio.to_thread.run_sync, limiter=self._one_at_a_time)
        listed: list[dict[str, Any]] | None = None
        shown = ""
        versions: dict[str, Any] = {}
        alive_s = time.monotonic()
        while not self._is_ending():
            found, is_whole = await look(self._viewer.look, watched)
            runs = await look(self._viewer.summaries)
            changed = [run_id for run_id in watched if found.get(run_id) != versions.get(run_id)]
            versions = found
            if runs is not listed:  # the list was refreshed
                listed = runs
                text = json.dumps(runs)
                if text != shown:
                    shown, alive_s = text, time.monotonic()
                    yield f"event: runs\ndata: {text}\n\n"
            if changed:
                alive_s = time.monotonic()
                yield f"event: changed\ndata: {json.dumps(changed)}\n\n"
            if time.monotonic() > alive_s + _SIGN_OF_LIFE_S:
                alive_s = time.monotonic()
                yield ": nothing new\n\n"
            await anyio.sleep(_PAUSE_S if is_whole else _PAUSE_WHILE_READING_S)


class _ClosingResponse(StreamingResponse):
    """A streaming response that calls ``close`` at its end, even if the client disconnects early."""

    def __init__(
        self, content: Any, close: Callable[[], object], media_type: str, headers: Mapping[str, str], status: int = 200
    ) -> None:
        super().__init__(content, status, headers, media_type)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def make_app(viewer: Viewer, access: Access, is_ending: Callable[[], bool] = lambda: False) -> Starlette:
    """Create the app with API, metrics, static files and guard. See ``Api`` for the arguments."""

    def metrics(_request: Request) -> Response:
        return Response(viewer.metrics(), headers={"Content-Type": CONTENT_TYPE})

    tools = files("trajtrainer.tools")
    routes = [
        Route("/metrics", metrics),
        Mount("/api", routes=Api(viewer, access, is_ending).routes),
        Mount("/uplot", StaticFiles(directory=str(tools / "uplot"))),
        Mount("/", StaticFiles(directory=str(tools / "page" / "static"), html=True)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access)],
        exception_handlers={RunFolderError: _not_found},
    )


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket. Port 0 means any free port.

    Raises:
        RunFolderError: the port is taken, or this machine has no such address.
    """
    try:
        return listen(host, port)
    except socket.gaierror as error:
        raise RunFolderError(f"--host {host}: this machine has no such address ({error.strerror}).") from error
    except OSError as error:
        raise RunFolderError(
            f"The page cannot be served at {host}, port {port}: {error.strerror or error}. Another page or program may "
            "be using the port: choose another one with --port (0 picks a free one)."
        ) from error


def make_server(viewer: Viewer, access: Access) -> uvicorn.Server:
    """Create the server. Its ``run`` takes the socket from ``bind`` and returns after SIGINT or SIGTERM."""
    config = uvicorn.Config(
        make_app(viewer, access, lambda: server.should_exit),
        log_level="critical",
        access_log=False,
        http=Connection,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    return server


async def _not_found(_request: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 404)


def _json(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content, allow_nan=False, separators=(",", ":")), status, media_type="application/json")


def _number(text: str | None, default: float) -> float:
    try:
        number = default if text is None else float(text)
    except ValueError:
        return default
    return number if abs(number) < 1e18 else default


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield only the next ``size`` bytes, so that Content-Length is correct even if the file grows."""
    while size > 0 and (piece := file.read(min(size, _CHUNK))):
        size -= len(piece)
        yield piece
