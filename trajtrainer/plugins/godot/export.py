"""``trajtrainer export --to godot-onnx``: writes a model for the Godot RL Agents plugin."""

from trajtrainer.policies.checkpoints.export_formats import ExportFormat

ROW = ExportFormat(
    ".godot.onnx",
    "trajtrainer.plugins.godot.onnx_model:write",
    {
        "--action-order": {
            "metavar": "KINDS",
            "help": "with --to godot-onnx, if there are both discrete and continuous actions: their order in the game, "
            "such as discrete,continuous:2",
        }
    },
)
