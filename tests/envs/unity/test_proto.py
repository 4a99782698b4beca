"""The generated modules are those of the .proto files."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajtrainer.envs.unity.proto import generate


def test_generated_modules_are_fresh(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools (extra dev) is not installed")
    fresh = generate.generate(tmp_path)
    assert len(fresh) == 2 * len(generate.PROTOS)
    for path in fresh:
        committed = generate.FOLDER / path.name
        assert generate.without_versions(committed.read_text()) == generate.without_versions(path.read_text()), (
            f"{path.name} is not what its .proto says: run python -m trajtrainer.envs.unity.proto.generate"
        )
