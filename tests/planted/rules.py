"""Planted defects of autocast's rules: the values and dtypes of manual casts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tests.planted.kernels import DEVICE, LOW, Overridden, override, register
from tests.planted.table import defect


@defect(
    "binary_cross_entropy runs in the autocast dtype: no refusal on CUDA, no float32 on the CPU",
    caught_by="rules/test_banned.py::test_it_is_refused_with_the_name_of_the_alternative[fake-cuda-bf16]",
)
def binary_cross_entropy_low_precision() -> None:
    override("binary_cross_entropy", cast=LOW)


@defect(
    "A plugin of pytest reports every test as run without calling it",
    caught_by="rules/test_banned.py::test_it_runs_in_float32_on_the_cpu[cpu-bf16]",
    caught_on_cuda_by="rules/test_banned.py::test_it_is_refused_with_the_name_of_the_alternative[cuda-bf16]",
)
def nobody_calls_the_tests() -> object:
    class Plugin:
        def pytest_pyfunc_call(self) -> bool:
            """Answer in pytest's place."""
            return True

    return Plugin()


@defect(
    "matmul casts to bfloat16 through float16: dtypes are right, the last bits are not",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-matmul]",
    overrides="matmul",
)
def matmul_casts_through_float16(call: Overridden) -> Any:
    return call.cast(torch.float16, call.low).run()


@defect(
    "addmm does not cast its bias",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-addmm]",
    overrides="addmm",
)
def addmm_forgets_its_bias(call: Overridden) -> Any:
    return replace(call.cast(call.low), args=(call.args[0], *call.cast(call.low).args[1:])).run()


@defect(
    "mse_loss returns float32 that was rounded to the autocast dtype",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-mse_loss]",
    overrides="mse_loss",
)
def mse_loss_is_hollow(call: Overridden) -> Any:
    return call.cast(torch.float32).run().to(call.low).to(torch.float32)


@defect(
    "cat casts to the dtype of its first tensor, not to the widest",
    caught_by="rules/test_hand_cast.py::test_mixed_arguments_are_promoted_in_every_order[cpu-bf16-cat]",
    caught_on_cuda_by="rules/test_registered.py::test_no_operator_is_new_or_gone[cuda-bf16]",
)
def cat_promotes_to_the_first() -> None:
    def cat(call: Overridden) -> Any:
        floats = call.floats()
        return (call.cast(floats[0].dtype) if floats else call).run()

    override("cat", cat, [DEVICE])


@defect(
    "On CUDA sum runs in float32, also if ``dtype`` is given",
    caught_by="rules/test_hand_cast.py::test_an_explicit_dtype_is_respected[fake-cuda-bf16-sum]",
)
def sum_ignores_dtype() -> None:
    def sum_in_float32(call: Overridden) -> Any:
        if call.floats() and call.floats()[0].dtype != torch.float64:
            call = replace(call, kwargs={**call.kwargs, "dtype": torch.float32})
        return call.run()

    override("sum", sum_in_float32, device_types=["cuda"])


@defect(
    "On XPU softmax over the first dimension has no float32 rule",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[fake-xpu-bf16-softmax.int]",
)
def softmax_of_columns_low_on_xpu() -> None:
    def softmax(call: Overridden) -> object:
        return call.cast(call.low if call.args[1] == 0 else torch.float32).run()

    override("softmax.int", softmax, device_types=["xpu"])


@defect(
    "cdist with ``p=1`` is rounded to the autocast dtype",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-cdist]",
)
def city_block_distances_rounded() -> None:
    def cdist(call: Overridden) -> object:
        result: Any = call.cast(torch.float32).run()
        order = call.args[2] if len(call.args) > 2 else call.kwargs.get("p", 2.0)
        return result.to(call.low).to(result.dtype) if order == 1 else result

    override("cdist", cdist, device_types=[DEVICE])


@defect(
    "On CUDA scatter_add with a negative dimension casts to the dtype of its first argument",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[fake-cuda-bf16-scatter_add]",
)
def indices_from_the_end_narrow() -> None:
    def scatter_add(call: Overridden) -> object:
        wide = any(x.dtype is torch.float32 for x in call.floats())
        first = call.floats()[0].dtype if call.args[1] < 0 else torch.float32 if wide else call.low
        return call.cast(first).run()

    override("scatter_add", scatter_add, device_types=["cuda"])


