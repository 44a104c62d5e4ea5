"""Planted defects of checkpointing, custom functions and backward passes around a region."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import torch

from tests.planted.kernels import DEVICE, outside_of_regions
from tests.planted.table import defect, swap


@defect(
    "A checkpoint recomputes outside the region of forward",
    caught_by=(
        "semantics/test_checkpoint.py::test_recomputation_runs_in_the_region_of_forward[cpu-bf16-plain-reentrant]"
    ),
    replaces="torch.utils.checkpoint._get_autocast_kwargs",
)
def checkpoint_forgets_region(original: Any, *args: Any, **kwargs: Any) -> Any:
    return tuple(state and {**state, "enabled": False} for state in original(*args, **kwargs))


@defect(
    "A checkpoint recomputes in the device's default autocast dtype",
    caught_by=(
        "semantics/test_checkpoint.py::"
        "test_recomputation_runs_in_the_region_of_forward[cpu-bf16-other dtype-non-reentrant]"
    ),
    caught_on_cuda_by=(
        "semantics/test_checkpoint.py::"
        "test_recomputation_runs_in_the_region_of_forward[cuda-fp16-other dtype-non-reentrant]"
    ),
    replaces="torch.utils.checkpoint._get_autocast_kwargs",
)
def checkpoint_recomputes_in_default_dtype(original: Any, *args: Any, **kwargs: Any) -> Any:
    return tuple(state and {**state, "dtype": None} for state in original(*args, **kwargs))


@defect(
    "``checkpoint_sequential`` recomputes its segments without autocast",
    caught_by="semantics/test_checkpoint.py::test_segments_of_a_sequence_are_recomputed_in_the_region[cpu-bf16",
)
def sequential_checkpoint_forgets_region() -> None:
    module: Any = torch.utils.checkpoint
    states: Any = module._get_autocast_kwargs

    def without_autocast(*arguments: Any, **keywords: Any) -> Any:
        device, cpu = states(*arguments, **keywords)
        return device and {**device, "enabled": False}, {**cpu, "enabled": False}

    def forgetful(*arguments: Any, **keywords: Any) -> Any:
        module._get_autocast_kwargs = without_autocast
        try:
            return original(*arguments, **keywords)
        finally:
            module._get_autocast_kwargs = states

    original = swap(torch.utils.checkpoint, "checkpoint_sequential", forgetful)


@defect(
    "A checkpointed function with keyword arguments is recomputed outside the region",
    caught_by=(
        "semantics/test_checkpoint.py::"
        "test_gradients_are_those_without_a_checkpoint[cpu-bf16-by keyword, backward outside]"
    ),
)
def checkpoints_by_keyword_forget_the_region() -> None:
    options = {"use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop"}

    def forgetful(function: Any, *args: Any, **kwargs: Any) -> Any:
        calls = iter([function])

        def call(*inner: Any, **keywords: Any) -> Any:
            return next(calls, outside_of_regions(function))(*inner, **keywords)

        return original(call if kwargs.keys() - options else function, *args, **kwargs)

    original = swap(torch.utils.checkpoint, "checkpoint", forgetful)


@defect(
    "The recomputation of a selective checkpoint runs with autocast off",
    caught_by=(
        "semantics/test_checkpoint_kinds.py::test_selective_checkpoints_recompute_in_the_region[cpu-bf16-save nothing"
    ),
    replaces="torch.utils.checkpoint.create_selective_checkpoint_contexts",
)
def selective_checkpoint_forgets_region(original: Any, *args: Any, **kwargs: Any) -> Any:
    forward, recompute = original(*args, **kwargs)
    contexts = ExitStack()

    class Outside:
        def __enter__(self) -> None:
            contexts.enter_context(recompute)
            contexts.enter_context(torch.autocast(DEVICE, enabled=False))

        def __exit__(self, *exception: object) -> Any:
            return contexts.__exit__(*exception)  # type: ignore[arg-type]

    return forward, Outside()


@defect(
    "A reentrant checkpoint of several outputs drops all gradients but the first",
    caught_by="semantics/test_checkpoint_kinds.py::test_a_block_of_several_outputs[cpu-bf16-reentrant]",
)
def last_outputs_of_checkpoints_get_nothing() -> None:
    def backward(context: Any, *gradients: Any) -> Any:
        return original(context, gradients[0], *(g if g is None else torch.zeros_like(g) for g in gradients[1:]))

    original = swap("torch.utils.checkpoint.CheckpointFunction", "backward", staticmethod(backward))


@defect(
    "``custom_fwd(cast_inputs=...)`` casts nothing",
    caught_by="semantics/test_custom_function.py::test_inputs_are_cast_and_autocast_is_off[cpu-bf16-float16]",
)
def custom_fwd_does_not_cast() -> None:
    swap(torch.amp.autocast_mode, "_cast", lambda value, device_type, dtype: value)


@defect(
    "``custom_bwd`` does not enter forward's region",
    caught_by="semantics/test_custom_function.py::test_backward_runs_in_the_region_of_forward[cpu-bf16]",
)
def custom_bwd_ignores_forward() -> None:
    swap(torch.amp, "custom_bwd", lambda backward=None, *, device_type: backward or (lambda function: function))


@defect(
    "``custom_fwd(cast_inputs=...)`` leaves autocast off where the forward raises",
    caught_by=(
        "semantics/test_custom_function.py::test_a_forward_that_raises_leaves_the_region_as_it_was[cpu-bf16-cast]"
    ),
)
def custom_fwd_leaves_autocast_off() -> None:
    def careless(fwd: Any = None, *, device_type: str, cast_inputs: Any = None) -> Any:
        if fwd is None:
            return lambda function: careless(function, device_type=device_type, cast_inputs=cast_inputs)
        decorated = original(fwd, device_type=device_type, cast_inputs=cast_inputs)

        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                return decorated(*arguments, **keywords)
            except Exception:
                torch.set_autocast_enabled(device_type, cast_inputs is None)
                raise

        return call

    original = swap(torch.amp.autocast_mode, "custom_fwd", careless)
    swap(torch.amp, "custom_fwd", careless)


@defect(
    "``torch.cuda.amp.custom_fwd`` and ``custom_bwd`` return the function unchanged",
    caught_by=(
        "semantics/test_custom_function_forms.py::"
        "test_every_form_keeps_the_state_of_forward[cpu-bf16-as is-torch.cuda.amp"
    ),
)
def old_custom_fwd_does_nothing() -> None:
    swap(torch.cuda.amp, "custom_fwd", lambda fwd=None, *, cast_inputs=None: fwd or (lambda function: function))
    swap(torch.cuda.amp, "custom_bwd", lambda bwd: bwd)


@defect(
    "Backward runs in the autocast region that was entered last",
    caught_by="semantics/test_backward.py::test_backward_does_not_see_the_region[cpu-bf16]",
)
def backward_runs_in_the_last_region() -> None:
    last: list[tuple[str, Any]] = []

    def enter_and_remember(self: Any) -> Any:
        if self._enabled:
            last[:] = [(self.device, self.fast_dtype)]
        return original_enter(self)

    def backward_in_the_region(*args: Any, **kwargs: Any) -> None:
        if not last:
            original_backward(*args, **kwargs)
            return
        with torch.autocast(last[0][0], last[0][1]):
            original_backward(*args, **kwargs)

    original_enter = swap(torch.amp.autocast_mode.autocast, "__enter__", enter_and_remember)
    original_backward = swap(torch.autograd, "backward", backward_in_the_region)


@defect(
    "``Tensor.backward`` starts with a gradient of 1 + 2**-8 in every thread but the main one",
    caught_by="semantics/test_backward.py::test_gradients_do_not_depend_on_who_asks[cpu-bf16-a thread]",
    replaces="torch.Tensor.backward",
)
def threads_go_back_rounded(original: Any, self: Any, *args: Any, **keywords: Any) -> Any:
    if threading.current_thread() is threading.main_thread():
        return original(self, *args, **keywords)
    return original(self * (1 + 2**-8), *args, **keywords)


@defect(
    "linear in a region uses a copy of its weight that is detached from the graph",
    caught_by="semantics/test_model_untouched.py::test_every_parameter_gets_a_gradient_of_its_own_dtype[cpu-bf16]",
    replaces="torch.nn.functional.linear",
)
def cast_loses_history(original: Any, batch: Any, weight: Any, bias: Any = None) -> Any:
    if torch.is_autocast_enabled(weight.device.type):
        weight = weight.detach().to(torch.get_autocast_dtype(weight.device.type))
    return original(batch, weight, bias)


@defect(
    "linear in a region rounds its weight in place",
    caught_by="semantics/test_model_untouched.py::test_parameters_are_left_alone[cpu-bf16]",
    replaces="torch.nn.functional.linear",
)
def parameters_cast_in_place(original: Any, batch: Any, weight: Any, bias: Any = None) -> Any:
    if torch.is_autocast_enabled(weight.device.type):
        weight.data = weight.data.to(torch.get_autocast_dtype(weight.device.type)).float()
    return original(batch, weight, bias)
