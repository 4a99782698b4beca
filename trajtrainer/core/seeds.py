"""Seeds of random number generators. Each generator has a stream of its own (docs/explanation/seeds.md#streams)."""

from __future__ import annotations

import random

import numpy as np

# Copies of an environment use consecutive seeds, and some environments require an int32.
_LARGEST_OF_ENVIRONMENTS = 2**30


def derived_seeds(seed: int, name: str) -> list[int]:
    """Derive two seeds, each below 2^63, from ``seed`` and a name, such as a behavior's name."""
    sequence = np.random.SeedSequence([seed % (1 << 32), *name.encode("utf-8", "surrogatepass")])
    return [int(word) for word in sequence.generate_state(2, np.uint64) >> np.uint64(1)]


def environment_seed(seed: int, name: str) -> int:
    """Derive the seed of an environment's first copy. Further copies use the seeds after it."""
    return derived_seeds(seed, name)[0] % _LARGEST_OF_ENVIRONMENTS


def seed_global_generators(seed: int) -> None:
    """Seed the global generators of ``np.random`` and ``random``, which environments may use."""
    for_numpy, for_python = derived_seeds(seed, "global generators")
    np.random.seed(for_numpy % (1 << 32))
    random.seed(for_python)
