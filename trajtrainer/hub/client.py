"""The Hugging Face hub: its package (the extra ``hub``), and its failures in clear words."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
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
