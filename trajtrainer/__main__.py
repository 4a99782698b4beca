"""Entry point of ``python -m trajtrainer``."""

from __future__ import annotations

import sys

from trajtrainer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
