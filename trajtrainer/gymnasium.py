"""Unity scenes as Gymnasium environments: ``UnityEnv`` for one agent, ``UnityVectorEnv`` for many.

>>> from trajtrainer.gymnasium import UnityVectorEnv
>>> envs = UnityVectorEnv("Builds/3DBall")  # doctest: +SKIP
>>> observations, infos = envs.reset()  # doctest: +SKIP

Importing this module registers both with Gymnasium as ``trajtrainer/Unity-v0``, for ``make`` and ``make_vec``. It also
registers the environments used by the bundled configurations: ``CartPoleNoVel-v1``, ``PendulumNoVel-v1`` and
``MiniGrid-DoorKey-5x5-Flat-v0``.
"""

from __future__ import annotations

try:
    import gymnasium
except ImportError as error:
    raise ImportError(
        "trajtrainer.gymnasium needs the package gymnasium, which is not installed. Install it with: pip install "
        "'trajtrainer[gym]'"
    ) from error

import trajtrainer.envs.python.variants  # noqa: F401  registers environments
from trajtrainer.envs.scenes.gymnasium import ID, UnityEnv
from trajtrainer.envs.scenes.vector import UnityVectorEnv

__all__ = ["UnityEnv", "UnityVectorEnv"]

gymnasium.register(
    ID,
    entry_point="trajtrainer.gymnasium:UnityEnv",
    vector_entry_point="trajtrainer.envs.scenes.vector:make_vec",
    nondeterministic=True,  # a player only reads its seed at the start
)
