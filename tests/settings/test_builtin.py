"""Configurations by name."""

from __future__ import annotations

from pathlib import Path

import pytest

import trajtrainer
from trajtrainer.cli.main import main
from trajtrainer.core.errors import SettingsError
from trajtrainer.settings.presets import builtin_configs, config_path
from trajtrainer.settings.yaml.convert import load

CONFIG = Path(__file__).resolve().parents[2] / "config"


def test_every_shipped_configuration_has_a_name() -> None:
    assert {CONFIG / f"{name}.yaml" for name in builtin_configs()} == set(CONFIG.rglob("*.yaml"))
    assert config_path("builtin:sac/3DBall") == CONFIG / "sac" / "3DBall.yaml"


@pytest.mark.parametrize("path", ["mine/3DBall.yaml", Path("mine") / "3DBall.yaml"])
def test_anything_else_is_a_path(path: str | Path) -> None:
    assert config_path(path) == Path("mine", "3DBall.yaml")


@pytest.mark.parametrize("name", [Path("builtin:ppo") / "Basic", "builtin:ppo/Basic.yaml"])
def test_a_path_and_an_ending_do_not_matter(name: str | Path) -> None:
    assert config_path(name) == CONFIG / "ppo" / "Basic.yaml"


@pytest.mark.parametrize(
    ("wrong", "meant"), [("ppo/3dbal", "ppo/3DBall"), ("lunarlander", "gym/LunarLander"), ("Sorter", "ppo/Sorter")]
)
def test_a_typo_is_answered_with_the_nearest_name(wrong: str, meant: str) -> None:
    with pytest.raises(SettingsError) as caught:
        config_path(f"builtin:{wrong}")
    told = str(caught.value)
    assert (
        told
        == f"There is no configuration builtin:{wrong}; did you mean builtin:{meant}? 'trajtrainer init' lists all "
        "of them."
    )


def test_the_prefix_alone_lists_all_by_folder() -> None:
    with pytest.raises(SettingsError) as caught:
        config_path("builtin:")
    head, *lines = str(caught.value).splitlines()
    assert head == "There is no configuration builtin:. Expected one of:"
    assert all(len(line) <= 110 for line in lines)
    words = " ".join(lines).split()
    for name in builtin_configs():
        folder, _, file = name.rpartition("/")
        assert f"builtin:{folder}/" in words
        assert file in words


@pytest.mark.parametrize("name", ["builtin:", "builtin:../pyproject", "builtin:/etc/passwd", "builtin:ppo"])
def test_only_names_lead_to_files(name: str) -> None:
    with pytest.raises(SettingsError, match="There is no configuration"):
        config_path(name)


def test_the_command_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "builtin:ppo/Basic", "--seed", "4"]) == 0
    settings = load(capsys.readouterr().out, "shown.yaml")
    assert settings.behaviors["Basic"].time_horizon == 3
    assert settings.env_settings.seed == 4


def test_the_library_takes_them() -> None:
    with pytest.raises(SettingsError, match="builtin:ppo/Basik; did you mean builtin:ppo/Basic"):
        trajtrainer.learn("builtin:ppo/Basik", "sim:Basic")
