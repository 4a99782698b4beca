"""Where random numbers come from: each use has a stream of its own (docs/explanation/seeds.md#streams)."""

from __future__ import annotations

import random

import numpy as np

# Environments count up from their seed, and some take an int32.
_LARGEST_OF_ENVIRONMENTS = 2**30


def derived_seeds(seed: int, name: str) -> list[int]:
    """Two seeds, each below 2^63, that depend on ``seed`` and on what they are for, such as a behavior's name."""
    sequence = np.random.SeedSequence([seed % (1 << 32), *name.encode("utf-8", "surrogatepass")])
    return [int(word) for word in sequence.generate_state(2, np.uint64) >> np.uint64(1)]


def environment_seed(seed: int, name: str) -> int:
    """A derived seed for environments, whose copies count up from it."""
    return derived_seeds(seed, name)[0] % _LARGEST_OF_ENVIRONMENTS


def seed_global_generators(seed: int) -> None:
    """Seed ``np.random`` and ``random``, which environments may use, in a process that belongs to a run."""
    for_numpy, for_python = derived_seeds(seed, "global generators")
    np.random.seed(for_numpy % (1 << 32))
    random.seed(for_python)
