"""Tables of HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_LONGEST = 300


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int) -> str:
    """Return a table. All but the first ``text_columns`` columns are numbers, to the right."""

    def cell(kind: str, column: int, text: str) -> str:
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        right = ' class="n"' if column >= text_columns else ""
        return f"<{kind}{right}>{escape(shown)}</{kind}>"

    head = "".join(cell("th", i, title) for i, title in enumerate(titles))
    body = "".join(f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
