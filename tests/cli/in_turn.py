"""Runs commands one after the other in this process; what each has said, and its exit code, end with a line of dashes.

::

    python -m tests.cli.in_turn '[["config", "a.yaml"], ["inspect", "a.onnx"]]'
"""

from __future__ import annotations

import json
import sys

from trajtrainer.cli.main import main

if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        print("exit code", main(words), flush=True)
        print("---", file=sys.stderr, flush=True)
