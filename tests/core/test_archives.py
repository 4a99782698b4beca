"""Archives of unknown origin."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from tests.core.crowded import crowded
from trajtrainer.core.archives import LARGEST_DIRECTORY, LargeDirectoryError, open_zip


def test_members_are_read_whatever_their_size() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("large", bytes(LARGEST_DIRECTORY + 1))
        archive.writestr("small", b"abc")
    with open_zip(content) as archive:
        assert archive.namelist() == ["large", "small"]
        assert archive.read("large") == bytes(LARGEST_DIRECTORY + 1)
        assert archive.read("small") == b"abc"
    assert not content.closed


def test_a_list_of_many_members_is_not_read(tmp_path: Path) -> None:
    with crowded(tmp_path / "a.zip", 1000).open("rb") as file, open_zip(file) as archive:
        assert len(archive.infolist()) == 1000
    with crowded(tmp_path / "a.zip", 30_000).open("rb") as file, pytest.raises(LargeDirectoryError) as caught:
        open_zip(file)
    assert str(caught.value) == "its list of members has 1,410,000 bytes, expected at most 1,048,576"
