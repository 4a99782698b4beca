"""The Hugging Face hub: its package (the extra ``hub``), and its failures in clear words."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from types import ModuleType
from typing import Any

from trajtrainer.core.errors import SettingsError, TrajtrainerError
from trajtrainer.core.printable import one_line
from trajtrainer.core.version import __version__

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_LONGEST_REASON = 300
_LOG_IN = "Log in with 'hf auth login', or put a token of https://huggingface.co/settings/tokens into HF_TOKEN"


class HubError(TrajtrainerError):
    """The hub refused something, has trouble, or does not answer."""


class Hub:
    """A model on the hub.

    Args:
        repository: "owner/name".

    Raises:
        SettingsError: that is no such name, or the package for the hub is not installed.
    """

    def __init__(self, repository: str) -> None:
        if not _REPOSITORY.fullmatch(repository):
            raise SettingsError(
                f"{repository!r} is no model on the hub, expected OWNER/NAME (letters, digits, '-', '_', '.'), such as "
                "'anna/ppo-3DBall'."
            )
        self.repository = repository
        self.package = _import()
        # At this moment, not when the package was imported.
        self.endpoint = os.environ.get("HF_ENDPOINT", self.package.constants.ENDPOINT).rstrip("/")
        self.api: Any = self.package.HfApi(
            endpoint=self.endpoint, library_name="trajtrainer", library_version=__version__
        )

    @property
    def url(self) -> str:
        """Where a browser shows the model."""
        return f"{self.endpoint}/{self.repository}"

    def headers(self) -> dict[str, str]:
        """Return what goes with every request, the token of whoever is logged in included."""
        headers: dict[str, str] = self.package.utils.build_hf_headers(
            library_name="trajtrainer", library_version=__version__
        )
        return headers

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Say in one message what went wrong between here and the hub, and what to do about it.

        Raises:
            HubError: something did.
        """
        try:
            yield
        except TrajtrainerError:
            raise
        except Exception as error:
            errors = self.package.errors
            of_hub = isinstance(error, errors.HfHubHTTPError | errors.OfflineModeIsEnabled)
            if isinstance(error, OSError) and not of_hub:  # of the disk
                raise
            raise HubError(self._told_of(error)) from error

    def _told_of(self, error: BaseException) -> str:
        import httpx2  # what the package speaks with

        cause: BaseException | None = error
        while cause is not None:  # an upload's is wrapped
            if isinstance(cause, self.package.errors.HfHubHTTPError):
                return self._refused(cause.response.status_code, str(cause))
            if isinstance(cause, httpx2.HTTPError | self.package.errors.OfflineModeIsEnabled):
                return self._unreachable(cause)
            cause = cause.__cause__
        return f"The hub at {self.endpoint} answers what nobody understands: {self._brief(str(error))}"

    def _unreachable(self, error: BaseException) -> str:
        return (
            f"The hub at {self.endpoint} does not answer ({self._brief(str(error) or type(error).__name__)}). Look "
            "whether the network (HTTPS_PROXY) is there and HF_ENDPOINT is right, and try again."
        )

    def _refused(self, status: int, answer: str) -> str:
        with_token = self.package.get_token() is not None
        if status == 401:
            return (
                f"The hub at {self.endpoint} refuses the token (401): it is wrong or has expired. {_LOG_IN}."
                if with_token
                else f"The hub at {self.endpoint} shows {self.repository} only to some who are logged in, or there is "
                f"no such model (401). {_LOG_IN}."
            )
        if status == 403:
            return (
                f"The token may not do this with {self.repository} (403). It needs the right to read it, to push also "
                f"to write it, and the owner's consent where a model asks for that: see {self.url}."
            )
        if status == 404:
            return (
                f"There is no model {self.repository} (or no such revision of it) at {self.endpoint} (404). Look for "
                "the spelling; a private one needs its owner's token."
            )
        if status == 429:
            return f"The hub at {self.endpoint} has had too many requests (429). Try again in some minutes."
        if status >= 500:
            return f"The hub at {self.endpoint} has trouble of its own ({status}). Try again later."
        return f"The hub at {self.endpoint} refuses this ({status}): {self._brief(answer)}"

    def _brief(self, text: str) -> str:
        """Return text of the hub or the package on one line, without the token."""
        token = self.package.get_token()
        return one_line(text.replace(token, "...") if token else text)[:_LONGEST_REASON]


def _import() -> ModuleType:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when it is imported
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise SettingsError(
            "The hub needs the package huggingface_hub, which is not installed. Install it with: pip install "
            "'trajtrainer[hub]'."
        ) from error
    huggingface_hub.utils.disable_progress_bars()
    package: ModuleType = huggingface_hub
    return package


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
