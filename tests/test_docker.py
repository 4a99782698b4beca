"""``scripts/docker/Dockerfile``: what can be told of it without Docker."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from zipfile import ZipFile

from tests.test_packaging import ROOT, build, files

TEXT = (ROOT / "scripts" / "docker" / "Dockerfile").read_text(encoding="utf-8")
# (instruction, arguments), with continued lines joined and comments left out.
LINES = [
    (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1])
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()
    if line.strip()
]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in LINES if name == instruction]


def test_it_begins_with_a_python_that_is_supported() -> None:
    versions = {found for line in arguments("FROM") for found in re.findall(r"python:(3\.\d+)-slim", line)}
    assert len(versions) == 1
    assert versions <= {"3.11", "3.12", "3.13", "3.14"}
    assert len(arguments("FROM")) == len([line for line in arguments("FROM") if "python:" in line])


def test_it_does_not_run_as_root() -> None:
    assert arguments("USER") == ["trainer"]
    assert LINES.index(("USER", "trainer")) < [name for name, _ in LINES].index("ENTRYPOINT")


def test_it_runs_the_command() -> None:
    assert [json.loads(line) for line in arguments("ENTRYPOINT")] == [["trajtrainer"]]
    assert arguments("VOLUME") == ["/app/results"]


def test_the_files_that_it_copies_are_all_that_the_package_is_made_of(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for line in arguments("COPY"):
        *names, target = line.split()
        if names[0].startswith("--from="):
            continue
        for name in names:
            if (ROOT / name).is_dir():
                assert target == name, "a folder's content goes into the target"
                shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                assert target == "./"
                shutil.copy(ROOT / name, source)
    with ZipFile(build("wheel", tmp_path, source)) as wheel:
        names = wheel.namelist()
    assert {f"trajtrainer/{name}" for name in files(ROOT / "trajtrainer")} <= set(names)
    assert "trajtrainer/config/ppo/Basic.yaml" in names


def test_the_page_names_the_arguments_that_there_are() -> None:
    page = (ROOT / "docs" / "operate" / "docker.md").read_text(encoding="utf-8")
    named = re.findall(r"--build-arg '?(\w+)=", page)
    assert set(named) == {line.partition("=")[0] for line in arguments("ARG")}
