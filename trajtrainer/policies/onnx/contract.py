"""The contract between Unity and an ``.onnx`` policy: names, versions and operators.

Sources: the names that ML-Agents exports, the checks that its C# package makes when a model is assigned, and the
operator tables of the underlying inference packages (Barracuda, Sentis, Inference Engine).
"""

import fnmatch
from typing import Final

# Inputs. Sensors are numbered in the order of the behavior's observation specs.
OBSERVATION_PREFIX: Final = "obs_"
ACTION_MASKS: Final = "action_masks"
RECURRENT_IN: Final = "recurrent_in"

# Outputs, in ML-Agents' order.
VERSION_NUMBER: Final = "version_number"
MEMORY_SIZE: Final = "memory_size"
CONTINUOUS_ACTIONS: Final = "continuous_actions"
CONTINUOUS_SHAPE: Final = "continuous_action_output_shape"
DETERMINISTIC_CONTINUOUS: Final = "deterministic_continuous_actions"
DISCRETE_ACTIONS: Final = "discrete_actions"
DISCRETE_SHAPE: Final = "discrete_action_output_shape"
DETERMINISTIC_DISCRETE: Final = "deterministic_discrete_actions"
RECURRENT_OUT: Final = "recurrent_out"

# Names in models of ML-Agents 1.x (version 2).
LEGACY_VECTOR: Final = "vector_observation"
LEGACY_VISUAL_PREFIX: Final = "visual_observation_"
LEGACY_ACTION: Final = "action"
LEGACY_ACTION_SHAPE: Final = "action_output_shape"
LEGACY_IS_CONTINUOUS: Final = "is_continuous_control"

_ACTIONS: Final = (CONTINUOUS_ACTIONS, DETERMINISTIC_CONTINUOUS, DISCRETE_ACTIONS, DETERMINISTIC_DISCRETE)
PER_AGENT_OUTPUTS: Final = (*_ACTIONS, RECURRENT_OUT)

# Other inputs that Unity can fill. No current trainer exports them.
ALSO_ACCEPTED_INPUTS: Final = {
    "prev_action": "previous discrete actions",
    "epsilon": "normal noise drawn by Unity",
    "sequence_length": "always 1 in Unity",
    "batch_size": "number of agents",
}

LEGACY_MODEL_VERSION: Final = 2
MODEL_VERSION: Final = 3

# The maximum tensor rank that Unity's importer supports.
MAX_RANK: Final = 8

MIN_OPSET: Final = 7
# Sentis 2.6, which ML-Agents package 4.0.3 requires, supports opsets up to 25. The versions that earlier packages
# require do not.
MAX_OPSET: Final = 15
BARRACUDA_OPSET: Final = 9

# The exporter's default: the only opset that Barracuda (ML-Agents 1.x and 2.x) supports well and that every later
# package imports, too. ML-Agents itself exports this opset.
DEFAULT_OPSET: Final = 9
# The lowest opset that the exporter writes, because it is the first whose operators cover all networks.
MIN_EXPORT_OPSET: Final = 9

# Standard ONNX operators that Sentis and Inference Engine cannot import. Names ending in * are prefixes.
_UNSUPPORTED = """
    AffineGrid BitShift CenterCropPad Col2Im ConcatFromSequence ConvInteger DeformConv DequantizeLinear Det
    DynamicQuantizeLinear EyeLike GlobalLpPool GroupNormalization GRU If ImageDecoder Loop LpNormalization LpPool
    MatMulInteger MaxRoiPool MaxUnpool MeanVarianceNormalization NegativeLogLikelihoodLoss Optional* QLinearConv
    QLinearMatMul QuantizeLinear RegexFullMatch ReverseSequence RNN Scan Sequence* SoftmaxCrossEntropyLoss
    SplitToSequence String* TfIdfVectorizer Unique
"""
UNSUPPORTED_OPERATORS: Final = frozenset(_UNSUPPORTED.split())

# Operators that Barracuda 2 and 3 can import (from its manual, "Supported ONNX operators").
_BARRACUDA = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat
    Constant ConstantOfShape Conv ConvTranspose Cos Cosh DepthToSpace Div Dropout Elu Equal Exp Expand Flatten Floor
    Gather Gemm GlobalAveragePool GlobalMaxPool Greater Identity ImageScaler InstanceNormalization LRN LSTM LeakyRelu
    Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Mean Min Mul Multinomial Neg NonMaxSuppression NonZero Not
    OneHot Or PRelu Pad Pow RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Resize Round Selu Shape Sigmoid Sin Sinh Slice Softmax
    SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh Tile TopK Transpose Unsqueeze Upsample Where Xor
"""
BARRACUDA_OPERATORS: Final = frozenset(_BARRACUDA.split())

CPU: Final = "CPU"
GPU_COMPUTE: Final = "GPU compute"
GPU_PIXEL: Final = "GPU pixel"
BACK_ENDS: Final = (CPU, GPU_COMPUTE, GPU_PIXEL)

# Transposes that Barracuda mistakes for a conversion between channels-first and channels-last and removes: early
# versions (1.x) always, later versions if the model contains a convolution.
BARRACUDA_LAYOUT_TRANSPOSES: Final = ((0, 2, 3, 1), (0, 3, 1, 2))

# Operators that Sentis 2.1 and Inference Engine 2.2 do not run on every back end. All other importable operators run on
# all back ends.
BACK_ENDS_OF_OPERATOR: Final = {
    "LSTM": (CPU, GPU_COMPUTE),
    "Multinomial": (CPU,),
    "NonMaxSuppression": (CPU, GPU_COMPUTE),
    "NonZero": (CPU,),
    "TopK": (CPU, GPU_COMPUTE),
}


def observation_name(sensor: int) -> str:
    """Return the name of a sensor's input, given its index among the behavior's observation specs."""
    return f"{OBSERVATION_PREFIX}{sensor}"


def is_unsupported(operator: str) -> bool:
    """Return whether Unity's importer rejects a standard operator, according to :data:`UNSUPPORTED_OPERATORS`."""
    return any(fnmatch.fnmatchcase(operator, name) for name in UNSUPPORTED_OPERATORS)
