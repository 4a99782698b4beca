"""Registers an id with Gymnasium when it is imported, as packages of environments do."""

import gymnasium

gymnasium.register("Counting-v3", "tests.envs.python.gymnasium_samples:CountingEnv")
gymnasium.register("Board-v0", "tests.envs.test_select:board")
