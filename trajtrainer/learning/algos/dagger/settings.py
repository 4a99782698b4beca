"""The hyperparameters of DAgger."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen

from trajtrainer.learning.algos.bc.settings import CloningHyperparameters
from trajtrainer.settings.checks import AutoOrNumber, Fault, count, mismatch, positive_or_auto
from trajtrainer.settings.components import AlgorithmRow
from trajtrainer.settings.network import NetworkSettings


@frozen
class DAggerHyperparameters(CloningHyperparameters):
    """Hyperparameters of DAgger (Ross et al. 2011): imitation of an expert in the states that the learner visits.

    Attributes:
        expert: a run or a checkpoint, whose distribution over actions is imitated; or an ``.onnx`` file, ``heuristic``
            (the hand-written policy of some simulations) or ``python:MODULE:FUNCTION``, whose actions are imitated.
        student_sensors: names of the sensors that the policy sees. Left out: all of them.
    """

    buffer_size: int = field(default=50000, validator=count)
    expert: str = ""
    steps_per_update: AutoOrNumber = field(default=4, validator=positive_or_auto)
    save_replay_buffer: bool = False
    student_sensors: list[str] = field(factory=list)

    def faults(self, network: NetworkSettings) -> Iterator[Fault]:  # noqa: ARG002
        if not self.expert:
            expected = "a run, a checkpoint, an .onnx file, heuristic or python:MODULE:FUNCTION to imitate"
            yield mismatch(("hyperparameters", "expert"), None, expected)


ROW = AlgorithmRow(DAggerHyperparameters, "trajtrainer.learning.algos.dagger.dagger:DAgger")
