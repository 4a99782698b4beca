"""Messages for callers in Python: their arguments in place of command line options."""

from __future__ import annotations

import pytest

from trajtrainer.core.errors import RunFolderError
from trajtrainer.settings.flags import FLAGS, in_python, python_names

LEARN = ("resume", "force", "run_id", "environment", "env_args", "num_envs")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Choose another --run-id, or use --force.", "Choose another run_id, or use force=True."),
        ("Remove the --resume flag.", "Remove resume=True."),
        ("use the --force parameter to overwrite", "use force=True to overwrite"),
        ("For the simulation: --env=sim:3DBall.", "For the simulation: environment=sim:3DBall."),
        ("--env gym:Pole-v1: no such id", "environment gym:Pole-v1: no such id"),
        ("(--num-envs=3)", "(num_envs=3)"),
        ("--env-args side=3: a number", "env_args side=3: a number"),
        # no argument of this function: a key of the settings
        ("a larger --timeout-wait.", "a larger env_settings.timeout_wait."),
        ("needs --no-graphics or xvfb", "needs engine_settings.no_graphics: true or xvfb"),
        # not an option of a run, or a part of something else
        ("one --observation for each, --resumed, x--resume", "one --observation for each, --resumed, x--resume"),
        ("Type: trajtrainer learn --resume. Or --force", "Type: trajtrainer learn --resume. Or force=True"),
    ],
)
def test_options_become_what_python_has(text: str, expected: str) -> None:
    assert in_python(text, LEARN) == expected
    assert in_python(expected, LEARN) == expected, "once is enough"


def test_every_option_with_a_setting_is_renamed() -> None:
    for flag in FLAGS:
        if flag.path:
            assert "--" not in in_python(f"Use {flag.option}.", ()), flag.option


def test_errors_keep_their_kind_and_cause() -> None:
    with pytest.raises(RunFolderError, match=r"^Use force=True$") as error, python_names(LEARN):
        raise RunFolderError("Use --force") from KeyError("x")
    assert isinstance(error.value.__cause__, KeyError)
