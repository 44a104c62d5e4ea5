"""Planted defects of autocast regions: nesting, state on entry and exit, defaults and decorators."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.planted.kernels import DEVICE
from tests.planted.table import defect, swap


@defect(
    "A region with ``enabled=False`` within an enabled one is enabled",
    caught_by="semantics/test_region.py::test_the_innermost_region_decides[cpu-bf16-on.off]",
    replaces="torch.amp.autocast_mode.autocast.__enter__",
)
def nested_disable_ignored(original: Any, self: Any) -> Any:
    if torch.is_autocast_enabled(self.device):
        self._enabled, self.fast_dtype = True, torch.get_autocast_dtype(self.device)
    return original(self)


@defect(
    "A region ignores its ``dtype``: it has the device's default",
    caught_by="semantics/test_region.py::test_the_innermost_region_decides[cpu-bf16-on.other]",
    caught_on_cuda_by="semantics/test_region.py::test_the_innermost_region_decides[cuda-fp16-on.other]",
    replaces="torch.amp.autocast_mode.autocast.__init__",
)
def dtype_argument_ignored(
    original: Any,
    self: Any,
    device_type: str,
    dtype: Any = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
) -> None:
    original(self, device_type, None, enabled, cache_enabled)


@defect(
    "Entering a region draws a random number: dropout masks differ from float32's",
    caught_by="semantics/test_region.py::test_random_numbers_are_the_same[cpu-bf16]",
    replaces="torch.amp.autocast_mode.autocast.__enter__",
)
def region_draws_random_numbers(original: Any, self: Any) -> Any:
    torch.rand(1)
    return original(self)


@defect(
    '``torch.autocast("mtia")`` does not restore the dtype',
    caught_by="semantics/test_region_class.py::test_it_sets_the_state_and_restores_it[fake-mtia-bf16-leaves-plain]",
    replaces="torch.autocast.__exit__",
)
def mtia_keeps_its_dtype(original: Any, self: Any, *raised: Any) -> Any:
    dtype = torch.get_autocast_dtype(self.device)
    result = original(self, *raised)
    if self.device == "mtia":
        torch.set_autocast_dtype("mtia", dtype)
    return result


@defect(
    "A deep copy of a region has the device's defaults",
    caught_by=(
        "semantics/test_region_class.py::test_a_copy_is_the_region_that_it_was_made_of[cpu-bf16-deepcopy-no cache]"
    ),
)
def copied_regions_are_plain() -> None:
    torch.autocast.__deepcopy__ = lambda self, _: torch.autocast(self.device)  # type: ignore[attr-defined]


@defect(
    "A region without a dtype has the documented default, not the current one",
    caught_by="semantics/test_region_class.py::test_without_a_dtype_it_has_the_current_one[cpu-bf16-fp16-a setter]",
    caught_on_cuda_by=(
        "semantics/test_region_class.py::test_without_a_dtype_it_has_the_current_one[cuda-bf16-bf16-a setter]"
    ),
    replaces="torch.autocast.__init__",
)
def dtypes_of_regions_are_constants(
    original: Any, self: Any, device_type: str, dtype: Any = None, *args: Any, **keywords: Any
) -> None:
    constant = torch.bfloat16 if device_type == "cpu" else torch.float16
    original(self, device_type, constant if dtype is None else dtype, *args, **keywords)


@defect(
    "A region that decorates a function ignores ``cache_enabled=False``",
    caught_by="semantics/test_region_class.py::test_its_decorator_is_a_region[cpu-bf16-no cache]",
    replaces="torch.amp.autocast_mode.autocast_decorator",
)
def decorated_functions_cache_always(original: Any, region: Any, function: Any) -> Any:
    region._cache_enabled = True
    return original(region, function)


@defect(
    "A region swallows a ValueError",
    caught_by="semantics/test_region_class.py::test_an_exception_is_never_swallowed[cpu-bf16]",
    replaces="torch.autocast.__exit__",
)
def regions_swallow_value_errors(original: Any, self: Any, kind: Any, *rest: Any) -> Any:
    result = original(self, kind, *rest)
    return True if kind is ValueError else result


@defect(
    "A region that an exception leaves restores nothing",
    caught_by="semantics/test_state.py::test_exit_restores_the_state[cpu-bf16-plain-raises]",
    replaces="torch.amp.autocast_mode.autocast.__exit__",
)
def exit_skipped_on_exception(original: Any, self: Any, kind: Any, value: Any, traceback: Any) -> Any:
    return False if kind is not None else original(self, kind, value, traceback)


@defect(
    "A region that ends sets the autocast dtype to bfloat16, whatever it was",
    caught_by="semantics/test_state.py::test_exit_restores_the_outer_region[cpu-bf16-other dtype-plain]",
    replaces="torch.amp.autocast_mode.autocast.__exit__",
)
def exit_restores_default_dtype(original: Any, self: Any, *args: Any) -> Any:
    answer = original(self, *args)
    torch.set_autocast_dtype(self.device, torch.bfloat16)
    return answer


@defect(
    "``torch.is_autocast_enabled(device)`` ignores its argument",
    caught_by="semantics/test_state.py::test_queries_answer_what_the_region_says[cpu-bf16-plain]",
    replaces="torch.is_autocast_enabled",
)
def query_ignores_device(original: Any, device_type: Any = None) -> Any:
    return original("cuda" if DEVICE == "cpu" else "cpu")


@defect(
    "The default autocast dtype of the device is the other one: float16 on the CPU",
    caught_by="semantics/test_state.py::test_the_default_dtype_is_documented[cpu-bf16]",
)
def default_dtype_changed() -> None:
    torch.set_autocast_dtype(DEVICE, torch.float16 if DEVICE == "cpu" else torch.bfloat16)


@defect(
    "A thread starts in the autocast region of the thread that starts it",
    caught_by="semantics/test_state.py::test_a_new_thread_does_not_inherit_the_region[cpu-bf16]",
    replaces="threading.Thread.start",
)
def threads_inherit_region(original: Any, self: Any) -> None:
    run, enabled, dtype = self.run, torch.is_autocast_enabled(DEVICE), torch.get_autocast_dtype(DEVICE)

    def run_in_the_region() -> None:
        torch.set_autocast_enabled(DEVICE, enabled)
        torch.set_autocast_dtype(DEVICE, dtype)
        run()

    self.run = run_in_the_region
    original(self)


@defect(
    "A region that KeyboardInterrupt or GeneratorExit leaves stays enabled",
    caught_by=(
        "semantics/test_state.py::test_an_exception_through_three_regions_restores_each[cpu-bf16-KeyboardInterrupt]"
    ),
    replaces="torch.amp.autocast_mode.autocast.__exit__",
)
def exit_ignores_keyboard_interrupt(
    original: Any, self: Any, kind: Any = None, value: Any = None, traceback: Any = None
) -> Any:
    if kind in (KeyboardInterrupt, GeneratorExit):
        return False
    return original(self, kind, value, traceback)


@defect(
    "``torch.amp.is_autocast_available`` is false for MPS",
    caught_by="semantics/test_state.py::test_autocast_is_available[cpu-bf16]",
)
def autocast_is_not_available_on_mps() -> None:
    def but_mps(device_type: str) -> bool:
        return device_type != "mps" and bool(original(device_type))

    original = swap(torch.amp, "is_autocast_available", but_mps)
    swap(torch.amp.autocast_mode, "is_autocast_available", but_mps)


@defect(
    "A region is disabled if the default device is meta",
    caught_by="semantics/test_defaults.py::test_a_region_under_a_default_device[cpu-bf16-device outside-meta",
    replaces="torch.amp.autocast_mode.autocast.__enter__",
)
def regions_off_on_meta(original: Any, self: Any) -> Any:
    if torch.get_default_device().type == "meta":
        self._enabled = False
    return original(self)


@defect(
    "softmax in a region under no_grad rounds to the autocast dtype and back",
    caught_by="semantics/test_defaults.py::test_a_result_does_not_depend_on_the_grad_mode[cpu-bf16-softmax-float32",
    replaces="torch.nn.functional.softmax",
)
def softmax_rounded_without_graph(original: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if torch.is_grad_enabled() or not torch.is_autocast_enabled(DEVICE):
        return original(x, *args, **kwargs)  # type: ignore[no-any-return]
    low = torch.get_autocast_dtype(DEVICE)
    return original(x.to(low), *args, **kwargs).to(low).to(x.dtype)  # type: ignore[no-any-return]


@defect(
    "Forward hooks of modules run below autocast",
    caught_by="semantics/test_defaults.py::test_hooks_of_modules_run_in_the_region[cpu-bf16",
    replaces="torch.nn.Module.register_forward_hook",
)
def module_hooks_leave_the_region(original: Any, self: Any, hook: Callable[..., Any], **kwargs: Any) -> Any:
    def outside(*args: Any) -> Any:
        with torch._C._DisableAutocast():
            return hook(*args)

    return original(self, outside, **kwargs)


@defect(
    "``@torch.autocast(...)`` returns the function unchanged",
    caught_by="semantics/test_decorator.py::test_a_function_runs_in_the_region[cpu-bf16]",
)
def decorator_does_nothing() -> None:
    swap(torch.amp.autocast_mode.autocast, "__call__", lambda self, function: function)


@defect(
    "A decorated function does not get a keyword ``dtype``",
    caught_by="semantics/test_decorator.py::test_arguments_are_the_functions_own[cpu-bf16",
    replaces="torch.amp.autocast_mode.autocast.__call__",
)
def decorator_takes_keywords(original: Any, self: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    decorated = original(self, function)

    @functools.wraps(function)
    def without(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("dtype", None)
        return decorated(*args, **kwargs)

    return without


@defect(
    "A region is disabled if it is entered in a running event loop",
    caught_by="semantics/test_generators_and_tasks.py::test_a_region_goes_on_after_await[cpu-bf16]",
    replaces="torch.amp.autocast_mode.autocast.__enter__",
)
def regions_off_in_event_loops(original: Any, self: Any) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return original(self)
    self._enabled = False
    return original(self)
