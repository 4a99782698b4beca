"""Names of classes in exported source code."""

from __future__ import annotations

import pytest

from trajtrainer.tools.source.printing import pascal_case


@pytest.mark.parametrize(
    ("behavior", "name"),
    [("shared_policy", "SharedPolicy"), ("Ball", "Ball"), ("3DBall", "3DBall"), ("my car", "MyCar"), ("a__b", "AB")],
)
def test_a_behavior_becomes_part_of_the_name_of_a_class(behavior: str, name: str) -> None:
    assert pascal_case(behavior) == name
