"""Planted defects of autocast's weight cache, and of the memory that casts and steps keep."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from tests.planted.kernels import DEVICE, Overridden, override
from tests.planted.table import defect, swap


@defect(
    "Every exit clears the cast cache, also that of an inner region",
    caught_by="semantics/test_cast_cache.py::test_nested_regions_share_the_cache[cpu-bf16]",
    replaces="torch.amp.autocast_mode.autocast.__exit__",
)
def exit_drops_outer_cache(original: Any, self: Any, *args: Any) -> Any:
    torch.clear_autocast_cache()
    return original(self, *args)


@defect(
    "The cast cache is never used: each use of a weight casts it again",
    caught_by="semantics/test_cast_cache.py::test_a_weight_is_cast_once_in_a_region[cpu-bf16-grad]",
    replaces="torch.set_autocast_cache_enabled",
)
def cast_cache_off(original: Any, enabled: Any) -> Any:
    return original(False)


@defect(
    "``cache_enabled=False`` has no effect",
    caught_by="semantics/test_cast_cache.py::test_without_the_cache_each_use_casts[cpu-bf16]",
    replaces="torch.set_autocast_cache_enabled",
)
def cast_cache_always_on(original: Any, enabled: Any) -> Any:
    return original(True)


@defect(
    "The cast cache outlives its region: the next region computes with stale weights",
    caught_by="semantics/test_cast_cache.py::test_an_update_between_regions_is_seen[cpu-bf16]",
)
def cast_cache_never_cleared() -> None:
    swap(torch, "clear_autocast_cache", lambda: None)


@defect(
    "Switching gradients on or off clears the cast cache: weights are cast again, results are right",
    caught_by="semantics/test_cast_cache.py::test_switching_gradients_leaves_the_cache[cpu-bf16-set_grad_enabled",
    replaces="torch.set_grad_enabled.__init__",
)
def grad_switches_clear_the_cache(original: Any, self: Any, mode: bool) -> None:
    original(self, mode)
    torch.clear_autocast_cache()


@defect(
    "linear caches the cast of a view of a weight until the region ends",
    caught_by="semantics/test_cast_cache.py::test_a_computed_weight_is_never_cached[cpu-bf16-view]",
)
def views_of_weights_are_cached() -> None:
    #: By where a view begins and its shape: the weight and the copy.
    copies: dict[tuple[object, ...], tuple[Any, torch.Tensor]] = {}

    def linear(call: Overridden) -> Any:
        weight = call.args[1]
        base = weight._base
        if base is None or not base.requires_grad or not weight.requires_grad or not base.is_leaf:
            return call.cast(call.low).run()
        key = (id(base), weight.storage_offset(), weight.shape, weight.stride(), call.low)
        reference, copied = copies.get(key, (lambda: None, weight))
        if reference() is not base:
            copied = weight.to(call.low)
            copies[key] = (weakref.ref(base), copied)
        arguments = (call.args[0].to(call.low), copied, *(x if x is None else x.to(call.low) for x in call.args[2:]))
        return Overridden(call.operator, call.device_type, arguments, {}).run()

    def cleared() -> None:
        copies.clear()
        original()

    override("linear", linear, [DEVICE])
    original = swap(torch, "clear_autocast_cache", cleared)


@defect(
    "Under autocast ``mm`` caches casts of tensors without gradients, and misses writes to them",
    caught_by="semantics/test_cast_cache.py::test_a_tensor_without_gradients_is_read_as_it_is[cpu-bf16]",
)
def tables_are_cached() -> None:
    from torch.utils.weak import WeakTensorKeyDictionary

    copies: Any = WeakTensorKeyDictionary()

    def mm(call: Overridden) -> object:
        x, table = call.args
        if type(table) is not torch.Tensor or table.requires_grad or table.dtype is not torch.float32:
            return call.cast(call.low).run()
        casts = copies.setdefault(table, {})
        low = casts.setdefault(call.low, table.to(call.low))
        return replace(call, args=(x.to(call.low), low)).run()

    override("mm", mm, device_types=["cpu", "cuda"])


@defect(
    "conv2d reuses a weight's cast from no_grad where a gradient is needed",
    caught_by="semantics/test_cache_history.py::test_a_use_without_gradients_costs_no_gradient[cpu-bf16-conv2d-no_grad",
)
def convolution_copies_without_history() -> None:
    copies: dict[int, torch.Tensor] = {}

    def convolve(call: Overridden) -> torch.Tensor:
        x, weight, *rest = call.cast(call.low).args
        key = id(call.args[1])
        if not torch.is_grad_enabled():
            copies[key] = weight.detach()
        return torch.nn.functional.conv2d(x, copies.get(key, weight), *rest)

    def clear() -> None:
        copies.clear()
        original()

    override("conv2d", convolve, [DEVICE])
    original = swap(torch, "clear_autocast_cache", clear)


@defect(
    "linear reuses the first cast of each weight under no_grad in all later regions",
    caught_by="semantics/test_cache_history.py::test_an_update_between_regions_is_seen[cpu-bf16-linear-no_grad",
)
def linear_keeps_old_weights() -> None:
    copies: dict[int, tuple[Any, torch.Tensor]] = {}

    def linear(call: Overridden) -> Any:
        cast = call.cast(call.low)
        weight = call.args[1]
        if isinstance(weight, torch.nn.Parameter) and not torch.is_grad_enabled():
            known = copies.setdefault(id(weight), (weight, cast.args[1]))
            if known[1].dtype is call.low:
                cast = Overridden(
                    cast.operator, cast.device_type, (cast.args[0], known[1], *cast.args[2:]), cast.kwargs
                )
        return cast.run()

    override("linear", linear, [DEVICE])


@defect(
    "linear's result keeps its float32 input alive, besides the low-precision one that backward needs",
    caught_by=(
        "semantics/test_cache_memory.py::test_what_is_kept_for_backward_is_what_casts_by_hand_keep[cpu-bf16-linear"
    ),
)
def linear_keeps_its_float32_input() -> None:
    def linear(call: Overridden) -> Any:
        result = call.cast(call.low).run()
        if result.grad_fn is not None:
            result.grad_fn.metadata["input"] = call.args[0].detach().clone()
        return result

    override("linear", linear, [DEVICE])


@defect(
    "make_graphed_callables accepts a region with a cast cache",
    caught_by="semantics/test_graphs.py::test_make_graphed_callables_refuses_the_cache[cuda-bf16",
    replaces="torch.cuda.make_graphed_callables",
)
def graphed_callables_take_the_cache(original: Any, *args: Any, **kwargs: Any) -> Any:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return original(*args, **kwargs)
    finally:
        torch.set_autocast_cache_enabled(before)


@defect(
    "The outermost exit does not clear the cast cache: a later capture uses stale casts",
    caught_by="semantics/test_graphs.py::test_a_region_inside_a_capture_casts_at_each_replay[cuda-bf16-cache",
)
def captures_take_older_casts() -> None:
    def nothing() -> None:
        """Clear nothing."""

    swap(torch, "clear_autocast_cache", nothing)


@defect(
    "The cast cache is cleared before each layer: a shared weight is cast at each use",
    caught_by=(
        "memory/test_casts.py::test_a_layer_is_cast_as_often_as_counted_by_hand[cpu-bf16-a layer used eight times]"
    ),
    replaces="torch.nn.Module.__call__",
)
def weights_cast_at_each_use(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Results, dtypes and memory after the region are right."""
    torch.clear_autocast_cache()
    return original(self, *args, **kwargs)


