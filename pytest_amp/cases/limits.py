"""Limits of a machine, so that a check is expected to fail only there."""

from __future__ import annotations

import torch

from pytest_amp import torch_private


def lacks_lstm_kernel(device_type: str, precision: str) -> str | None:
    """Return the reason why an LSTM under autocast raises RuntimeError on this machine, or None if it runs.

    Affected are CPUs without oneDNN's kernels for the dtype: fp16 always, bf16 if a small LSTM raises.
    """
    if device_type != "cpu":
        return None
    if precision == "fp16" and not torch_private.cpu_has_onednn_kernels("fp16"):
        return "oneDNN has no fp16 LSTM without AVX512-FP16 or AMX-FP16 (related: pytorch/pytorch#100621)"
    if precision == "bf16" and not torch_private.cpu_has_onednn_kernels("bf16") and not _runs_lstm(torch.bfloat16):
        return "oneDNN has no bf16 LSTM on this CPU (related: pytorch/pytorch#100621)"
    return None


def adds_up_low_convolutions(device_type: str, precision: str) -> str | None:
    """Return why weight gradients of convolutions lose accuracy with the batch size on this machine, or None."""
    if device_type == "cpu" and not torch_private.cpu_has_onednn_kernels(precision):
        needed = {"bf16": "AVX512", "fp16": "AVX512-FP16"}.get(precision, "another CPU")
        return (
            f"where oneDNN has no {precision} convolution ({needed}), aten's own (ConvolutionMM2d.cpp) adds up the "
            f"samples of a batch in {precision}"
        )
    return None


def _runs_lstm(dtype: torch.dtype) -> bool:
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype):
            torch.nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        return False
    return True
