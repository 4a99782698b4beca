"""Packages that add something to trajtrainer, visible to it as if they were installed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trajtrainer.cli.commands import COMMANDS
from trajtrainer.core.plugins import Registry, installed
from trajtrainer.core.stats import STATS_WRITERS
from trajtrainer.settings.actors import ACTOR_BACKENDS
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS
from trajtrainer.settings.network import ENCODERS
from trajtrainer.settings.schemes import ENVIRONMENTS

Install = Callable[..., None]
SAMPLE = Path(__file__).parent / "plugin_package"
REGISTRIES: list[Registry[Any]] = [
    ALGORITHMS,
    REWARD_SIGNALS,
    ENCODERS,
    STATS_WRITERS,
    ACTOR_BACKENDS,
    ENVIRONMENTS,
    COMMANDS,
]


def declare(folder: Path, package: str, entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Write what an installer would write of a package's entry points (group -> name -> value) into a folder that is
    on the path."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def declare_sample(folder: Path) -> None:
    """The same for the package in ``tests/plugin_package``, whose code must be on the path, too."""
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declare(folder, project["name"], project["entry-points"])


def forget_all() -> None:
    """Let the registries look for packages anew."""
    installed.cache_clear()
    for registry in REGISTRIES:
        registry.__dict__.pop("_declared", None)
        registry._loaded.clear()
