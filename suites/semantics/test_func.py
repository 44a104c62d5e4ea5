"""``torch.func``, forward AD and double backward with regions around a transform, inside it, and as a decorator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.func
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

from .state import OTHER, State, expect_state

Function = Callable[[torch.Tensor], torch.Tensor]


def _pair(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested result."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _pair(part)]


def _vjp(function: Function, x: torch.Tensor) -> list[torch.Tensor]:
    pair: Any = torch.func.vjp(function, x)
    result, pull = pair
    return [result, *_pair(pull(torch.ones_like(result)))]


def _linearize(function: Function, x: torch.Tensor) -> list[torch.Tensor]:
    result, push = torch.func.linearize(function, x)
    return [result, push(torch.ones_like(x))]


def _loss_of(function: Function) -> Function:
    return lambda x: function(x).float().square().sum()


#: Looked up in the module when they are called, because models call the function that a project may have replaced. The
#: letters are the dtypes of the results: low ones are computed in forward, gradients have the float32 input's dtype.
TRANSFORMS: dict[str, tuple[str, Callable[[Function, torch.Tensor], Any]]] = {
    "grad": ("w", lambda f, x: torch.func.grad(_loss_of(f))(x)),
    "grad_and_value": ("ww", lambda f, x: torch.func.grad_and_value(_loss_of(f))(x)),
    "vjp": ("lw", _vjp),
    "jvp": ("ll", lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))),
    "jacrev": ("w", lambda f, x: torch.func.jacrev(f)(x)),
    "jacfwd": ("l", lambda f, x: torch.func.jacfwd(f)(x)),
    "hessian": ("w", lambda f, x: torch.func.hessian(_loss_of(f))(x)),
    "linearize": ("ll", _linearize),
    "vmap": ("l", lambda f, x: torch.func.vmap(f, randomness="same")(x)),
    "vmap of grad": ("w", lambda f, x: torch.func.vmap(torch.func.grad(_loss_of(f)))(x)),
    "vmap of jvp": ("ll", lambda f, x: torch.func.vmap(lambda r: torch.func.jvp(f, (r,), (r,)))(x)),
    "jvp of grad": ("ww", lambda f, x: torch.func.jvp(torch.func.grad(_loss_of(f)), (x,), (x,))),
    "functionalize": ("l", lambda f, x: torch.func.functionalize(f)(x)),
    "autograd.functional.vjp": ("lw", lambda f, x: torch.autograd.functional.vjp(f, x, torch.ones(3, 4).to(f(x)))),
    "autograd.functional.jacobian": ("w", lambda f, x: torch.autograd.functional.jacobian(f, x, strict=True)),
    "autograd.functional.jvp": ("ll", lambda f, x: torch.autograd.functional.jvp(f, x, x)),
    "autograd.functional.vhp": ("ww", lambda f, x: torch.autograd.functional.vhp(_loss_of(f), x, x)),
    "autograd.functional.hvp": ("ww", lambda f, x: torch.autograd.functional.hvp(_loss_of(f), x, x)),
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node", "ignore::DeprecationWarning")  # in linearize
@pytest.mark.parametrize("where", ["around", "inside", "decorator"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_keep_the_region(amp: SuiteAmp, transform: str, where: str) -> None:
    """The region is on in the body, in its dtype; results have the dtypes that they have without a transform."""
    device_type = amp.device.type
    matrix, x = (torch.randn(4, 4, device=amp.device.torch_device) for _ in range(2))
    observed: list[tuple[bool, torch.dtype, torch.dtype]] = []

    def function(row: torch.Tensor) -> torch.Tensor:
        with amp.autocast() if where == "inside" else nullcontext():
            result = row @ matrix
            observed.append(
                (torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type), result.dtype)
            )
        return result

    transformed = torch.autocast(device_type, amp.dtype)(function) if where == "decorator" else function
    expected, run = TRANSFORMS[transform]
    before = State.now(device_type)
    with amp.autocast() if where == "around" else nullcontext():
        actual = _pair(run(transformed, x[:3]))
    expect_state(amp, f"after {transform}", State.now(device_type), before, likely="the transform leaks its region")
    dtypes = {"w": torch.float32, "l": amp.dtype}
    amp.observe(f"{transform}, region {where}", ", ".join(dtype_name(t.dtype) for t in actual), kind="dtype")
    assert [tensor.dtype for tensor in actual] == [dtypes[letter] for letter in expected]
    states = set(observed)
    assert states == {(True, amp.dtype, amp.dtype)}, f"in the body of {transform}: {states}"


@pytest.mark.parametrize("transform", ["vjp", "jacrev", "jvp", "jacfwd", "hessian"])
def test_transforms_give_what_casts_by_hand_give(amp: SuiteAmp, transform: str) -> None:
    """The transform of a region has the bits of the transform of its manual casts."""
    matrix, x = (torch.randn(4, 4, device=amp.device.torch_device) for _ in range(2))
    _, run = TRANSFORMS[transform]
    manual = _pair(run(lambda row: (row.to(amp.dtype) @ matrix.to(amp.dtype)).tanh(), x))
    with amp.autocast():
        actual = _pair(run(lambda row: (row @ matrix).tanh(), x))
    for left, right in zip(actual, manual, strict=True):
        assert left.dtype is right.dtype
        assert torch.equal(left, right), f"{transform} in a region differs from {transform} with manual casts"


def test_transforms_of_a_module(amp: SuiteAmp) -> None:
    """Per-sample gradients: ``vmap`` of ``grad`` of ``functional_call``; their sum is backward's gradient."""
    layer = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))
    layer.to(amp.device.torch_device)
    batch = torch.randn(5, 4, device=amp.device.torch_device)
    parameters = {key: value.detach() for key, value in layer.named_parameters()}

    def loss(values: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(layer, values, (row[None],))
        assert result.dtype is amp.dtype
        return result.float().square().sum()

    with amp.autocast():
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, batch)
        layer(batch).float().square().sum().backward()
    for key, parameter in layer.named_parameters():
        assert per_sample[key].dtype is torch.float32
        assert parameter.grad is not None
        distance = (per_sample[key].sum(0) - parameter.grad).norm() / parameter.grad.norm()
        assert distance <= 4 * amp.precision.u, f"per-sample gradients of {key} sum up to another gradient"


