"""Models of this project's own: random numbers of every form, and losses that are more than a mean."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.real_models.model import TORCH, Batch, RealModel


class MaskedLinear(nn.Linear):
    """A linear layer without the connections at which a mask of its weight's shape is false."""

    def __init__(self, mask: Tensor) -> None:
        """Create the layer for the mask's shape: (outputs, inputs)."""
        super().__init__(mask.shape[1], mask.shape[0])
        self.mask: Tensor
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        """Return values of shape (rows, outputs)."""
        return functional.linear(x, self.weight * self.mask, self.bias)


class MaskedFlow(nn.Module):
    """An autoregressive flow: each value is shifted and scaled by a function of those before it (MAF)."""

    def __init__(self) -> None:
        """Create two layers over six values, the second in reverse order."""
        super().__init__()
        degrees = torch.arange(48) % 5
        into = degrees[:, None] >= torch.arange(6)
        out_of = torch.arange(6).repeat(2)[:, None] > degrees
        self.layers = nn.ModuleList(
            nn.Sequential(MaskedLinear(into), nn.Tanh(), MaskedLinear(out_of)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the transformed values and the logarithm of the determinant."""
        determinant = torch.zeros(len(x), device=x.device)
        for layer in self.layers:
            shift, scale = layer(x).chunk(2, dim=1)
            x = ((x - shift) * (-scale.tanh()).exp()).flip(1)
            determinant = determinant - scale.tanh().sum(1)
        return x, determinant


def _draws() -> Batch:
    return {"x": torch.randn(32, 6)}


def _likelihood(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    values, determinant = model(batch["x"])
    logarithm = -0.5 * values.float().square().sum(1) - 3 * math.log(2 * math.pi)
    return {"loss": -(logarithm + determinant).mean(), "values": values}


class Critics(nn.Module):
    """A generator of pictures, and a critic of them."""

    def __init__(self) -> None:
        """Create transposed convolutions with BatchNorm, and convolutions with InstanceNorm."""
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 16, 3, 1, 1),
            nn.InstanceNorm2d(16, affine=True),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(256, 1),
        )


def _real_pictures() -> Batch:
    return {"pictures": torch.randn(6, 1, 8, 8).tanh(), "noise": torch.randn(6, 8, 1, 1)}


def _critics_losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the losses of Wasserstein's critic with its penalty, which needs gradients of gradients."""
    assert isinstance(model, Critics)
    created = model.generator(batch["noise"])
    share = torch.rand(len(created), 1, 1, 1, device=created.device)
    between = (share * batch["pictures"] + (1 - share) * created.detach().float()).requires_grad_()
    (gradient,) = torch.autograd.grad(model.critic(between).sum(), between, create_graph=True)
    penalty = (gradient.flatten(1).norm(dim=1) - 1).square().mean()
    critic = model.critic(created.detach()).float().mean() - model.critic(batch["pictures"]).float().mean()
    return {"critic": critic + 10 * penalty, "generator": -model.critic(created).float().mean()}


class VariationalAutoencoder(nn.Module):
    """Convolutions to the mean and the variance of a code, a draw of it, and convolutions back."""

    def __init__(self) -> None:
        """Create layers for pictures of 16 by 16 pixels and codes of 8 values."""
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 4), nn.ELU(), nn.Flatten(), nn.Linear(256, 16))
        self.decoder = nn.Sequential(
            nn.Linear(8, 256), nn.ELU(), nn.Unflatten(1, (16, 4, 4)), nn.ConvTranspose2d(16, 1, 4, 4)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of pixels, and the mean and the logarithm of the variance of the code."""
        mean, variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * variance).exp()
        return self.decoder(code), mean, variance


def _binary_pictures() -> Batch:
    return {"pictures": (torch.rand(24, 1, 16, 16) < 0.3).float()}


def _evidence(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits, mean, variance = model(batch["pictures"])
    pixels = functional.binary_cross_entropy_with_logits(logits, batch["pictures"], reduction="sum")
    divergence = 0.5 * (variance.float().exp() + mean.float().square() - 1 - variance.float()).sum()
    return {"loss": (pixels + divergence) / len(logits), "logits": logits}


class TwoTowers(nn.Module):
    """Encoders of queries and documents that meet in one space, with a learned temperature."""

    def __init__(self) -> None:
        """Create two encoders of different depth."""
        super().__init__()
        self.queries = nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16))
        self.documents = nn.Sequential(nn.Linear(30, 32), nn.Mish(), nn.Dropout(0.1), nn.Linear(32, 16))
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Return similarities of shape (queries, documents)."""
        first = functional.normalize(self.queries(queries), dim=1)
        second = functional.normalize(self.documents(documents), dim=1)
        return first @ second.T * self.temperature.exp()


def _pairs() -> Batch:
    return {"queries": torch.randn(16, 20), "documents": torch.randn(16, 30)}


def _both_directions(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    similarities = model(batch["queries"], batch["documents"])
    right = torch.arange(len(similarities), device=similarities.device)
    loss = functional.cross_entropy(similarities, right) + functional.cross_entropy(similarities.T, right)
    return {"loss": loss / 2, "similarities": similarities}


class DiscreteCodes(nn.Module):
    """An autoencoder with codes that are drawn by Gumbel's noise, once soft and once hard."""

    def __init__(self) -> None:
        """Create four codes of eight symbols."""
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 32), nn.SiLU(), nn.Linear(32, 32), nn.Unflatten(1, (4, 8)))
        self.symbols = nn.Parameter(torch.randn(4, 8, 12))
        self.decoder = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.SiLU(), nn.Linear(32, 24))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the reconstruction from hard codes, that from soft ones, and the logits of the codes."""
        logits = self.encoder(x)
        hard, soft = (functional.gumbel_softmax(logits.float(), tau=0.8, hard=hard) for hard in (True, False))
        return self._decoded(hard), self._decoded(soft), logits

    def _decoded(self, shares: Tensor) -> Tensor:
        result: Tensor = self.decoder(torch.einsum("bcs,csd->bcd", shares, self.symbols))
        return result


def _vectors() -> Batch:
    return {"x": torch.randn(120, 4) @ torch.randn(4, 24)}


def _reconstructions(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    hard, soft, logits = model(batch["x"])
    error = functional.smooth_l1_loss(hard, batch["x"]) / 4 + functional.huber_loss(soft, batch["x"])
    divergence = functional.kl_div(logits.log_softmax(2), torch.full_like(logits, 1 / 8), reduction="batchmean")
    return {"loss": error + 0.1 * divergence, "hard": hard}


class EveryDropout(nn.Module):
    """Layers with every form of dropout, noise, and depth that is drawn."""

    def __init__(self) -> None:
        """Create convolutions, attention and linear layers."""
        super().__init__()
        self.noise = nn.RReLU()
        self.channels = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Dropout2d(0.2), nn.ReLU())
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.alpha, self.features = nn.AlphaDropout(0.1), nn.FeatureAlphaDropout(0.1)
        self.out = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (rows, 5)."""
        x = self.noise(x + 0.1 * torch.randn_like(x))  # in float32: a CPU has no RReLU for float16
        places = self.channels(x).flatten(2).mT
        places = places + self.attention(places, places, places, need_weights=False)[0]
        places = places[:, torch.randperm(places.shape[1], device=x.device)[:30]]
        hidden = places * torch.empty(len(x), 1, 1, device=x.device).bernoulli_(0.9).div_(0.9)
        for layer in self.layers:
            retained = torch.rand(len(x), 1, 1, device=x.device) < 0.9
            hidden = hidden + functional.selu(layer(hidden)) * retained / 0.9
        hidden = self.alpha(hidden) + self.features(hidden)
        on_the_cpu = torch.bernoulli(torch.full((16,), 0.98)).to(x.device)
        logits: Tensor = self.out((hidden * on_the_cpu).mean(1))
        return logits


