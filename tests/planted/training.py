"""Planted defects of trainings: loops, optimizer state, evaluation and resumption."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.planted.changes import after_accumulation, rounded, with_gradient
from tests.planted.table import defect, swap


@defect(
    "Dividing a loss by a Python scalar rounds it to float16",
    caught_by="training/test_loops.py::test_the_loss_of_a_micro_batch_is_divided_in_float32[cpu-bf16-3]",
    replaces="torch.Tensor.__truediv__",
)
def loss_divided_in_fp16(original: Any, self: Any, other: Any) -> Any:
    if self.dtype is torch.float32 and self.dim() == 0 and self.requires_grad and isinstance(other, (int, float)):
        return original(self.half(), other).float()
    return original(self, other)


@defect(
    "The exponential average of weights is computed in bfloat16: small updates round away",
    caught_by="training/test_loops.py::test_averaged_weights_follow_float32[cpu-bf16]",
)
def exponential_average_in_bf16() -> None:
    def average_in_bf16(decay: float = 0.999) -> Any:
        @torch.no_grad()
        def update(averages: Any, weights: Any, _count: Any) -> None:
            for average, weight in zip(averages, weights, strict=True):
                average.copy_(torch.lerp(average.bfloat16(), weight.bfloat16(), 1 - decay))

        return update

    swap("torch.optim.swa_utils", "get_ema_multi_avg_fn", average_in_bf16)


@defect(
    "Gradients of micro-batches after the first are accumulated in bfloat16",
    caught_by="training/test_loops.py::test_micro_batches_add_up_in_float32[cpu-bf16]",
)
def micro_batches_add_up_in_bf16() -> None:
    def add_low(parameter: Any) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        added = getattr(parameter, "summed", None) is gradient
        if added:
            gradient.copy_(rounded(gradient, torch.bfloat16))
        parameter.summed = gradient

    after_accumulation(add_low)


@defect(
    "``GradScaler.unscale_`` does nothing before ``step``: clipping sees scaled gradients",
    caught_by="training/test_loops.py::test_a_loop_goes_where_float32_goes[cpu-fp16-clipped]",
)
def unscale_is_put_off() -> None:
    def put_off(self: Any, optimizer: Any) -> None:
        self.__dict__.setdefault("_put_off", set()).add(id(optimizer))

    def unscaled_and_stepped(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if id(optimizer) in self.__dict__.get("_put_off", set()):
            self.__dict__["_put_off"].discard(id(optimizer))
            original_unscale(self, optimizer)
        return original_step(self, optimizer, *args, **kwargs)

    original_unscale = swap(torch.amp.GradScaler, "unscale_", put_off)
    original_step = swap(torch.amp.GradScaler, "step", unscaled_and_stepped)


@defect(
    "``GradScaler.get_scale`` returns the scale before the last update: skipped steps look like taken ones",
    caught_by="training/test_loops.py::test_schedule_and_average_stand_still_where_a_step_is_skipped[cpu-bf16]",
)
def scale_is_told_a_step_late() -> None:
    def updated(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__dict__["_told"] = original_get_scale(self)
        original_update(self, *args, **kwargs)

    def late(self: Any) -> float:
        scale_before: float = self.__dict__.get("_told", original_get_scale(self))
        return scale_before

    original_get_scale = swap(torch.amp.GradScaler, "get_scale", late)
    original_update = swap(torch.amp.GradScaler, "update", updated)


@defect(
    "Under autocast the weight gradients of linear and conv2d are five per cent too small",
    caught_by="training/test_loss_curves.py::test_the_loss_stays_in_the_band_of_float32[cpu-bf16-images]",
)
def weight_gradients_five_percent_short() -> None:
    """Every dtype and shape is right; only where a training goes is not. (Where SGD goes: Adam divides it out.)"""

    def with_less(layer: Any) -> Any:
        def run(batch: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.is_autocast_enabled(weight.device.type):
                weight = with_gradient(weight, lambda gradient: gradient * 0.95)
            return layer(batch, weight, *args, **kwargs)

        return run

    for name in ("linear", "conv2d"):
        swap(torch.nn.functional, name, with_less(getattr(torch.nn.functional, name)))


@defect(
    "AdamW drops updates of large weights below eight bits of the weight",
    caught_by="training/test_updates.py::test_small_updates_arrive[cpu-bf16-AdamW, loop-large]",
    replaces="torch.optim.AdamW.step",
)
def small_updates_of_large_weights_are_lost(original: Any, self: Any, closure: Any = None) -> Any:
    weights = [p for group in self.param_groups for p in group["params"] if p.numel() > 500]
    before = [p.detach().clone() for p in weights]
    result = original(self, closure)
    for weight, old in zip(weights, before, strict=True):
        lost = (weight.detach() - old).abs() < old.abs() * 2.0**-9
        weight.data.copy_(torch.where(lost, old, weight.detach()))
    return result


@defect(
    "Optimizers round the weights to bfloat16 after each step: there are no float32 masters",
    caught_by="training/test_float32_state.py::test_parameters_and_buffers_stay_float32[cpu-bf16-images]",
)
def weights_kept_in_bf16() -> None:
    from torch.optim import optimizer as optimizers

    def round_weights(optimizer: Any, _args: Any, _keywords: Any) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.is_floating_point():
                        parameter.copy_(parameter.bfloat16())

    optimizers.register_optimizer_step_post_hook(round_weights)


@defect(
    "Adam keeps its moments in bfloat16 between steps",
    caught_by="training/test_float32_state.py::test_the_state_of_optimizers_stays_float32[cpu-bf16-Adam, foreach]",
    replaces="torch.optim.Adam.step",
)
def moments_kept_in_bf16(original: Any, self: Any, closure: Any = None) -> Any:
    for dtype in (torch.float32, torch.bfloat16):
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                if name in state:
                    state[name] = state[name].to(dtype)
        if dtype is torch.float32:
            result = original(self, closure)
    return result


@defect(
    "Optimizers, but for SGD, Adam, RMSprop, Adagrad and their subclasses, round their state to bfloat16 "
    "after each step",
    caught_by="training/test_float32_state.py::test_the_state_of_optimizers_stays_float32[cpu-bf16-NAdam]",
)
def rare_optimizers_round_their_state() -> None:
    from torch.optim import optimizer as optimizers

    common = (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad)

    def round_state(optimizer: Any, _args: Any, _keywords: Any) -> None:
        if isinstance(optimizer, common):
            return
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
                    value.copy_(value.bfloat16())

    optimizers.register_optimizer_step_post_hook(round_state)


@defect(
    "A region that is left under no_grad or inference_mode stays enabled",
    caught_by="training/test_evaluation.py::test_evaluation_leaves_autocast_off_and_weights_alone[cpu-bf16-no_grad]",
    replaces="torch.autocast.__exit__",
)
def evaluation_leaves_autocast_on(original: Any, self: Any, *raised: Any) -> Any:
    result = original(self, *raised)
    if not torch.is_grad_enabled() and self._enabled:
        torch.set_autocast_enabled(self.device, True)
    return result


@defect(
    "conv2d in a region under no_grad rounds its weight in place",
    caught_by=(
        "training/test_evaluation.py::test_evaluation_leaves_autocast_off_and_weights_alone[cpu-bf16-inference_mode]"
    ),
    replaces="torch.nn.Conv2d._conv_forward",
)
def evaluation_casts_the_weights(original: Any, self: Any, batch: Any, weight: Any, bias: Any) -> Any:
    if not torch.is_grad_enabled() and torch.is_autocast_enabled(weight.device.type):
        weight.data.copy_(weight.data.to(torch.get_autocast_dtype(weight.device.type)))
    return original(self, batch, weight, bias)


@defect(
    "``GradScaler.load_state_dict`` does nothing",
    caught_by="training/test_resume.py::test_a_resumed_run_is_the_one_without_a_break[cpu-bf16]",
)
def resumes_without_its_scaler() -> None:
    def load_nothing(self: Any, state_dict: Any) -> None:
        return

    swap(torch.amp.GradScaler, "load_state_dict", load_nothing)


@defect(
    "``torch.set_rng_state`` does nothing",
    caught_by="training/test_resume.py::test_a_resumed_run_is_the_one_without_a_break[cpu-bf16]",
)
def generator_state_is_not_restored() -> None:
    def set_nothing(new_state: Any) -> None:
        return

    swap(torch, "set_rng_state", set_nothing)


@defect(
    "``load_state_dict`` of optimizers rounds their state to bfloat16",
    caught_by="training/test_resume.py::test_a_resumed_run_is_the_one_without_a_break[cpu-bf16]",
    replaces="torch.optim.Optimizer.load_state_dict",
)
def loaded_moments_are_rounded(original: Any, self: Any, state_dict: Any) -> None:
    original(self, state_dict)
    for state in self.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.dim():
                state[name] = value.bfloat16().float()


@defect(
    "``torch.cuda.set_rng_state`` does nothing",
    caught_by="training/test_resume.py::test_a_resumed_run_is_the_one_without_a_break[cuda-bf16]",
)
def generator_of_the_device_is_not_restored() -> None:
    swap(torch.cuda, "set_rng_state", lambda *_args, **_kwargs: None)


@defect(
    "AdamW with bf16 weights and a Kahan sum drops its compensation",
    caught_by="training/test_long_run.py::test_bf16_weights_need_masters_or_a_remedy[cpu-bf16]",
    options=("--amp-tier=long",),
    replaces="pytest_amp.training.low_adamw.LowAdamW._add",
)
def kahan_sums_are_forgotten(original: Any, self: Any, index: int, parameter: Tensor, update: Tensor) -> None:
    original(self, index, parameter, update)
    self._lost[index].zero_()


@defect(
    "Averages of the weights in a copy of the model are not looked at",
    caught_by="tests/training/test_kept_low.py::test_average_of_weights_in_low_precision_is_red[averaged_copy]",
)
def averages_in_a_copy_are_not_looked_at() -> None:
    swap("pytest_amp.training.state.UpdatedModules", "rounded", lambda *_: [])
