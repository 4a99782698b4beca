"""The examples of the page on offline training run as printed."""

from __future__ import annotations

import numpy as np

from tests.blocks import DOCS, run_examples


def test_the_expert_of_the_page_decides() -> None:
    expert = run_examples(DOCS / "train" / "offline.md")["balance"]
    assert expert([np.ones((5, 8), np.float32)], None).shape == (5, 2)