@defect(
    "On CUDA softmax of more than a million elements stays in low precision",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[fake-cuda-bf16-softmax.int]",
)
def softmax_of_millions_is_low() -> None:
    def softmax(call: Overridden) -> object:
        x, _, dtype = (*call.args, None)[:3]
        return (call if dtype is not None or x.numel() > 10**6 else call.cast(torch.float32)).run()

    override("softmax.int", softmax, device_types=["cuda"])


@defect(
    "On MPS log_softmax of a scalar stays in low precision",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[fake-mps-bf16-log_softmax.int]",
)
def log_softmax_of_scalars_is_low() -> None:
    def log_softmax(call: Overridden) -> object:
        has_dtype = len(call.args) > 2 and call.args[2] is not None
        return (call if has_dtype or call.args[0].dim() == 0 else call.cast(torch.float32)).run()

    override("log_softmax.int", log_softmax, device_types=["mps"])


@defect(
    "On XPU group_norm of channels-last images stays in low precision",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[fake-xpu-bf16-group_norm]",
)
def group_norm_of_channels_last_is_low() -> None:
    def group_norm(call: Overridden) -> object:
        x = call.args[0]
        last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        return call.cast(call.low if last else torch.float32).run()

    override("group_norm", group_norm, device_types=["xpu"])


@defect(
    "On CUDA layer_norm stays in low precision in inference mode",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[fake-cuda-bf16-layer_norm]",
)
def layer_norm_in_inference_is_low() -> None:
    def layer_norm(call: Overridden) -> object:
        return call.cast(call.low if torch.is_inference_mode_enabled() else torch.float32).run()

    override("layer_norm", layer_norm, device_types=["cuda"])


@defect(
    "softmax under autocast is composed of low-precision operators, each of which rounds",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[fake-cuda-bf16-softmax.int]",
    overrides="softmax.int",
)
def softmax_in_low_steps(call: Overridden) -> Any:
    x, dim = call.cast(call.low).args[:2]
    with torch._C._DisableAutocast():  # CUDA's autocast casts exp and sum to float32
        weights = (x - x.amax(dim, keepdim=True)).exp()
        return weights / weights.sum(dim, keepdim=True)


@defect(
    'On a CPU ``fft_rfft`` under autocast does not cast its input if ``norm="ortho"``',
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-fft_rfft]",
    not_on_cuda="CUDA has no rule for it",
)
def orthonormal_transforms_stay_low() -> None:
    def rfft(call: Overridden) -> object:
        ortho = "ortho" in (*call.args[3:], call.kwargs.get("norm"))
        return (call if ortho else call.cast(torch.float32)).run()

    override("fft_rfft", rfft, device_types=["cpu"])


@defect(
    'A dilated conv1d with ``padding="same"`` is not cast; with either alone it is',
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-conv1d.padding]",
    not_on_cuda="CUDA has no rule for it",
)
def same_padding_of_dilated_rows_is_wide() -> None:
    def convolve(call: Overridden) -> Any:
        named = dict(zip(("stride", "padding", "dilation", "groups"), call.args[3:], strict=False)) | dict(call.kwargs)
        combined = named.get("padding") == "same" and any(step > 1 for step in named.get("dilation", ()))
        return (call if combined else call.cast(call.low)).run()

    override("conv1d.padding", convolve, device_types=["cpu"])


@defect(
    "``baddbmm`` with ``alpha=0`` is not cast",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-baddbmm]",
)
def baddbmm_of_no_product_is_wide() -> None:
    def baddbmm(call: Overridden) -> Any:
        return (call if call.kwargs.get("alpha", 1) == 0 else call.cast(call.low)).run()

    override("baddbmm", baddbmm, [DEVICE])


@defect(
    "On a CPU a reduced singular value decomposition rounds its argument, and returns float32",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-linalg_svd]",
    not_on_cuda="CUDA has no rule for it",
)
def reduced_decompositions_are_rounded() -> None:
    def svd(call: Overridden) -> Any:
        full = call.args[1] if len(call.args) > 1 else call.kwargs.get("full_matrices", True)
        return (call.cast(torch.float32) if full else call.cast(call.low, torch.float32)).run()

    override("linalg_svd", svd, device_types=["cpu"])


