"""Which device is taken, and what is said of one that is not there."""

from __future__ import annotations

import pytest
import torch

from trajtrainer.core.errors import SettingsError
from trajtrainer.run.device import choose_device


@pytest.mark.parametrize("wanted", ["cpu", None])
def test_the_device_that_is_asked_for_or_there(wanted: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(wanted) == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param(
            "mps",
            "this machine or this build of torch does not support mps",
            marks=pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is one"),
        ),
        ("hpu", "this machine or this build of torch does not support hpu"),
        ("cuda:99", "(torch not compiled with cuda|cuda)"),
        ("gpu", "torch does not know this device"),
    ],
)
def test_a_device_that_is_not_here_is_explained_in_one_line(name: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=rf"(?i)^torch_settings.device is '{name}', .*\({reason}.*'cpu'") as caught:
        choose_device(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 350
