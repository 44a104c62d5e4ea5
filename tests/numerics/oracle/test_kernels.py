"""CPU kernels with internal roundings, compared with their formulas element by element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.numerics.oracle.models import ModelName
from pytest_amp.numerics.oracle.observer import Observer

pytestmark = pytest.mark.usefixtures("one_thread")

#: The operator that has a formula, and a call of it on a low-precision matrix of 37 rows and 24 columns.
KERNELS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "glu going back": ("glu_backward", f.glu),
    "a cube": ("pow.Tensor_Scalar", lambda x: x**3),
    "an inverse square": ("pow.Tensor_Scalar", lambda x: (x.abs() + 1) ** -2),
    "a power that the dtype has not": ("pow.Tensor_Scalar", lambda x: (x.abs() + 1) ** 2.3),
    "a whole power": ("pow.Tensor_Scalar", lambda x: x**5),
    "softmax over rows": ("_softmax", lambda x: x.softmax(0)),
    "log_softmax": ("_log_softmax", lambda x: x.log_softmax(-1)),
    "logsumexp": ("logsumexp", lambda x: x.logsumexp(-1)),
    "sigmoid going back": ("sigmoid_backward", torch.sigmoid),
    "an embedding with a padding row": (
        "embedding_dense_backward",
        lambda x: f.embedding(torch.arange(200) % 7, x, padding_idx=3),
    ),
    "statistics of a batch": ("native_batch_norm", lambda x: f.batch_norm(x, None, None, training=True)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_with_internal_roundings_follows_its_formula(name: str, dtype: torch.dtype) -> None:
    operator, function = KERNELS[name]
    x = torch.randn(37, 24, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    observer = Observer("cpu", dtype)
    with observer.on({}):
        result = function(x)
        torch.autograd.backward(result, torch.randn(result.shape).to(result.dtype))
    actual = [call for call in observer.observed_calls if call.operator == f"aten::{operator}"]
    assert actual
    for call in actual:
        assert (call.problem, call.model.name is ModelName.UNMODELLED) == (None, False)
        for share in (result.equal / result.elements for result in call.results):
            assert share > 0.98, call
