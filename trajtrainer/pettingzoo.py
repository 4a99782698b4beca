"""Unity scenes as PettingZoo environments: ``UnityParallelEnv`` and ``UnityAECEnv``.

>>> from trajtrainer.pettingzoo import UnityParallelEnv
>>> env = UnityParallelEnv("Builds/Soccer")  # doctest: +SKIP
>>> observations, infos = env.reset()  # doctest: +SKIP
"""

from __future__ import annotations

try:
    import pettingzoo  # noqa: F401
except ImportError as error:
    raise ImportError(
        "trajtrainer.pettingzoo needs the package pettingzoo, which is not installed. Install it with: pip install "
        "'trajtrainer[gym]'"
    ) from error

from trajtrainer.envs.scenes.pettingzoo import UnityAECEnv, UnityParallelEnv

__all__ = ["UnityAECEnv", "UnityParallelEnv"]