def test_forward_ad_has_the_dtype_of_the_primal(amp: SuiteAmp) -> None:
    """Operators whose inputs autocast casts also cast tangents; tangents equal those of manual casts."""
    x, tangent, weight = (torch.randn(4, 4, device=amp.device.torch_device) for _ in range(3))
    calls: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "mm": torch.mm,
        "linear": functional.linear,
        "conv1d": lambda t, w: functional.conv1d(t[None], w[:, :, None]),
        "bmm": lambda t, w: torch.bmm(t[None], w[None]),
    }
    for key, call in calls.items():
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            with amp.autocast():
                actual = forward_ad.unpack_dual(call(dual, weight))
            manual = forward_ad.unpack_dual(call(dual.to(amp.dtype), weight.to(amp.dtype)))
        assert actual.tangent is not None, f"{key} loses its tangent in a region"
        assert (actual.primal.dtype, actual.tangent.dtype) == (amp.dtype, amp.dtype)
        assert torch.equal(actual.tangent, manual.tangent), f"{key}'s tangent differs from that of manual casts"


def _norm(x: torch.Tensor) -> torch.Tensor:
    """Normalise with an eps that bounds all derivatives: those of a nearly constant row would overflow fp16."""
    return functional.layer_norm(x, (4,), eps=0.1)


DOUBLE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "linear": functional.linear,
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "conv1d": lambda x, w: functional.conv1d(x[None], w[:, :, None]),
    "conv2d": lambda x, w: functional.conv2d(x[None, :, :, None], w[:, :, None, None]),
    "linear, then layer_norm": lambda x, w: _norm(functional.linear(x, w)),
    "softmax": lambda x, w: functional.softmax(functional.linear(x, w), -1),
    "mse_loss": lambda x, w: functional.mse_loss(functional.linear(x, w), x),
}


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("kind", DOUBLE)
def test_gradients_of_gradients_reach_every_leaf(amp: SuiteAmp, kind: str, *, inside: bool) -> None:
    """Second gradients have the leaves' dtype, and are those of manual casts, wherever the first ones are computed."""
    function = DOUBLE[kind]

    def second(*, manual: bool) -> list[torch.Tensor]:
        torch.manual_seed(amp.config.seed)
        # Small: the second derivative of a third power exceeds the range of fp16.
        x, weight = (torch.randn(4, 4).mul(0.25).to(amp.device.torch_device).requires_grad_() for _ in range(2))
        with amp.autocast(enabled=not manual):
            arguments = (x.to(amp.dtype), weight.to(amp.dtype)) if manual else (x, weight)
            if manual and kind in {"softmax", "mse_loss"}:
                return []
            if manual and kind == "linear, then layer_norm" and amp.device.type != "cpu":  # which leaves it low
                result = _norm(functional.linear(*arguments).float())
            else:
                result = function(*arguments)
            loss = result.float().pow(3).sum()
            if inside:
                first = torch.autograd.grad(loss, (x, weight), create_graph=True)
        if not inside:
            first = torch.autograd.grad(loss, (x, weight), create_graph=True)
        assert [gradient.dtype for gradient in first] == [torch.float32] * 2
        penalty = torch.stack([gradient.square().sum() for gradient in first]).sum()
        return list(torch.autograd.grad(penalty, (x, weight)))

    actual, manual = second(manual=False), second(manual=True)
    for gradient in actual:
        assert gradient.dtype is torch.float32
        assert gradient.isfinite().all()
        assert gradient.any(), f"{kind} has no second gradient"
    for left, right in zip(actual, manual, strict=False):
        assert torch.equal(left, right), f"the second gradient of {kind} differs from that of manual casts"


