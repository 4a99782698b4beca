"""Runs a policy that was exported as source code on recorded observations: compiles it in a temporary folder.

One agent decides after the other; its memory is cleared where an episode begins.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from trajtrainer.core.errors import CheckpointError, SettingsError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.tools.templates import fill
from trajtrainer.tools.verify.likelihood import Mode, PlayedActions
from trajtrainer.tools.verify.network import Question

_SECONDS: Final = 300


class Sizes(NamedTuple):
    """Numbers per agent of what a policy sees and does."""

    observations: tuple[int, ...]
    mask: int
    memory: int
    continuous: int
    discrete: int


class LanguageRunner(NamedTuple):
    """How a policy of a language is run.

    Attributes:
        programs: that are needed.
        name: finds the policy's name in its file.
        file: of the program that asks it, in ``templates``.
        commands: that compile and run it, from the file of the policy.
    """

    programs: tuple[str, ...]
    name: re.Pattern[str]
    file: str
    commands: Callable[[str], list[list[str]]]


_LANGUAGES: Final = {
    ".h": LanguageRunner(
        ("gcc",),
        re.compile(r"^\} policy_(\w+)_workspace;", re.MULTILINE),
        "main.c",
        lambda _: [["gcc", "-O1", "-std=c99", "main.c", "-o", "main", "-lm"], ["./main"]],
    ),
    ".mjs": LanguageRunner(
        ("node",),
        re.compile(r"^export class (Policy)\b", re.MULTILINE),
        "main.mjs",
        lambda _: [["node", "main.mjs"]],
    ),
    ".cs": LanguageRunner(
        ("mcs", "mono"),
        re.compile(r"^public sealed class (Policy\w+)", re.MULTILINE),
        "Main.cs",
        lambda file: [["mcs", "-optimize+", "Main.cs", file, "-out:main.exe"], ["mono", "main.exe"]],
    ),
}
_LANGUAGES[".c"], _LANGUAGES[".js"] = _LANGUAGES[".h"], _LANGUAGES[".mjs"]


def language_of(path: Path) -> LanguageRunner:
    """How a file is run.

    Raises:
        SettingsError: it cannot be run here.
    """
    if path.suffix == ".gd":
        raise SettingsError(
            f"{path} runs in Godot alone. Record what the game does there, and leave --against out; or export the same "
            "policy with --to c to check it."
        )
    if path.suffix not in _LANGUAGES:
        raise SettingsError(
            f"{path} is no policy as source code. Expected a file that `trajtrainer export --to` wrote, with the "
            f"suffix {', '.join(_LANGUAGES)}."
        )
    language = _LANGUAGES[path.suffix]
    absent = [program for program in language.programs if shutil.which(program) is None]
    if absent:
        raise SettingsError(f"To run {path}, {' and '.join(absent)} must be installed.")
    return language


def run_program(
    path: Path, question: Question, spec: BehaviorSpec, memory_size: int, *, mode: Mode, seed: int = 0
) -> PlayedActions:
    """The actions of a policy as source code for the recorded observations.

    Args:
        path: of the file, which ``trajtrainer export --to`` wrote. It is copied, compiled and run.
        question: of N decisions.
        spec: of the agents.
        memory_size: of the model, which the file must have too.
        mode: whether it draws.
        seed: of its random numbers.

    Raises:
        SettingsError: it cannot be run here.
        CheckpointError: it is no such file, of other agents, or fails.
    """
    language = language_of(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"The file {path} cannot be read: {error}.") from error
    name = language.name.search(text)
    drawn = re.search(r"Random: (\d+) numbers per agent", text)
    if name is None or drawn is None:
        raise CheckpointError(f"{path} is no policy that `trajtrainer export --to` wrote.")
    action = spec.action_spec
    sizes = Sizes(
        tuple(int(np.prod(values.shape[1:])) for values in question.obs),
        sum(action.discrete_branches),
        memory_size,
        action.continuous_size,
        action.discrete_size,
    )
    count = len(question)
    flags = np.stack([question.starts, np.full(count, mode is Mode.DETERMINISTIC)], axis=1)
    random = np.random.default_rng(seed).random((count, int(drawn[1])), np.float32)
    columns = [values.reshape(count, -1) for values in question.obs]
    table = np.concatenate([*columns, ~question.mask, flags, random], axis=1).astype("<f4")
    with tempfile.TemporaryDirectory(prefix="trajtrainer-verify-") as folder:
        file = f"policy{'.mjs' if path.suffix == '.js' else '.h' if path.suffix == '.c' else path.suffix}"
        (Path(folder) / file).write_text(text, encoding="utf-8")
        offsets = np.cumsum([0, *sizes.observations[:-1]]).tolist()
        parts = {"name": name[1], "file": file, "sizes": sizes, "offsets": offsets}
        main = fill("trajtrainer.tools.verify", language.file, parts)
        (Path(folder) / language.file).write_text(main, encoding="utf-8")
        *compile_, run = language.commands(file)
        for command in compile_:
            _run(path, command, folder, b"")
        answer = _run(path, run, folder, table.tobytes())
    numbers = np.frombuffer(answer, "<f4")
    width = sizes.continuous + sizes.discrete
    if len(numbers) != count * width:
        raise CheckpointError(f"{path} gave {len(numbers)} numbers for {count} decisions of {width}.")
    rows = numbers.reshape(count, width)
    return PlayedActions(rows[:, : sizes.continuous], rows[:, sizes.continuous :].astype(np.int64))


def _run(path: Path, command: Sequence[str], folder: str, given: bytes) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603  (the user asks for this program)
            command, cwd=folder, input=given, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError(f"{path} did not decide within {_SECONDS} s. Try fewer --decisions.") from error
    except OSError as error:
        raise SettingsError(f"{command[0]} cannot be started: {error.strerror or error}.") from error
    if done.returncode == 9:
        raise CheckpointError(f"{path} is of agents that see or do something else than those of the recording.")
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-800:]
        raise CheckpointError(f"{path} does not work: {command[0]} ended with {done.returncode}.\n{said}")
    return done.stdout
