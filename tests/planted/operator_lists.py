"""Planted defects of the operators that autocast lists, and of result dtypes, listed or not."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import torch

from tests.planted.kernels import DEVICE, LOW, Overridden, let_through, override, register
from tests.planted.table import defect, swap


def _operators_of_torchs_tests() -> list[Any]:
    """Return the list of operators in torch's own tests, without ``expecttest`` if it is not installed."""
    from pytest_amp.torch_private.testing import expecttest_or_stand_in

    with expecttest_or_stand_in():
        from torch.testing._internal.common_methods_invocations import op_db
    operators: list[Any] = op_db
    return operators


@defect(
    "layer_norm runs in the autocast dtype",
    caught_by="rules/test_registered.py::test_rule[fake-cuda-bf16-layer_norm]",
)
def layer_norm_low_precision() -> None:
    override("layer_norm", cast=LOW)


@defect(
    "cat and stack narrow mixed tensors to the autocast dtype instead of promoting them",
    caught_by="rules/test_registered.py::test_rule[cpu-bf16-cat]",
)
def cat_stack_narrow() -> None:
    override("cat", cast=LOW)
    override("stack", cast=LOW)


@defect(
    "softmax is no longer among the operators that autocast runs in float32 on CUDA",
    caught_by="rules/test_registered.py::test_rule[fake-cuda-bf16-softmax.int]",
)
def softmax_left_float32_list() -> None:
    override("softmax.int", lambda call: call.run(), device_types=["cuda"])


@defect(
    "mm is cast to float16, whatever the autocast dtype is",
    caught_by="rules/test_registered.py::test_rule[cpu-bf16-mm]",
    overrides="mm",
)
def mm_ignores_autocast_dtype(call: Overridden) -> Any:
    return call.cast(torch.float16).run()


@defect(
    "linear's autocast kernel falls through: the dispatcher still lists one, and the operators below are cast",
    caught_by="rules/test_registered.py::test_rule[cpu-bf16-linear]",
)
def linear_falls_through() -> None:
    let_through("linear")


@defect(
    "stft's autocast kernel falls through; the operators below are cast as before",
    caught_by="rules/test_registered.py::test_no_operator_is_new_or_gone[cpu-bf16]",
    not_on_cuda="CUDA has no rule for it",
)
def stft_falls_through() -> None:
    let_through("stft")


@defect(
    "The dispatcher does not list exp among the operators with an autocast kernel on CUDA",
    caught_by="rules/test_registered.py::test_no_operator_is_new_or_gone[fake-cuda-bf16]",
    replaces="torch._C._dispatch_get_registrations_for_dispatch_key",
)
def exp_gone(original: Any, key: Any = "") -> Any:
    return [name for name in original(key) if (key, name) != ("AutocastCUDA", "aten::exp")]


@defect(
    "Autocast has a kernel for relu",
    caught_by="rules/test_registered.py::test_no_operator_is_new_or_gone[cpu-bf16]",
)
def relu_has_a_kernel() -> None:
    override("relu", cast=LOW)


@defect(
    "Autocast has a kernel on a device type of which nobody has said what it should do there",
    caught_by="rules/test_registered.py::test_no_device_type_is_new[cpu-bf16]",
)
def hpu_has_autocast_kernels() -> None:
    register("aten::mm", lambda first, second: first.new_zeros(first.shape[0], second.shape[1]), "AutocastHPU")


@defect(
    "Autocast has a kernel for the ``out=`` overload of mm",
    caught_by="rules/test_registered.py::test_in_place_and_out_overloads_have_no_kernel[cpu-bf16]",
)
def mm_out_has_a_kernel() -> None:
    override("mm.out", cast=LOW)


@defect(
    "``cdist`` to more than 25 points returns the autocast dtype",
    caught_by="rules/test_families.py::test_distances_are_float32_at_every_size[cpu-bf16]",
)
def distances_to_many_points_are_low() -> None:
    def cdist(call: Overridden) -> Any:
        result = call.cast(torch.float32).run()
        return result.to(call.low) if call.args[1].shape[-2] > 25 else result

    override("cdist", cdist, [DEVICE])


@defect(
    "The composite cov runs in float32 under autocast: its product is not cast",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cpu-bf16-a-c]",
)
def cov_in_float32_under_autocast() -> None:
    override("cov", lambda call: call.run(), [DEVICE])


@defect(
    "logaddexp, which has no autocast kernel, queries autocast and returns its dtype",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cpu-bf16-i-m]",
)
def logaddexp_asks_autocast() -> None:
    def logaddexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = torch.log1p(torch.exp(y - x)) + x
        return result.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else result

    register("logaddexp", logaddexp, f"Autograd{DEVICE.upper()}")


