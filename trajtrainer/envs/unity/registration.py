"""Makes ``mlagents_envs`` work with current protobuf versions. Import it before ``mlagents_envs.side_channel``.

The generated modules that mlagents_envs ships cannot be imported under protobuf 4 and newer ("Descriptors cannot be
created directly"). Our module has the same messages, so it is registered under each of their names before Python looks
for the files. Do not import ``mlagents_envs.environment``: it needs ``distutils``.
"""

from __future__ import annotations

import sys

from mlagents_envs import communicator_objects

from trajtrainer.envs.unity.proto import communicator_pb2

_MODULES = (
    "agent_action",
    "agent_info",
    "agent_info_action_pair",
    "brain_parameters",
    "capabilities",
    "command",
    "custom_reset_parameters",
    "demonstration_meta",
    "engine_configuration",
    "header",
    "observation",
    "space_type",
    "training_analytics",
    "unity_input",
    "unity_message",
    "unity_output",
    "unity_rl_initialization_input",
    "unity_rl_initialization_output",
    "unity_rl_input",
    "unity_rl_output",
    "unity_to_external",
)


def register() -> None:
    """Register the module under every name that has not been imported yet. Calling it again has no effect."""
    for module in _MODULES:
        name = f"{module}_pb2"
        registered = sys.modules.setdefault(f"{communicator_objects.__name__}.{name}", communicator_pb2)
        setattr(communicator_objects, name, registered)  # `import a.b.c as d` looks for this


register()
