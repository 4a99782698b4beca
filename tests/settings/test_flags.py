"""The command line: its options and their precedence (docs/explanation/mlagents-behavior.md#command-line)."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import pytest
from attrs import fields

from tests.settings.command_line import parse_command_line
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.settings.actors import ActorSettings
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.flags import FLAGS, add_arguments
from trajtrainer.settings.monitoring import MonitoringSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import to_mapping
from trajtrainer.settings.yaml.structuring import is_internal

# Scripts and batch systems are written against this list: an entry may be added, none changed or taken away.
FROZEN: dict[str, tuple[str, Any, str]] = {
    "--env": ("env_settings.env_path", None, "TEXT"),
    "--resume": ("checkpoint_settings.resume", False, "SWITCH"),
    "--load": ("checkpoint_settings.load_model", False, "SWITCH"),
    "--deterministic": ("deterministic", False, "SWITCH"),
    "--force": ("checkpoint_settings.force", False, "SWITCH"),
    "--run-id": ("checkpoint_settings.run_id", "ppo", "TEXT"),
    "--initialize-from": ("checkpoint_settings.initialize_from", None, "TEXT"),
    "--seed": ("env_settings.seed", -1, "WHOLE"),
    "--train": ("checkpoint_settings.train_model", False, "SWITCH"),
    "--inference": ("checkpoint_settings.inference", False, "SWITCH"),
    "--base-port": ("env_settings.base_port", 5005, "WHOLE"),
    "--num-envs": ("env_settings.num_envs", 1, "WHOLE"),
    "--num-areas": ("env_settings.num_areas", 1, "WHOLE"),
    "--listen-address": ("env_settings.listen_address", "127.0.0.1", "TEXT"),
    "--raw-image-order": ("env_settings.raw_image_order", RawImageOrder.AUTO, "TEXT"),
    "--debug": ("debug", False, "SWITCH"),
    "--quiet": ("", None, "SWITCH"),
    "--log-format": ("", None, "TEXT"),
    "--metrics-port": ("monitoring.metrics_port", None, "WHOLE"),
    "--metrics-file": ("monitoring.metrics_file", None, "TEXT"),
    "--env-args": ("env_settings.env_args", None, "REST"),
    "--wrapper": ("env_settings.wrappers", None, "WORDS"),
    "--max-lifetime-restarts": ("env_settings.max_lifetime_restarts", 10, "WHOLE"),
    "--restarts-rate-limit-n": ("env_settings.restarts_rate_limit_n", 1, "WHOLE"),
    "--restarts-rate-limit-period-s": ("env_settings.restarts_rate_limit_period_s", 60, "WHOLE"),
    "--torch": ("", None, "REMOVED"),
    "--tensorflow": ("", None, "REMOVED"),
    "--results-dir": ("checkpoint_settings.results_dir", "results", "TEXT"),
    "--actors": ("actors.count", None, "WHOLE"),
    "--actor-backend": ("actors.backend", None, "TEXT"),
    "--ray-address": ("actors.ray.address", None, "TEXT"),
    "--python-timeout": ("env_settings.python_timeout", 1800, "WHOLE"),
    "--timeout-wait": ("env_settings.timeout_wait", 60, "WHOLE"),
    "--width": ("engine_settings.width", 84, "WHOLE"),
    "--height": ("engine_settings.height", 84, "WHOLE"),
    "--quality-level": ("engine_settings.quality_level", 5, "WHOLE"),
    "--time-scale": ("engine_settings.time_scale", 20, "REAL"),
    "--target-frame-rate": ("engine_settings.target_frame_rate", -1, "WHOLE"),
    "--capture-frame-rate": ("engine_settings.capture_frame_rate", 60, "WHOLE"),
    "--no-graphics": ("engine_settings.no_graphics", False, "SWITCH"),
    "--no-graphics-monitor": ("engine_settings.no_graphics_monitor", False, "SWITCH"),
    "--torch-device": ("torch_settings.device", None, "TEXT"),
}

# Options that take one of some names, or make a section of their own.
_NAMES = (
    "--actors", "--actor-backend", "--ray-address", "--raw-image-order", "--log-format", "--metrics-port",
    "--metrics-file",
)  # fmt: skip
VALUES = {
    "TEXT": ["seven"],
    "WHOLE": ["7"],
    "REAL": ["7.5"],
    "SWITCH": [],
    "REMOVED": [],
    "REST": ["-a", "--seed", "1"],
    "WORDS": ["a.b:C", "d=1"],
}
PARSED = {
    "TEXT": "seven",
    "WHOLE": 7,
    "REAL": 7.5,
    "SWITCH": True,
    "REST": ["-a", "--seed", "1"],
    "WORDS": ["a.b:C d=1"],
}


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(
        """\