def test_a_transform_of_another_region_inside(amp: SuiteAmp) -> None:
    """Use a region of the other dtype, and a disabled region, within a transform within a region."""
    matrix = torch.randn(4, 4, device=amp.device.torch_device)
    observed: list[torch.dtype] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        low = x @ matrix
        with amp.autocast(dtype=OTHER[amp.dtype]):
            other = x @ matrix
        with amp.autocast(enabled=False):
            float32 = x @ matrix
        observed.extend((low.dtype, other.dtype, float32.dtype))
        return low.float().sum() + other.float().sum() + float32.sum()

    with amp.autocast():
        gradient = torch.func.grad(function)(matrix)
    assert observed == [amp.dtype, OTHER[amp.dtype], torch.float32]
    assert gradient.dtype is torch.float32


#: Of a row of 8 and a matrix of 8 by 8: variants of those in test_transforms. Where the dtype changes, there is a known
#: fault. Operators of a batching rule may have a rule of their own: CUDA has ``convolution`` and ``nll_loss``, not
#: ``_softmax``.
SIBLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "attention": lambda r, m: functional.scaled_dot_product_attention(r.view(1, 1, 8), m[None], m[None]),
    "conv2d": lambda r, m: functional.conv2d(r.view(1, 8, 1, 1), m[:, :, None, None]),
    "conv3d": lambda r, m: functional.conv3d(r.view(1, 8, 1, 1, 1), m[:, :, None, None, None]),
    "conv_transpose1d": lambda r, m: functional.conv_transpose1d(r.view(1, 8, 1), m[:, :, None]),
    "conv_transpose2d": lambda r, m: functional.conv_transpose2d(r.view(1, 8, 1, 1), m[:, :, None, None]),
    "baddbmm": lambda r, m: torch.baddbmm(m[None], r.view(1, 1, 8).expand(1, 8, 8), m[None]),
    "addbmm": lambda r, m: torch.addbmm(m, r.view(1, 1, 8).expand(1, 8, 8), m[None]),
    "prelu": lambda r, m: functional.prelu(r, m[0, :1]),
    "cross_entropy": lambda r, m: functional.cross_entropy((r @ m)[None], torch.tensor([1], device=r.device)),
    "einsum": lambda r, m: torch.einsum("i,ij->j", r, m),
    "multi_dot": lambda r, m: torch.linalg.multi_dot([r.view(1, 8), m, m]),
    "bilinear": lambda r, m: functional.bilinear(r[None], r[None], m[None]),
    "RNN cell": lambda r, m: torch.rnn_tanh_cell(r[None], r[None], m, m, m[0], m[0]),
    "softmax": lambda r, m: functional.softmax(r @ m, -1),
    "layer_norm": lambda r, m: functional.layer_norm(r @ m, (8,)),
    "smooth_l1_loss": lambda r, m: functional.smooth_l1_loss(r @ m, r),
    "cat": lambda r, m: torch.cat([r @ m, r]),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # operators without a batching rule
@pytest.mark.parametrize("operator", SIBLINGS)
def test_vmap_computes_in_the_same_dtype(amp: SuiteAmp, operator: str) -> None:
    matrix, rows = (torch.randn(size, 8, device=amp.device.torch_device) for size in (8, 3))
    function = SIBLINGS[operator]
    with amp.autocast():
        eager = function(rows[0], matrix).dtype
        mapped = torch.func.vmap(lambda row: function(row, matrix))(rows).dtype
    assert mapped is eager, f"{operator} computes in {dtype_name(eager)}, under vmap in {dtype_name(mapped)}"
