"""The command: exit codes, messages, and how little it imports for help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packages import Install
from trajtrainer.cli.commands import COMMANDS
from trajtrainer.cli.main import main
from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.version import __version__


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Puts a function in the place of what ``inspect`` runs."""

    def replace(body: Callable[[], int]) -> None:
        module = types.ModuleType("trajtrainer.cli.inspect")
        module.__dict__.update(add_arguments=lambda parser: None, run=lambda arguments: body())
        monkeypatch.setitem(sys.modules, "trajtrainer.cli.inspect", module)

    return replace


@pytest.mark.parametrize(("arguments", "exit_code"), [(["--help"], 0), ([], 2)])
def test_help_lists_the_commands(arguments: list[str], exit_code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == exit_code

    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"trajtrainer {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lern"], "unknown command 'lern', expected one of learn, config, "),
        (["lern"], "; did you mean learn?"),
        (["3DBall.yaml"], "to train with a configuration, use: trajtrainer learn 3DBall.yaml"),
        (["config", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["learn", "--rum-id", "x"], "unrecognized arguments: --rum-id; did you mean --run-id?"),
        (["learn", "a.yaml", "--run_id=x", "--timescale", "3"], "; did you mean --run-id?; did you mean --time-scale?"),
        (["learn", "-resume"], "; did you mean --resume?"),
        (["learn", "a.yaml", "b.yaml"], "unrecognized arguments: b.yaml\n"),
        (["export", "first", "--opsett", "9"], "unrecognized arguments: --opsett 9; did you mean --opset?"),
        (["--nonsense"], "usage: trajtrainer [-h] [--version] COMMAND ..."),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "usage", "error"),
    [
        (["inspect"], "inspect [OPTIONS] FILE.onnx [FILE.onnx ...]", "the following arguments are required: FILE.onnx"),
        (["learn", "--seed", "many"], "learn [OPTIONS] [CONFIG]", "argument --seed: "),
    ],
)
def test_wrong_usage_is_three_lines_and_not_a_list_of_all_options(
    arguments: list[str], usage: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    command = usage.partition(" [")[0]
    assert lines[0] == f"usage: trajtrainer {usage}"
    assert lines[1].startswith(f"trajtrainer {command}: error: {error}")
    assert lines[2:] == [f"'trajtrainer {command} --help' lists all options."]


def test_the_exit_code_is_that_of_the_command(command: Callable[[Callable[[], int]], None]) -> None:
    command(lambda: 7)

    assert main(["inspect"]) == 7


def test_an_error_that_a_user_can_cause_is_one_message(
    command: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise TrajtrainerError("The disk is full.")

    command(fail)

    assert main(["inspect"]) == 1
    assert capsys.readouterr() == ("", "error: The disk is full.\n")


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "nowhere.yaml", "--debug"]) == 1

    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert shown.endswith("nowhere.yaml.\n")


def test_a_defect_of_the_program_is_no_message_for_users(command: Callable[[Callable[[], int]], None]) -> None:
    def fail() -> int:
        raise ZeroDivisionError

    command(fail)

    with pytest.raises(ZeroDivisionError):
        main(["inspect"])


def test_an_interrupt(command: Callable[[Callable[[], int]], None], capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> int:
        raise KeyboardInterrupt

    command(interrupt)

    assert main(["inspect"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


SLOW_MODULES = ("torch", "yaml", "cattrs", "numpy", "grpc", "onnx", "google.protobuf", "importlib.metadata")


def test_help_imports_nothing_slow() -> None:
    """In one process for all commands: what one of them imports is told with it, and with those behind it."""
    program = (
        "import sys; from trajtrainer.cli.main import main\n"
        "for name in ['', *sys.argv[1:]]:\n"
        "    code = main([*filter(None, [name]), '--help'])\n"
        f"    print('IMPORTED', [module for module in {SLOW_MODULES} if module in sys.modules], code, name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *COMMANDS], capture_output=True, text=True, timeout=300, check=True
    )

    told = [line for line in done.stdout.splitlines() if line.startswith("IMPORTED")]
    assert told == [f"IMPORTED [] 0 {name}" for name in ("", *COMMANDS)]


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trajtrainer", "config", "nowhere.yaml"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("error: Config file could not be found at ")


def test_a_closed_pipe_does_not_change_the_exit_code() -> None:
    program = """
import logging, sys, time, types
from trajtrainer.run.console import console
from trajtrainer.cli.main import main

def run(arguments):
    time.sleep(1)  # until nobody reads
    with console(debug=False):
        logging.getLogger("trajtrainer").info("to nobody")
    return 7

module = types.ModuleType("trajtrainer.cli.inspect")
module.add_arguments, module.run = lambda parser: None, run
sys.modules[module.__name__] = module
sys.exit(main(["inspect"]))
"""
    assert exit_code_if_unread("-c", program, unbuffered="") == 7


def exit_code_if_unread(*arguments: str, unbuffered: str) -> int:
    """That of Python if no one reads its output. It must not print errors."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        return process.wait(60)


RUN = Path(__file__).resolve().parents[1] / "upgrade" / "0.1.0" / "runs" / "ppo"


def test_a_package_adds_a_command(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install()
    assert main(["sensors", str(RUN)]) == 0
    assert capsys.readouterr() == ("Vector0: (1,)\n", "")
    assert main(["sensors"]) == 2
    assert "trajtrainer sensors: error: the following arguments are required: MODEL" in capsys.readouterr().err
    assert main(["sensors", "--help"]) == 0
    assert "Show what a policy observes." in capsys.readouterr().out


def test_help_lists_the_commands_of_packages_without_importing_them(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("odd-package", {COMMANDS.group: {"odd": "odd_command:ROW"}}, odd_command="raise RuntimeError")
    assert main(["--help"]) == 0
    assert re.search(r"^  odd +Provided by the package odd-package 1\.0\.$", capsys.readouterr().out, re.MULTILINE)
    assert main(["od"]) == 2
    assert "; did you mean odd?" in capsys.readouterr().err
    assert "odd_command" not in sys.modules


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise RuntimeError('lost')", "cannot be loaded: RuntimeError: lost. Fix, update or uninstall the package."),
        ("ROW = 3", "cannot be loaded: TypeError: it points to 3, expected a CommandRow."),
        (
            "from trajtrainer import CommandRow\nROW = CommandRow('', 'odd_gone')",
            "failed: ModuleNotFoundError: ",
        ),
        (
            "from trajtrainer import CommandRow\nROW = CommandRow('', __name__)\n"
            "def add_arguments(parser): pass\ndef run(arguments): return 1 / 0",
            "failed: ZeroDivisionError: division by zero.",
        ),
    ],
)
def test_a_broken_command_is_named_with_its_package(
    install: Install, source: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install("odd-package", {COMMANDS.group: {"odd": "odd_command:ROW"}}, odd_command=source)
    assert main(["odd"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(
        "error: The command 'odd' of package odd-package 1.0 (entry point 'odd' = 'odd_command:ROW'"
    )
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert main(["inspect", "--help"]) == 0
