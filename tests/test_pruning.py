"""What scripts/tenants takes out of pages leaves whole paragraphs, lists, tables and blocks of commands."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.pruning import prune

PAGE = """# Page

Read this. Then use
trajtrainer old.

Read that.

- `trajtrainer old`,
  which is gone
- a new tool

| tool | meaning |
| --- | --- |
| trajtrainer old | gone |

<!-- runs -->
```
trajtrainer old --with \\
  --options
trajtrainer new
```

<!-- runs -->
```
trajtrainer old
```

## trajtrainer old

Its section.

### More

Of it.

## End

The end.

- [lost](page.md#trajtrainer-old)
- [found](page.md#end)
"""
REST = """# Page

Read that.

- a new tool

<!-- runs -->
```
trajtrainer new
```

## End

The end.

- [found](page.md#end)
"""


def test_what_mentions_something_and_what_links_to_it_is_taken_out_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    prune([tmp_path / "page.md"], re.compile("trajtrainer old"))
    assert (tmp_path / "page.md").read_text() == REST
