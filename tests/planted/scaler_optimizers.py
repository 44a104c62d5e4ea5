"""Planted defects in GradScaler's handling of optimizers: unscaling, inf checks, skipped steps, found_inf."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tests.planted.table import defect, swap


@defect(
    "The fused optimizers step although the scaler found an inf",
    caught_by="scaler/test_optimizers.py::test_a_skipped_step_changes_nothing[cpu-bf16-AdamW, fused-inf-step]",
)
def fused_optimizer_ignores_found_inf() -> None:
    def without_found_inf(kernel: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            return kernel(*args, **{**kwargs, "found_inf": None})

        return step

    for name in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_"):
        if hasattr(torch, name):
            swap(torch, name, without_found_inf(getattr(torch, name)))


@defect(
    "Loop optimizers step although an inf was found",
    caught_by="scaler/test_optimizers.py::test_a_skipped_step_changes_nothing[cpu-bf16-Rprop, loop-inf-step]",
    replaces="torch.amp.GradScaler._maybe_opt_step",
)
def loop_steps_despite_inf(original: Any, self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if optimizer.defaults.get("foreach") is False:
        return optimizer.step(*args, **kwargs)
    return original(self, optimizer, state, *args, **kwargs)


@defect(
    "Foreach optimizers skip clean steps after a skipped one, too",
    caught_by="scaler/test_optimizers.py::test_a_skipped_step_changes_nothing[cpu-bf16-NAdam, foreach-inf-step]",
    replaces="torch.amp.GradScaler._maybe_opt_step",
)
def foreach_step_is_skipped_too_often(
    original: Any, self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any
) -> Any:
    if optimizer.defaults.get("foreach"):
        if any(found_inf.item() for found_inf in state["found_inf_per_device"].values()):
            vars(optimizer)["stuck"] = True
        if getattr(optimizer, "stuck", False):
            return None
    return original(self, optimizer, state, *args, **kwargs)


@defect(
    "The step counters of fused and capturable optimizers count steps that their kernel skipped",
    caught_by=(
        "scaler/test_optimizers.py::test_a_skipped_step_changes_nothing[cpu-bf16-Adam, fused capturable-inf-step]"
    ),
)
def skipped_fused_step_is_counted() -> None:
    swap(torch, "_foreach_sub_", lambda *args, **kwargs: None)


@defect(
    "Adam keeps its second moments rounded to bfloat16",
    caught_by="scaler/test_optimizers.py::test_parameters_and_state_are_float32[cpu-bf16-Adam, fused]",
    replaces="torch.optim.Adam.step",
)
def optimizer_state_rounded(original: Any, self: Any, closure: Any = None) -> Any:
    result = original(self, closure)
    for state in self.state.values():
        if "exp_avg_sq" in state:
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())
    return result


@defect(
    "Capturable optimizers, fused or not, step although an inf was found",
    caught_by=(
        "scaler/test_optimizers.py::test_a_skipped_step_changes_nothing[cpu-bf16-AdamW, fused capturable-inf-step]"
    ),
)
def capturable_optimizers_step_despite_inf() -> None:
    def unseen(self: Any, optimizer: Any) -> Any:
        found_inf = original_check_inf_per_device(self, optimizer)
        if optimizer.defaults.get("capturable"):
            for value in found_inf.values():
                value.zero_()
        return found_inf

    def step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if optimizer.defaults.get("capturable"):
            return optimizer.step(*args, **kwargs)
        return original_maybe_opt_step(self, optimizer, state, *args, **kwargs)

    original_check_inf_per_device = swap(torch.amp.GradScaler, "_check_inf_per_device", unseen)
    original_maybe_opt_step = swap(torch.amp.GradScaler, "_maybe_opt_step", step)


@defect(
    "A fused optimizer keeps found_inf: its own later steps obey it",
    caught_by="scaler/test_optimizer_inputs.py::test_nothing_is_left_on_a_fused_optimizer[cpu-bf16-AdamW-inf]",
    replaces="torch.amp.GradScaler.step",
)
def fused_optimizer_keeps_found_inf(original: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(self, optimizer, *args, **kwargs)
    if self.is_enabled() and getattr(optimizer, "_step_supports_amp_scaling", False):
        found_inf = list(self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())
        if found_inf:
            optimizer.found_inf = found_inf[0].clone()
    return result


@defect(
    "Only optimizers of torch.optim itself are unscaled",
    caught_by="scaler/test_optimizer_inputs.py::test_optimizers_of_users[cpu-bf16-",
    replaces="torch.amp.GradScaler._unscale_grads_",
)
def users_optimizers_stay_scaled(
    original: Any, self: Any, optimizer: Any, inverse: Any, found_inf: Any, allow_fp16: bool
) -> Any:
    known = type(optimizer).__module__.startswith("torch.optim")
    return original(self, optimizer, inverse if known else torch.ones_like(inverse), found_inf, allow_fp16)


@defect(
    "Every parameter group is unscaled, and only the last one is checked",
    caught_by=(
        "scaler/test_optimizer_inputs.py::test_a_bad_gradient_in_any_group_skips_all[cpu-bf16-first group-inf-loop]"
    ),
    replaces="torch.amp.GradScaler._unscale_grads_",
)
def only_the_last_group_is_checked(
    original: Any, self: Any, optimizer: Any, inverse: Any, found_inf: Any, allow_fp16: bool
) -> Any:
    groups = optimizer.param_groups
    ignored = torch.zeros_like(found_inf)
    unseen = original(self, SimpleNamespace(param_groups=groups[:-1]), inverse, ignored, allow_fp16)
    result = original(self, SimpleNamespace(param_groups=groups[-1:]), inverse, found_inf, allow_fp16)
    return result or {device: torch.zeros_like(value) for device, value in unseen.items()}


@defect(
    "Sparse gradients are unscaled, and not checked",
    caught_by="scaler/test_optimizer_inputs.py::test_sparse_gradients_in_one_of_two_groups[cpu-bf16-inf-SGD]",
    replaces="torch.amp.GradScaler._unscale_grads_",
)
def sparse_gradients_unchecked(original: Any, self: Any, optimizer: Any, inv_scale: Any, *args: Any) -> Any:
    gradients = [(p, p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    skipped = [(parameter, gradient) for parameter, gradient in gradients if gradient.is_sparse]
    for parameter, _ in skipped:
        parameter.grad = None
    found_inf = original(self, optimizer, inv_scale, *args)
    for parameter, gradient in skipped:
        parameter.grad = gradient * inv_scale.to(gradient.device)
    return found_inf


@defect(
    "GradScaler forgets found_inf of all groups if the last of several has a learning rate of 0",
    caught_by=(
        "scaler/test_optimizer_inputs.py::test_a_bad_gradient_in_any_group_skips_all[cpu-bf16-last group-inf-loop]"
    ),
    replaces="torch.amp.GradScaler._unscale_grads_",
)
def groups_at_rest_hide_infs(original: Any, self: Any, optimizer: Any, *args: Any) -> Any:
    found_inf = original(self, optimizer, *args)
    if len(optimizer.param_groups) > 1 and optimizer.param_groups[-1]["lr"] == 0:
        for value in found_inf.values():
            value.zero_()
    return found_inf


@defect(
    "Fused Adam and AdamW with ``maximize=True`` step although the scaler found an inf",
    caught_by=(
        "scaler/test_optimizer_options.py::test_with_every_option_a_scaler_changes_nothing[cpu-bf16-AdamW, fused]"
    ),
)
def maximising_steps_despite_inf() -> None:
    def deaf(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, maximize: bool, found_inf: Any = None, **keywords: Any) -> Any:
            return kernel(*args, maximize=maximize, found_inf=None if maximize else found_inf, **keywords)

        return step

    for name in ("_fused_adam_", "_fused_adamw_"):
        swap(torch, name, deaf(getattr(torch, name)))


@defect(
    "Adafactor rounds gradients to bfloat16 before it steps",
    caught_by="scaler/test_optimizer_options.py::test_the_last_bits_of_a_gradient_count[cpu-bf16-Adafactor, loop]",
)
def adafactor_rounds_what_it_is_given() -> None:
    from torch.optim import optimizer as optimizers

    def round_gradients(optimizer: Any, _args: Any, _keywords: Any) -> None:
        if not isinstance(optimizer, torch.optim.Adafactor):
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.copy_(parameter.grad.bfloat16())

    optimizers.register_optimizer_step_pre_hook(round_gradients)


@defect(
    "Optimizers with weight decay round float32 gradients to 12 bits",
    caught_by="scaler/test_optimizer_options.py::test_steps_are_those_in_float64[cpu-bf16-Adam, loop]",
)
def weights_that_decay_decay_low() -> None:
    from torch.optim import optimizer as optimizers

    def round_gradients(optimizer: Any, _args: Any, _keywords: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"] if group.get("weight_decay") else ():
                if parameter.dtype is torch.float32 and parameter.grad is not None:
                    parameter.grad.view(torch.int32).bitwise_and_(~0xFFF)

    optimizers.register_optimizer_step_pre_hook(round_gradients)


@defect(
    "Within a CUDA graph the fused optimizers step although the scaler found an inf",
    caught_by="scaler/test_cuda_graphs.py::test_a_captured_iteration_is_the_eager_one[cuda-bf16-AdamW]",
)
def captured_optimizers_step_despite_inf() -> None:
    def without_found_inf(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if torch.cuda.is_current_stream_capturing():
                kwargs["found_inf"] = None
            return kernel(*args, **kwargs)

        return step

    for name in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_"):
        swap(torch, name, without_found_inf(getattr(torch, name)))


@defect(
    "An inf in one optimizer's gradients skips the steps of all optimizers",
    caught_by=(
        "scaler/test_several_optimizers.py::"
        "test_only_the_optimizer_that_overflowed_skips[cpu-bf16-unscale_ then step-in order-first]"
    ),
    replaces="torch.amp.GradScaler._maybe_opt_step",
)
def found_inf_shared_by_optimizers(
    original: Any, self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any
) -> Any:
    everywhere = [
        found_inf
        for other in self._per_optimizer_states.values()
        for found_inf in other["found_inf_per_device"].values()
    ]
    return original(self, optimizer, {"found_inf_per_device": dict(enumerate(everywhere))}, *args, **kwargs)


@defect(
    "With several optimizers an overflow backs off once for each of them",
    caught_by="scaler/test_several_optimizers.py::test_an_overflow_of_either_backs_off_once[cpu-bf16]",
    replaces="torch.amp.GradScaler.update",
)
def scaler_backs_off_once_per_optimizer(original: Any, self: Any, new_scale: Any = None) -> None:
    several = len(self._per_optimizer_states) - 1 if self._enabled and new_scale is None else 0
    original(self, new_scale)
    for _ in range(several):
        self._scale.mul_(self._backoff_factor)


@defect(
    "ShardedGradScaler on the CPU counts clean steps and never grows",
    caught_by="scaler/test_sharded.py::test_it_is_the_plain_scaler[cpu-bf16]",
    not_on_cuda="the sharded scaler has an update of its own on a CPU alone, and torch's operator elsewhere",
)
def sharded_scaler_never_grows() -> None:
    def update(self: Any, found_inf: Any) -> None:
        if found_inf.item():
            self._scale *= self._backoff_factor
            self._growth_tracker.fill_(0)
        else:
            self._growth_tracker += 1

    swap("torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler", "_amp_update_scale_cpu_", update)
