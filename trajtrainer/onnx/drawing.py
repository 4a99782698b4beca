"""What an export takes: an ``Actor``, or a policy of another trainer in the same form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor, nn

from trajtrainer.nn.distribution import ActionDistribution
from trajtrainer.nn.graph import Graph


class Body(Protocol):
    """Draws what comes ahead of the actions; see ``NetworkBody.to_onnx``."""

    def to_onnx(
        self, graph: Graph, obs: Sequence[str], shapes: Sequence[Sequence[int]], memory: str | None, memory_out: str
    ) -> str:
        """Draw one step."""


class Head(Protocol):
    """Draws the actions; see ``ActionHead``."""

    @property
    def continuous_size(self) -> int: ...
    @property
    def branches(self) -> tuple[int, ...]: ...
    def continuous_to_onnx(self, graph: Graph, encoding: str, sampled: str, likeliest: str) -> None: ...
    def discrete_to_onnx(self, graph: Graph, encoding: str, allowed: str, sampled: str, likeliest: str) -> None: ...


class Drawing(Protocol):
    """A policy that can be drawn: an ``Actor``, or one of another trainer."""

    @property
    def body(self) -> Body: ...
    @property
    def head(self) -> Head: ...
    @property
    def memory_size(self) -> int: ...


class Acting(Drawing, Protocol):
    """A policy that also acts, so that the drawing can be compared with it."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...
    def distribution(
        self, obs: Sequence[Tensor], mask: Tensor, memory: Tensor
    ) -> tuple[ActionDistribution, Tensor]: ...
