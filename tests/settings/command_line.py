"""A run's settings from its command line, as ``trajtrainer learn`` reads them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from trajtrainer.settings.flags import add_arguments, resolve
from trajtrainer.settings.run import RunSettings


def parse_command_line(argv: Sequence[str]) -> RunSettings:
    parser = argparse.ArgumentParser("trajtrainer learn")
    add_arguments(parser)
    return resolve(parser.parse_args(argv))
