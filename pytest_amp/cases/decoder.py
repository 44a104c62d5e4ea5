"""Pre-norm transformer decoder of any size: small for gradients, large for speed."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(enum.Enum):
    """Implementation of attention: one fused call, or two products with an explicit softmax between them."""

    SDPA = "sdpa"
    SOFTMAX = "softmax"


@dataclass(frozen=True)
class DecoderSize:
    """Sizes of a decoder: layers, width of the residual stream, attention heads, vocabulary."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 97

    def __post_init__(self) -> None:
        """Check that the heads share the width evenly."""
        if self.width % self.heads:
            raise ValueError(f"a width of {self.width} cannot be shared by {self.heads} heads")


#: Small enough to train on a CPU in a test.
SMALL = DecoderSize()


class CausalAttention(nn.Module):
    """Causal multi-head attention; the mask hides all later positions."""

    def __init__(self, size: DecoderSize, attention: Attention) -> None:
        """Create the layers; queries, keys and values come from one linear layer."""
        super().__init__()
        self.heads, self.attention = size.heads, attention
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each row. Shapes: (batch, tokens, width) to the same."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.attention is Attention.SDPA:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
            later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class DecoderBlock(nn.Module):
    """Attention and a GELU MLP, each behind a LayerNorm and added to the residual stream."""

    def __init__(self, size: DecoderSize, attention: Attention) -> None:
        """Create the layers; the MLP is four times as wide as the residual stream."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attention = CausalAttention(size, attention)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block. Shapes: (batch, tokens, width) to the same."""
        x = x + self.attention(self.norm1(x))
        mlp: Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + mlp


class Decoder(nn.Module):
    """Transformer decoder: embedding, blocks, a last LayerNorm and a head; ``tied`` shares the embedding's weight.

    Positions are sines and cosines of Vaswani et al. 2017, section 3.5, so that any context fits.
    """

    def __init__(self, size: DecoderSize = SMALL, *, attention: Attention = Attention.SDPA, tied: bool = False) -> None:
        """Create the layers.

        Embeddings start with a standard deviation of 1/sqrt(width), so that a tied head has logits of order one.
        """
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        nn.init.normal_(self.embedding.weight, std=size.width**-0.5)
        self.blocks = nn.ModuleList(DecoderBlock(size, attention) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Predict tokens. Shapes: (batch, tokens) of indices to (batch, tokens, vocabulary) of logits."""
        embedded = self.embedding(tokens)
        x = embedded + _positions(embedded)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _positions(x: Tensor) -> Tensor:
    """Return sines and cosines of shape (tokens, width), in the dtype of ``x`` and scaled as the embeddings are."""
    tokens, width = x.shape[-2:]
    steps = torch.arange(tokens, device=x.device, dtype=torch.float32).unsqueeze(1)
    rates = torch.arange(0, width, 2, device=x.device, dtype=torch.float32).mul(-math.log(1e4) / width).exp()
    angles = steps * rates
    table = torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]
    scale: float = width**-0.5
    return (table * scale).to(x.dtype)
