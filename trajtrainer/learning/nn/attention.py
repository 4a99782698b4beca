"""Attention over variable-length observations (docs/explanation/mlagents-behavior.md#attention)."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.learning.nn.graph import FLOAT, Graph
from trajtrainer.learning.nn.init import embedding_linear
from trajtrainer.learning.nn.mlagents import Names

EMBEDDING = 128
HEADS = 4
_PADDING_BELOW = 0.01  # an entity whose sum of squares is smaller is padding
MASKED_SCORE = -1e6
MEAN_EPSILON = 1e-7


def padding_mask(entities: Tensor) -> Tensor:
    """Return f32 [B, n], which is 1 where the entity in [B, n, size] is padding and 0 elsewhere."""
    return (entities.square().sum(2) < _PADDING_BELOW).to(entities.dtype)


def padding_mask_to_onnx(graph: Graph, entities: str) -> str:
    """Add the ONNX nodes that compute :func:`padding_mask`."""
    squares = graph.sum(graph.node("Mul", entities, entities), axis=2, keep=False)
    return graph.node("Cast", graph.node("Less", squares, graph.constant(_PADDING_BELOW)), to=FLOAT)


class Embedding(nn.Module):
    """A linear layer followed by Swish, with the small initial weights of attention layers."""

    mlagents_names: ClassVar[Names] = {"linear": "seq_layers.0"}

    def __init__(self, size: int, embedding: int = EMBEDDING) -> None:
        super().__init__()
        self.linear = embedding_linear(size, embedding)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.linear(x))

    def to_onnx(self, graph: Graph, x: str) -> str:
        return graph.silu(graph.linear(self.linear, x))


class EntityEmbedding(nn.Module):
    """An embedding of entities: [B, n, size] to [B, n, embedding].

    If the agent also has observations of its own state, these are prepended to every entity. ``linear`` holds the
    weights for this concatenation, but the product with the agent's own part is computed only once.
    """

    mlagents_names: ClassVar[Names] = {"linear": "self_ent_encoder.seq_layers.0"}

    def __init__(self, entity_size: int, self_size: int, embedding: int = EMBEDDING) -> None:
        super().__init__()
        self.self_size = self_size
        self.linear = embedding_linear(self_size + entity_size, embedding)

    def forward(self, entities: Tensor, own: Tensor | None) -> Tensor:
        if own is None:
            return F.silu(self.linear(entities))
        weight = self.linear.weight
        of_self = F.linear(own, weight[:, : self.self_size], self.linear.bias)
        return F.silu(F.linear(entities, weight[:, self.self_size :]) + of_self.unsqueeze(1))

    def to_onnx(self, graph: Graph, entities: str, own: str | None, count: int) -> str:
        """Add nodes that embed entities [batch, count, size] and the agent's own part as [batch, count, e]."""
        if own is not None:
            row = graph.reshape(own, [-1, 1, self.self_size])
            entities = graph.concat([graph.concat([row] * count, axis=1), entities], axis=2)
        return graph.silu(graph.linear_of_rows(self.linear, entities))


class Projected(NamedTuple):
    """Normalized entities and their query, key and value projections, each [..., e]."""

    normalized: Tensor
    query: Tensor
    key: Tensor
    value: Tensor


