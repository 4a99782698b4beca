"""``trajtrainer init``: writes a first configuration, either for an environment or as a copy of a shipped one."""

import argparse
import itertools
import re
from pathlib import Path

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.printable import one_line
from trajtrainer.run.console import console
from trajtrainer.settings import flags
from trajtrainer.settings.flags import ACTING_FLAGS

_LEFT_OUT = {"--results-dir", "--deterministic", "--torch-device"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a shipped configuration to copy, such as ppo/3DBall; without NAME or --env, list all of them",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file to write (default: NAME.yaml in this folder)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")
    parser.add_argument("--editor", action="store_true", help="use the scene in the Unity Editor instead of --env")
    flags.add_options(parser, (flag for flag in ACTING_FLAGS if flag.option not in _LEFT_OUT))


def run(arguments: argparse.Namespace) -> int:
    """List or copy configurations, or write one for an environment. Return the exit code.

    Raises:
        SettingsError: there is no such configuration, or the file already exists.
        TrajtrainerError: the environment cannot be started, fails, or has a sensor that no encoder supports.
    """
    looks = hasattr(arguments, "env") or arguments.editor
    if arguments.name is not None and looks:
        raise SettingsError("Pass either the name of a shipped configuration or an environment, not both.")
    if hasattr(arguments, "env") and arguments.editor:
        raise SettingsError("Give either --env or --editor, not both.")
    with console(debug=hasattr(arguments, "debug"), quiet=hasattr(arguments, "quiet"), to_stderr=True):
        if looks:
            return _look(arguments)
        if arguments.name is None:
            return _list()
        from trajtrainer.settings.presets import PREFIX, config_path
        from trajtrainer.tools.init.init import save

        name = arguments.name.removeprefix(PREFIX)
        if ":" in name:  # the name of an environment, such as gym:ID or sim:NAME
            raise SettingsError(
                f"There is no configuration {name}. To write one for an environment, use: trajtrainer init --env={name}"
            )
        source = config_path(PREFIX + name)
        output = arguments.output or Path(source.name)
        save(output, source.read_text(encoding="utf-8"), overwrite=arguments.overwrite)
    print(f"Wrote {one_line(str(output))}.")
    return 0


def _list() -> int:
    from trajtrainer.settings.presets import PREFIX, builtin_configs

    configs = builtin_configs()
    width = max(map(len, configs))
    lines = []
    for name, file in configs.items():
        head = itertools.takewhile(lambda line: line.strip("# "), file.read_text(encoding="utf-8").splitlines())
        comment = " ".join(line.removeprefix("#").strip() for line in head)
        first_sentence = re.split(r"(?<=\.)(?<!et al\.) |; | \(", comment)[0].rstrip(".")
        lines.append(f"{name:<{width}}  {first_sentence}.")
    lines += ["", f"To copy one: trajtrainer init NAME. To train with one as it is: trajtrainer learn {PREFIX}NAME."]
    lines += ["To write one for your own environment: trajtrainer init --env PATH, or --editor."]
    print("\n".join(lines))
    return 0


def _look(arguments: argparse.Namespace) -> int:
    settings = flags.resolve_options(arguments)
    from trajtrainer.envs.select import check  # imported here to keep --help fast

    check(settings.env_settings.env_path)
    from trajtrainer.settings.suggestions import WHICH_ALGORITHM
    from trajtrainer.tools.init.init import described, look_and_write, paced

    found = look_and_write(settings, arguments, arguments.output, overwrite=arguments.overwrite)
    for seen in found.behaviors:
        print(one_line(f"{seen.name}:"), *map(one_line, described(seen)), sep="\n  ")
    if found.file is not None:
        print(f"{paced(found.behaviors, found.exchange)} Which algorithm fits: {WHICH_ALGORITHM}")
        file = one_line(str(found.file))
        print(f"Wrote {file}. To train: trajtrainer learn {file} --run-id=first")
    return found.exit_code
