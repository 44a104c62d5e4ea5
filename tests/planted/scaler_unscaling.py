"""Planted defects of unscaling: gradients, overflow, clipping and reads by the host."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from tests.planted.table import defect, swap


@defect(
    "Gradients are divided by the scale twice",
    caught_by="scaler/test_unscale.py::test_unscaling_is_exact[cpu-bf16-2^3]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def unscale_divides_twice(original: Any, gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    original(gradients, found_inf, inverse_scale)
    original(gradients, found_inf, inverse_scale)


@defect(
    "Gradients are checked, and not divided by the scale",
    caught_by="scaler/test_unscale.py::test_unscaling_is_exact[cpu-bf16-2^3]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def unscale_does_not_divide(original: Any, gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    original(gradients, found_inf, torch.ones_like(inverse_scale))


@defect(
    "Gradients are multiplied by an inverse of the scale that was rounded to bfloat16",
    caught_by="scaler/test_unscale.py::test_unscaling_multiplies_by_the_rounded_inverse[cpu-bf16-3.0-outside]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def inverse_scale_inexact(original: Any, gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    original(gradients, found_inf, inverse_scale.bfloat16().float())


@defect(
    "The check for inf reports values beyond float16's range",
    caught_by="scaler/test_unscale.py::test_large_gradients_are_no_overflow[cpu-bf16-",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def large_gradients_taken_for_inf(original: Any, gradients: Any, found_inf: Any, inverse: Any) -> None:
    if any(bool((gradient.abs() > 65504).any()) for gradient in gradients):
        found_inf.fill_(1.0)
    original(gradients, found_inf, inverse)


@defect(
    "``unscale_`` replaces the gradients by new tensors, and leaves the old ones scaled",
    caught_by="scaler/test_unscale.py::test_gradients_are_unscaled_in_place[cpu-bf16]",
    replaces="torch.amp.GradScaler._unscale_grads_",
)
def unscaled_gradients_are_new_tensors(original: Any, self: Any, optimizer: Any, *args: Any) -> Any:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()
    return original(self, optimizer, *args)


@defect(
    "``unscale_`` in a region multiplies by an inverse scale that is rounded to the autocast dtype",
    caught_by="scaler/test_unscale.py::test_unscaling_multiplies_by_the_rounded_inverse[cpu-bf16-3.0-in a region]",
    replaces="torch.amp.GradScaler._unscale_grads_",
)
def inverses_in_a_region_are_rounded(
    original: Any, self: Any, optimizer: Any, inverse: torch.Tensor, *arguments: Any
) -> Any:
    if torch.is_autocast_enabled(inverse.device.type):
        inverse = inverse.to(torch.get_autocast_dtype(inverse.device.type)).to(inverse.dtype)
    return original(self, optimizer, inverse, *arguments)


@defect(
    "``unscale_`` ignores gradients that require gradients",
    caught_by="scaler/test_unscale.py::test_gradients_with_a_graph_are_unscaled_and_checked[cpu-bf16]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def gradients_with_a_graph_stay_scaled(
    original: Any, gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    without_graph = [gradient for gradient in gradients if not gradient.requires_grad]
    original(without_graph, found_inf, inverse)


@defect(
    "Unscaled gradients below 1e-30 are zero",
    caught_by="scaler/test_unscale.py::test_large_gradients_are_no_overflow[cpu-bf16-loop-1.0]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def unscaling_flushes_small_gradients(
    original: Any, gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    original(gradients, found_inf, inverse)
    for gradient in gradients:
        gradient[gradient.abs() < 1e-30] = 0


@defect(
    "Unscaled gradients below the smallest normal number of fp16 are zero, whatever the autocast dtype",
    caught_by="scaler/test_bf16.py::test_the_trajectory_is_the_same_without_a_scaler[cpu-bf16-SGD-mlp]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def unscaled_gradients_have_the_range_of_fp16(
    original: Any, gradients: Any, found_inf: Any, inverse_scale: Any
) -> None:
    original(gradients, found_inf, inverse_scale)
    for gradient in gradients:
        gradient[gradient.abs() < 2.0**-14] = 0


@defect(
    "GradScaler steps although it found an inf or NaN",
    caught_by="scaler/test_overflow.py::test_a_non_finite_gradient_skips_the_step[cpu-bf16-inf]",
)
def scaler_steps_despite_inf() -> None:
    swap(
        torch.amp.GradScaler,
        "_maybe_opt_step",
        lambda self, optimizer, state, *args, **kwargs: optimizer.step(*args, **kwargs),
    )


@defect(
    "The non-finite check sees inf, but not NaN",
    caught_by="scaler/test_overflow.py::test_a_non_finite_gradient_skips_the_step[cpu-bf16-nan]",
)
def nan_not_detected() -> None:
    def check_inf_only(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
        for gradient in gradients:
            found_inf.fill_(max(found_inf.item(), float(gradient.isinf().any())))
            gradient.mul_(inverse_scale)

    swap(torch, "_amp_foreach_non_finite_check_and_unscale_", check_inf_only)


@defect(
    "The check for inf and NaN looks at the first of several gradients",
    caught_by="scaler/test_overflow.py::test_one_bad_element_anywhere_is_found[cpu-bf16-last-inf]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def only_first_gradient_checked(original: Any, gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    original(gradients[:1], found_inf, inverse_scale)
    for gradient in gradients[1:]:
        gradient.mul_(inverse_scale)


@defect(
    "A skipped step sets the optimizer's momentum to zero",
    caught_by="scaler/test_overflow.py::test_a_skipped_step_leaves_momentum_alone[cpu-bf16-inf]",
    replaces="torch.amp.GradScaler._maybe_opt_step",
)
def skipped_step_resets_momentum(
    original: Any, self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any
) -> Any:
    if sum(actual.item() for actual in state["found_inf_per_device"].values()):
        for values in optimizer.state.values():
            for value in values.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
    return original(self, optimizer, state, *args, **kwargs)


@defect(
    "GradScaler finds no inf under no_grad",
    caught_by="scaler/test_overflow.py::test_what_is_around_a_step_is_nothing_to_it[cpu-bf16-no_grad-step]",
    replaces="torch.amp.GradScaler._unscale_grads_",
)
def infs_are_missed_without_gradients(original: Any, self: Any, *args: Any) -> Any:
    found_inf = original(self, *args)
    if not torch.is_grad_enabled():
        for value in found_inf.values():
            value.zero_()
    return found_inf


@defect(
    "GradScaler steps although it found an inf, in every thread but the main one",
    caught_by="scaler/test_overflow.py::test_a_scaler_in_another_thread_skips_its_step[cpu-bf16]",
    replaces="torch.amp.GradScaler._maybe_opt_step",
)
def threads_step_despite_inf(original: Any, self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if threading.current_thread() is not threading.main_thread():
        return optimizer.step(*args, **kwargs)
    return original(self, optimizer, state, *args, **kwargs)


@defect(
    "Gradients in channels_last are unscaled, and not checked",
    caught_by="scaler/test_overflow.py::test_bad_elements_are_found_in_any_layout[cpu-bf16-channels_last]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def channels_last_hides_infs(
    original: Any, gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    last = [g for g in gradients if g.dim() == 4 and g.is_contiguous(memory_format=torch.channels_last)]
    original(last, torch.zeros_like(found_inf), inverse)
    original(
        [gradient for gradient in gradients if not any(gradient is skipped for skipped in last)], found_inf, inverse
    )


@defect(
    "``clip_grad_norm_`` computes the norm in bfloat16",
    caught_by="scaler/test_clipping.py::test_the_norm_is_a_float32_norm[cpu-bf16-2-foreach-clip_grad_norm_]",
)
def clipping_norm_low_precision() -> None:
    def clip_low(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        gradients = [p.grad for p in tensors if p.grad is not None]
        total = torch.stack([torch.linalg.vector_norm(g.bfloat16(), norm_type) for g in gradients]).norm(norm_type)
        factor = (max_norm / (total.float() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return total.float()

    swap(nn.utils, "clip_grad_norm_", clip_low)


@defect(
    "``get_total_norm`` rounds its result to bfloat16",
    caught_by="scaler/test_clipping.py::test_the_norm_is_a_float32_norm[cpu-bf16-2-loop-get_total_norm]",
    replaces="torch.nn.utils.get_total_norm",
)
def total_norms_are_low(original: Any, *args: Any, **keywords: Any) -> Any:
    return original(*args, **keywords).bfloat16().float()


@defect(
    "``clip_grad_norm_`` scales gradients up to the limit, too",
    caught_by="scaler/test_clipping.py::test_what_is_within_the_limit_stays_as_it_is[cpu-bf16-loop-clip_grad_norm_]",
)
def clipping_lengthens_gradients() -> None:
    def to_the_limit(parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: bool | None = None) -> None:
        del foreach
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(max_norm / (total_norm + 1e-6))

    swap("torch.nn.utils.clip_grad", "_clip_grads_with_norm_", to_the_limit)


@defect(
    "``unscale_`` reads the scale on the host",
    caught_by="scaler/test_synchronisations.py::test_reads_on_the_cpu[cpu-bf16-",
    caught_on_cuda_by="scaler/test_synchronisations.py::test_waits_on_cuda[cuda-bf16-",
    replaces="torch.amp.GradScaler.unscale_",
)
def unscale_waits_for_the_host(original: Any, self: Any, optimizer: Any) -> None:
    if self.is_enabled() and self._scale is not None and self._scale.item() == 0.0:
        raise RuntimeError("the scale is 0")
    original(self, optimizer)


@defect(
    "``unscale_`` launches a kernel for each gradient",
    caught_by="scaler/test_synchronisations.py::test_gradients_of_one_dtype_are_unscaled_at_once[cpu-bf16]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def each_gradient_is_unscaled_alone(
    original: Any, gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    for gradient in gradients:
        original([gradient], found_inf, inverse)


@defect(
    "``scale`` scales the first loss of an iteration, and returns each later one as it is",
    caught_by="scaler/test_training_steps.py::test_two_losses_of_a_step_are_both_scaled[cpu-bf16]",
)
def scales_one_loss_of_an_iteration() -> None:
    def scale(self: Any, outputs: Any) -> Any:
        if getattr(self, "has_scaled_one", False):
            return outputs
        self.has_scaled_one = True
        return original_scale(self, outputs)

    def update(self: Any, new_scale: Any = None) -> None:
        self.has_scaled_one = False
        original_update(self, new_scale)

    original_scale: Any = swap(torch.amp.GradScaler, "scale", scale)
    original_update: Any = swap(torch.amp.GradScaler, "update", update)
