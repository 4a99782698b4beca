"""trajtrainer: trains Unity ML-Agents behaviours, and agents of Gymnasium and PettingZoo environments.

>>> import trajtrainer  # doctest: +SKIP
>>> trajtrainer.learn("config/gym/CartPole.yaml", "gym:CartPole-v1", run_id="pole")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajtrainer.version import __version__

if TYPE_CHECKING:
    from trajtrainer.runtime.api import BehaviorResult, LearnResult, learn

__all__ = ["BehaviorResult", "LearnResult", "__version__", "learn"]


def __getattr__(name: str) -> Any:
    """Imports what trains (and torch with it) when it is first asked for, so that ``import trajtrainer`` is quick."""
    if name in __all__:
        from trajtrainer.runtime import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
