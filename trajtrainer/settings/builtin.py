"""The configurations that come with this package, under names of their own: ``builtin:ppo/3DBall``."""

from __future__ import annotations

from pathlib import Path

from trajtrainer.errors import SettingsError
from trajtrainer.settings.checks import closest

PREFIX = "builtin:"
_PACKAGE = Path(__file__).resolve().parents[1]
_SUFFIX = ".yaml"


def config_path(name: str | Path) -> Path:
    """Return the file that a configuration's name stands for: ``name`` itself unless it begins with ``builtin:``.

    Raises:
        SettingsError: there is no such configuration in this package; the message lists those that are.
    """
    text = str(name)
    if not text.startswith(PREFIX):
        return Path(name)
    known = builtin_configs()
    wanted = Path(text.removeprefix(PREFIX)).as_posix().removesuffix(_SUFFIX)
    if wanted not in known:
        listed = ", ".join(PREFIX + each for each in known)
        hint = closest(wanted, known) or "."
        raise SettingsError(f"There is no configuration {text}{hint} Expected one of: {listed}.")
    return known[wanted]


def builtin_hint(path: Path) -> str:
    """Return "; builtin:X comes with trajtrainer" if ``path`` ends as such a configuration's file, else nothing."""
    name = "/".join(path.parts[-2:]).removesuffix(_SUFFIX)
    return f"; {PREFIX}{name} comes with trajtrainer" if name in builtin_configs() else ""


def builtin_configs() -> dict[str, Path]:
    """Return all that there are, as ``ppo/3DBall`` -> its file."""
    folder = _PACKAGE / "config"  # in the wheel
    if not folder.is_dir():
        folder = _PACKAGE.parent / "config"  # in the source tree
    files = sorted(folder.rglob(f"*{_SUFFIX}"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}
