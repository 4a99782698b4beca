from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Header(_message.Message):
    __slots__ = ("status", "message")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: int
    message: str
    def __init__(self, status: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class UnityMessage(_message.Message):
    __slots__ = ("header", "unity_output", "unity_input")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    UNITY_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    UNITY_INPUT_FIELD_NUMBER: _ClassVar[int]
    header: Header
    unity_output: UnityOutput
    unity_input: UnityInput
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., unity_output: _Optional[_Union[UnityOutput, _Mapping]] = ..., unity_input: _Optional[_Union[UnityInput, _Mapping]] = ...) -> None: ...

class UnityOutput(_message.Message):
    __slots__ = ("rl_output", "rl_initialization_output")
    RL_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RL_INITIALIZATION_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    rl_output: RLOutput
    rl_initialization_output: RLInitializationOutput
    def __init__(self, rl_output: _Optional[_Union[RLOutput, _Mapping]] = ..., rl_initialization_output: _Optional[_Union[RLInitializationOutput, _Mapping]] = ...) -> None: ...

class RLInitializationOutput(_message.Message):
    __slots__ = ("brain_parameters",)
    BRAIN_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    brain_parameters: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, brain_parameters: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RLOutput(_message.Message):
    __slots__ = ("agent_infos", "side_channel")
    AGENT_INFOS_FIELD_NUMBER: _ClassVar[int]
    SIDE_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    agent_infos: _containers.RepeatedCompositeFieldContainer[BehaviorAgents]
    side_channel: bytes
    def __init__(self, agent_infos: _Optional[_Iterable[_Union[BehaviorAgents, _Mapping]]] = ..., side_channel: _Optional[bytes] = ...) -> None: ...

class UnityInput(_message.Message):
    __slots__ = ("rl_input",)
    RL_INPUT_FIELD_NUMBER: _ClassVar[int]
    rl_input: RLInput
    def __init__(self, rl_input: _Optional[_Union[RLInput, _Mapping]] = ...) -> None: ...

class RLInput(_message.Message):
    __slots__ = ("agent_actions", "command", "side_channel")
    AGENT_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    SIDE_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    agent_actions: _containers.RepeatedCompositeFieldContainer[BehaviorAgents]
    command: int
    side_channel: bytes
    def __init__(self, agent_actions: _Optional[_Iterable[_Union[BehaviorAgents, _Mapping]]] = ..., command: _Optional[int] = ..., side_channel: _Optional[bytes] = ...) -> None: ...

class BehaviorAgents(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class AgentInfoList(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[AgentInfo]
    def __init__(self, value: _Optional[_Iterable[_Union[AgentInfo, _Mapping]]] = ...) -> None: ...

class AgentInfo(_message.Message):
    __slots__ = ("reward", "done", "max_step_reached", "id", "action_mask", "observations", "group_id", "group_reward")
    REWARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_REACHED_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_MASK_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_REWARD_FIELD_NUMBER: _ClassVar[int]
    reward: float
    done: bool
    max_step_reached: bool
    id: int
    action_mask: bytes
    observations: _containers.RepeatedCompositeFieldContainer[Observation]
    group_id: int
    group_reward: float
    def __init__(self, reward: _Optional[float] = ..., done: _Optional[bool] = ..., max_step_reached: _Optional[bool] = ..., id: _Optional[int] = ..., action_mask: _Optional[bytes] = ..., observations: _Optional[_Iterable[_Union[Observation, _Mapping]]] = ..., group_id: _Optional[int] = ..., group_reward: _Optional[float] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("shape", "compression_type", "compressed_data", "float_data", "compressed_channel_mapping")
    class FloatData(_message.Message):
        __slots__ = ("data",)
        DATA_FIELD_NUMBER: _ClassVar[int]
        data: bytes
        def __init__(self, data: _Optional[bytes] = ...) -> None: ...
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_DATA_FIELD_NUMBER: _ClassVar[int]
    FLOAT_DATA_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_CHANNEL_MAPPING_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    compression_type: int
    compressed_data: bytes
    float_data: Observation.FloatData
    compressed_channel_mapping: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., compression_type: _Optional[int] = ..., compressed_data: _Optional[bytes] = ..., float_data: _Optional[_Union[Observation.FloatData, _Mapping]] = ..., compressed_channel_mapping: _Optional[_Iterable[int]] = ...) -> None: ...

class AgentInfoActionPair(_message.Message):
    __slots__ = ("agent_info", "action_info")
    AGENT_INFO_FIELD_NUMBER: _ClassVar[int]
    ACTION_INFO_FIELD_NUMBER: _ClassVar[int]
    agent_info: AgentInfo
    action_info: AgentAction
    def __init__(self, agent_info: _Optional[_Union[AgentInfo, _Mapping]] = ..., action_info: _Optional[_Union[AgentAction, _Mapping]] = ...) -> None: ...

class AgentAction(_message.Message):
    __slots__ = ("vector_actions_deprecated", "continuous_actions", "discrete_actions")
    VECTOR_ACTIONS_DEPRECATED_FIELD_NUMBER: _ClassVar[int]
    CONTINUOUS_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DISCRETE_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    vector_actions_deprecated: bytes
    continuous_actions: bytes
    discrete_actions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, vector_actions_deprecated: _Optional[bytes] = ..., continuous_actions: _Optional[bytes] = ..., discrete_actions: _Optional[_Iterable[int]] = ...) -> None: ...
