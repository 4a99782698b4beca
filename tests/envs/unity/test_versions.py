from __future__ import annotations

import pytest

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.envs.unity import behaviors
from trajtrainer.envs.unity.behaviors import PictureOrder


@pytest.mark.parametrize(
    "version", ["1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0", "1.0", "1.6.0", "1.5.0-exp.1"]
)
def test_versions_of_the_same_major_fit(version: str) -> None:
    behaviors.check_api_version(version, "2.3.0")


@pytest.mark.parametrize("version", ["0.15.0", "2.0.0", "10.5.0", "API-12", "", "1", "one.five", "1.x", "1.5.0\n2"])
def test_other_versions_are_refused_with_both_versions_named(version: str) -> None:
    with pytest.raises(EnvironmentFaultError) as caught:
        behaviors.check_api_version(version, "0.9.9")
    for part in (repr(version), "1.5.0", "0.9.9", "Update the package"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("1.0.0", PictureOrder.CHANNELS_LAST),
        ("1.3.0-preview", PictureOrder.CHANNELS_LAST),
        ("2.0.1", PictureOrder.CHANNELS_LAST),
        ("2.3.0-exp.3", PictureOrder.CHANNELS_LAST),
        ("3.0.0", PictureOrder.ANNOUNCED_CHANNELS_FIRST),
        ("3.0.0-exp.1", PictureOrder.ANNOUNCED_CHANNELS_FIRST),
        ("9" * 5000, PictureOrder.ANNOUNCED_CHANNELS_FIRST),
        ("4.0.0", PictureOrder.ANNOUNCED_CHANNELS_FIRST),
        ("10.1.0", PictureOrder.ANNOUNCED_CHANNELS_FIRST),
        ("", PictureOrder.CHANNELS_FIRST),
        ("my own player", PictureOrder.CHANNELS_FIRST),
    ],
)
def test_the_package_tells_the_order_of_pictures(package: str, expected: PictureOrder) -> None:
    assert behaviors.picture_order(package) is expected


def test_all_seven_capabilities_are_announced() -> None:
    announced = behaviors.capabilities()
    assert all(getattr(announced, field.name) is True for field in announced.DESCRIPTOR.fields)
    assert len(announced.DESCRIPTOR.fields) == 7
