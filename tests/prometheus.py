"""Reads Prometheus' text format with Prometheus' own package, and as strictly as its server does."""

from __future__ import annotations

import pytest

Samples = dict[str, list[tuple[dict[str, str], float]]]


def parsed(text: str) -> Samples:
    """Name -> labels and value of each sample. No two have the same labels, and all belong to a described gauge."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    assert not text or text.endswith("\n")
    found: Samples = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.name not in found, "samples of one metric do not follow each other"
        assert family.type == "gauge"
        assert family.documentation
        samples = [(dict(sample.labels), float(sample.value)) for sample in family.samples]
        assert {sample.name for sample in family.samples} == {family.name}
        assert len({tuple(sorted(labels.items())) for labels, _ in samples}) == len(samples)
        found[family.name] = samples
    return found
