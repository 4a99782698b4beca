"""Registry of the subcommands of ``trajtrainer``."""

import importlib
from typing import Any, NamedTuple

from trajtrainer.core.plugins import Registry


class CommandRow(NamedTuple):  # not attrs, which would slow down --help
    """A subcommand of ``trajtrainer``.

    Attributes:
        help: a description of the command in one sentence.
        module: the name of its module (``my_package.weigh``). The module defines ``add_arguments(parser)``, which is
            called with an ``argparse.ArgumentParser``, and ``run(arguments)``, which returns the exit code. The module
            is imported only when the command is used. To keep ``--help`` fast, it should import slow modules only in
            ``run``.
    """

    help: str
    module: str

    def load(self) -> Any:
        """Import the module."""
        return importlib.import_module(self.module)


COMMANDS: Registry[CommandRow] = Registry(
    "command",
    "trajtrainer.commands",
    CommandRow,
    {
        "learn": CommandRow(
            "Train behaviors, as mlagents-learn does. Options override the configuration.",
            "trajtrainer.cli.learn",
        ),
        "config": CommandRow(
            "Check a configuration and print it with all defaults filled in, without starting anything. Accepts "
            "the options of learn.",
            "trajtrainer.cli.config",
        ),
        "init": CommandRow(
            "Write a first configuration: one that fits an environment (--env), with explanations, or a copy of a "
            "shipped one.",
            "trajtrainer.tools.init.command",
        ),
        "export": CommandRow(
            "Export the policies of a checkpoint or of a whole run, also from ML-Agents: as the .onnx that Unity "
            "loads, or as source code (C, C#, JavaScript, GDScript).",
            "trajtrainer.cli.export",
        ),
        "import": CommandRow(
            "Import a policy of Stable-Baselines3, CleanRL, rsl_rl or any .onnx: as the .onnx that Unity loads, or "
            "as a run.",
            "trajtrainer.tools.importing.command",
        ),
        "inspect": CommandRow(
            "Show whether Unity will load exported .onnx files, and what they expect.",
            "trajtrainer.cli.inspect",
        ),
        "verify": CommandRow(
            "Check with a recording (.demo) whether a game acts as its policy does in training, and if not, find "
            "out why.",
            "trajtrainer.tools.verify.command",
        ),
        "evaluate": CommandRow(
            "Measure how good trained models are: play episodes, and compare the models. Does not train, and "
            "does not change their runs.",
            "trajtrainer.tools.evaluate.command",
        ),
        "record": CommandRow(
            "Record what a policy does in an environment (.demo). Does not train.",
            "trajtrainer.tools.record.command",
        ),
        "demo": CommandRow(
            "Show what is in recordings (.demo), merge and split them, and convert them from and to other formats.",
            "trajtrainer.tools.demo.command",
        ),
        "tournament": CommandRow(
            "Let trained models play against each other, every pair on both sides, and rate them. Does not "
            "train, and does not change their runs.",
            "trajtrainer.tools.tournament.command",
        ),
        "report": CommandRow(
            "Write an HTML page about runs: curves over all seeds, settings, evaluations, and where the time went.",
            "trajtrainer.tools.report.command",
        ),
        "search": CommandRow(
            "Find settings that learn well: try settings within the ranges of a configuration, several at once.",
            "trajtrainer.tools.search.command",
        ),
        "push": CommandRow(
            "Upload a run to the Hugging Face Hub, with a model card.",
            "trajtrainer.tools.hub.push_command",
        ),
        "pull": CommandRow(
            "Download a run from the Hugging Face Hub into the results folder.",
            "trajtrainer.tools.hub.pull_command",
        ),
        "alias": CommandRow(
            "Create a command mlagents-learn that does the same as 'trajtrainer learn', for scripts that call it.",
            "trajtrainer.cli.alias",
        ),
        "plot": CommandRow(
            "Plot curves of runs, over all seeds, as a picture.",
            "trajtrainer.tools.report.plot_command",
        ),
        "completion": CommandRow(
            "Print a script that lets bash, zsh or fish complete commands and options.",
            "trajtrainer.cli.completion",
        ),
        "page": CommandRow(
            "Show runs in the browser, live: curves, lessons, evaluations, logs, files.",
            "trajtrainer.tools.page.command",
        ),
    },
)
"""Name as typed by the user -> command."""
