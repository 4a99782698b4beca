"""``trajtrainer page``: a page in the browser that shows runs, live."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.errors import RunFolderError, UnsupportedError

if TYPE_CHECKING:
    from trajtrainer.page.viewer import Viewer

_PORT = 6080
_HOST = "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "results",
        nargs="?",
        metavar="RESULTS",
        type=Path,
        default=Path("results"),
        help="the results folder, also of ML-Agents, or the folder of one run (default: results)",
    )
    parser.add_argument(
        "--host",
        default=_HOST,
        help="the address to serve at. Anything but this machine's own loopback asks for a token, which is printed "
        f"(default: {_HOST})",
    )
    parser.add_argument("--port", metavar="N", type=_port, default=_PORT, help=f"0 takes a free one (default: {_PORT})")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C.

    Raises:
        UnsupportedError: the extra is not installed.
        RunFolderError: the folder does not exist, or the port is taken.
    """
    try:
        from trajtrainer.page.guard import Access, is_loopback
        from trajtrainer.page.server import bind, make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "anyio"):
            raise
        raise UnsupportedError(
            f"The page needs {error.name}, which is not installed: pip install 'trajtrainer[page]'."
        ) from error
    viewer = _viewer(arguments.results)
    if not viewer.summaries():
        print(f"There are no runs in {arguments.results} yet. The page shows them as soon as they begin.")
    with bind(arguments.host, arguments.port) as listener:
        port = listener.getsockname()[1]
        token = None if is_loopback(arguments.host) else secrets.token_urlsafe(24)
        access = Access(arguments.host, port, token)
        address = f"http://{_shown_host(arguments.host)}:{port}/" + (f"?token={token}" if token else "")
        print(f"Runs of {arguments.results}: {address}", flush=True)
        if token:
            print(
                "Whoever has this address sees all runs and can stop them. It goes over the network unencrypted; "
                "ssh -L is safer, without --host.",
                flush=True,
            )
        if arguments.open:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):  # raised again once all is closed
            make_server(viewer, access).run(sockets=[listener])
    return 0


def _viewer(results: Path) -> Viewer:
    from trajtrainer.page.folder import Folder
    from trajtrainer.page.runs import is_run
    from trajtrainer.page.viewer import Viewer

    if not results.is_dir():
        what = "is a file" if results.exists() else "does not exist"
        raise RunFolderError(
            f"The results folder {results} {what}. Give the folder that 'trajtrainer learn' writes to (--results-dir)."
        )
    try:
        folder = Folder(results)
        return Viewer(Folder(folder.path.parent), folder.path.name) if is_run(folder, ()) else Viewer(folder)
    except OSError as error:
        raise RunFolderError(f"The results folder {results} cannot be read: {error.strerror or error}.") from error


def _shown_host(host: str) -> str:
    """Return the host as it stands in an address: of a server at all addresses the machine's name."""
    if host in ("0.0.0.0", "::"):  # noqa: S104
        import socket

        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, expected 0 to 65535")
    return int(text)
