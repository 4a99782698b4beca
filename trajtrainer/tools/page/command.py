"""``trajtrainer page``: serves a web page that shows runs live."""

from __future__ import annotations

import argparse
import contextlib
import re
import secrets
import socket
import webbrowser
from pathlib import Path

from trajtrainer.core.errors import RunFolderError, UnsupportedError
from trajtrainer.core.listening import is_loopback
from trajtrainer.run.console import add_results_dir

_PORT = 6080
_HOST = "127.0.0.1"
_SHORTEST_TOKEN = 16
_A_TOKEN = re.compile(rf"[\w-]{{{_SHORTEST_TOKEN},}}", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "results",
        nargs="?",
        metavar="RESULTS",
        help="a results folder (ML-Agents' folders work, too), or a single run: its run id or folder (default: "
        "--results-dir)",
    )
    add_results_dir(parser, "the folder that contains the runs (default: results)")
    parser.add_argument(
        "--host",
        default=_HOST,
        help="the address to listen on. If other machines can reach it, the page needs a token, which is printed "
        f"(default: {_HOST})",
    )
    parser.add_argument(
        "--port", metavar="N", type=_port, default=_PORT, help=f"the port; 0 picks a free one (default: {_PORT})"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="a file with the token that every request must have, so that the token stays the same (default: a new "
        "token if other machines can reach --host, otherwise no token)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C.

    Raises:
        UnsupportedError: the extra ``page`` is not installed.
        RunFolderError: the folder is a file or cannot be read, or the port is taken.
    """
    try:
        from trajtrainer.policies.folder.contained_folder import ContainedFolder
        from trajtrainer.policies.folder.lookup import look_up
        from trajtrainer.tools.page.guard import Access
        from trajtrainer.tools.page.server import bind, make_server
        from trajtrainer.tools.page.viewer import Viewer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "anyio"):
            raise
        raise UnsupportedError(
            f"The page needs {error.name}, which is not installed: pip install 'trajtrainer[page]'."
        ) from error
    given = None if arguments.token_file is None else _token(arguments.token_file)
    results = arguments.results_dir
    if arguments.results is not None:  # a run or a results folder, which may not exist yet
        results = look_up(arguments.results, results)
    if results.exists() and not results.is_dir():
        raise RunFolderError(
            f"The results folder {results} is a file. Pass the folder that 'trajtrainer learn' writes to."
        )
    try:
        viewer = Viewer(ContainedFolder(results))
    except OSError as error:
        raise RunFolderError(f"The results folder {results} cannot be read: {error.strerror or error}.") from error
    if not viewer.summaries():
        print(f"There are no runs in {results} yet. The page will show the first one.")
    with bind(arguments.host, arguments.port) as listener:
        port = listener.getsockname()[1]
        token = given if given or is_loopback(arguments.host) else secrets.token_urlsafe(24)
        access = Access(arguments.host, port, token)
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        if arguments.host in ("0.0.0.0", "::"):  # noqa: S104  (listens on all addresses)
            host = socket.gethostname()
        address = f"http://{host}:{port}/" + (f"?token={token}" if token else "")
        print(f"Runs in {results}: {address}", flush=True)
        if token and not is_loopback(arguments.host):
            print(
                "Anyone with this address can see all runs, stop them and write notes, and the connection is not "
                "encrypted. It is safer to leave out --host and use ssh -L.",
                flush=True,
            )
        if arguments.open:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn re-raises it after a clean shutdown
            make_server(viewer, access).run(sockets=[listener])
    return 0


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"--token-file {path}: the file cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from error
    if not _A_TOKEN.fullmatch(token):
        raise RunFolderError(
            f"--token-file {path}: this is not a token; expected one line of at least {_SHORTEST_TOKEN} letters, "
            "digits, - or _. Make one with: python -c 'import secrets; print(secrets.token_urlsafe(24))'."
        )
    return token


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, expected 0 to 65535")
    return int(text)