behaviors: {A: {max_steps: 7}}
env_settings: {env_path: Game, num_envs: 3, seed: 5}
engine_settings: {width: 100}
checkpoint_settings: {run_id: yaml}
""",
        encoding="utf-8",
    )
    return path


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def looked_up(settings: RunSettings, path: str) -> Any:
    value: Any = settings
    for key in path.split("."):
        value = getattr(value, key, None)  # a section may not be there
    return value


def test_the_options_are_frozen() -> None:
    assert {flag.option: (flag.path, flag.default, flag.kind.name) for flag in FLAGS} == FROZEN


def test_every_setting_of_the_sections_has_its_option() -> None:
    sections = ("env_settings", "engine_settings", "checkpoint_settings", "torch_settings")
    settable = {
        f"{section}.{field.name}"
        for section in sections
        for field in fields(type(getattr(RunSettings(), section)))
        if not is_internal(field)
    }

    short = {"debug", "deterministic", "actors.count", "actors.backend", "actors.ray.address"}
    short |= {"monitoring.metrics_port", "monitoring.metrics_file"}
    assert {flag.path for flag in FLAGS} - {"", *short} == settable


@pytest.mark.parametrize("option", [each for each in FROZEN if each not in _NAMES])
def test_an_option_sets_its_place_and_nothing_else(option: str) -> None:
    path, _, kind = FROZEN[option]
    others = {"--num-envs": ["--env", "Game"], "--wrapper": ["--env", "gym:X-v0"]}.get(option, [])

    settings = parse_command_line([*others, option, *VALUES[kind]])

    if path:
        assert looked_up(settings, path) == PARSED[kind]
    changed = {path, *(["checkpoint_settings.resume"] if option == "--load" else [])}
    changed |= {"env_settings.env_path"} if others else set()
    for other in {path for path, _, _ in FROZEN.values() if path} - changed:
        assert looked_up(settings, other) == looked_up(RunSettings(), other)


def test_the_order_of_raw_images_is_one_of_three() -> None:
    settings = parse_command_line(["--env", "Game", "--raw-image-order", "chw"])
    assert settings.env_settings.raw_image_order is RawImageOrder.CHW
    with pytest.raises(SettingsError, match=r"--raw-image-order.*rgb.*one of auto, hwc, chw"):
        parse_command_line(["--env", "Game", "--raw-image-order", "rgb"])


def test_options_of_actors_make_the_section() -> None:
    settings = parse_command_line(["--env", "Game", "--actors", "3"])
    assert settings.actors == ActorSettings(count=3)
    settings = parse_command_line(["--env", "Game", "--actor-backend", "thread"])
    assert settings.actors == ActorSettings(backend="thread")
    with pytest.raises(SettingsError, match="has no effect: it is only for backend ray"):
        parse_command_line(["--env", "Game", "--ray-address", "auto"])


def test_options_of_monitoring_make_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    settings = parse_command_line(["--metrics-port", "0", "--metrics-file", "run.prom"])
    assert settings.monitoring == MonitoringSettings(metrics_port=0, metrics_file="run.prom")
    assert settings.monitoring.metrics_address == "127.0.0.1"
    assert parse_command_line(["--log-format", "json"]) == RunSettings()
    with pytest.raises(SystemExit):
        parse_command_line(["--log-format", "xml"])
    assert "invalid choice: 'xml'" in capsys.readouterr().err


def test_command_line_beats_file_beats_default(configuration: Path) -> None:
    settings = parse_command_line([str(configuration), "--num-envs", "2", "--run-id=shell"])

    assert settings.checkpoint_settings.run_id == "shell"
    assert settings.env_settings.num_envs == 2
    assert settings.env_settings.seed == 5
    assert (settings.engine_settings.width, settings.engine_settings.height) == (100, 84)
    assert settings.behaviors_required


def test_options_may_stand_before_the_file(configuration: Path) -> None:
    settings = parse_command_line(["--seed", "9", str(configuration), "--no-graphics"])

    assert settings.behaviors["A"].max_steps == 7
    assert settings.env_settings.seed == 9
    assert settings.engine_settings.no_graphics


def test_an_option_given_with_its_default_value_still_beats_the_file(configuration: Path) -> None:
    assert parse_command_line([str(configuration), "--seed", "-1"]).env_settings.seed == -1


def test_no_file() -> None:
    settings = parse_command_line([])

    assert settings == RunSettings()
    assert not settings.behaviors_required


def test_abbreviations(configuration: Path) -> None:
    settings = parse_command_line([str(configuration), "--num-env", "2", "--run", "short", "--time-s", "3"])

    assert (settings.env_settings.num_envs, settings.checkpoint_settings.run_id) == (2, "short")
    assert settings.engine_settings.time_scale == 3.0


def test_the_rest_goes_to_the_player(configuration: Path) -> None:
    settings = parse_command_line([str(configuration), "--env-args", "--seed", "3", "x", "--run-id"])

    assert settings.env_settings.env_args == ["--seed", "3", "x", "--run-id"]
    assert settings.env_settings.seed == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seed", "many"],
        ["--seed", "1.5"],
        ["--time-scale", "fast"],
        ["--nonsense"],
        ["a.yaml", "b.yaml"],
        ["--run-id"],
        ["--res"],  # could be three options
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_command_line(arguments)

    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_value_that_does_not_fit_names_the_option() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_command_line(["--num-areas", "0", "--run-id", ""])

    assert sorted(str(problem) for problem in caught.value.problems) == [
        "command line: --num-areas: found 0, expected a whole number of at least 1",
        "command line: --run-id: found '', expected a name",
    ]


def test_problems_of_file_and_command_line_come_together(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "env_settings:\n  num_envs: 0\n  sead: 1\ntorch_settings: null\n")
    with pytest.raises(ConfigurationError) as caught:
        parse_command_line([path, "--base-port", "0", "--torch-device", "cpu"])

    assert [str(problem) for problem in caught.value.problems] == [
        "command line: --base-port: found 0, expected a number from 1 to 65535",
        f"{path}:2: env_settings.num_envs: found 0, expected a whole number of at least 1",
        f"{path}:3: env_settings.sead: unknown option; did you mean seed?",
        f"{path}:4: torch_settings: found nothing (null), expected a mapping ({{}} means the defaults)",
    ]


def test_a_missing_file() -> None:
    with pytest.raises(SettingsError, match=r"Config file could not be found at /.*nowhere\.yaml"):
        parse_command_line(["nowhere.yaml"])


def test_a_missing_file_that_comes_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"3DBall\.yaml; builtin:ppo/3DBall comes with trajtrainer\.$"):
        parse_command_line(["config/ppo/3DBall.yaml"])


@pytest.mark.parametrize(
    ("file", "arguments", "resume", "initialize_from"),
    [
        ("{}", ["--resume"], True, None),
        ("{}", ["--load"], True, None),
        ("{load_model: true}", [], True, None),
        ("{}", ["--initialize-from", "x"], False, "x"),
        ("{initialize_from: y}", ["--resume"], True, None),
        ("{initialize_from: y}", ["--load"], True, None),
        ("{resume: true}", ["--initialize-from", "x"], False, "x"),
        ("{load_model: true}", ["--initialize-from", "x"], False, "x"),
        ("{}", ["--initialize-from", "x", "--resume"], True, None),
        ("{resume: true, initialize_from: y}", [], True, None),
        ("{resume: true, initialize_from: y}", ["--initialize-from", "x"], False, "x"),
        ("{resume: true, initialize_from: y}", ["--resume"], True, None),
    ],
)
def test_resume_or_initialize(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    file: str,
    arguments: list[str],
    resume: bool,
    initialize_from: str | None,
) -> None:
    path = write(tmp_path / "a.yaml", f"checkpoint_settings: {file}\n")
    with caplog.at_level(logging.WARNING):
        settings = parse_command_line([path, *arguments]).checkpoint_settings

    assert (settings.resume, settings.initialize_from) == (resume, initialize_from)
    given = "".join([file, *arguments])
    if "initialize" in given and ("resume" in given or "load" in given):
        assert "ignored" in caplog.text


@pytest.mark.parametrize("option", ["--load", "--train", "--torch", "--tensorflow"])
def test_deprecated_options_warn(option: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_command_line([option])

    assert [record.getMessage().split()[:2] for record in caplog.records] == [["The", option]]


def test_deterministic_applies_to_every_behavior(tmp_path: Path) -> None:
    listed = write(tmp_path / "a.yaml", "behaviors: {A: {}}\ndefault_settings: {max_steps: 7}\n")

    for settings, name in (
        (parse_command_line([listed, "--deterministic"]), "A"),
        (parse_command_line([listed, "--deterministic"]), "unlisted"),
        (parse_command_line(["--deterministic"]), "without a file"),
    ):
        assert settings.for_behavior(name).network_settings.deterministic
    assert not parse_command_line([listed]).for_behavior("A").network_settings.deterministic


def test_help_shows_defaults_and_groups_and_hides_what_is_deprecated() -> None:
    parser = argparse.ArgumentParser("learn")
    add_arguments(parser)
    shown = " ".join(parser.format_help().split())

    assert "--base-port N" in shown
    assert "(default: 5005)" in shown
    assert "Engine Configuration: --width N" in shown
    assert "Torch Configuration: --torch-device DEVICE" in shown
    for flag in FLAGS:
        assert (f"{flag.option} " in shown) == (flag.option not in ("--load", "--train")), flag.option


def test_nothing_given_leaves_the_dump_at_its_defaults() -> None:
    assert to_mapping(parse_command_line([])) == to_mapping(RunSettings())
