"""What ``trajtrainer config`` prints has every key, and every key that is a comment can be uncommented."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from tests.settings.builders import runs
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.rewards.settings import CuriositySettings
from trajtrainer.settings import actors, checks, environment, evaluation, monitoring, network, run, tracking
from trajtrainer.settings.checks import Place, Problem
from trajtrainer.settings.environment import SAMPLERS
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import SelfPlaySettings, TrainerSettings
from trajtrainer.settings.yaml.commented import complete
from trajtrainer.settings.yaml.convert import load, run_settings, to_mapping
from trajtrainer.settings.yaml.document import from_mapping
from trajtrainer.settings.yaml.structuring import is_internal

FILES: dict[str, dict[str, Any]] = {
    "empty": {},
    "ppo": {
        "behaviors": {
            "A": {
                "trainer_type": "ppo",
                "self_play": {},
                "reward_signals": {"extrinsic": {}, "curiosity": {}, "rnd": {}},
            }
        },
        "env_settings": {"env_path": "gym:X"},
        "environment_parameters": {"mass": 3},
    },
    "poca": {"behaviors": {"A": {"trainer_type": "poca"}}, "default_settings": {"trainer_type": "ppo"}},
    "sac": {"behaviors": {"A: b": {"trainer_type": "sac"}}, "tracking": {"mlflow": {}}},
    "ours": {
        "behaviors": {"A": {"evaluation": {"interval": 5, "episodes": 1}, "keep_best": 3, "stop": {"reward": 2}}},
        "evaluation": {"interval": 7, "episodes": 2, "environment_parameters": {"mass": 3}},
        "actors": {"count": 2, "overrides": [{"actor": 1, "seed": 3}]},
        "env_settings": {"env_path": "sim:Basic"},
    },
}
COMMENT = re.compile(r"^( *)((?:# +)+)([\w-]+):( .*)?$")


def resolved(file: dict[str, Any]) -> RunSettings:
    return run_settings(from_mapping(file, Place("a.yaml")))


def without_mark(line: str) -> str:
    """A line of the file without its comment signs, each of which takes two columns."""
    found = COMMENT.match(line)
    assert found is not None, line
    return found[1] + found[2].replace("# ", "") + line[found.end(2) :]


def column(line: str) -> int:
    return len(line) - len(line.lstrip(" #"))


def marks(line: str) -> int:
    found = COMMENT.match(line)
    return found[2].count("#") if found else 0


def comments(lines: list[str]) -> list[int]:
    return [index for index, line in enumerate(lines) if COMMENT.match(line) and index > 1]


def with_one_key(lines: list[str], index: int) -> str:
    """The file with one key uncommented, a section with its keys, the sections around, and what these need."""
    wanted = {index}
    depth = column(lines[index])
    for above in range(index, -1, -1):
        if not COMMENT.match(lines[above]):
            break
        if column(lines[above]) < depth:
            depth = column(lines[above])
            wanted.add(above)
    for section in tuple(wanted):
        for below in range(section + 1, len(lines)):
            if not COMMENT.match(lines[below]) or column(lines[below]) <= column(lines[section]):
                break
            needed = column(lines[below]) == column(lines[section]) + 2 and "# Required. " in lines[below]
            if needed or (section == index and marks(lines[below]) == marks(lines[index])):
                wanted.add(below)
    return "\n".join(without_mark(line) if number in wanted else line for number, line in enumerate(lines))


def with_a_section(lines: list[str], index: int) -> str:
    """The file with a section uncommented as a user does: one mark off each line of it."""
    end = index + 1
    while end < len(lines) and COMMENT.match(lines[end]) and column(lines[end]) > column(lines[index]):
        end += 1
    part = [re.sub("# ", "", line, count=1) for line in lines[index:end]]
    return "\n".join([*lines[:index], *part, *lines[end:]])


@pytest.mark.parametrize("name", FILES)
def test_every_commented_key_can_be_uncommented(name: str) -> None:
    """In the first of the files that has this line: most lines are in all of them."""
    lines = complete(resolved(FILES[name])).splitlines()
    found = comments(lines)
    assert len(found) > 20
    before = [complete(resolved(FILES[each])).splitlines() for each in list(FILES)[: list(FILES).index(name)]]
    for index in found:
        if any(lines[index] in each for each in before):
            continue
        texts = [with_one_key(lines, index), *([with_a_section(lines, index)] if is_outermost(lines[index]) else [])]
        for text in texts:
            key = without_mark(lines[index]).split(":")[0].strip()
            assert f"'{key}': " in str(yaml.safe_load(text))
            load(text, f"{name}, {lines[index]}")


def is_outermost(line: str) -> bool:
    """Whether a commented key is in a section that is no comment."""
    return re.match(r" *# \w", line) is not None


@pytest.mark.parametrize("name", FILES)
def test_uncommented_defaults_change_nothing(name: str) -> None:
    settings = resolved(FILES[name])
    lines = complete(settings).splitlines()
    for index in comments(lines):
        is_leaf = index + 1 == len(lines) or column(lines[index + 1]) <= column(lines[index])
        if is_leaf and is_outermost(lines[index]):
            assert load(with_one_key(lines, index), lines[index]) == settings, lines[index]


@pytest.mark.parametrize("name", FILES)
def test_ml_agents_reads_the_same_as_in_the_plain_dump(name: str) -> None:
    settings = resolved(FILES[name])
    text = complete(settings)
    assert yaml.safe_load(text) == to_mapping(settings)
    assert load(text, name) == settings


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs)
def test_any_run_survives(given_run: RunSettings) -> None:
    assert yaml.safe_load(complete(given_run)) == to_mapping(given_run)


@pytest.mark.parametrize("name", ["\n", "a\n", "a\nb", "\r", "\x85", "\u2028x", " ", "x: y"])
def test_a_name_with_line_breaks_survives(name: str) -> None:
    assert list(yaml.safe_load(complete(resolved({"behaviors": {name: {}}})))["behaviors"]) == [name]


def test_no_key_is_left_out() -> None:
    printed = set(re.findall(r"^[ #-]*(\w+):", complete(resolved(FILES["ppo"])), re.MULTILINE))
    # Sections of ML-Agents that are off, and what is in lists that are empty.
    off = {"MemorySettings", "BehavioralCloningSettings", "ActorOverride", "CompletionCriteria"}
    classes: list[Any] = [
        each
        for module in (actors, environment, evaluation, monitoring, network, run, tracking)
        for each in vars(module).values()
        if isinstance(each, type) and attrs.has(each) and each not in SAMPLERS.values() and each.__name__ not in off
    ]
    classes += [TrainerSettings, SelfPlaySettings, PPOHyperparameters, CuriositySettings]
    for cls in (evaluation.Evaluations, actors.ActorBackend, Problem):  # no part of the file
        classes.remove(cls)
    for cls in classes:
        missing = {field.name for field in attrs.fields(cls) if not is_internal(field)} - printed
        assert not missing or cls is checks.Fault, cls


def test_the_explanation_of_a_key_is_there_once() -> None:
    text = complete(resolved({"behaviors": {"A": {}, "B": {}}}))
    assert text.count("# keep_best: 1") == 2
    assert text.count("# Number of best models to keep") == 1


def test_an_explanation_is_a_whole_sentence() -> None:
    told = [line for line in complete(resolved(FILES["ppo"])).splitlines() if "#" in line]
    assert any("et al. 2018" in line for line in told)
    assert [line for line in told if line.count("(") != line.count(")")] == []
