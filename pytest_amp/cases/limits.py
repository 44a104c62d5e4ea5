"""Limits of a machine, so that a check omits or skips cases that do not run there."""

from __future__ import annotations

from pytest_amp.known import machine


def lacks_lstm_kernel(device_type: str, precision: str, *, training: bool = True) -> str | None:
    """Return the reason why an LSTM under autocast raises RuntimeError on this machine, or None if it runs.

    Affected are CPUs without oneDNN's kernels for the dtype: see ``pytest_amp.known.machine``.
    """
    if not machine.lacks_lstm_kernel(device_type, precision, training=training):
        return None
    use = "trains" if training else "runs"
    return f"oneDNN has no {precision} LSTM that {use} on this CPU (related: pytorch/pytorch#100621)"


def adds_up_low_convolutions(device_type: str, precision: str) -> str | None:
    """Return why weight gradients of convolutions lose accuracy with the batch size on this machine, or None."""
    if not machine.adds_up_low_convolutions(device_type, precision):
        return None
    needed = {"bf16": "AVX512", "fp16": "AVX512-FP16"}.get(precision, "another CPU")
    return (
        f"where oneDNN has no {precision} convolution ({needed}), aten's own (ConvolutionMM2d.cpp) accumulates the "
        f"samples of a batch in {precision}"
    )