@defect(
    "Under autocast linear casts its low-precision arguments to float32 and back: right, and slower",
    caught_by="memory/test_casts.py::test_a_step_makes_the_casts_of_its_rules[cpu-bf16-mlp]",
    overrides="linear",
)
def linear_casts_to_and_fro(call: Overridden) -> Tensor:
    result: Tensor = call.cast(call.low, torch.float32, call.low).run()
    return result


@defect(
    "Dropout saves a float32 mask for backward: right, and at least twice the bytes",
    caught_by="memory/test_kept.py::test_an_operator_keeps_what_its_derivative_needs[cpu-bf16-dropout]",
)
def dropout_keeps_a_wide_mask() -> None:
    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(mask)
            return (x * mask).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            (mask,) = ctx.saved_tensors
            return (gradients[0] * mask).to(gradients[0].dtype), None

    def wide(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not x.requires_grad:
            return original(x, p, training, inplace)
        mask = original(torch.ones_like(x, dtype=torch.float32), p, True)
        masked: Any = Masked
        return masked.apply(x, mask)

    original = swap(functional, "dropout", wide)


@defect(
    "Cross-entropy saves its logits in float32 besides their probabilities: right, and twice the bytes",
    caught_by="memory/test_kept.py::test_an_operator_keeps_what_its_derivative_needs[cpu-bf16-cross_entropy]",
)
def cross_entropy_keeps_its_logits() -> None:
    class Beside(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(logits.float())
            return loss.view_as(loss)

        @staticmethod
        def backward(_ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            return gradients[0], None

    def keeping(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        loss = original(logits, *args, **kwargs)
        beside: Any = Beside
        return beside.apply(loss, logits.detach()) if loss.requires_grad else loss

    original = swap(functional, "cross_entropy", keeping)


@defect(
    "Under autocast GELU computes in float32 and rounds its result: right, and twice the saved bytes",
    caught_by="memory/test_saved.py::test_a_step_keeps_what_casts_by_hand_keep[cpu-bf16-decoder]",
    overrides="gelu",
)
def gelu_keeps_float32(call: Overridden) -> Tensor:
    result: Tensor = call.cast(torch.float32).run()
    return result.to(call.low)


@defect(
    "Each result of conv2d under autocast has a copy in float64 beside it, of which autograd knows nothing",
    caught_by="memory/test_saved.py::test_activations_take_less_than_in_float32[cpu-bf16-cnn]",
    overrides="conv2d",
)
def convolutions_hold_wide_copies(call: Overridden) -> Tensor:
    result: Any = call.cast(call.low).run()
    result.wide = result.detach().double()
    return cast("Tensor", result)


@defect(
    "Every loss that is computed in a region is retained, as in a list of losses with their graphs",
    caught_by="memory/test_saved.py::test_a_step_keeps_what_casts_by_hand_keep[cpu-bf16-mlp]",
)
def steps_keep_their_losses() -> None:
    losses: list[Any] = []

    def keeping(*args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        if torch.is_autocast_enabled(DEVICE):
            losses.append(loss)
        return loss

    original = swap(functional, "cross_entropy", keeping)


@defect(
    "``Tensor.backward`` retains its tensor, and with it the graph of every step",
    caught_by=(
        "memory/test_trainings.py::test_a_training_keeps_nothing_of_its_steps[cpu-bf16-the method, micro-batches-plain]"
    ),
)
def backward_keeps_its_losses() -> None:
    losses: list[Any] = []

    def keeping(self: Any, *args: Any, **kwargs: Any) -> Any:
        losses.append(self)
        return original(self, *args, **kwargs)

    original = swap(torch.Tensor, "backward", keeping)


@defect(
    "Optimizers retain the gradients of every step",
    caught_by="memory/test_trainings.py::test_optimizers_keep_no_gradients[cpu-bf16-SGD, loop]",
)
def optimizers_keep_their_gradients() -> None:
    from torch.optim import optimizer as optimizers

    gradients: list[Any] = []

    def keep(optimizer: Any, _args: Any, _keywords: Any) -> None:
        gradients.extend(p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)

    optimizers.register_optimizer_step_post_hook(keep)
