"""Formulas of CUDA's kernels without rounding are equal to torch's own float64 operators and autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp import torch_private
from pytest_amp.numerics.oracle import cuda, elementwise, formulas, products
from pytest_amp.numerics.oracle.models import ModelName, evaluate, model_for
from pytest_amp.numerics.oracle.operation import Operation

WIDE = torch.float64


def operation(name: str, *args: Any, rounds: bool = False, dtype: torch.dtype = torch.bfloat16, **kwargs: Any) -> Any:
    overload = torch_private.find_overload(name)
    leaves = torch_private.flat((args, kwargs))[0]
    input_dtypes = tuple(dtype if isinstance(leaf, Tensor) and leaf.is_floating_point() else None for leaf in leaves)
    return Operation(overload, args, kwargs, input_dtypes, (dtype,) * 32, "cuda", rounds)


def run(result: Operation) -> list[Any]:
    return formulas.ALWAYS[result.name](result)


def wide(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=WIDE, requires_grad=grad)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("kind", "mode"), [(nn.RNN, 1), (nn.LSTM, 2), (nn.GRU, 3)])
def test_recurrent_formulas_match_float64_layers(
    kind: Any, mode: int, *, batch_first: bool, bidirectional: bool, biased: bool
) -> None:
    layer = kind(5, 7, num_layers=2, bidirectional=bidirectional, bias=biased, batch_first=batch_first, dtype=WIDE)
    count, batch = 4 if bidirectional else 2, 4 if batch_first else 3
    x, h, c = wide(4, 3, 5, grad=True), wide(count, batch, 7, grad=True), wide(count, batch, 7, grad=True)
    output, last = layer(x, (h, c) if mode == 2 else h)
    last_h, last_c = last if mode == 2 else (last, None)
    weights = list(layer.parameters())
    plain = [weight.detach() for weight in weights]
    stride = 4 if biased else 2
    states = h.detach(), c.detach() if mode == 2 else None
    tail: tuple[Any, ...] = (mode, 7, 0, 2, batch_first, 0.0, True, bidirectional, [], None)
    got = run(operation("aten::_cudnn_rnn", x.detach(), plain, stride, None, *states, *tail))
    assert torch.allclose(got[0], output)
    assert torch.allclose(got[1], last_h)
    assert last_c is None or torch.allclose(got[2], last_c)
    grad_output, given_h = torch.randn_like(output), torch.randn_like(last_h)
    given_c = None if last_c is None else torch.randn_like(last_c)
    ends = [(output, grad_output), (last_h, given_h)] + ([(last_c, given_c)] if last_c is not None else [])
    expected = torch.autograd.grad(
        [end for end, _ in ends], [x, h, *([c] if mode == 2 else []), *weights], [end for _, end in ends]
    )
    mask = [True] * 4
    back = operation(
        "aten::_cudnn_rnn_backward", x.detach(), plain, stride, None, *states, output.detach(), grad_output, given_h,
        given_c, *tail, None, mask,
    )  # fmt: skip
    result = [gradient for gradient in run(back) if gradient is not None]
    assert len(result) == len(expected)
    for a, b in zip(result, expected, strict=True):
        assert torch.allclose(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_state_product_of_recurrent_gates_is_stored_in_bf16(dtype: torch.dtype) -> None:
    def low(values: Tensor) -> Tensor:
        return values.to(dtype).to(WIDE)

    x, h = low(wide(1, 3, 5)), low(wide(1, 3, 7))
    weights = [low(wide(7, 5)), low(wide(7, 7)), low(wide(7)), low(wide(7))]
    tail: tuple[Any, ...] = (1, 7, 0, 1, False, 0.0, True, False, [], None)
    result = operation("aten::_cudnn_rnn", x, weights, 4, None, h, None, *tail, rounds=True, dtype=dtype)
    got = run(replace(result, returned=(dtype, dtype, dtype, None, None)))
    of_state = h[0] @ weights[1].T
    stored = low(of_state) if dtype == torch.bfloat16 else of_state
    assert torch.equal(got[0][0], low((low(x[0] @ weights[0].T) + stored + weights[2] + weights[3]).tanh()))


ZERO = torch.zeros((), dtype=torch.int64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_attention_formulas_match_float64_attention(kind: str, heads: int, *, causal: bool) -> None:
    """Include four heads of queries that share two of keys, and more keys than a block has."""
    q, k, v = wide(2, 4, 150, 8, grad=True), wide(2, heads, 150, 8, grad=True), wide(2, heads, 150, 8, grad=True)
    expected = f.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3, enable_gqa=heads == 2)
    inputs = [tensor.detach() for tensor in (q, k, v)]
    name = f"aten::_scaled_dot_product_{kind}_attention"
    options: dict[str, tuple[Any, ...]] = {
        "flash": (0.0, causal, False),
        "efficient": (None, True, 0.0, causal),
        "cudnn": (None, True, 0.0, causal, False),
    }
    out, sums, *_ = run(operation(name, *inputs, *options[kind], scale=0.3))
    assert torch.allclose(out, expected)
    grad_output = torch.randn_like(expected)
    tails: dict[str, tuple[Any, ...]] = {
        "flash": (out, sums, None, None, 150, 150, 0.0, causal, ZERO, ZERO),
        "efficient": (None, out, sums, ZERO, ZERO, 0.0, [True, True, True, False], causal),
        "cudnn": (out, sums, ZERO, ZERO, None, None, None, 150, 150, 0.0, causal),
    }
    if kind == "efficient" and heads == 2:
        return  # it requires as many heads of each
    result = run(operation(f"{name}_backward", grad_output, *inputs, *tails[kind], scale=0.3))
    for a, b in zip(result[:3], torch.autograd.grad(expected, [q, k, v], grad_output), strict=True):
        assert torch.allclose(a, b)


def test_attention_bias_and_its_gradient_match_float64() -> None:
    q, k, v, bias = (wide(2, 2, 6, 8, grad=True) for _ in range(4))
    added = (bias @ bias.mT).detach().requires_grad_()
    expected = f.scaled_dot_product_attention(q, k, v, attn_mask=added)
    grad_output = torch.randn_like(expected)
    inputs = [tensor.detach() for tensor in (q, k, v, added)]
    name = "aten::_scaled_dot_product_efficient_attention"
    out, sums, *_ = run(operation(name, *inputs, True, 0.0, False))  # noqa: FBT003  # as autograd calls it
    assert torch.allclose(out, expected)
    back = operation(f"{name}_backward", grad_output, *inputs, out, sums, ZERO, ZERO, 0.0, [True] * 4)
    for a, b in zip(run(back), torch.autograd.grad(expected, [q, k, v, added], grad_output), strict=True):
        assert torch.allclose(a, b)


def test_attention_with_dropout_is_refused() -> None:
    q = wide(1, 1, 4, 8)
    with pytest.raises(NotImplementedError, match="with dropout"):
        run(operation("aten::_scaled_dot_product_flash_attention", q, q, q, 0.1, False))  # noqa: FBT003


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("size", [5, 40, 700])
def test_batch_norm_backward_of_planes_has_a_low_precision_error(size: int, *, train: bool) -> None:
    """Expect an error of the low dtype, and no more, from low-precision partial results of lanes."""
    x, grad_output = (wide(3, 4, size).bfloat16().double() for _ in range(2))
    weight, mean, invstd = wide(4), x.mean((0, 2)), (x.var((0, 2), correction=0) + 1e-5).rsqrt()
    running = wide(4), wide(4).square() + 1
    args = (grad_output, x, weight, *running, mean, invstd, train, 1e-5, [True] * 3)
    result = replace(
        operation("aten::native_batch_norm_backward", *args, rounds=True), returned=(torch.bfloat16, None, None)
    )
    exact = replace(result, rounds=False).once()
    sizes = replace(result, args=(grad_output.abs(), x, *args[2:]), rounds=False).once()
    for a, b, most in zip(cuda.batch_norm_backward(result), exact, sizes, strict=True):
        assert torch.linalg.vector_norm(a - b) < 0.01 * torch.linalg.vector_norm(most).clamp_min(1)
        assert not torch.equal(a, b)


def test_scan_of_integers_equals_the_cumulative_sum() -> None:
    """Use integers, which bfloat16 represents up to 256: nothing is rounded."""
    x = torch.randint(-1, 2, (4, 300)).double()
    for dim in (0, 1):
        result = replace(operation("aten::cumsum", x, dim, rounds=True), returned=(torch.bfloat16,))
        assert torch.equal(cuda.cumulative_sum(result)[0], x.cumsum(dim))


def test_each_step_of_a_scan_is_rounded() -> None:
    x = wide(4, 300)
    for name, formula in (("cumsum", cuda.cumulative_sum), ("logcumsumexp", cuda.cumulative_logarithm)):
        result = replace(operation(f"aten::{name}", x, 1, rounds=True), returned=(torch.bfloat16,))
        exact, (got,), (once,) = replace(result, rounds=False).once()[0], formula(result), result.once()
        errors = [float(torch.linalg.vector_norm(result - exact)) for result in (got, once)]
        assert 1.3 < errors[0] / errors[1] < 8


def test_embedding_backward_adds_first_rows_in_float32() -> None:
    """The first rows of each index are added in float32, so that a few of them are rounded once."""
    grad, indices = wide(12, 5).bfloat16().double(), torch.arange(12) % 4
    result = replace(
        operation("aten::embedding_dense_backward", grad, indices, 6, 3, False, rounds=True),  # noqa: FBT003
        returned=(torch.bfloat16,),
    )
    assert torch.equal(cuda.embedding_backward(result)[0], result.once()[0])


def test_one_dimensional_bias_is_added_before_rounding() -> None:
    a, b, bias = (wide(16, 16).bfloat16().double() for _ in range(3))
    result = replace(operation("aten::addmm", bias[0], a, b, rounds=True), returned=(torch.bfloat16,))
    assert torch.equal(products.product_and_sum(result)[0], result.once()[0])
    other = replace(result, args=(bias, a, b))
    assert not torch.equal(products.product_and_sum(other)[0], other.once()[0])


@pytest.mark.parametrize("reduced", [True, False])
def test_sum_in_parts_rounds_each_part_unless_forbidden(*, reduced: bool) -> None:
    """Sums of eight terms are rounded, then the sum of those; not if torch's flag forbids it."""
    flags = torch.backends.cuda.matmul
    before = flags.allow_bf16_reduced_precision_reduction
    flags.allow_bf16_reduced_precision_reduction = reduced
    a, b = wide(12, 20).bfloat16().double(), wide(20, 10).bfloat16().double()
    result = replace(operation("aten::mm", a, b, rounds=True), returned=(torch.bfloat16,))
    parts = [(a[:, at : at + 8] @ b[at : at + 8]).bfloat16().double() for at in (0, 8, 16)]
    expected = sum(parts, torch.zeros(12, 10, dtype=WIDE)).bfloat16().double()
    whole = [a[:, at : at + 8] @ b[at : at + 8] for at in (0, 8, 16)]
    running = ((whole[0].bfloat16().double() + whole[1]).bfloat16().double() + whole[2]).bfloat16().double()
    try:
        ways = [way[0] for way in products.in_parts(result)]
    finally:
        flags.allow_bf16_reduced_precision_reduction = before
    assert any(torch.equal(way, expected) for way in ways) == reduced
    assert any(torch.equal(way, running) for way in ways) == reduced
    assert not any(torch.equal(way, result.once()[0]) for way in ways)


