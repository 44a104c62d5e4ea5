"""Planted defects of a GradScaler's scale: growth, back-off, saved state and deprecated aliases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.planted.table import defect, swap


@defect(
    "An overflow does not lower the scale",
    caught_by="scaler/test_update_rule.py::test_the_scale_backs_off_at_once[cpu-bf16-inf]",
    replaces="torch._amp_update_scale_",
)
def scale_never_backs_off(original: Any, scale: Any, tracker: Any, found_inf: Any, *rule: Any) -> Any:
    return original(scale, tracker, torch.zeros_like(found_inf), *rule)


@defect(
    "The scale grows one clean step after its interval",
    caught_by="scaler/test_update_rule.py::test_the_scale_grows_after_exactly_the_interval[cpu-bf16]",
    replaces="torch._amp_update_scale_",
)
def growth_one_step_late(
    original: Any, scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> Any:
    return original(scale, tracker, found_inf, growth, backoff, interval + 1)


@defect(
    "The scale never grows",
    caught_by="scaler/test_update_rule.py::test_the_scale_grows_after_exactly_the_interval[cpu-bf16]",
    replaces="torch._amp_update_scale_",
)
def scale_never_grows(
    original: Any, scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> Any:
    return original(scale, tracker, found_inf, 1.0, backoff, interval)


@defect(
    "Growth does not stop at the largest finite scale",
    caught_by="scaler/test_update_rule.py::test_growth_stops_at_the_largest_finite_scale[cpu-bf16]",
    replaces="torch._amp_update_scale_",
)
def scale_grows_to_inf(
    original: Any, scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> Any:
    grows = not found_inf.item() and tracker.item() + 1 == interval
    grown = scale * growth
    original(scale, tracker, found_inf, growth, backoff, interval)
    return scale.copy_(grown) if grows else scale


@defect(
    "An overflow does not restart the count of clean steps",
    caught_by="scaler/test_update_rule.py::test_the_scale_backs_off_at_once[cpu-bf16-inf]",
    replaces="torch._amp_update_scale_",
)
def overflow_keeps_growth_tracker(original: Any, scale: Any, tracker: Any, found_inf: Any, *rule: Any) -> Any:
    before = tracker.clone()
    original(scale, tracker, found_inf, *rule)
    if found_inf.item():
        tracker.copy_(before)
    return scale


@defect(
    "The setters of factors and interval have no effect",
    caught_by="scaler/test_update_rule.py::test_setters_take_effect_at_the_next_update[cpu-bf16]",
)
def setters_ignored() -> None:
    swap(torch.amp.GradScaler, "set_growth_factor", lambda self, value: None)
    swap(torch.amp.GradScaler, "set_backoff_factor", lambda self, value: None)
    swap(torch.amp.GradScaler, "set_growth_interval", lambda self, value: None)


@defect(
    "``update(new_scale)`` leaves the scale as it was",
    caught_by="scaler/test_update_rule.py::test_a_new_scale_is_taken[cpu-bf16-float]",
    replaces="torch.amp.GradScaler.update",
)
def update_ignores_new_scale(original: Any, self: Any, new_scale: Any = None) -> Any:
    return original(self, None if new_scale is None else self._scale.clone())


@defect(
    "Each ``scale`` resets the growth tracker",
    caught_by="scaler/test_update_rule.py::test_the_scale_grows_after_exactly_the_interval[cpu-bf16]",
    replaces="torch.amp.GradScaler.scale",
)
def scaling_again_starts_anew(original: Any, self: Any, outputs: Any) -> Any:
    scaled = original(self, outputs)
    if self._growth_tracker is not None:
        self._growth_tracker.fill_(self._init_growth_tracker)
    return scaled


@defect(
    "The growth tracker stops at 2048, as a count in fp16 would",
    caught_by="scaler/test_update_rule.py::test_a_long_interval_is_counted_to_its_end[cpu-bf16]",
    replaces="torch.amp.GradScaler.update",
)
def tracker_stops_at_2048(original: Any, self: Any, *args: Any) -> None:
    original(self, *args)
    if self._growth_tracker is not None:
        self._growth_tracker.clamp_(max=2048)


@defect(
    "``scale`` of a generator consumes it at once",
    caught_by="scaler/test_scale.py::test_a_generator_is_scaled_lazily[cpu-bf16]",
    replaces="torch.amp.GradScaler.scale",
)
def generators_are_scaled_at_once(original: Any, self: Any, outputs: Any) -> Any:
    return original(self, list(outputs) if isinstance(outputs, Iterator) else outputs)


@defect(
    "``state_dict`` saves a growth tracker of 0",
    caught_by="scaler/test_state_dict.py::test_a_resumed_run_is_the_one_without[cpu-bf16-after 4-state_dict]",
    replaces="torch.amp.GradScaler.state_dict",
)
def state_dict_loses_growth_tracker(original: Any, self: Any) -> Any:
    return {**original(self), "_growth_tracker": 0} if self._enabled else {}


@defect(
    "``load_state_dict`` restores everything but the scale",
    caught_by="scaler/test_state_dict.py::test_loading_overwrites_everything[cpu-bf16-in the middle of a run]",
    replaces="torch.amp.GradScaler.load_state_dict",
)
def load_state_dict_loses_scale(original: Any, self: Any, state: Any) -> Any:
    return original(self, {**state, "scale": self.get_scale()} if state else state)


@defect(
    "A pickled scaler loses its count of clean steps",
    caught_by="scaler/test_state_dict.py::test_a_resumed_run_is_the_one_without[cpu-bf16-after 4-pickle]",
    replaces="torch.amp.GradScaler.__getstate__",
)
def unpickled_scaler_counts_anew(original: Any, self: Any) -> Any:
    return {**original(self), "_init_growth_tracker": 0}


@defect(
    "``load_state_dict`` leaves the growth interval as it was",
    caught_by="scaler/test_checkpoints.py::test_a_resumed_training_is_the_one_without[cpu-bf16-5-SGD]",
    replaces="torch.amp.GradScaler.load_state_dict",
)
def loading_keeps_the_growth_interval(original: Any, self: Any, state: Any) -> None:
    original(self, {**state, "growth_interval": self.get_growth_interval()} if self.is_enabled() else state)


@defect(
    "A disabled GradScaler multiplies the loss",
    caught_by="scaler/test_disabled.py::test_an_iteration_is_the_plain_one[cpu-bf16]",
    replaces="torch.amp.GradScaler.scale",
)
def disabled_scaler_scales(original: Any, self: Any, outputs: Any) -> Any:
    return original(self, outputs) if self._enabled else outputs * 65536.0


@defect(
    "The deprecated GradScalers of torch.cpu.amp and torch.cuda.amp ignore the growth interval",
    caught_by="scaler/test_deprecated_aliases.py::test_it_trains_as_the_other[cpu-bf16]",
)
def deprecated_scaler_loses_its_interval() -> None:
    for back_end in (torch.cpu, torch.cuda):
        scaler: Any = back_end.amp.GradScaler

        def with_the_default(self: Any, *args: Any, init: Any = scaler.__init__, **kwargs: Any) -> None:
            init(self, *args, **{**kwargs, "growth_interval": 2000} if "growth_interval" in kwargs else kwargs)

        swap(scaler, "__init__", with_the_default)


@defect(
    "``load_state_dict`` leaves the back-off factor as it was",
    caught_by="scaler/test_random_programs.py::test_random_programs_agree_with_the_model[cpu-bf16]",
    replaces="torch.amp.GradScaler.load_state_dict",
)
def loading_keeps_the_backoff_factor(original: Any, self: Any, state: Any) -> None:
    factor = self.get_backoff_factor() if self.is_enabled() else None
    original(self, state)
    if factor is not None:
        self.set_backoff_factor(factor)


@defect(
    "The growth factor is rounded to float32 before the product, which then has other bits",
    caught_by="scaler/test_golden_traces.py::test_eager_trace[cpu-bf16-odd factors-unscale_]",
    replaces="torch._amp_update_scale_",
)
def growth_factor_rounded(
    original: Any, scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> Any:
    rounded = torch.tensor([growth, backoff]).tolist()
    return original(scale, tracker, found_inf, *rounded, interval)


@defect(
    "Within a CUDA graph the scale is not lowered after an overflow",
    caught_by="scaler/test_golden_traces.py::test_captured_trace[cuda-bf16-usual-fused step]",
    replaces="torch._amp_update_scale_",
)
def captured_scaler_never_backs_off(original: Any, scale: Any, tracker: Any, found_inf: Any, *rule: Any) -> Any:
    if torch.cuda.is_current_stream_capturing():
        found_inf = found_inf * 0
    return original(scale, tracker, found_inf, *rule)


@defect(
    "The check for inf and NaN looks at the gradients of one launch, and only unscales the others",
    caught_by="scaler/test_large_and_many.py::test_one_bad_element_among_all_skips_all[cpu-bf16-large-inf]",
)
def only_some_gradients_checked() -> None:
    launch = 32

    def check_one_launch(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
        original(gradients[:launch], found_inf, inverse_scale)
        for gradient in gradients[launch:]:
            gradient.mul_(inverse_scale)

    original = swap(torch, "_amp_foreach_non_finite_check_and_unscale_", check_one_launch)


@defect(
    "Large gradients are rounded to bf16 before they are unscaled",
    caught_by="scaler/test_large_and_many.py::test_every_gradient_is_unscaled_exactly[cpu-bf16-float32]",
)
def large_gradients_unscaled_by_way_of_bf16() -> None:
    large = 1000

    def round_large_ones(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
        for gradient in gradients:
            if gradient.numel() > large:
                gradient.copy_(gradient.to(torch.bfloat16))
        original(gradients, found_inf, inverse_scale)

    original = swap(torch, "_amp_foreach_non_finite_check_and_unscale_", round_large_ones)


@defect(
    "``GradScaler.scale`` returns a float64 loss in float32",
    caught_by="scaler/test_large_and_many.py::test_a_scaled_loss_keeps_its_dtype[cpu-bf16-float64]",
    replaces="torch.amp.GradScaler.scale",
)
def float64_loss_narrowed(original: Any, self: Any, outputs: Any) -> Any:
    scaled = original(self, outputs)
    return scaled.float() if isinstance(scaled, torch.Tensor) else scaled
