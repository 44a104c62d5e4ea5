"""Every private torch API that the project uses, in one place.

A function whose API is missing from the installed torch raises ``PrivateApiGone`` with the name of the API, and
the check that needed it fails with that name. No check is skipped silently. A docstring names each exception to this.
"""

from __future__ import annotations

from pytest_amp.torch_private.calls import call_overload, decomposition_of
from pytest_amp.torch_private.casts import Cast, counted_casts
from pytest_amp.torch_private.collectives import Collective, recorded_collectives, small_first_bucket
from pytest_amp.torch_private.compiler import (
    Traced,
    aot_compile,
    aot_load,
    backward_without_region,
    compile_settings,
    compile_workers,
    compiled_graphs,
    compiles_itself,
    cpp_compiler,
    cuda_graph_trees,
    graph_breaks,
    numpy_draws_itself,
    random_as_eager,
    skipped_cuda_graphs,
    taken_apart,
    tracing_backend,
    vectors_are_tried,
)
from pytest_amp.torch_private.cudnn import backend_flags_settable, cudnn_deterministic, cudnn_enabled
from pytest_amp.torch_private.dispatcher import (
    arguments_of,
    autocast_device_types,
    autocast_registrations,
    cpu_has_onednn_kernels,
    defaults_of,
    find_overload,
    has_overload,
    mutates_arguments,
)
from pytest_amp.torch_private.exposed import memory_was_taken
from pytest_amp.torch_private.fake_tensors import (
    fake_tensor_mode,
    quiet_fake_tensors,
    shared_fake_tensor_mode,
    strict_fake_tensor_mode,
    under_fake_tensors,
)
from pytest_amp.torch_private.float32_settings import (
    read_float32_setting,
    readable_flags,
    write_cudnn_flag,
    write_float32_setting,
)
from pytest_amp.torch_private.gone import PrivateApiGone
from pytest_amp.torch_private.grad_scaler import found_infs, optimizer_stage, scales_its_own_step
from pytest_amp.torch_private.interception import Interception, intercepted_calls, without_interception
from pytest_amp.torch_private.kernel_times import kernel_times
from pytest_amp.torch_private.modes import each_call
from pytest_amp.torch_private.reads import counted_reads
from pytest_amp.torch_private.recording import Call, recorded_calls
from pytest_amp.torch_private.scaled import scaled_product
from pytest_amp.torch_private.statistics import updated_statistics
from pytest_amp.torch_private.storages import live_storages, storage_address
from pytest_amp.torch_private.tensor_hooks import copy_hooks
from pytest_amp.torch_private.trees import flat, unflat
from pytest_amp.torch_private.virtual import (
    Aliasing,
    Dispatched,
    aliasing_of,
    current_node,
    dispatched_calls,
    has_memory,
    is_random,
    number_of,
    result_kinds,
    returns_tensors,
    sequence_number,
    values_of,
    virtual_tensor,
    with_aliases,
    written_arguments,
)
from pytest_amp.torch_private.writes import writes_in_place, written_memory, written_tensors

__all__ = [
    "Aliasing",
    "Call",
    "Cast",
    "Collective",
    "Dispatched",
    "Interception",
    "PrivateApiGone",
    "Traced",
    "aliasing_of",
    "aot_compile",
    "aot_load",
    "arguments_of",
    "autocast_device_types",
    "autocast_registrations",
    "backend_flags_settable",
    "backward_without_region",
    "call_overload",
    "compile_settings",
    "compile_workers",
    "compiled_graphs",
    "compiles_itself",
    "copy_hooks",
    "counted_casts",
    "counted_reads",
    "cpp_compiler",
    "cpu_has_onednn_kernels",
    "cuda_graph_trees",
    "cudnn_deterministic",
    "cudnn_enabled",
    "current_node",
    "decomposition_of",
    "defaults_of",
    "dispatched_calls",
    "each_call",
    "fake_tensor_mode",
    "find_overload",
    "flat",
    "found_infs",
    "graph_breaks",
    "has_memory",
    "has_overload",
    "intercepted_calls",
    "is_random",
    "kernel_times",
    "live_storages",
    "memory_was_taken",
    "mutates_arguments",
    "number_of",
    "numpy_draws_itself",
    "optimizer_stage",
    "quiet_fake_tensors",
    "random_as_eager",
    "read_float32_setting",
    "readable_flags",
    "recorded_calls",
    "recorded_collectives",
    "result_kinds",
    "returns_tensors",
    "scaled_product",
    "scales_its_own_step",
    "sequence_number",
    "shared_fake_tensor_mode",
    "skipped_cuda_graphs",
    "small_first_bucket",
    "storage_address",
    "strict_fake_tensor_mode",
    "taken_apart",
    "tracing_backend",
    "under_fake_tensors",
    "unflat",
    "updated_statistics",
    "values_of",
    "vectors_are_tried",
    "virtual_tensor",
    "with_aliases",
    "without_interception",
    "write_cudnn_flag",
    "write_float32_setting",
    "writes_in_place",
    "written_arguments",
    "written_memory",
    "written_tensors",
]
