"""Timed work: one piece of each kind that mixed precision is used for, large enough to keep a GPU busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_amp.cases import Case, DecoderSize, cnn, decoder, mlp
from pytest_amp.speed import MakeOptimizer, Workload

Made = Case | Workload


@dataclass(frozen=True)
class Work:
    """Piece of work: its ``name`` in records, and the function that builds it for a device.

    ``kind`` is ``"device"`` or ``"step"``. Work that is ``compute_bound`` in float32 keeps the no-harm floor on every
    card; the rest is compared with its calibration. ``ceiling`` is the largest possible speedup of this work, if it is
    not that of the card's peak rates. The reference is TF32, and with ``over_both`` IEEE float32, too.
    """

    name: str
    make: Callable[[torch.device], Made]
    kind: str = "device"
    compute_bound: bool = False
    ceiling: float | None = None
    optimizer: MakeOptimizer | None = None
    over_both: bool = False


def product(rows: int, inner: int, columns: int) -> Callable[[torch.device], Workload]:
    """Multiply two float32 matrices, both cast at each call."""

    def make(device: torch.device) -> Workload:
        def work() -> Callable[[], object]:
            a, b = torch.randn(rows, inner, device=device), torch.randn(inner, columns, device=device)
            return lambda: a @ b

        return work

    return make


def _mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    out: Tensor = model(batch)
    return out.float().square().mean()


def trained(name: str, build: Callable[[], nn.Module], *shape: int, last: bool = False) -> Callable[[object], Case]:
    """Run forward and backward of a module on normal values; ``last`` puts channels last in memory."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def batch() -> Tensor:
        x = torch.randn(shape)
        return x.to(memory_format=formats[len(shape)]) if last else x

    def created() -> nn.Module:
        module = build()
        return module.to(memory_format=formats[len(shape)]) if last else module  # type: ignore[call-overload]

    return lambda _: Case(name, created, batch, _mean_square)


def attention(backend: SDPBackend) -> Callable[[torch.device], Workload]:
    """Run forward and backward of causal attention by one back end; float32 has the efficient one only."""

    def make(device: torch.device) -> Workload:
        def work() -> Callable[[], object]:
            shape = (8, 16, 2048, 64)
            q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))

            def call() -> object:
                low = torch.is_autocast_enabled(device.type)
                with sdpa_kernel(backend if low else SDPBackend.EFFICIENT_ATTENTION):
                    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                return torch.autograd.grad(mixed.float().sum(), (q, k, v))

            return call

        return work

    return make


