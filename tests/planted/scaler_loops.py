"""Planted defects of a GradScaler in training loops: order of calls, stages and refusals."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tests.planted.table import defect, swap


@defect(
    "``unscale_`` does not record its call: ``step`` divides again",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-unscale_ in READY]",
    replaces="torch.amp.GradScaler.unscale_",
)
def unscale_leaves_its_stage(original: Any, self: Any, optimizer: Any) -> None:
    from torch.amp.grad_scaler import OptState

    original(self, optimizer)
    if self.is_enabled():
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY


@defect(
    "``unscale_`` divides float16 gradients, which underflow, instead of refusing them",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-unscale_, fp16 gradients in READY]",
    replaces="torch.amp.GradScaler._unscale_grads_",
)
def fp16_gradients_are_unscaled(
    original: Any, self: Any, optimizer: Any, inverse: Any, found_inf: Any, _allow_fp16: Any
) -> Any:
    return original(self, optimizer, inverse, found_inf, True)


@defect(
    "``update(new_scale)`` does not make the optimizers ready again",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-update(new_scale) in UNSCALED]",
    replaces="torch.amp.GradScaler.update",
)
def new_scale_keeps_the_stages(original: Any, self: Any, new_scale: Any = None) -> None:
    states = self._per_optimizer_states if self.is_enabled() else None
    original(self, new_scale)
    if states is not None and new_scale is not None:
        self._per_optimizer_states = states


@defect(
    "A scaler is pickled between unscale_ and update, and loses the stages",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-pickle in UNSCALED]",
)
def pickled_within_an_iteration() -> None:
    from torch.amp import grad_scaler

    module: Any = grad_scaler

    def forgetting(self: Any) -> Any:
        if self.is_enabled():
            self._per_optimizer_states = defaultdict(module._refresh_per_optimizer_state)
        return original(self)

    original = swap(torch.amp.GradScaler, "__getstate__", forgetting)


@defect(
    "Loading the state dict of a disabled scaler is no error",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-load_state_dict({}) in READY]",
    replaces="torch.amp.GradScaler.load_state_dict",
)
def empty_state_dict_is_loaded(original: Any, self: Any, state: Any) -> Any:
    return original(self, state) if state else None


@defect(
    "``step(closure=...)`` goes to the optimizer: it steps with scaled gradients",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-step, closure= in READY]",
    replaces="torch.amp.GradScaler.step",
)
def closure_is_accepted(original: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if "closure" in kwargs:
        return optimizer.step(*args, **kwargs)
    return original(self, optimizer, *args, **kwargs)


@defect(
    "``update`` leaves every optimizer in its stage",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-update in UNSCALED]",
    replaces="torch.amp.GradScaler.update",
)
def update_keeps_the_stages(original: Any, self: Any, new_scale: Any = None) -> None:
    states = dict(self._per_optimizer_states)
    original(self, new_scale)
    self._per_optimizer_states.update(states)


@defect(
    "``unscale_`` after ``step`` has no effect and is no error",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-unscale_ in STEPPED]",
    replaces="torch.amp.GradScaler.unscale_",
)
def unscale_after_step_permitted(original: Any, self: Any, optimizer: Any) -> None:
    if self._per_optimizer_states[id(optimizer)]["stage"].name != "STEPPED":
        original(self, optimizer)


@defect(
    "A fused optimizer is ready again after its step, without an update",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-fused step in READY]",
    replaces="torch.amp.GradScaler.step",
)
def fused_step_leaves_its_stage(original: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    before = self._per_optimizer_states[id(optimizer)]["stage"]
    result = original(self, optimizer, *args, **kwargs)
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        self._per_optimizer_states[id(optimizer)]["stage"] = before
    return result


@defect(
    "``load_state_dict`` makes every optimizer ready, unscaled gradients or not",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-load_state_dict in UNSCALED]",
    replaces="torch.amp.GradScaler.load_state_dict",
)
def loading_forgets_the_stages(original: Any, self: Any, state: Any) -> None:
    original(self, state)
    self._per_optimizer_states.clear()


@defect(
    "``state_dict`` creates the tensors that the first ``scale`` should create",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-queries in before the first scale]",
    replaces="torch.amp.GradScaler.state_dict",
)
def asking_for_the_state_initialises(original: Any, self: Any) -> Any:
    if self._enabled and self._scale is None:
        self._lazy_init_scale_growth_tracker(torch.device(self._device))
    return original(self)


@defect(
    "``update`` without any check for inf since the last one is no error",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-update in READY]",
    replaces="torch.amp.GradScaler.update",
)
def update_without_checks_permitted(original: Any, self: Any, new_scale: Any = None) -> None:
    try:
        original(self, new_scale)
    except AssertionError as error:
        if "No inf checks" not in str(error):
            raise


@defect(
    "``update(4)`` is accepted as ``update(4.0)``, which torch refuses",
    caught_by="scaler/test_transitions.py::test_transition[cpu-bf16-update(an int) in READY]",
    replaces="torch.amp.GradScaler.update",
)
def an_int_is_a_scale(original: Any, self: Any, new_scale: Any = None) -> None:
    original(self, float(new_scale) if isinstance(new_scale, int) else new_scale)


@defect(
    "A second ``unscale_`` before the update is no error: it divides again",
    caught_by="scaler/test_order.py::test_the_order_of_calls[cpu-bf16-unscale_ unscale_]",
    replaces="torch.amp.GradScaler.unscale_",
)
def unscale_twice_permitted(original: Any, self: Any, optimizer: Any) -> None:
    state = self._per_optimizer_states[id(optimizer)]
    if state["stage"].name == "UNSCALED":
        state["stage"] = type(state["stage"]).READY
    original(self, optimizer)


@defect(
    "A second ``step`` before the update is no error",
    caught_by="scaler/test_order.py::test_the_order_of_calls[cpu-bf16-step step]",
    replaces="torch.amp.GradScaler.step",
)
def step_twice_permitted(original: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    state: dict[str, Any] = self._per_optimizer_states[id(optimizer)] if self._enabled else {"stage": None}
    if getattr(state["stage"], "name", "") == "STEPPED":
        state["stage"] = type(state["stage"]).UNSCALED
    return original(self, optimizer, *args, **kwargs)


@defect(
    "A step of an optimizer without gradients is no error",
    caught_by="scaler/test_order.py::test_an_optimizer_without_gradients[cpu-bf16-step]",
    replaces="torch.amp.GradScaler.step",
)
def step_without_gradients_permitted(original: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
        return None
    return original(self, optimizer, *args, **kwargs)


@defect(
    "AveragedModel rounds its average to bfloat16",
    caught_by="scaler/test_loops.py::test_averaged_weights_are_float32[cpu-bf16-exponential]",
    replaces="torch.optim.swa_utils.AveragedModel.update_parameters",
)
def averaged_weights_low_precision(original: Any, self: Any, model: Any) -> None:
    original(self, model)
    with torch.no_grad():
        for parameter in self.module.parameters():
            parameter.copy_(parameter.bfloat16())


@defect(
    "A region object that is entered again does not clear the cast cache: forward uses stale weights",
    caught_by="scaler/test_loops.py::test_a_region_that_is_used_again_sees_the_stepped_weights[cpu-bf16-one object]",
)
def reused_region_keeps_its_casts() -> None:
    def exit_without_clearing(self: Any, *args: Any) -> Any:
        before = vars(self).get("left", 0)
        vars(self)["left"] = before + 1
        if not before:
            return original(self, *args)
        clear = swap(torch, "clear_autocast_cache", lambda: None)
        try:
            return original(self, *args)
        finally:
            swap(torch, "clear_autocast_cache", clear)

    compiler: Any = torch.compiler
    original = swap(torch.amp.autocast_mode.autocast, "__exit__", compiler.disable(exit_without_clearing))


@defect(
    "``scale`` of a list detaches its tensors from the graph",
    caught_by="scaler/test_loops.py::test_a_list_of_losses_reaches_the_parameters[cpu-bf16]",
    replaces="torch.amp.GradScaler.scale",
)
def scaled_lists_lose_their_graph(original: Any, self: Any, outputs: Any) -> Any:
    scaled = original(self, outputs)
    if self.is_enabled() and isinstance(scaled, list):
        return [part.detach() if isinstance(part, torch.Tensor) else part for part in scaled]
    return scaled


@defect(
    "An overflow lowers the scale by the square of the back-off factor",
    caught_by="scaler/test_training.py::test_training_with_a_scaler_reaches_the_fp32_loss[cpu-fp16-loss]",
    replaces="torch._amp_update_scale_",
)
def scale_backs_off_twice(
    original: Any, scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int
) -> Any:
    return original(scale, tracker, found_inf, growth, backoff * backoff, interval)


@defect(
    "A scaler that has skipped a step skips no later one",
    caught_by=("scaler/test_training_steps.py::test_a_network_with_statistics_that_an_overflow_spoils[cpu-bf16-noted]"),
)
def scaler_skips_once() -> None:
    skipped: set[int] = set()

    def maybe_step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) in skipped:
            return optimizer.step(*args, **kwargs)
        if any(found_inf.item() for found_inf in state["found_inf_per_device"].values()):
            skipped.add(id(self))
        return original(self, optimizer, state, *args, **kwargs)

    original = swap(torch.amp.GradScaler, "_maybe_opt_step", maybe_step)


@defect(
    "``unscale_`` ignores parameter groups that were added after its first call",
    caught_by="scaler/test_life_of_parameters.py::test_a_group_that_is_added_later_counts[cpu-bf16-clean-step-loop]",
)
def late_groups_stay_scaled() -> None:
    known: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()

    def unscale_grads(self: Any, optimizer: torch.optim.Optimizer, *arguments: Any) -> Any:
        groups = optimizer.param_groups
        optimizer.param_groups = groups[: known.setdefault(optimizer, len(groups))]
        try:
            return original(self, optimizer, *arguments)
        finally:
            optimizer.param_groups = groups

    original = swap(torch.amp.GradScaler, "_unscale_grads_", unscale_grads)


@defect(
    "Gradients without dimensions are unscaled, and not checked",
    caught_by="scaler/test_life_of_parameters.py::test_parameters_of_every_shape_count[cpu-bf16-()-inf-step-loop]",
    replaces="torch._amp_foreach_non_finite_check_and_unscale_",
)
def scalars_are_not_checked(
    original: Any, gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor
) -> None:
    for gradient in gradients:
        if not gradient.dim():
            gradient.mul_(inverse)
    if remaining := [gradient for gradient in gradients if gradient.dim()]:
        original(remaining, found_inf, inverse)


@defect(
    "``update`` retains the state of every optimizer",
    caught_by="scaler/test_life_of_parameters.py::test_nothing_of_an_iteration_outlives_its_update[cpu-bf16]",
)
def updates_keep_the_last_stages() -> None:
    history: list[Any] = []

    def keep(self: Any, *arguments: Any) -> None:
        if self.is_enabled():
            history.append(self._per_optimizer_states)
        original(self, *arguments)

    original = swap(torch.amp.GradScaler, "update", keep)


@defect(
    "Optimizers round large tensors of their state to bfloat16 when they load it",
    caught_by=(
        "scaler/test_life_of_parameters.py::"
        "test_a_loaded_state_has_the_bits_of_the_saved_one[cpu-bf16-Adam, foreach-outside]"
    ),
    replaces="torch.optim.Optimizer.load_state_dict",
)
def large_states_are_loaded_low(original: Any, self: Any, state_dict: dict[str, Any]) -> None:
    original(self, state_dict)
    for state in self.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.numel() > 10_000:
                state[key] = value.bfloat16().to(value.dtype)


@defect(
    "``Module.zero_grad`` leaves out the last parameter",
    caught_by="scaler/test_life_of_parameters.py::test_gradients_may_be_cleared_in_any_way[cpu-bf16-module-SGD]",
    replaces="torch.nn.Module.zero_grad",
)
def modules_keep_their_last_gradient(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    last = list(self.parameters())[-1]
    gradient = None if last.grad is None else last.grad.clone()
    original(self, *args, **kwargs)
    last.grad = gradient
