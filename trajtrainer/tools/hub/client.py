"""The Hugging Face hub: its package (the extra ``hub``), and clear messages for its failures."""

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
_LIBRARY = {"library_name": "trajtrainer", "library_version": __version__}
_LONGEST_REASON = 300
_LOG_IN = "Log in with 'hf auth login', or put a token of https://huggingface.co/settings/tokens into HF_TOKEN"

# For a single read, or for a connection.
TIMEOUT_S = 30.0
# Each window of waiting must reach at least this rate. With the announced size, which is checked as well, this bounds
# the time of the whole transfer.
WINDOW_S = 60.0
LOWEST_RATE = 5_000.0  # bytes per second; a connection by modem reaches it
# A finished request counts as this many bytes, so that many small files over a slow connection do not fail.
_BYTES_PER_REQUEST = 20_000
_MOST_WAITING = 16  # chunks
_LONGEST_REFUSAL = 1 << 20


class HubError(TrajtrainerError):
    """The hub refused something, failed, or did not respond."""


class Hub:
    """A model on the hub.

    Args:
        repository: "owner/name".

    Raises:
        SettingsError: the name is malformed, or the package for the hub is not installed.
    """

    def __init__(self, repository: str) -> None:
        if not _REPOSITORY.fullmatch(repository):
            raise SettingsError(
                f"{repository!r} cannot be a model on the hub, expected OWNER/NAME (letters, digits, '-', '_', '.'), "
                "such as 'anna/ppo-3DBall'."
            )
        self.repository = repository
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # the package reads it at import
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
        self.package: ModuleType = huggingface_hub
        # The package reads the variable when it is imported, which may have been earlier.
        self.endpoint = os.environ.get("HF_ENDPOINT", self.package.constants.ENDPOINT).rstrip("/")
        self.api: Any = self.package.HfApi(endpoint=self.endpoint, **_LIBRARY)

    @property
    def url(self) -> str:
        """Where a browser shows the model."""
        return f"{self.endpoint}/{self.repository}"

    def headers(self) -> dict[str, str]:
        """The headers of every request, with the user's token if there is one."""
        headers: dict[str, str] = self.package.utils.build_hf_headers(**_LIBRARY)
        return headers

    @contextlib.contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Turn every failure between here and the hub into one message that says what to do about it.

        Raises:
            HubError: something failed.
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
            raise HubError(self._explained(error)) from error

    def _explained(self, error: BaseException) -> str:
        import httpx2  # the HTTP client of the package

        cause: BaseException | None = error
        while cause is not None:  # the error of an upload is wrapped
            if isinstance(cause, self.package.errors.HfHubHTTPError):
                return self._refusal(cause.response.status_code, str(cause))
            if isinstance(cause, httpx2.HTTPError | self.package.errors.OfflineModeIsEnabled):
                reason = self._brief(str(cause) or type(cause).__name__)
                return (
                    f"The hub at {self.endpoint} does not respond ({reason}). Check the network (HTTPS_PROXY) and "
                    "HF_ENDPOINT, and try again."
                )
            cause = cause.__cause__
        return f"The hub at {self.endpoint} sent an unexpected response: {self._brief(str(error))}"

    def _refusal(self, status: int, answer: str) -> str:
        with_token = self.package.get_token() is not None
        if status == 401:
            return (
                f"The hub at {self.endpoint} refuses the token (401): it is wrong or has expired. {_LOG_IN}."
                if with_token
                else f"The hub at {self.endpoint} shows {self.repository} only to certain users, or there is no such "
                f"model (401). {_LOG_IN}."
            )
        if status == 403:
            return (
                f"The token does not allow this for {self.repository} (403). It needs permission to read the model, "
                f"and to write it for a push; some models also need their owner's consent: see {self.url}."
            )
        if status == 404:
            return (
                f"There is no model {self.repository} (or no such revision of it) at {self.endpoint} (404). Check the "
                "spelling; a private model needs its owner's token."
            )
        if status == 429:
            return f"The hub at {self.endpoint} got too many requests (429). Try again in a few minutes."
        if status >= 500:
            return f"The hub at {self.endpoint} has a problem of its own ({status}). Try again later."
        return f"The hub at {self.endpoint} refused this ({status}): {self._brief(answer)}"

    def _brief(self, text: str) -> str:
        """Text from the hub or the package on one line, shortened, without the token."""
        token = self.package.get_token()
        return one_line(text.replace(token, "...") if token else text)[:_LONGEST_REASON]


class StallDetector:
    """Ends a transfer that hardly makes progress. Only time spent waiting for the hub counts, not for a slow disk."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waited_s = 0.0
        self._received = 0

    def next(self, arrived: queue.Queue[Any]) -> Any:
        """Wait for the next item.

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
                if self._waited_s >= WINDOW_S:
                    expected = LOWEST_RATE * WINDOW_S
                    if self._received < expected:
                        raise HubError(
                            f"The hub at {self._hub.endpoint} is too slow: {self._received / 1e3:,.1f} kB arrived in "
                            f"{self._waited_s:.0f} s, expected at least {expected / 1e3:,.0f} kB. Nothing was kept. "
                            "Try again with a faster connection."
                        )
                    self._waited_s, self._received = 0.0, 0

    def add(self, amount: int) -> None:
        """Count bytes that have arrived."""
        self._received += amount


def received(
    hub: Hub, url: str, pace: StallDetector, params: Mapping[str, Any] | None = None
) -> Generator[bytes, None, None]:
    """Yield the body of a response in pieces, as they arrive.

    A thread reads it, because only a queue can be waited for with a deadline.

    Raises:
        HubError: it arrives too slowly.
        Exception: the package's own errors if the hub refuses or does not respond.
    """
    arrived: queue.Queue[bytes | BaseException | None] = queue.Queue(_MOST_WAITING)
    abandoned = threading.Event()
    session = hub.package.utils.get_session()

    def read() -> None:
        try:
            with session.stream(
                "GET", url, params=params, headers=hub.headers(), timeout=TIMEOUT_S, follow_redirects=True
            ) as answer:
                hub.package.utils.hf_raise_for_status(answer if answer.status_code < 400 else _shortened(answer))
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
        with contextlib.suppress(queue.Empty):  # the thread may be waiting for a free place in the queue
            while True:
                arrived.get_nowait()


def _shortened(answer: Any) -> Any:
    # The package reads the whole body for its message, which could be endless; this is enough of it.
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk[: _LONGEST_REFUSAL - len(body)]
        if len(body) >= _LONGEST_REFUSAL:
            break
    about_the_body = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in answer.headers.multi_items() if name.lower() not in about_the_body]
    return type(answer)(answer.status_code, headers=headers, content=bytes(body), request=answer.request)
