"""Generates Python modules next to the .proto files: ``python -m trajtrainer.envs.unity.proto.generate``.

Needs grpcio-tools (the extra ``dev``). A test compares the committed modules with newly generated ones.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PROTOS = ("communicator.proto", "columnar.proto")
# Protobuf identifies files by their path relative to this folder, so that no two packages define a file of the same
# name.
_ROOT = FOLDER.parents[3]


def generate(output: Path) -> list[Path]:
    """Generate every module (``.py`` and ``.pyi``) under ``output``, in the folders of the package.

    Returns:
        The files written.

    Raises:
        RuntimeError: protoc rejected a file; its message is on stderr.
        ImportError: grpcio-tools is not installed.
    """
    from grpc_tools import protoc

    relative = FOLDER.relative_to(_ROOT)
    written = []
    for proto in PROTOS:
        arguments = ["protoc", f"-I{_ROOT}", f"--python_out={output}", f"--pyi_out={output}", str(relative / proto)]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc failed on {proto}")
        stem = output / relative / proto.removesuffix(".proto")
        written += [stem.with_name(f"{stem.name}_pb2{suffix}") for suffix in (".py", ".pyi")]
    return written


def without_versions(source: str) -> str:
    """Return generated code without its version markers, which change with every release of protoc."""
    source = re.sub(r"(?m)^# Protobuf Python Version: .*$", "", source)
    return re.sub(r"(?s)_runtime_version\.ValidateProtobufRuntimeVersion\(.*?\n\)", "", source)


if __name__ == "__main__":
    for path in generate(_ROOT):
        sys.stdout.write(f"{path.relative_to(_ROOT)}\n")
