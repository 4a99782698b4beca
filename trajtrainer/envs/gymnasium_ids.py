"""The form in which ids of Gymnasium environments are given to ``--env``, for those who gave them in another way."""

from __future__ import annotations

import re

_ID = re.compile(r"(?:([\w-]+)/)?[\w.-]+-v\d+")
# Namespace -> the module that registers its ids when it is imported, and the extra that has it.
_PACKAGES = {"ALE": ("ale_py", "atari")}


def option_for(env_id: str) -> str:
    """Return the option that means an environment, and what to install for it; "" if the text looks like no id.

    >>> option_for("CartPole-v1"), option_for("Builds/Game.exe")
    ('--env=gym:CartPole-v1', '')
    >>> option_for("ALE/Pong-v5")
    "--env=gym:ale_py:ALE/Pong-v5 (pip install 'trajtrainer[atari]')"
    """
    match = _ID.fullmatch(env_id)
    if match is None:
        return ""
    if match[1] not in _PACKAGES:
        return f"--env=gym:{env_id}"
    module, extra = _PACKAGES[match[1]]
    return f"--env=gym:{module}:{env_id} (pip install 'trajtrainer[{extra}]')"


def registration_hint(name: str) -> str:
    """Return how an id that Gymnasium does not know is brought to it.

    Args:
        name: what stands behind ``gym:``, with or without the module that registers the id.
    """
    module, _, env_id = name.rpartition(":")
    option = option_for(env_id)
    if option.endswith(")"):
        return f" Use {option}."
    return (
        ""
        if module
        else f" Ids of other packages are registered by a module of their own as --env=gym:MODULE:{env_id}."
    )
