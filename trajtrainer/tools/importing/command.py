"""``trajtrainer import FILE``: converts a policy of another trainer into a model for Unity, or into a run."""

import argparse
import math
from pathlib import Path

from trajtrainer.run.console import console
from trajtrainer.settings import flags
from trajtrainer.settings.flags import ACTING_FLAGS

_LEFT_OUT = {"--results-dir", "--deterministic", "--torch-device"}
_ACTIVATIONS = ("tanh", "relu", "swish", "elu", "selu", "leaky_relu", "sigmoid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a .zip of Stable-Baselines3 or sb3-contrib (MlpPolicy, CnnPolicy, MultiInputPolicy), a state dict of "
        "CleanRL or rsl_rl (.pt, .pth, .safetensors), or any .onnx with one input, one output and "
        "optionally a state",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=Path,
        metavar="OUT",
        help="the .onnx to write, or the folder of a new run (for --initialize-from)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing .onnx")
    parser.add_argument(
        "--behavior", metavar="NAME", help="the behavior that the policy is for, if the environment has several"
    )
    parser.add_argument(
        "--activation",
        choices=_ACTIVATIONS,
        help="the activation after each hidden layer, if the file does not contain it",
    )
    parser.add_argument(
        "--statistics",
        metavar="FILE.npz",
        type=Path,
        help="the statistics of the VecNormalize that normalized the observations: mean, var, epsilon, clip_obs, count",
    )
    parser.add_argument(
        "--image-scale",
        metavar="MOST",
        type=float,
        choices=(1.0, 255.0),
        help="the largest value of a pixel in training, 1 or 255, if the file does not contain it",
    )
    parser.add_argument(
        "--clip",
        metavar="LIMIT",
        type=_bounds,
        help="the bounds of the Box that continuous actions were clipped to: 1 for -1 to 1, or --clip=LOW:HIGH",
    )
    parser.add_argument(
        "--scores",
        choices=("logits", "values"),
        help="the output of an .onnx for discrete actions: logits that actions are sampled from, or values, as in DQN",
    )
    flags.add_options(parser, (flag for flag in ACTING_FLAGS if flag.option not in _LEFT_OUT))


def run(arguments: argparse.Namespace) -> int:
    """Import the policy, and return the exit code.

    Raises:
        TrajtrainerError: the file or the environment does not exist, or they do not match.
    """
    settings = flags.resolve_options(arguments)
    with console(debug=hasattr(arguments, "debug"), quiet=hasattr(arguments, "quiet"), to_stderr=True):
        # Imported here because torch is slow to import.
        from trajtrainer.tools.importing.importing import import_policy
        from trajtrainer.tools.importing.policy import HeadKind, Hints

        hints = Hints(
            activation=arguments.activation,
            image_scale=arguments.image_scale,
            bounds=arguments.clip,
            scores=None if arguments.scores is None else HeadKind(arguments.scores),
        )
        return import_policy(
            arguments.file,
            arguments.output,
            settings,
            hints,
            statistics=arguments.statistics,
            behavior=arguments.behavior,
            overwrite=arguments.overwrite,
        )


def _bounds(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        bounds = (float(low), float(high)) if colon else (-float(text), float(text))
    except ValueError:
        bounds = (math.nan, math.nan)
    if not -math.inf < bounds[0] < bounds[1] < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number above 0, such as 1, nor LOW:HIGH, such as -2:3")
    return bounds
