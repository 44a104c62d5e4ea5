"""Language cases: encoder, gated decoder, mixture of experts, EmbeddingBag, low-rank adapters, attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from pytest_amp.cases.case import Case
from pytest_amp.cases.zoo import Batch, classification

WIDTH, VOCABULARY, TOKENS = 32, 61, 12


class Encoder(nn.Module):
    """Embedding and torch's own encoder layer, post-norm, with padding masked out (Vaswani et al. 2017)."""

    def __init__(self) -> None:
        """Create the layers; token 0 is padding."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Classify. Shapes: (batch, tokens) of indices to (batch, classes)."""
        hidden = tokens == 0
        x = self.layer(self.embedding(tokens), src_key_padding_mask=hidden)
        visible = (~hidden).unsqueeze(-1)
        logits: Tensor = self.head((x * visible).sum(1) / visible.sum(1))
        return logits


def encoder() -> Case:
    """Return a case that guards boolean masks, LayerNorm after a sum, and a mean over the unmasked tokens."""

    def batch() -> Batch:
        tokens = torch.randint(1, VOCABULARY, (4, TOKENS))
        tokens[2:, TOKENS // 2 :] = 0
        return {"inputs": tokens, "targets": torch.randint(5, (4,))}

    return Case("encoder", Encoder, batch, classification)


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of features by their position, in float32, and cast back (Su et al. 2021)."""
    steps = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
    rates = 1e4 ** -(torch.arange(0, x.shape[-1], 2, device=x.device, dtype=torch.float32) / x.shape[-1])
    angles = steps[:, None] * rates
    first, second = x.float().chunk(2, -1)
    turned = [first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()]
    return torch.cat(turned, -1).to(x.dtype)


class GatedBlock(nn.Module):
    """Grouped-query attention with rotary positions and a SwiGLU MLP, each after RMSNorm (Touvron et al. 2023)."""

    def __init__(self) -> None:
        """Create the layers; four query heads share two heads of keys and values."""
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 64, bias=False), nn.Linear(WIDTH, 64, bias=False)
        self.down = nn.Linear(64, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block. Shapes: (batch, tokens, width) to the same."""
        batch, tokens, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(batch, tokens, 4, 8).transpose(1, 2)
        k, v = self.kv(y).view(batch, tokens, 2, 2, 8).permute(2, 0, 3, 1, 4)
        k, v = (heads.repeat_interleave(2, 1) for heads in (rotated(k), v))
        mixed = functional.scaled_dot_product_attention(rotated(q), k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        y = self.norm2(x)
        mlp: Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return x + mlp


class GatedDecoder(nn.Module):
    """Decoder of two gated blocks; embedding and head share one weight."""

    def __init__(self, *, recomputed: bool = False) -> None:
        """Create the layers; with ``recomputed`` the backward pass recomputes each block."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.blocks = nn.ModuleList(GatedBlock() for _ in range(2))
        self.norm, self.recomputed = nn.RMSNorm(WIDTH), recomputed

    def forward(self, tokens: Tensor) -> Tensor:
        """Predict tokens. Shapes: (batch, tokens) of indices to (batch, tokens, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputed else block(x)
        return functional.linear(self.norm(x), self.embedding.weight)


def _next_tokens() -> Batch:
    rows = torch.randint(VOCABULARY, (4, TOKENS + 1))
    return {"inputs": rows[:, :-1], "targets": rows[:, 1:]}


def gated_decoder() -> Case:
    """Return a case that guards RMSNorm of low-precision values, casts around rotary positions, gates, tied weights."""
    return Case("gated_decoder", GatedDecoder, _next_tokens, classification)


def checkpointed() -> Case:
    """Return a case that guards recomputation in forward's region: the decoder with every block checkpointed."""
    return Case("checkpointed", lambda: GatedDecoder(recomputed=True), _next_tokens, classification)


class Experts(nn.Module):
    """Mixture of experts: each token goes to two experts, whose outputs are summed (Shazeer et al. 2017)."""

    def __init__(self) -> None:
        """Create a router and four experts, each one linear layer with GELU."""
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Classify. Shapes: (tokens, width), and (tokens, 2) of the chosen experts' indices, to (tokens, classes)."""
        shares = self.router(x).softmax(-1).gather(1, chosen)
        mixed = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, places = (chosen == index).nonzero(as_tuple=True)
            weighed = expert(x[rows]) * shares[rows, places].unsqueeze(-1)
            mixed = mixed.index_add(0, rows, weighed.to(mixed.dtype))
        counts = torch.zeros_like(shares).scatter_add(1, torch.zeros_like(chosen), shares)
        logits: Tensor = self.head(mixed) * counts[:, :1]
        return logits


def experts() -> Case:
    """Return a case that guards index_add, gather and scatter_add.

    The choice of experts is part of the batch: rounding must not decide it.
    """

    def batch() -> Batch:
        chosen = torch.stack([torch.randperm(4)[:2] for _ in range(48)])
        return {"inputs": torch.randn(48, WIDTH, requires_grad=True), "chosen": chosen, "targets": torch.arange(48) % 5}

    def loss(model: nn.Module, batch: Batch) -> Batch:
        logits = model(batch["inputs"], batch["chosen"])
        return {"loss": functional.cross_entropy(logits, batch["targets"]), "logits": logits}

    return Case("experts", Experts, batch, loss)


def bags() -> Case:
    """Return a case that guards ``embedding_bag`` (mean) of float32 weights before a low-precision layer."""

    def build() -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(VOCABULARY, WIDTH), nn.Linear(WIDTH, 5))

    def batch() -> Batch:
        return {"inputs": torch.randint(VOCABULARY, (8, TOKENS)), "targets": torch.randint(5, (8,))}

    return Case("bags", build, batch, classification)


class Adapted(nn.Module):
    """Frozen layer plus a trained product of two small matrices (LoRA, Hu et al. 2021)."""

    def __init__(self) -> None:
        """Create a frozen layer and adapters of rank four."""
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(4, WIDTH) / WIDTH**0.5)
        self.up = nn.Parameter(torch.randn(WIDTH, 4) / 2)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Classify. Shapes: (batch, width) to (batch, classes)."""
        y = self.frozen(x) + functional.linear(functional.linear(x, self.down), self.up) * 0.5
        logits: Tensor = self.head(functional.gelu(y))
        return logits


def adapters() -> Case:
    """Return a case that guards frozen weights, which autocast casts each time, and trained bare parameters."""

    def batch() -> Batch:
        return {"inputs": torch.randn(16, WIDTH, requires_grad=True), "targets": torch.randint(5, (16,))}

    return Case("adapters", Adapted, batch, classification)


def weight_normed() -> Case:
    """Return a case that guards weights computed in the region from float32 parameters (Salimans and Kingma 2016)."""

    def build() -> nn.Module:
        normed = nn.utils.parametrizations.weight_norm
        return nn.Sequential(normed(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), normed(nn.Linear(WIDTH, 5)))

    def batch() -> Batch:
        return {"inputs": torch.randn(16, WIDTH, requires_grad=True), "targets": torch.randint(5, (16,))}

    return Case("weight_normed", build, batch, classification)


def _attended(name: str, how: object) -> Case:
    def loss(_model: nn.Module, batch: Batch) -> Batch:
        mixed = how(batch["q"], batch["k"], batch["v"])  # type: ignore[operator]
        weights = torch.linspace(-1, 1, mixed.numel(), device=mixed.device).view_as(mixed)
        return {"loss": (mixed.float() * weights).sum(), "mixed": mixed}

    def batch() -> Batch:
        return {name: torch.randn(2, 2, 16, 8, requires_grad=True) for name in "qkv"}

    return Case(f"attention_{name}", nn.Identity, batch, loss)


def _by(name: str, *backends: SDPBackend) -> Case:
    """Return a case of attention by the first of ``backends``, in torch's own order, that supports device and dtype."""

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Not with set_priority: if that call is a process's first attention on a Hopper or Blackwell GPU, it restores
        # an order that torch has not yet determined, and cuDNN's kernel is no longer preferred.
        with sdpa_kernel(list(backends)):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return _attended(name, mixed)


def attention_by_math() -> Case:
    """Return a case that guards the back end of every device: two products with a softmax between."""
    return _by("math", SDPBackend.MATH)


def attention_by_flash() -> Case:
    """Return a case that guards the fused back end, which also rounds probabilities; CUDA uses another for float32."""
    return _by("flash", SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def attention_by_efficient() -> Case:
    """Return a case that guards the back end that CUDA uses for masks and float32; a CPU falls back to math."""
    return _by("efficient", SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


def attention_by_cudnn() -> Case:
    """Return a case that guards cuDNN's attention, for low precision on new GPUs; elsewhere math."""
    return _by("cudnn", SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)


def attention_by_einsum() -> Case:
    """Return a case that guards attention written with ``einsum``, as in papers."""

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / 8**0.5
        weights: Tensor = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)
        return weights

    return _attended("einsum", mixed)
