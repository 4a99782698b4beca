"""Whose fault an exception is that was raised while an environment ran."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from attrs import evolve
from gymnasium import spaces

from trajtrainer.core import numeric
from trajtrainer.core.errors import EnvironmentFaultError, InvalidDataError, SettingsError
from trajtrainer.envs import select
from trajtrainer.envs.python.factories import from_factory
from trajtrainer.envs.python.gymnasium_environment import GymnasiumEnvironment
from trajtrainer.settings.run import RunSettings


class Pole(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fail: Callable[[], object]) -> None:
        self.fail = fail

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.fail()
        return np.zeros(2, np.float32), {}


def fault_of(*fails: Callable[[], object]) -> str:
    environment = GymnasiumEnvironment([Pole(fail) for fail in fails], seed=0, name="pole")
    environment.reset({})
    with pytest.raises(EnvironmentFaultError) as raised:
        environment.wait()
    assert raised.value.__cause__ is not None
    return str(raised.value)


def place(function: Callable[[], object], offset: int = 1) -> str:
    return f"{__file__}:{inspect.getsourcelines(function)[1] + offset}, in {function.__qualname__}"


def nothing() -> None:
    pass


def in_numpy() -> None:
    np.stack([])


def in_the_standard_library() -> None:
    Path("/nowhere/at/all").read_text()


def leaves() -> None:
    sys.exit(3)


def misuses_us() -> None:
    numeric.count_in(None)


def test_an_exception_names_the_users_line() -> None:
    assert fault_of(in_numpy) == (
        f"The environment pole failed in its reset: ValueError: need at least one array to stack ({place(in_numpy)})."
    )


def test_the_standard_library_is_not_the_users_code() -> None:
    found = fault_of(in_the_standard_library)
    assert "FileNotFoundError" in found
    assert place(in_the_standard_library) in found


def test_the_copy_is_named() -> None:
    assert "The environment pole (copy 1) failed in its reset" in fault_of(nothing, in_numpy)


def test_an_environment_that_exits_is_at_fault() -> None:
    found = fault_of(leaves)
    assert found == f"The environment pole failed in its reset: it called sys.exit() ({place(leaves)})."


def test_our_own_bug_is_not_blamed_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.envs.python.gymnasium_agents.steps.StepBatch", None)
    found = fault_of(nothing)
    assert "TypeError: 'NoneType' object is not callable (trajtrainer/envs/python/gymnasium_agents.py:" in found
    assert "This is a bug in trajtrainer, not in the environment. Please report it" in found
    assert "--debug" in found
    assert "your code" not in found


def test_our_own_bug_names_the_users_line_that_led_there() -> None:
    found = fault_of(misuses_us)
    assert "in count_in). It was called from your code at" in found
    assert f"{place(misuses_us)}. This is a bug in trajtrainer" in found


MODULES = {
    "leaves_on_import": ("import sys\n\nsys.exit(2)\n", "cannot be imported: it called sys.exit() (", "{file}:3"),
    "fails_on_import": ("x = 1\n1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero (", "{file}:2"),
    "is_no_python": ("def make(:\n", "cannot be imported: SyntaxError: ", "line 1"),
    "wants_a_missing_name": ("\nfrom json import nothing\n", "cannot be imported: ImportError: ", "{file}:2"),
    "fails_to_make": (
        "def make():\n    raise KeyError('wheel')\n",
        "could not be made: KeyError: 'wheel' (",
        "{file}:2",
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_fails_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    code, told, where = MODULES[name]
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = RunSettings()
    settings = evolve(settings, env_settings=evolve(settings.env_settings, env_path=f"python:{name}:make"))
    with pytest.raises(EnvironmentFaultError) as raised:
        select.make_environment(settings, None)  # type: ignore[arg-type]  # no player, no logs
    assert told in str(raised.value)
    assert where.format(file=tmp_path / f"{name}.py") in str(raised.value)
    assert "bug in trajtrainer" not in str(raised.value)


def test_a_reset_without_seed_and_options_is_the_environments_mistake() -> None:
    class Seedless(Pole):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    environment = GymnasiumEnvironment([Seedless(nothing)], seed=0, name="pole")
    environment.reset({})
    with pytest.raises(InvalidDataError, match=r"reset\(\) does not accept seed and options .*Declare it as Gymnasium"):
        environment.wait()


def test_a_factory_must_return_an_environment_and_not_its_class() -> None:
    with pytest.raises(SettingsError, match=r"returned the class Pole, not an environment. Return Pole\(...\)"):
        from_factory(lambda: Pole, RunSettings())


def test_the_extra_is_named_where_gymnasium_names_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: Any, **__: Any) -> Any:
        raise gymnasium.error.DependencyNotInstalled('Box2D is missing, run `pip install "gymnasium[box2d]"`')

    monkeypatch.setattr(gymnasium, "make", make)
    settings = RunSettings()
    settings = evolve(settings, env_settings=evolve(settings.env_settings, env_path="gym:LunarLander-v3"))
    with pytest.raises(SettingsError, match=r"With trajtrainer: pip install 'trajtrainer\[box2d\]'"):
        select.make_environment(settings, None)  # type: ignore[arg-type]  # no player, no logs
