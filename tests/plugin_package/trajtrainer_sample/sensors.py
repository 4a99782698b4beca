"""A command: trajtrainer sensors MODEL shows what a policy observes."""

from __future__ import annotations

import argparse

from trajtrainer import CommandRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and options."""
    parser.add_argument("model", metavar="MODEL", help="a run, a checkpoint or an .onnx")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each sensor, and return the exit code 0."""
    from trajtrainer import load_policy  # here, because it takes a second, which --help does not need

    for sensor in load_policy(arguments.model).spec.observation_specs:
        print(f"{sensor.name}: {sensor.shape}")
    return 0


ROW = CommandRow("Show what a policy observes.", __name__)