def test_parts_of_large_products_may_have_any_number_of_terms() -> None:
    """cuBLAS splits the 50257 terms of GPT-2's logits into 22 parts of 2288 terms (256 tokens, H200, torch 2.11)."""
    assert 2288 in products._terms_of_a_part(50257, 256 * 50257 * 768)


def _volumes(x: Tensor, size: tuple[int, ...]) -> tuple[Any, ...]:
    count = 8 * torch.Size(size).numel()
    return x[:count].view(4, 2, *size), x.new_zeros(4, 2, 4, 12, 12)


_AA = "aten::_upsample_{}2d_aa{}"
#: By overload and arguments: the error on an H200 in units of one rounding, and its share of elements equal to it
#: (torch 2.11, the worst of four draws, bf16 and fp16).
AS_ON_A_GPU: dict[str, tuple[Any, Any, tuple[float, float], tuple[float, float]]] = {
    "a product": ("aten::cumprod", lambda x: (x.view(64, 72) / 8 + 1, 1), (8.31, 8.66), (0.247, 0.253)),
    "antialiased": (
        _AA.format("bilinear", ""),
        lambda x: (x.view(4, 8, 12, 12), [5, 7], False, None, None),
        (2.454, 2.801),
        (0.367, 0.354),
    ),
    "antialiased, going back": (
        _AA.format("bilinear", "_backward"),
        lambda x: (x[:1120].view(4, 8, 5, 7), [5, 7], [4, 8, 12, 12], False, None, None),
        (2.67, 3.21),
        (0.416, 0.349),
    ),
    "an adaptive average of volumes": (
        "aten::_adaptive_avg_pool3d_backward",
        lambda x: _volumes(x, (3, 5, 5)),
        (2.16, 2.11),
        (0.604, 0.607),
    ),
}


