"""The version of this package, which can be imported without anything else."""

__version__ = "0.1.0"
API_VERSION = "1.5.0"
"""Version of the protocol between Unity players and trainers (the communicator API) that this trainer implements."""
