"""Access to the Hugging Face hub through its package (the extra ``hub``), with clear error messages."""

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
_LOG_IN = "Log in with 'hf auth login', or set HF_TOKEN to a token from https://huggingface.co/settings/tokens"


class HubError(TrajtrainerError):
    """The hub rejected a request, failed, or did not respond."""


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
                f"{repository!r} is not a valid name of a model on the hub. Expected OWNER/NAME (letters, digits, '-', "
                "'_', '.'), such as 'anna/ppo-3DBall'."
            )
        self.repository = repository
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # huggingface_hub reads this when it is imported
        try:
            import huggingface_hub.errors
            import huggingface_hub.utils
        except ImportError as error:
            raise SettingsError(
                "The hub needs the package huggingface_hub, which is not installed. Install it with: pip install "
                "'trajtrainer[hub]'."
            ) from error
        huggingface_hub.utils.disable_progress_bars()
        huggingface_hub.utils.logging.set_verbosity_error()
        self._package: ModuleType = huggingface_hub
        # huggingface_hub reads HF_ENDPOINT only at import, so a later change would be missed.
        self.endpoint = os.environ.get("HF_ENDPOINT", huggingface_hub.constants.ENDPOINT).rstrip("/")
        self.api: Any = huggingface_hub.HfApi(
            endpoint=self.endpoint, library_name="trajtrainer", library_version=__version__
        )

    @property
    def url(self) -> str:
        """URL of the model's page."""
        return f"{self.endpoint}/{self.repository}"

    @contextlib.contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Convert every failure in communicating with the hub to an error with a message that says what to do.

        Raises:
            HubError: the communication failed.
            OSError: a file cannot be read or written.
        """
        import httpx2  # the HTTP client of huggingface_hub

        try:
            yield
        except TrajtrainerError:
            raise
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None:  # huggingface_hub wraps some errors
                if isinstance(cause, self._package.errors.HfHubHTTPError):
                    raise HubError(self._refusal(cause.response.status_code, str(cause))) from error
                if isinstance(cause, httpx2.HTTPError | self._package.errors.OfflineModeIsEnabled):
                    reason = self._brief(str(cause) or type(cause).__name__)
                    raise HubError(
                        f"The hub at {self.endpoint} does not respond ({reason}). Check the network (HTTPS_PROXY) and "
                        "HF_ENDPOINT, and try again."
                    ) from error
                cause = cause.__cause__
            if isinstance(error, OSError) and error.errno is not None:  # a disk error
                raise
            raise HubError(
                f"The hub at {self.endpoint} sent an unexpected response: {self._brief(str(error))}"
            ) from error

    def _refusal(self, status: int, answer: str) -> str:
        if status == 401 and self._package.get_token() is not None:
            return f"The hub at {self.endpoint} rejected the token (401): it is wrong or has expired. {_LOG_IN}."
        if status >= 500:
            return f"The hub at {self.endpoint} has an internal problem ({status}). Try again later."
        reasons = {
            401: f"shows {self.repository} only to certain users, or there is no such model (401). {_LOG_IN}.",
            403: f"does not allow this for {self.repository} with your token (403). The token needs permission "
            "to read the model, and to write it for a push; some models also require their owner's consent: see "
            f"{self.url}.",
            404: f"has no model {self.repository}, or no such revision of it (404). Check the spelling; a private "
            "model needs its owner's token.",
            429: "received too many requests (429). Try again in a few minutes.",
        }
        return f"The hub at {self.endpoint} {reasons.get(status, f'rejected this ({status}): {self._brief(answer)}')}"

    def _brief(self, text: str) -> str:
        """Return text from the hub or the package on one line, shortened and without the token."""
        token = self._package.get_token()
        return one_line(text.replace(token, "...") if token else text)[:_LONGEST_REASON]
