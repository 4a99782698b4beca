"""The architecture's one rule: an import goes down the layers only, and there is no cycle between modules."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.imports import imports

PACKAGE = Path(__file__).resolve().parents[1] / "trajtrainer"

# The settings of algorithms and reward signals lie below everything else in their folders.
COMPONENT_SETTINGS = {"learning.rewards.settings"} | {
    f"{folder.replace('/', '.')}.{path.parent.name}.settings"
    for folder in ("learning/algos", "plugins")
    for path in PACKAGE.glob(f"{folder}/*/settings.py")
}
# From the top down. Groups of one layer do not know each other; members of one group may. A folder within another that
# has a layer of its own is not part of the other.
LAYERS: list[list[set[str]]] = [
    [{"__main__"}],
    [{"cli"}],
    [{"tools"}],
    [{"plugins"}],
    [{"testing"}],
    [{"run.api"}, {"run.contracts"}],
    [{"run"}],
    [{"run.actors"}],
    [{"policies.play"}],
    [{"policies.checkpoints"}],
    [{"policies.folder"}],
    [{"policies.onnx"}, {"policies"}],
    [{"learning.trainers"}],
    [{"learning.algos"}],
    [{"learning.rewards"}],
    [{"learning.nn.fast"}],
    [{"learning.nn"}, {"learning"}],
    [{"experience.recordings"}],
    [{"experience"}],
    [{"gymnasium"}, {"pettingzoo"}, {"side_channels"}, {"validators"}],
    [{"envs.scenes"}],
    [{"envs"}],
    [{"envs.sim"}],
    [{"envs.unity"}],
    [COMPONENT_SETTINGS, {"envs.workers"}],
    [{"settings"}],
    [{"core"}],
]
RANK = {unit: rank for rank, layer in enumerate(LAYERS) for group in layer for unit in group}
GROUP = {unit: frozenset(group) for layer in LAYERS for group in layer for unit in group}
TORCH_FREE = {
    "core",
    "settings",
    "envs",
    "envs.workers",
    "envs.unity",
    "envs.sim",
    "envs.scenes",
    "experience",
    "experience.recordings",
    "side_channels",
    "validators",
    "gymnasium",
    "pettingzoo",
    *COMPONENT_SETTINGS,
}


def unit_of(module: str) -> str:
    """The unit with the longest name that the module is part of; its first folder if it has no layer."""
    names = [module.rsplit(".", cut)[0] for cut in range(module.count(".") + 1)]
    return next((name for name in names if name in RANK), names[-1])


@cache
def modules() -> dict[str, Path]:
    """Dotted name below the package -> file; the package's own ``__init__`` is left out."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and not name.endswith("_pb2"):
            found[name] = path
    return found


def own(names: frozenset[str], known: dict[str, Path]) -> set[str]:
    below = {name.removeprefix("trajtrainer.") for name in names if name.startswith("trajtrainer.")}
    return {name for name in below if name in known}


def test_every_unit_has_a_layer() -> None:
    assert {unit_of(name) for name in modules()} <= RANK.keys()


def test_imports_go_down_only() -> None:
    known = modules()
    wrong = []
    for name, path in known.items():
        unit = unit_of(name)
        for target in own(imports(path), known):
            below = unit_of(target)
            if GROUP[below] != GROUP[unit] and RANK[below] <= RANK[unit]:
                wrong.append(f"{name} -> {target}")
    assert wrong == []


def test_twins_of_modules_depend_on_modules_only() -> None:
    known = modules()
    targets = {
        unit_of(target)
        for name in known
        if unit_of(name) == "learning.nn.fast"
        for target in own(imports(known[name]), known)
    }
    assert targets == {"learning.nn.fast", "learning.nn", "settings", "core"}


def test_no_module_cycles() -> None:
    known = modules()
    TopologicalSorter({name: own(imports(path), known) - {name} for name, path in known.items()}).prepare()


OWN_ALGORITHMS = {"ppo", "poca", "sac"}  # which are no tenants
TENANTS = sorted(
    f"{room.replace('/', '.')}.{path.parent.name}"
    for room in ("learning/algos", "plugins", "tools")
    for path in PACKAGE.glob(f"{room}/*/__init__.py")
    if path.parent.name not in OWN_ALGORITHMS
)


@pytest.mark.parametrize("home", TENANTS)
def test_no_module_outside_imports_a_tenant(home: str) -> None:
    known = modules()
    knowing = [
        name
        for name, path in known.items()
        if not f"{name}.".startswith(f"{home}.")
        and any(f"{target}.".startswith(f"{home}.") for target in own(imports(path), known))
    ]
    assert knowing == []


def test_nothing_imports_the_package_itself() -> None:
    assert [name for name, path in modules().items() if "trajtrainer" in imports(path)] == []


@pytest.mark.parametrize("unit", sorted(TORCH_FREE))
def test_lower_layers_do_not_know_torch(unit: str) -> None:
    using = [
        name
        for name, path in modules().items()
        if unit_of(name) == unit and any(target.split(".")[0] == "torch" for target in imports(path))
    ]
    assert using == []


def test_settings_of_components_load_without_torch() -> None:
    """In one process: the first that loads it is told, with all behind it."""
    names = sorted(COMPONENT_SETTINGS)
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(f'trajtrainer.{name}')\n"
        "    print(name, 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [f"{name} False" for name in names]


def test_subpackages_have_empty_init() -> None:
    filled = [path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE and path.read_text().strip()]
    assert filled == []
