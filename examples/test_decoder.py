"""Checks of a user's decoder under mixed precision, and the table that helps when a check fails.

Run it with ``pytest examples --amp-device=cpu --amp-dtype=bf16`` (or ``cuda``, ``fp16``).
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, CONTEXT = 101, 64, 24


class Block(nn.Module):
    """Attention and an MLP, each behind an RMSNorm."""

    def __init__(self) -> None:
        """Create layers with four heads."""
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, tokens, width) to the same."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))
        mlp: Tensor = self.down(functional.silu(self.up(self.norm2(x))))
        return x + mlp


class Decoder(nn.Module):
    """Two blocks; the head is the embedding."""

    def __init__(self) -> None:
        """Create embeddings that are small, so that logits are of size one."""
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embedding.weight, std=WIDTH**-0.5)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shapes: (batch, tokens) to (batch, tokens, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight)


def batch() -> dict[str, Tensor]:
    """Return a batch on the CPU, after torch has been seeded."""
    rows = torch.randint(VOCABULARY, (4, CONTEXT + 1))
    return {"tokens": rows[:, :-1], "next": rows[:, 1:]}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entry ``loss``, which is differentiated, and further entries, which are compared, too."""
    logits = model(batch["tokens"])
    return {"loss": functional.cross_entropy(logits.flatten(0, 1), batch["next"].flatten()), "logits": logits}


# On a CPU rms_norm of low-precision values with float32 weights is not fused, and warns: pytorch/pytorch#167308.
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def test_gradients(amp):
    """Check that every output and gradient is as exact as its rounding allows, and each operator rounds correctly."""
    amp.check_gradients(amp.case(Decoder, batch, loss, name="decoder"))


def test_dtypes(amp):
    """Check that the residual stream stays float32, and that products are low-precision."""
    amp.check_dtypes(
        amp.case(Decoder, batch, loss),
        {"embedding": torch.float32, "blocks.0": torch.float32, "blocks.0.qkv": amp.dtype, "blocks.1.down": amp.dtype},
    )


def test_loss_is_float32(amp):
    """Check the loss of each token for float32 values, not only for the dtype's name."""
    result = amp.case(Decoder, batch, loss).realise().on(amp.device.torch_device)
    with amp.autocast():
        logits = result.model(result.batch["tokens"])
        logs = logits.float().log_softmax(-1).flatten(0, 1)
        losses = functional.nll_loss(logs, result.batch["next"].flatten(), reduction="none")
    amp.check_fp32(losses, name="the loss of each token")


def test_where_it_rounds(amp):
    """Look at this table when a check fails: print(amp.trace(case))."""
    trace = amp.trace(amp.case(Decoder, batch, loss))
    products = [row for row in trace if row.operator == "aten::addmm" and row.module == "blocks.0.up"]
    assert [row.rule for row in products] == ["aten::linear: lower_precision_fp"]
    assert products[0].returned == (str(amp.dtype).removeprefix("torch."),)
