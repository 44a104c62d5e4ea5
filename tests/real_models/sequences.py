"""Models of this project's own: text, speech and tables."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.real_models.model import TORCH, Batch, RealModel, tokens


class RecurrentLanguageModel(nn.Module):
    """An LSTM of two layers whose output layer is its embedding."""

    def __init__(self) -> None:
        """Create layers with dropout before, between and after the recurrent ones."""
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.project = nn.Linear(24, 24)
        self.recurrent = nn.LSTM(24, 24, num_layers=2, dropout=0.2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(24, 96)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of shape (rows, columns, 96)."""
        hidden, _ = self.recurrent(self.project(self.drop(self.embedding(ids))))
        logits: Tensor = self.out(self.drop(hidden))
        return logits


def _text() -> Batch:
    return {"ids": tokens(4, 13)}


def _next_token(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch["ids"][:, :-1])
    return {"loss": functional.cross_entropy(logits.flatten(0, 1), batch["ids"][:, 1:].flatten()), "logits": logits}


class SpeechRecogniser(nn.Module):
    """Convolutions over a spectrogram, a GRU in both directions, and letters."""

    def __init__(self) -> None:
        """Create layers for 20 bands and 12 letters, the first of which is the blank."""
        super().__init__()
        self.bands = nn.Sequential(nn.Conv1d(20, 32, 3, 2, 1), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout1d(0.1))
        self.recurrent = nn.GRU(32, 16, bidirectional=True, batch_first=True)
        self.letters = nn.Linear(32, 12)

    def forward(self, bands: Tensor) -> Tensor:
        """Return logarithms of probabilities of shape (frames, rows, letters)."""
        hidden, _ = self.recurrent(self.bands(bands).mT)
        return self.letters(hidden).log_softmax(2).transpose(0, 1)


def _spectrograms() -> Batch:
    return {
        "bands": torch.randn(3, 20, 40),
        "frames": torch.tensor([20, 18, 15]),
        "text": torch.randint(1, 12, (3, 6)),
        "lengths": torch.tensor([6, 5, 4]),
    }


def _alignments(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    scores = model(batch["bands"])
    loss = functional.ctc_loss(scores, batch["text"], batch["frames"], batch["lengths"], zero_infinity=True)
    return {"loss": loss, "scores": scores}


class Block(nn.Module):
    """A pre-norm decoder block: RMSNorm, rotary positions, grouped queries, two of four experts for a token."""

    def __init__(self, width: int, heads: int, shared: int, experts: int) -> None:
        """Create projections for ``heads`` heads of queries and ``shared`` of keys."""
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.before_attention, self.before_experts = nn.RMSNorm(width), nn.RMSNorm(width)
        self.queries = nn.Linear(width, width, bias=False)
        self.keys_and_values = nn.Linear(width, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the same shape: (rows, columns, width)."""
        x = x + self._attention(self.before_attention(x))
        return x + self._experts(self.before_experts(x))

    def _attention(self, x: Tensor) -> Tensor:
        queries = self.queries(x).unflatten(2, (self.heads, self.size)).transpose(1, 2)
        pairs = self.keys_and_values(x).unflatten(2, (2 * self.shared, self.size)).transpose(1, 2)
        keys, values = pairs.chunk(2, dim=1)
        mixed = functional.scaled_dot_product_attention(
            rotated(queries), rotated(keys), values, is_causal=True, enable_gqa=True
        )
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def _experts(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        shares, chosen = self.router(flat).softmax(1).topk(2, dim=1)
        result = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            row, place = (chosen == index).nonzero(as_tuple=True)
            result = result.index_add(0, row, (expert(flat[row]) * shares[row, place, None]).to(result.dtype))
        return result.view_as(x)


def rotated(x: Tensor) -> Tensor:
    """Return queries or keys (rows, heads, columns, size) turned by angles that grow with their position."""
    half = x.shape[3] // 2
    speeds = 100.0 ** -(torch.arange(half, device=x.device) / half)
    angles = torch.outer(torch.arange(x.shape[2], device=x.device), speeds)
    first, second = x.chunk(2, dim=3)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=3)


class ExpertLanguageModel(nn.Module):
    """A decoder of two blocks."""

    def __init__(self) -> None:
        """Create a model of width 32 for 96 tokens."""
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.blocks = nn.Sequential(*(Block(32, heads=4, shared=2, experts=4) for _ in range(2)))
        self.norm, self.out = nn.RMSNorm(32), nn.Linear(32, 96, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of shape (rows, columns, 96)."""
        logits: Tensor = self.out(self.norm(self.blocks(self.embedding(ids))))
        return logits


class FactorisationMachine(nn.Module):
    """Products of all pairs of embedded fields by one identity, and a parallel network (DeepFM)."""

    def __init__(self) -> None:
        """Create embeddings for six fields, and for a bag of words of any length."""
        super().__init__()
        self.fields = nn.Embedding(120, 8)
        self.weights = nn.Embedding(120, 1)
        self.words = nn.EmbeddingBag(50, 8, mode="mean")
        self.deep = nn.Sequential(nn.Linear(56, 32), nn.PReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, fields: Tensor, words: Tensor, offsets: Tensor) -> Tensor:
        """Return the logit of a click for each row."""
        embedded = torch.cat([self.fields(fields), self.words(words, offsets)[:, None]], dim=1)
        pairs = (embedded.sum(1).square() - embedded.square().sum(1)).sum(1) / 2
        return self.weights(fields).sum((1, 2)) + pairs + self.deep(embedded.flatten(1))[:, 0]


def _impressions() -> Batch:
    return {
        "fields": torch.randint(20, (24, 6)) + 20 * torch.arange(6),
        "words": torch.randint(50, (72,)),
        "offsets": torch.arange(0, 72, 3),
        "clicks": torch.randint(2, (24,)).float(),
    }


def _clicks(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch["fields"], batch["words"], batch["offsets"])
    weight = torch.tensor(2.0, device=logits.device)
    return {
        "loss": functional.binary_cross_entropy_with_logits(logits, batch["clicks"], pos_weight=weight),
        "logits": logits,
    }


_row = partial(RealModel, library=TORCH)

MODELS = (
    _row(
        name="lstm_language_model",
        shows="recurrent dropout, an LSTM behind a linear layer, one weight used twice",
        build=RecurrentLanguageModel,
        rate=1e-2,
        batch=_text,
        loss=_next_token,
    ),
    _row(
        name="gru_ctc",
        shows="a GRU behind a convolution, BatchNorm, dropped channels, CTC",
        build=SpeechRecogniser,
        batch=_spectrograms,
        loss=_alignments,
    ),
    _row(
        name="expert_decoder",
        shows="rotary positions, grouped queries by torch itself, experts by index",
        build=ExpertLanguageModel,
        batch=_text,
        loss=_next_token,
        dtypes={"blocks.*.queries": "low", "out": "low"},
        selected=True,
    ),
    _row(
        name="factorisation_machine",
        shows="bags of embeddings, differences of squares, PReLU",
        build=FactorisationMachine,
        batch=_impressions,
        loss=_clicks,
    ),
)
