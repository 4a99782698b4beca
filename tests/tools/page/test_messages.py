"""scripts/messages finds what the page shows."""

from __future__ import annotations

from tests.test_messages import of_package


def test_the_list_has_the_texts_of_the_page() -> None:
    assert sum(message.kind == "page" for message in of_package()) >= 20
