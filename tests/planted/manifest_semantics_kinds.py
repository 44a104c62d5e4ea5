"""Planted defects in what is around autocast: threads, transforms, traces, kinds of tensors, variants of operators."""

from __future__ import annotations

from tests.planted.defect import Defect


def _suite(module: str, breaks: str, file: str, test: str, case: str = "") -> Defect:
    """A defect that ``test`` in ``file`` has to notice, in the case that ``case`` begins with."""
    path = f"suites/{file}.py::{test}"
    return Defect(module, breaks, (path,), f"{test}[cpu-bf16{case}")


def _on_xpu(module: str, breaks: str, test: str, case: str = "") -> Defect:
    """A defect of a fake back end."""
    path = f"suites/semantics/test_on_fakes.py::{test}"
    return Defect(module, breaks, (path, "--amp-device=fake:xpu"), f"{test}[fake-xpu-bf16{case}")


SEMANTICS_KINDS = (
    _suite(
        "grad_switches_clear_the_cache",
        "the cast cache, where gradients are switched",
        "semantics/test_cast_cache",
        "test_switching_gradients_leaves_the_cache",
        "-set_grad_enabled",
    ),
    _suite(
        "sparse_products_are_rounded",
        "values of products of sparse matrices",
        "semantics/test_tensor_kinds",
        "test_products_of_sparse_matrices",
        "-mm-coo",
    ),
    Defect(
        "mtia_keeps_its_dtype",
        "what torch.autocast restores, on every device type",
        ("suites/semantics/test_region_class.py", "--amp-device=fake:mtia"),
        "test_it_sets_the_state_and_restores_it[fake-mtia-bf16-leaves-plain]",
    ),
    _suite(
        "convolution_copies_without_history",
        "the history of a cached copy, for one operator",
        "semantics/test_cache_history",
        "test_a_use_without_gradients_costs_no_gradient",
        "-conv2d-no_grad",
    ),
    _suite(
        "linear_keeps_old_weights",
        "a copy that is dropped with its region",
        "semantics/test_cache_history",
        "test_an_update_between_regions_is_seen",
        "-linear-no_grad",
    ),
    _suite(
        "linear_keeps_its_float32_input",
        "what is kept for backward",
        "semantics/test_cache_memory",
        "test_what_is_kept_for_backward_is_what_casts_by_hand_keep",
        "-linear",
    ),
    _suite(
        "thread_pools_inherit_region",
        "work for a pool",
        "semantics/test_threads",
        "test_work_for_another_thread_is_not_in_the_region",
        "-ThreadPoolExecutor.submit",
    ),
    _suite(
        "loaders_switch_autocast_off",
        "a region around a DataLoader",
        "semantics/test_threads",
        "test_a_loader_in_this_process_loads_in_the_region",
    ),
    _suite(
        "exit_in_a_thread_sets_dtype",
        "what an exit restores in a thread",
        "semantics/test_random_programs",
        "test_random_programs_agree_with_the_model",
    ),
    _suite(
        "regions_off_on_meta",
        "a region under a default device",
        "semantics/test_defaults",
        "test_a_region_under_a_default_device",
        "-device outside-meta",
    ),
    _suite(
        "decorator_takes_keywords",
        "a decorated function's keywords",
        "semantics/test_decorator",
        "test_arguments_are_the_functions_own",
    ),
    _suite(
        "forward_mode_outside_the_region",
        "the region around torch.func",
        "semantics/test_func",
        "test_transforms_keep_the_region",
        "-jvp-around",
    ),
    _suite(
        "scripts_leave_the_region",
        "the region around a script",
        "semantics/test_tracing",
        "test_a_script_follows_the_ambient_region",
        "-function",
    ),
    _suite(
        "make_fx_forgets_casts",
        "casts in a trace",
        "semantics/test_tracing",
        "test_make_fx_records_the_casts",
        "-around",
    ),
    _suite(
        "export_leaves_the_region",
        "the region around torch.export",
        "semantics/test_tracing",
        "test_a_program_exported_in_a_region_is_recorded_in_its_dtype",
    ),
    _suite(
        "selective_checkpoint_forgets_region",
        "recomputing a selective checkpoint",
        "semantics/test_checkpoint_kinds",
        "test_selective_checkpoints_recompute_in_the_region",
        "-save nothing",
    ),
    _suite(
        "old_custom_fwd_does_nothing",
        "the deprecated custom_fwd",
        "semantics/test_custom_function_forms",
        "test_every_form_keeps_the_state_of_forward",
        "-as is-torch.cuda.amp",
    ),
    _suite(
        "subclasses_stay_wide",
        "tensor subclasses",
        "semantics/test_tensor_kinds",
        "test_subclasses_are_cast_as_tensors_are",
        "-mm-Named",
    ),
    _suite(
        "empty_batches_stay_wide",
        "an empty batch",
        "semantics/test_tensor_kinds",
        "test_products_of_nothing_and_of_rows_are_low",
        "-linear",
    ),
    _suite(
        "cat_of_one_is_low",
        "cat of one tensor",
        "semantics/test_tensor_kinds",
        "test_joining_any_number_of_float32_tensors_is_float32",
        "-0",
    ),
    _suite(
        "convolutions_answer_contiguous",
        "the memory format of a result",
        "semantics/test_tensor_kinds",
        "test_the_memory_format_is_that_of_casts_by_hand",
        "-conv-channels_last",
    ),
    _suite(
        "nested_tensors_stay_wide",
        "nested tensors",
        "semantics/test_tensor_kinds",
        "test_nested_tensors_are_cast",
        "-linear-strided",
    ),
    _suite(
        "softmax_rounded_without_graph",
        "results that do not depend on the grad mode",
        "semantics/test_defaults",
        "test_a_result_does_not_depend_on_the_grad_mode",
        "-softmax-float32",
    ),
    _suite(
        "module_hooks_leave_the_region",
        "the region of a module's hooks",
        "semantics/test_defaults",
        "test_hooks_of_modules_run_in_the_region",
    ),
    _suite(
        "dilated_convolutions_stay_wide",
        "an argument of a convolution",
        "rules/test_variants",
        "test_variants_are_cast_as_the_plain_product",
        "-conv2d dilation-grad",
    ),
    _suite(
        "attention_with_dropout_stays_wide",
        "attention with dropout",
        "rules/test_attention",
        "test_attention_is_cast",
        "-chosen-dropout-float32",
    ),
    _suite(
        "grouped_attention_forgets_scale",
        "an argument of attention",
        "rules/test_attention",
        "test_attention_is_cast",
        "-math-gqa, scale-float32",
    ),
    _suite(
        "cross_attention_leaves_the_region",
        "attention of other widths",
        "rules/test_attention",
        "test_multihead_attention_of_any_width_is_low",
        "-kdim-eval-fused",
    ),
    _suite(
        "packed_layers_leave_the_region",
        "a packed sequence",
        "rules/test_recurrent",
        "test_a_packed_sequence_is_computed_as_a_padded_one",
        "-RNN",
    ),
    _suite(
        "weight_norm_loses_its_length",
        "the gradient of a parametrized weight",
        "rules/test_low_inputs",
        "test_parametrized_weights_are_trained",
        "-weight_norm",
    ),
    _suite(
        "hardsigmoid_in_eight_bits",
        "the precision of an activation",
        "rules/test_low_inputs",
        "test_activations_of_low_inputs_are_rounded_once_or_twice",
        "-hardsigmoid-grad",
    ),
    _suite(
        "data_parallel_leaves_the_region",
        "a region around DataParallel",
        "semantics/test_data_parallel",
        "test_data_parallel_on_one_device_is_the_module",
    ),
    _on_xpu(
        "custom_fwd_asks_the_cpu",
        "whose region custom_fwd asks for",
        "test_custom_functions_see_the_region_of_their_device",
        "-on-float32",
    ),
    _on_xpu(
        "linear_casts_twice_on_xpu",
        "the number of casts on a fake device",
        "test_what_needs_no_gradient_is_cast_at_each_use",
        "-cache",
    ),
    _on_xpu(
        "rules_of_extensions_on_every_device",
        "whose region an extension's rule is for",
        "test_a_rule_of_an_extension_is_its_devices",
    ),
)


def _on_cuda(module: str, breaks: str, file: str, test: str, case: str = "") -> Defect:
    return Defect(module, breaks, (f"suites/{file}.py",), f"{test}[cuda-bf16{case}")


#: What only a GPU can be wrong about: planted there by tests/planted_on_device.py.
SEMANTICS_KINDS_ON_CUDA = (
    _on_cuda(
        "parallel_apply_forgets_the_region",
        "the region of torch's own threads",
        "semantics/test_data_parallel",
        "test_parallel_apply_takes_the_region_along",
        "-on",
    ),
    _on_cuda(
        "graphed_callables_take_the_cache",
        "refusing a cast cache in graphs",
        "semantics/test_graphs",
        "test_make_graphed_callables_refuses_the_cache",
    ),
    _on_cuda(
        "captures_take_older_casts",
        "casting weights at each replay",
        "semantics/test_graphs",
        "test_a_region_inside_a_capture_casts_at_each_replay",
        "-cache",
    ),
    _on_cuda(
        "cudnn_layers_are_left_alone",
        "the dtype of cuDNN's recurrent layers",
        "rules/test_recurrent",
        "test_recurrent_layers_answer_as_they_did",
        "-GRU-plain-padded",
    ),
)
