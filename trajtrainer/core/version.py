"""The version of this package. This module imports nothing else."""

__version__ = "0.1.0"
API_VERSION = "1.5.0"
"""Version of the protocol between Unity players and trainers (the communicator API) that this trainer implements."""
