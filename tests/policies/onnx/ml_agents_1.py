"""Models as ML-Agents 1.x exports them (version 2): log-probabilities of all actions, sensors of one kind together."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser

# Branches (3, 2). Two vectors of 2 and 3, a picture and a list of entities; picture and list scale the logits.
DISCRETE = """
<ir_version: 4, opset_import: ["" : 9], producer_name: "pytorch", producer_version: "1.7">
policy (float[batch, 5] vector_observation, float[batch, 3, 4, 4] visual_observation_0, float[batch, 4, 3] obs_2,
        float[batch, 5] action_masks)
    => (float[1] version_number, float[1] memory_size, float[batch, 5] discrete_actions,
        float[1] discrete_action_output_shape, float[batch, 5] action, float[1] is_continuous_control,
        float[1] action_output_shape)
{
    version_number = Constant <value = float[1] {2.0}> ()
    memory_size = Constant <value = float[1] {0.0}> ()
    discrete_action_output_shape = Constant <value = float[1] {5.0}> ()
    is_continuous_control = Constant <value = float[1] {0.0}> ()
    action_output_shape = Constant <value = float[1] {5.0}> ()
    tiny = Constant <value = float[1] {0.0000001}> ()
    picture = ReduceMean <axes = [1, 2, 3], keepdims = 0> (visual_observation_0)
    list = ReduceMean <axes = [1, 2], keepdims = 0> (obs_2)
    scale = Add (picture, list)
    column = Unsqueeze <axes = [1]> (scale)
    logits = Mul (vector_observation, column)
    logits_0 = Slice <axes = [1], starts = [0], ends = [3]> (logits)
    mask_0 = Slice <axes = [1], starts = [0], ends = [3]> (action_masks)
    all_0 = Softmax <axis = 1> (logits_0)
    allowed_0 = Mul (all_0, mask_0)
    sum_0 = ReduceSum <axes = [1], keepdims = 1> (allowed_0)
    probs_0 = Div (allowed_0, sum_0)
    safe_0 = Add (probs_0, tiny)
    log_0 = Log (safe_0)
    logits_1 = Slice <axes = [1], starts = [3], ends = [5]> (logits)
    mask_1 = Slice <axes = [1], starts = [3], ends = [5]> (action_masks)
    all_1 = Softmax <axis = 1> (logits_1)
    allowed_1 = Mul (all_1, mask_1)
    sum_1 = ReduceSum <axes = [1], keepdims = 1> (allowed_1)
    probs_1 = Div (allowed_1, sum_1)
    safe_1 = Add (probs_1, tiny)
    log_1 = Log (safe_1)
    discrete_actions = Concat <axis = 1> (log_0, log_1)
    action = Identity (discrete_actions)
}
"""

# Without the names of later versions, as releases before 12 have it.
OLDER_DISCRETE = "\n".join(
    line.replace(" float[batch, 5] discrete_actions,", "").replace("float[1] discrete_action_output_shape, ", "")
    for line in DISCRETE.splitlines()
    if not line.strip().startswith("discrete_action_output_shape =")
)

CONTINUOUS = """
<ir_version: 4, opset_import: ["" : 9], producer_name: "pytorch", producer_version: "1.7">
policy (float[batch, 5] vector_observation, float[batch, 3, 4, 4] visual_observation_0)
    => (float[1] version_number, float[1] memory_size, float[batch, 5] action,
        float[1] is_continuous_control, float[1] action_output_shape)
{
    version_number = Constant <value = float[1] {2.0}> ()
    memory_size = Constant <value = float[1] {0.0}> ()
    action_output_shape = Constant <value = float[1] {5.0}> ()
    is_continuous_control = Constant <value = float[1] {1.0}> ()
    picture = ReduceMean <axes = [1, 2, 3], keepdims = 0> (visual_observation_0)
    column = Unsqueeze <axes = [1]> (picture)
    action = Add (vector_observation, column)
}
"""


def written(path: Path, text: str) -> Path:
    """Write a model, and return where."""
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path