@defect(
    "``cat`` under autocast ignores the dtype of empty tensors",
    caught_by="rules/test_hand_cast.py::test_does_what_casting_by_hand_does[cpu-bf16-cat]",
    caught_on_cuda_by="rules/test_joins.py::test_a_join_is_as_wide_as_its_widest[cuda-bf16-cat, the first empty]",
)
def empty_tensors_do_not_promote() -> None:
    def cat(call: Overridden) -> Any:
        dtypes = {tensor.dtype for tensor in call.floats() if tensor.numel()}
        return call.cast(torch.float32 if torch.float32 in dtypes else call.low).run()

    override("cat", cat, [DEVICE])


@defect(
    "conv2d casts float64 to the autocast dtype",
    caught_by="rules/test_left_alone.py::test_other_dtypes_and_other_devices[cpu-bf16-conv2d]",
    overrides="conv2d",
)
def conv2d_casts_float64(call: Overridden) -> Any:
    return call.cast(call.low, every=True).run()


@defect(
    "bmm casts tensors of every device, not only those of the autocast region",
    caught_by="rules/test_left_alone.py::test_other_dtypes_and_other_devices[cpu-bf16-bmm]",
    overrides="bmm",
)
def bmm_casts_other_devices(call: Overridden) -> Any:
    wide = any(tensor.dtype == torch.float64 for tensor in call.floats())
    return call.cast(call.low, every=not wide).run()


@defect(
    "sigmoid has no autocast kernel, and queries autocast itself",
    caught_by="rules/test_left_alone.py::test_operators_without_a_kernel[cpu-bf16]",
)
def sigmoid_asks_autocast() -> None:
    def sigmoid(x: torch.Tensor) -> torch.Tensor:
        result = x.neg().exp().add(1).reciprocal()
        return result.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else result

    register("sigmoid", sigmoid, f"Autograd{DEVICE.upper()}")


@defect(
    "On MPS bmm casts int32, which changes integers beyond 256 in bf16",
    caught_by="rules/test_left_alone.py::test_other_dtypes_and_other_devices[fake-mps-bf16-bmm]",
)
def products_of_int32_are_low() -> None:
    def bmm(call: Overridden) -> object:
        if all(x.dtype is torch.int32 for x in call.args):
            return torch.ops.aten.bmm(*(x.to(call.low) for x in call.args))
        return call.cast(call.low).run()

    override("bmm", bmm, device_types=["mps"])


@defect(
    "``cat`` under autocast casts float64 to float32 beside a low-precision tensor",
    caught_by="rules/test_left_alone.py::test_other_dtypes_and_other_devices[cpu-bf16-cat]",
    caught_on_cuda_by="rules/test_joins.py::test_a_join_is_as_wide_as_its_widest[cuda-bf16-cat]",
)
def cat_narrows_float64() -> None:
    def cat(call: Overridden) -> Any:
        dtypes = {tensor.dtype for tensor in call.floats()}
        if torch.float64 in dtypes and len(dtypes) > 1:
            return call.cast(torch.float32, every=True).run()
        return call.cast(torch.float32 if torch.float32 in dtypes else call.low).run()

    override("cat", cat, [DEVICE])


@defect(
    "Under autocast the magnitude of a weight-normed weight gets no gradient",
    caught_by="rules/test_low_inputs.py::test_parametrized_weights_are_trained[cpu-bf16-weight_norm",
    replaces="torch.nn.utils.parametrizations._WeightNorm.forward",
)
def weight_norm_loses_its_length(original: Any, self: Any, length: Any, direction: Any) -> Any:
    return original(self, length.detach() if torch.is_autocast_enabled(DEVICE) else length, direction)


@defect(
    "hardsigmoid of a bfloat16 tensor has three bits of precision",
    caught_by=(
        "rules/test_low_inputs.py::test_activations_of_low_inputs_are_rounded_once_or_twice[cpu-bf16-hardsigmoid-grad"
    ),
    replaces="torch.nn.functional.hardsigmoid",
)
def hardsigmoid_in_eight_bits(original: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    result: torch.Tensor = original(x, *args, **kwargs)
    return result.to(torch.float8_e5m2).to(result.dtype) if x.dtype is torch.bfloat16 else result