@pytest.mark.parametrize("place", [0, 1], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", AS_ON_A_GPU)
def test_formula_has_the_error_measured_on_a_gpu(name: str, place: int) -> None:
    """Allow for the chance of another draw: a tenth of the error, and a twentieth of the elements."""
    overload, arguments, errors, shares = AS_ON_A_GPU[name]
    dtype = (torch.bfloat16, torch.float16)[place]
    ratios, equal = [], []
    for seed in range(4):
        x = torch.randn(4608, generator=torch.Generator().manual_seed(seed)).to(dtype).double()
        args = [argument.to(dtype).double() if isinstance(argument, Tensor) else argument for argument in arguments(x)]
        result = replace(operation(overload, *args, rounds=True, dtype=dtype), returned=(dtype,))
        exact, (got,), (once,) = replace(result, rounds=False).once()[0], evaluate(result), result.once()
        ratios.append(float((got - exact).norm() / (once - exact).norm()))
        equal.append(float((got == once).double().mean()))
    assert max(ratios) == pytest.approx(errors[place], rel=0.1)
    assert min(equal) == pytest.approx(shares[place], rel=0.05)


OTHER_SIZES: dict[str, tuple[str, Any]] = {
    "bicubic": (_AA.format("bicubic", ""), lambda x: (x, [5, 7], False, None, None)),
    "bicubic, larger": (_AA.format("bicubic", ""), lambda x: (x, [25, 17], False, None, None)),
    "larger": (_AA.format("bilinear", ""), lambda x: (x, [25, 17], False, 2.1, 1.45)),
    "aligned": (_AA.format("bilinear", ""), lambda x: (x, [5, 17], True, None, None)),
    "bicubic, going back": (
        _AA.format("bicubic", "_backward"),
        lambda x: (x, [12, 12], [4, 8, 29, 7], False, None, None),
    ),
    "aligned, going back": (
        _AA.format("bilinear", "_backward"),
        lambda x: (x, [12, 12], [4, 8, 29, 7], True, None, None),
    ),
    "even windows": ("aten::_adaptive_avg_pool3d_backward", lambda x: _volumes(x.flatten(), (2, 4, 6))),
    "images": (
        "aten::_adaptive_avg_pool2d_backward",
        lambda x: (x[:, :, :5, :7].contiguous(), torch.zeros_like(x)),
    ),
}


@pytest.mark.parametrize("name", [*OTHER_SIZES, *AS_ON_A_GPU])
def test_formula_without_rounding_matches_the_float64_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overload, arguments = OTHER_SIZES[name] if name in OTHER_SIZES else AS_ON_A_GPU[name][:2]
    x = torch.randn(4608, dtype=WIDE, generator=torch.Generator().manual_seed(0))
    result = operation(overload, *arguments(x.view(4, 8, 12, 12) if name in OTHER_SIZES else x), rounds=True)
    result = replace(result, returned=(torch.bfloat16,))
    with monkeypatch.context() as patched:
        patched.setattr(Operation, "low", lambda _, values, __: values)
        patched.setattr(Operation, "finished", lambda _, results: results)
        assert torch.allclose(evaluate(result)[0], result.once()[0], atol=1e-5)  # weights are float32
    assert model_for(result).name is not ModelName.ONCE


def _pair(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2)
    return first, second


#: By overload and arguments: the share of elements that are one rounding on an H200 (torch 2.11), bf16 and fp16.
SHARES_ON_A_GPU: dict[str, tuple[str, Any, tuple[float, float]]] = {
    "squares": ("aten::mse_loss", lambda x, _: (*_pair(x), 0), (0.619, 0.622)),
    "squares, going back": ("aten::mse_loss_backward", lambda x, g: (g, *_pair(x), 0), (0.791, 0.807)),
    "huber": ("aten::huber_loss", lambda x, _: (*_pair(x), 0, 0.7), (0.675, 0.653)),
    "huber, going back": ("aten::huber_loss_backward", lambda x, g: (g, *_pair(x), 0, 0.7), (0.834, 0.712)),
    "smooth": ("aten::smooth_l1_loss", lambda x, _: (*_pair(x), 0, 0.7), (0.625, 0.564)),
    "smooth, going back": ("aten::smooth_l1_loss_backward", lambda x, g: (g, *_pair(x), 0, 0.7), (0.878, 0.831)),
    "softmax going back": (
        "aten::_softmax_backward_data",
        lambda x, _: (x.view(64, 72).flip(0), (4 * x).view(64, 72).softmax(-1), -1, WIDE),
        (0.652, 0.708),
    ),
    "cross products": ("aten::linalg_cross", lambda x, _: (x.view(-1, 3), x.view(-1, 3).flip(0)), (0.657, 0.657)),
}


@pytest.mark.parametrize("place", [0, 1], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", SHARES_ON_A_GPU)
def test_share_of_elements_rounded_once_matches_a_gpu(name: str, place: int) -> None:
    overload, arguments, shares = SHARES_ON_A_GPU[name]
    dtype = (torch.bfloat16, torch.float16)[place]
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(shape, generator=generator).to(dtype).double() for shape in ((4608,), (2304,)))
    args = [
        argument.to(dtype).double() if isinstance(argument, Tensor) else argument for argument in arguments(x, grad)
    ]
    result = replace(operation(overload, *args, rounds=True, dtype=dtype), returned=(dtype,))
    share = float((evaluate(result)[0] == result.once()[0]).double().mean())
    assert share == pytest.approx(shares[place], abs=0.04)
    formula = {**formulas.BY_MODEL, **formulas.ON_CUDA}["fused", overload]
    assert torch.allclose(formula(replace(result, rounds=False))[0], replace(result, rounds=False).once()[0])


def _powers(dtype: torch.dtype) -> dict[float, Tensor]:
    """Return powers of ``_bases`` as CUDA's kernel computes them, with torch's own arithmetic in the dtype."""
    x = _bases(dtype)
    wide = x.double()
    return {
        3: x * x * x,
        -2: (x * x).reciprocal(),
        2: x * x,
        -1: x.reciprocal(),
        0.5: wide.sqrt().to(dtype),
        -0.5: wide.rsqrt().to(dtype),
        5: (wide**5).to(dtype),
        2.3: (wide ** float(torch.tensor(2.3, dtype=dtype))).to(dtype),
        3.0001: x * x * x,  # rounds to 3
    }


def _bases(dtype: torch.dtype) -> Tensor:
    return (torch.rand(512, generator=torch.Generator().manual_seed(0)) * 3 + 0.25).to(dtype)


@pytest.mark.parametrize("name", ["aten::pow.Tensor_Scalar", "aten::pow_.Scalar"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cubes_and_inverse_squares_round_each_product(dtype: torch.dtype, name: str) -> None:
    for exponent, expected in _powers(dtype).items():
        bases = [_bases(dtype).double() for _ in range(2)]  # of two calls, since pow_ writes
        call = replace(operation(name, bases[0], exponent, rounds=True, dtype=dtype), returned=(dtype,))
        assert model_for(call).name is ModelName.FUSED
        assert torch.equal(evaluate(call)[0], expected.double()), exponent
        once = replace(call, args=(bases[1], exponent)).once()[0]
        assert torch.equal(once, expected.double()) == (exponent in (2, -1, 0.5, -0.5, 5)), exponent


@pytest.mark.parametrize("exponent", [3, -2, 2, 2.3])
def test_powers_without_rounding_match_the_float64_kernel(exponent: float) -> None:
    result = replace(operation("aten::pow.Tensor_Scalar", wide(64).abs() + 0.5, exponent), returned=(torch.bfloat16,))
    (power,) = elementwise.power_cuda(result)
    assert torch.allclose(power, result.once()[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_backward_of_float32_softmax_rounds_once(dtype: torch.dtype) -> None:
    """``softmax(x, dtype=torch.float32)`` of low-precision values: only its gradient is low-precision."""
    y, grad = (4 * wide(6, 8)).softmax(-1), wide(6, 8)
    result = operation("aten::_softmax_backward_data", grad, y, -1, WIDE, rounds=True)
    result = replace(result, given=(torch.float32, torch.float32), returned=(dtype,))
    assert torch.equal(evaluate(result)[0], result.once()[0])
