"""Properties of a machine that a known fault needs: its row names one, and is in force only where it holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

#: Words of oneDNN's error where it has no kernel; any other error of an LSTM is one of torch's.
_NO_KERNEL = "could not create a primitive"


def lacks_lstm_kernel(device_type: str, precision: str, *, training: bool = True) -> bool:
    """Return whether an LSTM under autocast raises RuntimeError: oneDNN has no kernel for it on this CPU.

    In fp16 that is every CPU without AVX512-FP16 or AMX-FP16; with AVX512-FP16 an evaluation has a kernel, and a
    training none (torch 2.13.0). On other CPUs the result is that of a small LSTM.
    """
    from pytest_amp import torch_private

    if device_type != "cpu" or precision not in {"bf16", "fp16"}:
        return False
    if precision == "fp16" and not torch_private.cpu_has_onednn_kernels(precision):
        return True
    return not _runs_lstm(precision, training=training)


@functools.cache
def _runs_lstm(precision: str, *, training: bool) -> bool:
    import torch

    from pytest_amp.precision import PRECISIONS

    try:
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(training):
            layer = torch.nn.LSTM(2, 2, device="cpu", dtype=torch.float32)
            batch = torch.zeros(1, 1, 2, device="cpu", dtype=torch.float32)
            with torch.autocast("cpu", PRECISIONS[precision].dtype):
                layer(batch)
    except RuntimeError as error:
        return _NO_KERNEL not in str(error)
    return True


def adds_up_low_convolutions(device_type: str, precision: str) -> bool:
    """Return whether weight gradients of convolutions accumulate the samples of a batch in the low dtype.

    They do on a CPU for which oneDNN has no convolutions in the dtype (aten/src/ATen/native/ConvolutionMM2d.cpp).
    """
    from pytest_amp import torch_private

    return device_type == "cpu" and not torch_private.cpu_has_onednn_kernels(precision)


def packs_16_bit_additions(device_type: str, _precision: str) -> bool:
    """Return whether the GPU adds two 16-bit integers in one instruction: from compute capability 9.0 on."""
    import torch

    if device_type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability() >= (9, 0)


#: Properties by their name in a file, as functions of the device type and the precision.
MACHINES: Mapping[str, Callable[[str, str], bool]] = {
    function.__name__: function for function in (lacks_lstm_kernel, adds_up_low_convolutions, packs_16_bit_additions)
}


@functools.cache
def has_property(name: str, device_type: str, precision: str) -> bool:
    """Return whether this machine has the property ``name`` of MACHINES."""
    return MACHINES[name](device_type, precision)
