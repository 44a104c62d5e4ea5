"""Planted defects of regions across devices, threads, aliases and extensions."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from tests.planted.kernels import DEVICE, Overridden, override
from tests.planted.table import defect, swap


@defect(
    "``torch.cpu.amp.autocast``, or that of ``torch.cuda``, ignores ``enabled=False``",
    caught_by="semantics/test_aliases.py::test_the_deprecated_region_is_the_same[cpu-bf16",
)
def deprecated_region_ignores_enabled() -> None:
    module: Any = getattr(torch, DEVICE).amp

    def always_enabled(self: Any, enabled: bool = True, *arguments: Any, **keywords: Any) -> None:
        original(self, True, *arguments, **keywords)

    original = swap(module.autocast, "__init__", always_enabled)


@defect(
    "``torch.is_autocast_cpu_enabled`` is always false",
    caught_by="semantics/test_aliases.py::test_the_queries_of_the_cpu_answer_the_same[cpu-bf16]",
    not_on_cuda="it is a query of the CPU",
)
def cpu_query_answers_wrong() -> None:
    swap(torch, "is_autocast_cpu_enabled", lambda: False)


@defect(
    "``torch.set_autocast_gpu_dtype`` sets the CPU's dtype",
    caught_by="semantics/test_aliases.py::test_the_old_setters_without_a_device_mean_cuda[cpu-bf16]",
)
def gpu_dtype_is_set_on_the_cpu() -> None:
    swap(torch, "set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype("cpu", dtype))


@defect(
    "``torch.cpu.amp.autocast`` as a decorator ignores its dtype",
    caught_by="semantics/test_aliases.py::test_the_deprecated_region_decorates_with_its_own_state[cpu-bf16-enabled]",
    not_on_cuda="the decorator is torch.cpu's",
)
def old_decorators_take_the_default_dtype() -> None:
    def decorate(_: Any, function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return function(*args, **kwargs)

        return call

    back_end: Any = torch.cpu.amp
    swap(back_end.autocast, "__call__", decorate)


@defect(
    "Disabling autocast for one device type disables it for all",
    caught_by="semantics/test_two_devices.py::test_disabling_one_device_leaves_the_other_on[cpu-bf16-fake:cuda]",
    caught_on_cuda_by="semantics/test_two_devices.py::test_disabling_one_device_leaves_the_other_on[cuda-bf16-cpu]",
    replaces="torch.set_autocast_enabled",
)
def disable_acts_on_every_device(original: Any, device_type: str, enabled: bool) -> None:
    original(device_type, enabled)
    if not enabled:
        for other in ("cpu", "cuda", "xpu"):
            original(other, False)


@defect(
    "custom_fwd uses the CPU's region for every device",
    caught_by=(
        "semantics/test_on_fakes.py::test_custom_functions_see_the_region_of_their_device[fake-xpu-bf16-on-float32"
    ),
    replaces="torch.amp.custom_fwd",
)
def custom_fwd_asks_the_cpu(
    original: Any, forward: Any = None, *, device_type: str, cast_inputs: torch.dtype | None = None
) -> Callable[..., Any]:
    del device_type
    decorate: Callable[..., Any] = original(device_type="cpu", cast_inputs=cast_inputs)
    return decorate if forward is None else decorate(forward)


@defect(
    "On XPU linear casts its arguments through float64",
    caught_by="semantics/test_on_fakes.py::test_what_needs_no_gradient_is_cast_at_each_use[fake-xpu-bf16-cache",
)
def linear_casts_twice_on_xpu() -> None:
    def twice(call: Overridden) -> object:
        return call.cast(torch.float64, call.low).run()

    override("linear", twice, device_types=["xpu"])


@defect(
    "An extension's rule for one device casts on the CPU, too",
    caught_by="semantics/test_on_fakes.py::test_a_rule_of_an_extension_is_its_devices[fake-xpu-bf16",
    caught_on_cuda_by="semantics/test_on_fakes.py::test_a_rule_of_an_extension_is_its_devices[cuda-bf16]",
    replaces="torch._library.custom_ops.CustomOpDef.register_autocast",
)
def rules_of_extensions_on_every_device(original: Any, self: Any, device_type: str, cast_inputs: torch.dtype) -> Any:

    if device_type != "cpu":
        original(self, "cpu", cast_inputs)
    return original(self, device_type, cast_inputs)


@defect(
    "A region that ends in another thread sets that thread's autocast dtype to the other one",
    caught_by="semantics/test_random_programs.py::test_random_programs_agree_with_the_model[cpu-bf16",
    replaces="torch.amp.autocast_mode.autocast.__exit__",
)
def exit_in_a_thread_sets_dtype(original: Any, self: Any, *args: Any) -> Any:
    result = original(self, *args)
    if threading.current_thread() is not threading.main_thread():
        torch.set_autocast_dtype(DEVICE, torch.float16 if DEVICE == "cpu" else torch.bfloat16)
    return result


@defect(
    "Functions that are submitted to a ThreadPoolExecutor in a region run with autocast on",
    caught_by=(
        "semantics/test_threads.py::"
        "test_work_for_another_thread_is_not_in_the_region[cpu-bf16-ThreadPoolExecutor.submit"
    ),
)
def thread_pools_inherit_region() -> None:
    def submit_in_region(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        enabled = torch.is_autocast_enabled(DEVICE)

        def run() -> Any:
            torch.set_autocast_enabled(DEVICE, enabled)
            return function(*args, **kwargs)

        return original(self, run)  # type: ignore[no-any-return]

    original = swap(ThreadPoolExecutor, "submit", submit_in_region)


@defect(
    "Iterating over a DataLoader disables autocast for good",
    caught_by="semantics/test_threads.py::test_a_loader_in_this_process_loads_in_the_region[cpu-bf16",
    replaces="torch.utils.data.DataLoader.__iter__",
)
def loaders_switch_autocast_off(original: Any, self: Any) -> Any:
    torch.set_autocast_enabled(DEVICE, False)
    return original(self)


@defect(
    "linear is not cast if torch has more than one thread",
    caught_by="semantics/test_threads.py::test_operators_on_several_threads_compute_in_the_region[cpu-bf16]",
    overrides="linear",
)
def several_threads_stay_wide(call: Overridden) -> Any:
    wide = torch.get_num_threads() > 1
    return (call if wide else call.cast(call.low)).run()


@defect(
    "DataParallel on one device runs its module outside of the caller's region",
    caught_by="semantics/test_data_parallel.py::test_data_parallel_on_one_device_is_the_module[cpu-bf16",
    replaces="torch.nn.DataParallel.forward",
)
def data_parallel_leaves_the_region(original: Any, self: nn.DataParallel[Any], *inputs: Any, **kwargs: Any) -> Any:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        return original(self, *inputs, **kwargs)


@defect(
    "The threads of parallel_apply are outside of every region",
    caught_by="semantics/test_data_parallel.py::test_parallel_apply_takes_the_region_along[cuda-bf16-on",
    replaces="torch.nn.parallel.parallel_apply",
)
def parallel_apply_forgets_the_region(original: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.autocast("cuda", enabled=False):
        return original(*args, **kwargs)


@defect(
    "The autocast rule of a custom operator is never called",
    caught_by="semantics/test_custom_operator.py::test_a_rule_casts_the_arguments[cpu-bf16]",
)
def rules_of_operators_are_not_called() -> None:
    swap("torch._library.custom_ops.CustomOpDef", "register_autocast", lambda self, device_type, cast_inputs: self)
