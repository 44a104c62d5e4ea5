"""Samples: every operator of every release has one, it runs, and it shows a cast."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from pytest_amp import torch_private
from pytest_amp.rules.checks import same_bits
from pytest_amp.rules.manual_casts import Invocation
from pytest_amp.rules.named import NAMED, UNREACHABLE
from pytest_amp.rules.samples import Sample, has_samples, samples
from pytest_amp.rules.spec import load_spec

EVERY = sorted({name for rules in load_spec().rules.values() for name in rules})
SAMPLED = [name for name in EVERY if has_samples(name)]

#: Operators that exist only on the devices of their vendors.
NOT_ON_THE_CPU = {
    "aten::_cudnn_rnn",
    "aten::_mps_convolution",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_thnn_fused_gru_cell",
    "aten::_thnn_fused_lstm_cell",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
    "aten::miopen_rnn",
}

#: Operators whose results do not change when an argument is rounded, and why.
INSENSITIVE = {
    "aten::fractional_max_pool2d": "the random samples choose a place",
    "aten::fractional_max_pool3d": "the random samples choose a place",
    "aten::linalg_matrix_rank": "a rank",
    "aten::linalg_matrix_rank.atol_rtol_float": "a rank",
    "aten::linalg_matrix_rank.atol_rtol_tensor": "a rank",
    "aten::linalg_matrix_rank.tol_tensor": "a rank",
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # some of the operators are deprecated
        yield


def _results(call: Invocation) -> list[torch.Tensor]:
    result = call()
    return list(result) if isinstance(result, (list, tuple)) else [result]


def _call(name: str, sample: Sample) -> Invocation:
    return Invocation(name, sample.arguments, sample.keywords)


def test_operators_of_all_releases_have_samples() -> None:
    assert [name for name in EVERY if not has_samples(name) and name not in NAMED and name not in UNREACHABLE] == []


@pytest.mark.parametrize("name", SAMPLED)
def test_sample_values_are_reproducible_and_need_float32(name: str) -> None:
    if not torch_private.has_overload(name):
        pytest.skip("not in this torch")
    for one, other in zip(samples(name), samples(name), strict=True):
        floats = _call(name, one).floats()
        assert floats
        assert all(map(same_bits, floats, _call(name, other).floats()))
        for tensor in floats:
            assert tensor.dtype == torch.float32
            for dtype in (torch.bfloat16, torch.float16):
                assert (tensor.to(dtype) != tensor).any()


@pytest.mark.parametrize("name", [name for name in SAMPLED if name not in NOT_ON_THE_CPU])
def test_sample_runs_and_its_result_depends_on_each_argument(name: str) -> None:
    if not torch_private.has_overload(name):
        pytest.skip("not in this torch")
    for sample in samples(name):
        results = _results(_call(name, sample))
        for index in range(len(_call(name, sample).floats())):
            position = -1

            def rounded(tensor: torch.Tensor, index: int = index) -> torch.Tensor:
                nonlocal position
                position += tensor.is_floating_point()
                here = tensor.is_floating_point() and position == index
                return tensor.to(torch.bfloat16).to(torch.float32) if here else tensor

            changed = _results(_call(name, sample).mapped(rounded))
            moved = any(not same_bits(a, b) for a, b in zip(results, changed, strict=True))
            assert moved or name in INSENSITIVE, f"rounding argument {index} changes nothing"