@defect(
    "The module GroupNorm returns the autocast dtype; the function does not",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[fake-cuda-bf16-modules.a-k]",
    replaces="torch.nn.GroupNorm.forward",
)
def group_norm_module_low_precision(original: Any, self: torch.nn.GroupNorm, x: torch.Tensor) -> Any:
    result = original(self, x)
    device_type = x.device.type
    return result.to(torch.get_autocast_dtype(device_type)) if torch.is_autocast_enabled(device_type) else result


@defect(
    "slogdet returns its sign in the autocast dtype and its logarithm in float32",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cpu-bf16-linalg]",
    replaces="torch.linalg.slogdet",
)
def slogdet_mixed_dtypes(original: Any, *args: Any, **kwargs: Any) -> Any:
    sign, logarithm = original(*args, **kwargs)
    return (sign.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else sign), logarithm


@defect(
    "softsign of a 16-bit tensor is float32, with and without autocast",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cpu-bf16-functional.n-z]",
)
def softsign_promotes() -> None:
    def softsign(input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # its name in torch
        wide = input.float() if input.dtype in {torch.bfloat16, torch.float16} else input
        return wide / (wide.abs() + 1)

    swap(torch.nn.functional, "softsign", softsign)


@defect(
    "linear_cross_entropy of probabilities returns the dtype of its input under autocast",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cpu-bf16-functional.l-m]",
    since="2.13",  # the function is new
    replaces="torch.nn.functional.linear_cross_entropy",
)
def linear_cross_entropy_is_low_for_some(
    original: Any, features: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    result: torch.Tensor = original(features, weight, target, *args, **kwargs)
    return result.to(features.dtype) if target.is_floating_point() and "options" in kwargs else result


@defect(
    "The second result of var_mean alone is in the autocast dtype",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cpu-bf16-s-z]",
    replaces="torch.var_mean",
)
def var_mean_mean_low_precision(original: Any, *args: Any, **kwargs: Any) -> Any:
    var, mean = original(*args, **kwargs)
    return var, (mean.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else mean)


@defect(
    "erfinv returns the autocast dtype if that is float16",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cpu-fp16-d-h]",
)
def erfinv_low_in_fp16() -> None:
    def erfinv(call: Overridden) -> Any:
        return call.run().to(torch.float16) if call.low == torch.float16 else call.run()

    override("erfinv", erfinv, [DEVICE])


@defect(
    "hypot is cast to the autocast dtype on CUDA",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[fake-cuda-bf16-d-h]",
)
def hypot_low_on_cuda() -> None:
    override("hypot", cast=LOW, device_types=["cuda"])


@defect(
    "nanmean kills its process in a region, as a bad kernel does",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cpu-bf16-n-r]",
)
def nanmean_ends_its_process() -> None:
    def die(_call: Overridden) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    override("nanmean", die, [DEVICE])


@defect(
    "torch's own tests do not list addr",
    caught_by="fingerprint/test_dtypes.py::test_no_entry_is_new_or_gone[cpu-bf16]",
)
def addr_left_torchs_tests() -> None:
    op_db = _operators_of_torchs_tests()
    op_db[:] = [info for info in op_db if info.name != "addr"]


@defect(
    "torch's own tests list a new operator",
    caught_by="fingerprint/test_dtypes.py::test_no_entry_is_new_or_gone[cpu-bf16]",
)
def torchs_tests_know_another() -> None:
    op_db = _operators_of_torchs_tests()
    added = copy.copy(next(info for info in op_db if info.name == "addr"))
    added.name = "addr_of_tomorrow"
    op_db.append(added)


@defect(
    "trace returns the autocast dtype on CUDA",
    caught_by="fingerprint/test_dtypes.py::test_every_entry_returns_the_known_dtypes[cuda-bf16-s-z]",
)
def trace_is_low_on_cuda() -> None:
    def low(call: Overridden) -> object:
        result = call.run()
        return result.to(call.low) if result.is_floating_point() else result

    override("trace", low, device_types=["cuda"])


@defect(
    "silu of float32 tensors is cast to the autocast dtype",
    caught_by="folklore/test_dtypes.py::test_activations_are_on_no_list[cpu-bf16-silu]",
)
def silu_is_cast() -> None:
    override("silu", cast=LOW)


@defect(
    "``Tensor.backward`` doubles its gradients if it is called in a region",
    caught_by="folklore/test_numbers.py::test_backward_needs_no_region[cpu-bf16]",
    replaces="torch.Tensor.backward",
)
def backward_in_a_region_is_doubled(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    return original(self * 2 if torch.is_autocast_enabled(DEVICE) else self, *args, **kwargs)
