"""The page's server in a thread."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trajtrainer.policies.folder.contained_folder import ContainedFolder
from trajtrainer.tools.page.guard import Access
from trajtrainer.tools.page.server import bind, make_server
from trajtrainer.tools.page.viewer import Viewer

if TYPE_CHECKING:
    from tests.browser import Browser  # needs POSIX

LIMIT_S = 300.0


class Served:
    """A running server."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.port = access.port

    def ask(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        body: bytes = b"",
        /,
        **query: Any,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        with contextlib.closing(connection):
            search = f"?{urlencode(query, doseq=True)}" if query else ""
            connection.request(method, path + search, body or None, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read()

    def get(self, path: str, /, **query: Any) -> Any:
        status, _, body = self.ask(f"/api/{path}", **query)
        assert status == 200, body
        return json.loads(body)


@contextlib.contextmanager
def serving(results: Path, host: str = "127.0.0.1", token: str | None = None) -> Iterator[Served]:
    """A server of a results folder, while this lasts. It listens at this machine's loopback, whatever ``host`` says."""
    with bind("127.0.0.1", 0) as listener:
        access = Access(host, listener.getsockname()[1], token)
        server = make_server(Viewer(ContainedFolder(results)), access)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            until = time.monotonic() + LIMIT_S
            while not server.started:
                assert thread.is_alive()
                assert time.monotonic() < until
                time.sleep(0.005)
            yield Served(access)
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)
            assert not thread.is_alive()


@contextlib.contextmanager
def watching(browser: Browser, results: Path) -> Iterator[Served]:
    """A server for a browser, which leaves it in time."""
    with serving(results) as served:
        try:
            yield served
        finally:
            browser.open("about:blank")  # before the server is gone, which the page would complain of


def opened(browser: Browser, served: Served, view: str = "") -> None:
    """Open the page; ``view`` is the part of its address behind #."""
    browser.open("about:blank")
    browser.open(f"http://127.0.0.1:{served.port}/#{view}")
    browser.wait_for("document.querySelector('.live.on') !== null")
