"""Summary and checkpoint steps, against the golden flows and the rule told one trajectory at a time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trajtrainer.learning.trainers.boundaries import Boundary, boundaries


def _one_by_one(step: int, lengths: list[int], summary_freq: int, checkpoint_interval: int) -> list[Boundary]:
    found = []
    for i, length in enumerate(lengths):
        next_summary = step + summary_freq - step % summary_freq
        next_checkpoint = step + checkpoint_interval - step % checkpoint_interval
        summary = next_summary if step and step + length >= next_summary else None
        checkpoint = bool(step) and step + length >= next_checkpoint
        if summary is not None or checkpoint:
            found.append(Boundary(i, summary, checkpoint))
        step += length
    return found


def test_golden_flows(shared_data: Path) -> None:
    path = shared_data / "golden" / "schedules" / "summaries_and_checkpoints.json"
    for flow in json.loads(path.read_text())["flows"]:
        lengths = np.array([one["length"] for one in flow["trajectories"]])
        begins = np.cumsum(lengths) - lengths
        events: list[list[list[object]]] = [[] for _ in lengths]
        for boundary in boundaries(0, lengths, flow["summary_freq"], flow["checkpoint_interval"]):
            if boundary.summary is not None:
                events[boundary.trajectory].append(["summary", boundary.summary])
            if boundary.checkpoint:
                events[boundary.trajectory].append(["checkpoint", begins[boundary.trajectory]])
        assert events == [one["events"] for one in flow["trajectories"]]


@given(
    st.integers(0, 500),
    st.lists(st.integers(1, 70), min_size=1, max_size=30),
    st.integers(1, 100),
    st.integers(1, 100),
)
def test_equals_the_rule(step: int, lengths: list[int], summary_freq: int, checkpoint_interval: int) -> None:
    found = boundaries(step, np.array(lengths, np.int32), summary_freq, checkpoint_interval)
    assert found == _one_by_one(step, lengths, summary_freq, checkpoint_interval)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=30), st.integers(1, 29))
def test_it_does_not_matter_how_a_drain_is_cut(lengths: list[int], cut: int) -> None:
    cut = min(cut, len(lengths))
    whole = boundaries(0, np.array(lengths), 50, 120)
    first = boundaries(0, np.array(lengths[:cut], np.int32), 50, 120)
    second = boundaries(sum(lengths[:cut]), np.array(lengths[cut:], np.int32), 50, 120)
    assert whole == first + [b._replace(trajectory=b.trajectory + cut) for b in second]
