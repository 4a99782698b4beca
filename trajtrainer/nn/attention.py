"""Attention over variable-length observations (reference 4.8)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from trajtrainer.nn.init import embedding_linear

EMBEDDING = 128
HEADS = 4
_PADDING_BELOW = 0.01  # an entity whose sum of squares is below is padding
_MASKED_SCORE = -1e6


def padding_mask(entities: Tensor) -> Tensor:
    """Which entities [B, n, size] are padding: f32 [B, n], 1 = padding."""
    return (entities.square().sum(2) < _PADDING_BELOW).to(entities.dtype)


class Embedding(nn.Module):
    """One linear layer and Swish, with attention's small weights."""

    def __init__(self, size: int, embedding: int = EMBEDDING) -> None:
        super().__init__()
        self.linear = embedding_linear(size, embedding)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.linear(x))


class EntityEmbedding(nn.Module):
    """Entities [B, n, size] to [B, n, embedding].

    What the agent sees of itself, if anything, stands in front of every entity; ``linear`` has the weights of this
    concatenation, but the part of the agent itself is computed only once.
    """

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


class ResidualSelfAttention(nn.Module):
    """Multi-head self-attention with a residual, then the mean over the present entities: [B, n, e] -> [B, e]."""

    def __init__(self, embedding: int = EMBEDDING, heads: int = HEADS) -> None:
        super().__init__()
        self.embedding, self.heads = embedding, heads
        self.query = embedding_linear(embedding, embedding)
        self.key = embedding_linear(embedding, embedding)
        self.value = embedding_linear(embedding, embedding)
        self.out = embedding_linear(embedding, embedding)

    def _split(self, x: Tensor) -> Tensor:
        """[B, n, e] -> [B, heads, n, e / heads]"""
        return x.reshape(x.shape[0], x.shape[1], self.heads, self.embedding // self.heads).transpose(1, 2)

    def forward(self, entities: Tensor, padding: Tensor) -> Tensor:
        normalized = F.layer_norm(entities, (self.embedding,))
        query, key, value = (self._split(layer(normalized)) for layer in (self.query, self.key, self.value))
        # The peer divides by the root of the embedding's size, not of one head's.
        heads = F.scaled_dot_product_attention(
            query, key, value, attn_mask=padding[:, None, None, :] * _MASKED_SCORE, scale=self.embedding**-0.5
        )
        heads = heads.transpose(1, 2).reshape(entities.shape)
        attended = F.layer_norm(self.out(heads) + normalized, (self.embedding,))
        present = (1.0 - padding).unsqueeze(2)
        return (attended * present).sum(1) / (present.sum(1) + 1e-7)
