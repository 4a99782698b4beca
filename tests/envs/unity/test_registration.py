"""mlagents_envs imports on a current protobuf once our module is registered."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
{first}
from mlagents_envs.side_channel.side_channel_manager import SideChannelManager
from mlagents_envs.side_channel.stats_side_channel import StatsSideChannel
from mlagents_envs.communicator_objects.unity_message_pb2 import UnityMessageProto
import mlagents_envs.communicator_objects.training_analytics_pb2 as analytics
assert UnityMessageProto.DESCRIPTOR.full_name == "communicator_objects.UnityMessageProto"
assert analytics.TrainingEnvironmentInitialized(num_envs=2).SerializeToString()
assert "mlagents_envs.environment" not in sys.modules
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    "first",
    [
        "import trajtrainer.envs.unity.registration",
        "import trajtrainer.envs.unity.environment",
        "import trajtrainer.core.spec, trajtrainer.envs.unity.registration",
        "from trajtrainer.side_channels import EngineConfigurationChannel",
    ],
)
def test_side_channels_of_mlagents_envs_import(first: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.format(first=first)], check=True, timeout=300)


def test_every_module_of_the_package_is_covered() -> None:
    from importlib.util import find_spec
    from pathlib import Path

    import trajtrainer.envs.unity.registration
    from trajtrainer.envs.unity.proto import communicator_pb2

    assert trajtrainer.envs.unity.registration
    package = find_spec("mlagents_envs.communicator_objects")
    assert package is not None
    assert package.origin is not None
    files = list(Path(package.origin).parent.glob("*_pb2.py"))
    assert files
    for file in files:
        assert sys.modules[f"mlagents_envs.communicator_objects.{file.stem}"] is communicator_pb2