def _labelled_pictures() -> Batch:
    classes = torch.arange(5).repeat(8)
    return {"pictures": torch.randn(40, 3, 12, 12) + classes[:, None, None, None], "classes": classes}


def _classified(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch["pictures"])
    return {"loss": functional.cross_entropy(logits, batch["classes"]), "logits": logits}


_row = partial(RealModel, library=TORCH)

MODELS = (
    _row(
        name="masked_flow",
        shows="masked weights, logarithms of determinants",
        build=MaskedFlow,
        batch=_draws,
        loss=_likelihood,
    ),
    _row(
        name="wasserstein_gan",
        shows="gradients of gradients, BatchNorm, InstanceNorm, two losses",
        build=Critics,
        batch=_real_pictures,
        loss=_critics_losses,
    ),
    _row(
        name="variational_autoencoder",
        shows="draws of codes, sums over pixels",
        build=VariationalAutoencoder,
        rate=1e-2,
        batch=_binary_pictures,
        loss=_evidence,
        dtypes={"encoder.3": "low", "decoder.3": "low"},
        selected=True,
    ),
    _row(
        name="two_towers",
        shows="normalised embeddings, a learned temperature, cross entropy in both directions",
        build=TwoTowers,
        batch=_pairs,
        loss=_both_directions,
    ),
    _row(
        name="discrete_codes",
        shows="Gumbel's noise, hard and soft, gradients passed straight through",
        build=DiscreteCodes,
        steps=30,
        rate=3e-3,
        batch=_vectors,
        loss=_reconstructions,
    ),
    _row(
        name="every_dropout",
        shows="dropout in every form, RReLU, noise, permutations, numbers drawn on the CPU",
        build=EveryDropout,
        steps=40,
        rate=3e-3,
        batch=_labelled_pictures,
        loss=_classified,
        dtypes={"attention": "low", "layers.*": "low"},
        selected=True,
    ),
)
