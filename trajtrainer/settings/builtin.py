"""The configurations that come with this package, under names of their own: ``builtin:ppo/3DBall``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import TextWrapper

from trajtrainer.core.errors import SettingsError
from trajtrainer.settings.checks import nearest

PREFIX = "builtin:"
_PACKAGE = Path(__file__).resolve().parents[1]
_SUFFIX = ".yaml"


def config_path(name: str | Path) -> Path:
    """Return the file that a configuration's name stands for: ``name`` itself unless it begins with ``builtin:``.

    Raises:
        SettingsError: there is no such configuration in this package. The message names the nearest one, or all of
            them where none is near.
    """
    text = str(name)
    if not text.startswith(PREFIX):
        return Path(name)
    known = builtin_configs()
    wanted = Path(text.removeprefix(PREFIX)).as_posix().removesuffix(_SUFFIX)
    if wanted not in known:
        match = next((each for each in known if _is_last_part(wanted, each)), None) or nearest(wanted, known)
        if match is not None:
            raise SettingsError(
                f"There is no configuration {text}; did you mean {PREFIX}{match}? 'trajtrainer init' lists all."
            )
        raise SettingsError(f"There is no configuration {text}. Expected one of:\n{_listed(known)}")
    return known[wanted]


def _is_last_part(wanted: str, name: str) -> bool:
    return bool(wanted) and name.rpartition("/")[2].lower() == wanted.lower()


def _listed(names: Iterable[str]) -> str:
    """Return names as lines, a folder each."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        folders.setdefault(folder, []).append(file)
    width = max(map(len, folders)) + 1
    wrap = TextWrapper(110, subsequent_indent=" " * (len(PREFIX) + width + 3), break_on_hyphens=False)
    lines = (wrap.fill(f"  {PREFIX}{f'{folder}/':<{width}} {'  '.join(files)}") for folder, files in folders.items())
    return "\n".join(lines)


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
