"""``trajtrainer search``: try settings within the ranges of a configuration, several at once, to find the best ones."""

from __future__ import annotations

import argparse
import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from attrs import evolve

from trajtrainer.core.plugins import resolve
from trajtrainer.core.printable import counted
from trajtrainer.run.console import add_count, console, print_table
from trajtrainer.settings import flags
from trajtrainer.settings.flags import FLAGS

if TYPE_CHECKING:
    from trajtrainer.tools.search.search import Start
    from trajtrainer.tools.search.study import Study

logger = logging.getLogger(__name__)

_NOT_SEARCHED = {
    "--inference", "--seed", "--load", "--train", "--torch", "--tensorflow", "--log-format", "--metrics-port",
    "--metrics-file",
}  # fmt: skip
_SEARCH_HELP = {
    "--run-id": "Name of the search: its folder below results-dir, which contains the runs of all trials",
    "--resume": "Continue an earlier search with this run-id; interrupted trials continue where they stopped",
    "--force": "Use a run-id that has been used before; the earlier search is kept as RUN_ID.old",
    "--initialize-from": "Start every trial with the weights of another run, at step 0",
}
_FLAGS = [
    evolve(flag, help=_SEARCH_HELP.get(flag.option, flag.help)) for flag in FLAGS if flag.option not in _NOT_SEARCHED
]
BACKENDS: dict[str, str | None] = {"processes": None, "ray": "trajtrainer.plugins.ray.trials:starter"}
"""Name -> a context manager, called with the function that starts a local trial; yields the function to use instead."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "trainer_config_path",
        metavar="CONFIG",
        help="YAML file with a 'search' section, or builtin:NAME for a shipped one (builtin:search/CartPole)",
    )
    add_count(parser, "--trials", "trials", "overrides search.trials")
    add_count(parser, "--parallel", "trials", "trials to run at the same time; overrides search.parallel")
    parser.add_argument(
        "--backend",
        choices=list(BACKENDS),
        default="processes",
        help="where trials run: on this machine, or on a Ray cluster (needs the extra 'ray') (default: processes)",
    )
    flags.add_options(parser, _FLAGS)
    flags.add_resume_auto(parser)


def run(arguments: argparse.Namespace) -> int:
    """Search, log the results, and return the exit code.

    Raises:
        SettingsError: the configuration is invalid, or the first trials all failed.
        RunFolderError: a search with this name exists already, or its files cannot be read or written.
    """
    from trajtrainer.settings.presets import config_path  # imported here to keep --help fast
    from trajtrainer.settings.search import make_plan
    from trajtrainer.settings.yaml.convert import read_file

    with console(debug=hasattr(arguments, "debug"), quiet=hasattr(arguments, "quiet")):
        root, problems = read_file(config_path(arguments.trainer_config_path))
        given = {"trials": arguments.trials, "parallel": arguments.parallel}
        own = {name: value for name, value in given.items() if value is not None}
        options = flags.given(arguments)
        resume, force = (bool(options.pop(name, False)) for name in ("resume", "force"))
        plan = make_plan(root, options, problems, own)
        from trajtrainer.run.device import choose_device
        from trajtrainer.run.preflight import Preflight, check_training
        from trajtrainer.run.signals import StopRequest
        from trajtrainer.tools.search.search import Search
        from trajtrainer.tools.search.study import Study, import_optuna
        from trajtrainer.tools.search.trial import TrialProcess

        with Preflight() as check:
            check(import_optuna)
            check_training(check, plan.settings, env_path=plan.settings.env_settings.env_path)
            check(choose_device, plan.settings.torch_settings.device)
        stop, study, backend = StopRequest(), Study(plan), BACKENDS[arguments.backend]
        starting: AbstractContextManager[Start] = (
            nullcontext(TrialProcess) if backend is None else resolve(backend)(TrialProcess, plan.parallel)
        )
        is_auto = hasattr(arguments, flags.RESUME_AUTO)
        with starting as start, study.opened(resume=None if is_auto else resume, force=force):
            amount = f"{counted(len(plan.ranges), 'range')} with {counted(plan.search.trials, 'trial')}"
            logger.info("Searching %s, %d at a time, in %s.", amount, plan.parallel, study.path)
            try:
                Search(study, start, stop).run()
            finally:
                _log_results(study)
        if study.is_unfinished:
            logger.info("To continue, run the same command with --resume.")
    return stop.exit_code


def _log_results(study: Study) -> None:
    """Log and print the results so far."""
    from trajtrainer.run.logs import shell_line
    from trajtrainer.tools.search.outcome import best_table, counts, importance_table, plot
    from trajtrainer.tools.search.study import BEST

    if study.trials:
        logger.info("%s: %s.", counted(len(study.trials), "trial"), counts(study))
    if not study.completed:
        return
    importances, picture = study.importances(), study.path / "search.png"
    print_table(best_table(study), *([importance_table(importances)] if importances else []))
    try:
        plot(study, importances, picture)
        logger.info("Picture: %s", picture)
    except ImportError:
        logger.info("To plot the search: pip install 'trajtrainer[plot]'.")
    except OSError as error:
        logger.error("%s could not be written: %s.", picture, error.strerror or error)
    command = shell_line(["trajtrainer", "learn", study.path / BEST, "--run-id=NAME"])
    logger.info("To train with the best settings: %s", command)