class Vocabulary(nn.Module):
    """Output head over many tokens."""

    def __init__(self) -> None:
        """Create a head of 32 768 tokens."""
        super().__init__()
        self.head = nn.Linear(1024, 32768, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (tokens, 1024) to (tokens, vocabulary)."""
        logits: Tensor = self.head(x)
        return logits


def _vocabulary_batch() -> dict[str, Tensor]:
    return {"inputs": torch.randn(4096, 1024), "targets": torch.randint(32768, (4096,))}


def cross_entropy(_: object) -> Case:
    """Run the head of a language model and its loss."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch["inputs"]), batch["targets"])

    return Case("cross-entropy", Vocabulary, _vocabulary_batch, loss)


def softmax(_: object) -> Case:
    """Run the head of a language model and the probabilities of one token each."""

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        chances: Tensor = model(batch["inputs"]).softmax(-1)
        return chances.gather(1, batch["targets"][:, None]).mean()

    return Case("softmax", Vocabulary, _vocabulary_batch, loss)


class Embedded(nn.Module):
    """Embedding and a linear layer."""

    def __init__(self) -> None:
        """Create 32 768 tokens of width 1024."""
        super().__init__()
        self.embedding, self.linear = nn.Embedding(32768, 1024), nn.Linear(1024, 1024)

    def forward(self, tokens: Tensor) -> Tensor:
        """Shapes: (batch, tokens) of indices to (batch, tokens, 1024)."""
        out: Tensor = self.linear(self.embedding(tokens))
        return out


def embedding(_: object) -> Case:
    """Run lookups, whose gradient is a sum of rows in float32."""
    return Case("embedding", Embedded, lambda: torch.randint(32768, (8, 1024)), _mean_square)


class Residual(nn.Module):
    """Two convolutions of 3 by 3 with BatchNorm around a shortcut (He et al. 2015)."""

    def __init__(self, width: int) -> None:
        """Create layers with as many output channels as input channels."""
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, width, height, width) to the same."""
        y = functional.relu(self.norm1(self.first(x)))
        return functional.relu(self.norm2(self.second(y)) + x)


def resnet() -> nn.Module:
    """Run four blocks between a stem and a head."""
    return nn.Sequential(
        nn.Conv2d(3, 128, 7, stride=2, padding=3, bias=False),
        *(Residual(128) for _ in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 1000),
    )


def encoder() -> nn.Module:
    """Run two of torch's own encoder layers."""
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class Recurrent(nn.Module):
    """LSTM, without its states."""

    def __init__(self) -> None:
        """Create two layers of 1024."""
        super().__init__()
        self.lstm = nn.LSTM(1024, 1024, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, steps, 1024) to the same."""
        out: Tensor = self.lstm(x)[0]
        return out


def perceptron() -> nn.Module:
    """Run many weights on few tokens: the optimizer has most of the work."""
    return nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)))


def adamw(*, fused: bool) -> MakeOptimizer:
    """Return AdamW, fused or foreach."""

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if fused:
            return torch.optim.AdamW(parameters, lr=1e-6, fused=True, capturable=True)
        return torch.optim.AdamW(parameters, lr=1e-6, foreach=True)

    return make


def _linear_and(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(2048, 2048), norm())


#: Rows of the decoder. A step is timed if it keeps the device busy for several times as long as its launches take,
#: also on a busy host; otherwise its time is the host's, and noise.
ROWS = {"device": 8, "step": 32}
#: The time limit of one measurement. A step is disturbed more often, and needs the fastest of more timings.
SECONDS = {"device": 2.5, "step": 5.0}


def decoder_for(kind: str) -> Callable[[object], Case]:
    """Return a decoder of two layers, for the ``kind`` of time."""
    size = DecoderSize(layers=2, width=1024, heads=16, vocabulary=1024)
    return lambda _: decoder(size, batch=ROWS[kind], context=1024)


def _conv2d() -> nn.Module:
    return nn.Conv2d(128, 128, 3, padding=1)


def _conv3d() -> nn.Module:
    return nn.Conv3d(32, 32, 3, padding=1)


#: Flash attention and similar kernels exist for 16-bit dtypes only.
OTHER_KERNELS = 20.0

WORKS = (
    Work("matmul-4096", product(4096, 4096, 4096), compute_bound=True, over_both=True),
    Work("matmul-memory-bound", product(8192, 8192, 16)),
    Work("matmul-odd", product(4093, 4091, 4095)),
    Work("conv2d", trained("conv2d", _conv2d, 32, 128, 56, 56), over_both=True),
    Work("conv2d-channels-last", trained("conv2d", _conv2d, 32, 128, 56, 56, last=True)),
    Work("conv3d", trained("conv3d", _conv3d, 4, 32, 16, 56, 56)),
    Work("conv3d-channels-last", trained("conv3d", _conv3d, 4, 32, 16, 56, 56, last=True)),
    Work("attention-math", attention(SDPBackend.MATH), ceiling=OTHER_KERNELS),
    Work("attention-efficient", attention(SDPBackend.EFFICIENT_ATTENTION), ceiling=OTHER_KERNELS),
    Work("attention-flash", attention(SDPBackend.FLASH_ATTENTION), ceiling=OTHER_KERNELS),
    Work("attention-cudnn", attention(SDPBackend.CUDNN_ATTENTION), ceiling=OTHER_KERNELS),
    Work("layer-norm-after-linear", trained("norm", _linear_and(lambda: nn.LayerNorm(2048)), 8192, 2048)),
    Work("rms-norm-after-linear", trained("norm", _linear_and(lambda: nn.RMSNorm(2048)), 8192, 2048)),
    Work("softmax-32768", softmax),
    Work("cross-entropy-32768", cross_entropy),
    Work("embedding", embedding),
    Work("adamw-fused", trained("mlp", perceptron, 256, 2048), optimizer=adamw(fused=True)),
    Work("adamw-foreach", trained("mlp", perceptron, 256, 2048), kind="step", optimizer=adamw(fused=False)),
    Work("resnet", trained("resnet", resnet, 32, 3, 112, 112, last=True), over_both=True),
    Work("encoder", trained("encoder", encoder, 8, 1024, 1024), compute_bound=True, ceiling=OTHER_KERNELS),
    Work("decoder", decoder_for("device"), compute_bound=True, ceiling=OTHER_KERNELS, over_both=True),
    Work("decoder-step", decoder_for("step"), kind="step", compute_bound=True, ceiling=OTHER_KERNELS),
    Work("lstm", trained("lstm", Recurrent, 32, 64, 1024)),
)


#: Small enough for a CPU, which is timed by its steps.
ON_A_CPU = (
    Work("matmul-512", product(512, 512, 512)),
    Work("mlp", lambda _: mlp()),
    Work("cnn", lambda _: cnn()),
    Work("decoder-small", lambda _: decoder()),
)
