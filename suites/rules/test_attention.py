"""Attention by back end and by argument: low-precision, equal to manual casts; and layers around it with odd widths."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_amp.amp import SuiteAmp
from pytest_amp.data_files.releases import release_of
from pytest_amp.precision import dtype_name

GROUPED_FLASH = pytest.mark.skipif(
    release_of(torch.__version__) < (2, 9),
    reason="the CPU's flash kernel takes grouped queries since torch 2.9 (pytorch/pytorch#157893)",
)
#: None lets torch select the back end. The CPU has the first three only.
BACKENDS = {
    "chosen": None,
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
ON_CUDA = pytest.mark.amp(devices=["cuda"])
#: Back ends of CUDA that lack kernels for some arguments, depending on the release and the card (a boolean mask for
#: flash, grouped queries for efficient until torch 2.13, dropout for cuDNN since 2.14); ``plain`` has a kernel in each.
#: See aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, and sdp_utils_cpp.cpp for the CPU's flash kernel.
FUSED_ON_CUDA = ("flash", "efficient", "cudnn")
NO_KERNEL = "No available kernel"


def _blocked(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(6, 6, dtype=torch.bool, device=x.device).tril()


def _floating(x: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, 36, device=x.device).view(6, 6)


def _keywords(**keywords: Any) -> Callable[[torch.Tensor], dict[str, Any]]:
    return lambda _: keywords


#: Keywords, built for a low or a float32 query.
ARGUMENTS: dict[str, Callable[[torch.Tensor], dict[str, Any]]] = {
    "plain": _keywords(),
    "causal": _keywords(is_causal=True),
    "scale": _keywords(scale=0.3),
    "dropout": _keywords(dropout_p=0.4),
    "boolean mask": lambda x: {"attn_mask": _blocked(x)},
    "mask": lambda x: {"attn_mask": _floating(x).to(x.dtype)},
    "gqa": _keywords(enable_gqa=True),
    "gqa, scale": _keywords(enable_gqa=True, scale=0.3),
    "gqa, scale, causal": _keywords(enable_gqa=True, scale=0.3, is_causal=True),
    "mask, scale": lambda x: {"attn_mask": _floating(x).to(x.dtype), "scale": 0.3},
}


def _cases() -> Iterable[Any]:
    for backend in BACKENDS:
        for arguments in ARGUMENTS:
            marks: Any = GROUPED_FLASH if backend == "flash" and arguments.startswith("gqa") else ()
            if backend in {"efficient", "cudnn"}:
                marks = ON_CUDA
            yield pytest.param(backend, arguments, id=f"{backend}-{arguments}", marks=marks)


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "mixed"])
@pytest.mark.parametrize(("backend", "arguments"), list(_cases()))
def test_attention_is_cast(amp: SuiteAmp, backend: str, arguments: str, *, mixed: bool) -> None:
    """Attention has the bits of manual casts, also if only the keys are low-precision (pytorch/pytorch#141774).

    If a back end has no kernel for the manually cast arguments, a region raises, too: autocast adds no fallback. The
    result, a dtype or the refusal, is observed, so that a baseline notices a kernel that is new or gone.
    """
    heads = 2 if "gqa" in arguments else 4
    if amp.device.type == "cuda" and backend in {"flash", "cudnn"} and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip(f"{backend} attention needs compute capability 8.0, which {amp.device.describe()} has not")
    torch.manual_seed(amp.config.seed)
    shapes = (2, 4, 6, 8), (2, heads, 6, 8), (2, heads, 6, 8)
    query, key, value = (torch.randn(shape).to(amp.device.torch_device) for shape in shapes)
    low = [tensor.to(amp.dtype) for tensor in (query, key, value)]
    expected = _attention(amp, backend, arguments, low, enabled=False)
    actual = _attention(amp, backend, arguments, [query, low[1] if mixed else key, value], enabled=True)
    kind = "mixed" if mixed else "float32"
    observed = "refused" if actual is None else dtype_name(actual.dtype)
    amp.observe(f"{backend}, {arguments}, {kind}", observed, kind="dtype")
    if expected is None:
        assert _may_lack_a_kernel(amp, backend, arguments), f"no kernel of {backend} takes manual casts ({arguments})"
        assert observed == "refused", f"attention ({backend}, {arguments}) is refused of manual casts only"
        return
    assert actual is not None, f"attention ({backend}, {arguments}) is refused in a region, but not of manual casts"
    assert actual.dtype is amp.dtype
    assert torch.equal(actual, expected), f"attention ({backend}, {arguments}) differs from manual casts"


def _attention(
    amp: SuiteAmp, backend: str, arguments: str, tensors: list[torch.Tensor], *, enabled: bool
) -> torch.Tensor | None:
    """Compute attention by a back end, with autocast on or off; return None if it has no kernel for the arguments."""
    query, key, value = tensors
    chosen = BACKENDS[backend]
    kernels = [kernel for kernel in BACKENDS.values() if kernel is not None] if chosen is None else [chosen]
    torch.manual_seed(amp.config.seed)
    with warnings.catch_warnings(), sdpa_kernel(kernels), amp.autocast(enabled=enabled):
        warnings.simplefilter("ignore")  # one for each missing kernel
        try:
            return functional.scaled_dot_product_attention(query, key, value, **ARGUMENTS[arguments](query))
        except RuntimeError as error:
            if NO_KERNEL not in str(error):
                raise
            return None


def _may_lack_a_kernel(amp: SuiteAmp, backend: str, arguments: str) -> bool:
    """Return whether a back end may refuse arguments; the math and the chosen back end take all."""
    if amp.device.type == "cuda":
        return backend in FUSED_ON_CUDA and arguments != "plain"
    return (backend, arguments) == ("flash", "dropout")


@pytest.mark.parametrize("arguments", [key for key in ARGUMENTS if key != "dropout"])
def test_attention_is_what_its_formula_says(amp: SuiteAmp, arguments: str) -> None:
    """Compare with the formula in float64, which detects an argument that every back end ignores."""
    heads = 2 if "gqa" in arguments else 4
    query, key, value = (torch.randn(2, n, 6, 8).to(amp.device.torch_device) for n in (4, heads, heads))
    keywords = ARGUMENTS[arguments](query)
    with amp.autocast():
        actual = functional.scaled_dot_product_attention(query, key, value, **keywords)
    double, mask = [t.to(amp.dtype).double() for t in (query, key, value)], keywords.get("attn_mask")
    double[1:] = [t.repeat_interleave(4 // heads, 1) for t in double[1:]]
    scores = double[0] @ double[1].mT * keywords.get("scale", 8**-0.5)
    if keywords.get("is_causal") or (mask is not None and mask.dtype is torch.bool):
        scores = scores.masked_fill(~_blocked(query), float("-inf"))
    elif mask is not None:
        scores = scores + mask
    error = (actual.double() - scores.softmax(-1) @ double[2]).norm() / actual.double().norm()
    # Rounded: probabilities, and the result; a mask that is float32 for autocast may be low-precision inside.
    assert error <= 4 * amp.precision.u, f"attention ({arguments}) differs from its formula by {error:.3g}"


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "kdim, vdim": (lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4), (8, 6, 4)),
    "kdim": (lambda: nn.MultiheadAttention(8, 2, kdim=6), (8, 6, 8)),
    "no bias": (lambda: nn.MultiheadAttention(8, 2, bias=False), (8, 8, 8)),
    "bias_kv, zero_attn": (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True), (8, 8, 8)),
    "batch_first": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (8, 8, 8)),
}


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "fused"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("layer", LAYERS)
def test_multihead_attention_of_any_width_is_low(amp: SuiteAmp, layer: str, *, training: bool, weights: bool) -> None:
    """Separate widths of keys and values have separate weights, and a different path.

    Probabilities come from softmax: float32 if the device's list has it.
    """
    softmax = amp.dtype if amp.device.type == "cpu" else torch.float32
    build, widths = LAYERS[layer]
    module = build().to(amp.device.torch_device).train(training)
    inputs = [torch.randn(5, 2, width, device=amp.device.torch_device) for width in widths]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode(), amp.autocast():
            result, probabilities = module(*inputs, need_weights=weights)
        assert result.dtype is amp.dtype, f"under {mode.__name__} it answers {result.dtype}"
        assert not weights or probabilities.dtype is softmax
    plain = module(*inputs, need_weights=weights)[0]
    error = (result.float() - plain).norm() / plain.norm()
    assert 0 < error <= 4 * amp.precision.u


def _layer(**keywords: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **keywords)


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "layer": _layer,
    "layer, norm first": functools.partial(_layer, norm_first=True),
    "layer, gelu": functools.partial(_layer, activation="gelu"),
    "layer, no bias": functools.partial(_layer, bias=False),
    "encoder": lambda: nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False),
    "encoder, nested": lambda: nn.TransformerEncoder(_layer(), 2),
}
MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
MASKS = ("none", "boolean", "float32", "low", "padding", "padding float32", "padding low")
_PADDED = "pytorch/pytorch#132613: the fast path of padded rows gets float32 weights and low-precision activations"


def _masked(amp: SuiteAmp, kind: str) -> dict[str, torch.Tensor]:
    later = torch.ones(5, 5, dtype=torch.bool, device=amp.device.torch_device).triu(1)
    padded = torch.arange(5, device=amp.device.torch_device) >= torch.tensor([[5], [3]], device=amp.device.torch_device)
    if kind == "none":
        return {}
    boolean, name = (padded, "src_key_padding_mask") if "padding" in kind else (later, "mask")
    dtype = {"float32": torch.float32, "low": amp.dtype}.get(kind.rpartition(" ")[2])
    if dtype is not None:
        return {name: torch.zeros(boolean.shape, device=boolean.device, dtype=dtype).masked_fill(boolean, -torch.inf)}
    return {name: boolean}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_dtype_of_an_encoder_is_the_one_it_had(amp: SuiteAmp, encoder: str, mode: str, *, training: bool) -> None:
    """Golden: the dtype of the input, which the residual stream adds to; on the fast path (eval, no graph) low.

    See pytorch/pytorch#82783, #107663 and #132613: training and evaluation, with and without masks.

    The fast path excludes layers without biases, and fails for padded rows in a nested encoder (an expected failure,
    which is checked). CUDA has none under autocast (torch/nn/modules/transformer.py asks ``is_autocast_enabled()``,
    which is CUDA's); there a layer that ends with its normalization returns float32, as ``layer_norm`` does.
    """
    module = ENCODERS[encoder]().to(amp.device.torch_device).train(training)
    on_cpu = amp.device.type == "cpu"
    fast = on_cpu and not training and mode != "grad" and encoder != "layer, no bias"
    actual, expected = {}, {}
    for mask in MASKS:
        for dtype in (torch.float32, amp.dtype):
            keywords = _masked(amp, mask)
            if "layer" in encoder and "mask" in keywords:
                keywords = {"src_mask": keywords["mask"]}
            case = f"{mask}, {dtype_name(dtype)}"
            try:
                with MODES[mode](), amp.autocast():
                    actual[case] = module(
                        torch.randn(2, 5, 8, device=amp.device.torch_device).to(dtype), **keywords
                    ).dtype
            except RuntimeError as error:
                actual[case] = f"{_PADDED if 'expected scalar type Float' in str(error) else error}"
            fails = encoder == "encoder, nested" and fast and "padding" in mask
            slow = dtype if on_cpu or "norm first" in encoder else torch.float32
            expected[case] = _PADDED if fails else amp.dtype if fast else slow
    answers = [v if isinstance(v, str) else dtype_name(v) for v in actual.values()]
    amp.observe(f"{encoder}, {'train' if training else 'eval'}, {mode}", [*answers], kind="dtype")
    assert actual == expected