class ResidualSelfAttention(nn.Module):
    """Multi-head self-attention with a residual connection, averaged over the present entities: [B, n, e] -> [B, e]."""

    mlagents_names: ClassVar[Names] = {"query": "fc_q", "key": "fc_k", "value": "fc_v", "out": "fc_out"}

    def __init__(self, embedding: int = EMBEDDING, heads: int = HEADS) -> None:
        super().__init__()
        self.embedding, self.heads = embedding, heads
        self.query = embedding_linear(embedding, embedding)
        self.key = embedding_linear(embedding, embedding)
        self.value = embedding_linear(embedding, embedding)
        self.out = embedding_linear(embedding, embedding)

    def split(self, x: Tensor) -> Tensor:
        """Split [B, n, e] into [B, heads, n, e / heads]."""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.embedding // self.heads).transpose(1, 2)

    def forward(self, entities: Tensor, padding: Tensor) -> Tensor:
        return self.attend(self.project(entities), padding)

    def project(self, entities: Tensor) -> Projected:
        """Compute the part of the attention that depends on each entity alone, [..., e]."""
        normalized = F.layer_norm(entities, (self.embedding,))
        return Projected(normalized, self.query(normalized), self.key(normalized), self.value(normalized))

    def attend(self, entities: Projected, padding: Tensor) -> Tensor:
        """Apply attention to projected entities [B, n, e] and average over the present ones: [B, e]."""
        query, key, value = (self.split(x) for x in (entities.query, entities.key, entities.value))
        # ML-Agents divides by the square root of the embedding size rather than of the head size.
        heads = F.scaled_dot_product_attention(
            query, key, value, attn_mask=padding[:, None, None, :] * MASKED_SCORE, scale=self.embedding**-0.5
        )
        heads = heads.transpose(1, 2).reshape(entities.normalized.shape)
        attended = F.layer_norm(self.out(heads) + entities.normalized, (self.embedding,))
        present = (1.0 - padding).unsqueeze(2)
        return (attended * present).sum(1) / (present.sum(1) + MEAN_EPSILON)

    def outputs(self, value: Tensor) -> Tensor:
        """Apply ``out`` without its bias to each head's part of each value: [B, n, e] to [B, heads * n, e].

        With more sets than entities, this is cheaper than applying ``out`` to every set.
        """
        parts = zip(value.chunk(self.heads, 2), self.out.weight.chunk(self.heads, 1), strict=True)
        return torch.cat([F.linear(part, weight) for part, weight in parts], 1)

    def to_onnx(self, graph: Graph, entities: str, padding: str, count: int) -> str:
        """Add nodes that map entities [batch, count, e] and padding [batch, count] to [batch, e]."""
        normalized = graph.layer_norm(entities)
        query, key, value = (graph.linear_of_rows(layer, normalized) for layer in (self.query, self.key, self.value))
        heads = self._attend_to_onnx(graph, query, key, value, padding, count)
        attended = graph.layer_norm(graph.node("Add", graph.linear_of_rows(self.out, heads), normalized))
        present = graph.reshape(graph.node("Sub", graph.constant(1.0), padding), [-1, count, 1])
        total = graph.sum(graph.node("Mul", attended, present), axis=1, keep=False)
        number = graph.reshape(graph.sum(present, axis=1, keep=True), [-1, 1])
        return graph.node("Div", total, graph.node("Add", number, graph.constant(MEAN_EPSILON)))

    def _attend_to_onnx(self, graph: Graph, query: str, key: str, value: str, padding: str, count: int) -> str:
        """Add the scaled dot-product attention of all heads, [batch, count, e].

        Barracuda drops operators that look like a conversion between channels-first and channels-last: a Transpose with
        [0, 2, 3, 1] or [0, 3, 1, 2] and, after a convolution, also a Reshape that reorders the same sizes in this way,
        such as [batch, n] to [batch, 1, 1, n]. The code below avoids both.
        """
        split = [-1, count, self.heads, self.embedding // self.heads]
        query, key, value = (
            graph.node("Transpose", graph.reshape(x, split), perm=[0, 2, 1, 3]) for x in (query, key, value)
        )
        # Scale between the two transposes of the key, which would otherwise be merged into a single [0, 2, 3, 1].
        scaled = graph.node("Div", key, graph.constant(math.sqrt(self.embedding)))
        scores = graph.node("MatMul", query, graph.node("Transpose", scaled, perm=[0, 1, 3, 2]))
        per_head = graph.reshape(graph.concat([padding] * self.heads, axis=1), [-1, self.heads, 1, count])
        mask = graph.node("Mul", per_head, graph.constant(MASKED_SCORE))
        weights = graph.node("Softmax", graph.node("Add", scores, mask), axis=3)
        heads = graph.node("Transpose", graph.node("MatMul", weights, value), perm=[0, 2, 1, 3])
        return graph.reshape(heads, [-1, count, self.embedding])
