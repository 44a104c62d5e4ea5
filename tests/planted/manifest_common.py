"""Planted defects of what is common: Python's numbers, several threads, derivatives of every dtype, decorators."""

from __future__ import annotations

from tests.planted.defect import Defect

_NUMBERS = "suites/formats/test_python_numbers.py"
_THREADS = "suites/gradients/test_several_threads.py"
_DERIVATIVES = "suites/gradients/test_derivatives.py"
_ARGUMENTS = "suites/gradients/test_arguments.py"
_BYSTANDERS = "suites/semantics/test_bystanders.py"

COMMON = (
    Defect(
        "lists_of_low_numbers_go_by_way_of_fp16",
        "reading low numbers back",
        (_NUMBERS,),
        "test_numbers_are_read_back_as_they_are[cpu-bf16]",
    ),
    Defect(
        "numbers_beside_low_tensors_are_rounded",
        "the bits of a number beside low ones",
        (_NUMBERS,),
        "test_a_number_beside_low_ones_keeps_its_bits[cpu-bf16-times]",
    ),
    Defect(
        "low_fills_truncate",
        "rounding a number into an element",
        (_NUMBERS,),
        "test_a_number_becomes_the_nearest_element[cpu-bf16-fill_]",
    ),
    Defect(
        "low_numbers_become_the_nearest_integers",
        "cutting off what follows the point",
        (_NUMBERS,),
        "test_low_numbers_become_others[cpu-bf16-int32]",
    ),
    Defect(
        "products_on_several_threads_add_up_low",
        "sums of products on several threads",
        (_THREADS,),
        "test_several_threads_compute_what_one_computes[cpu-bf16-bmm]",
    ),
    Defect(
        "layer_norm_on_several_threads_goes_back_rounded",
        "gradients on several threads",
        (_THREADS,),
        "test_several_threads_compute_what_one_computes[cpu-bf16-layer_norm of float32]",
    ),
    Defect(
        "reflected_pads_go_back_once",
        "a gradient in every dtype alike",
        (_DERIVATIVES,),
        "test_gradients_of_operators_are_derivatives[cpu-bf16-pad, reflect]",
    ),
    Defect(
        "distilled_targets_get_no_gradient",
        "the gradient of a loss's targets",
        (_DERIVATIVES,),
        "test_gradients_of_losses_are_derivatives[cpu-bf16-kl_div]",
    ),
    Defect(
        "hidden_states_get_half_their_gradient",
        "the gradient of a state",
        (_DERIVATIVES,),
        "test_gradients_of_layers_are_derivatives[cpu-bf16-GRU, from a state]",
    ),
    Defect(
        "second_derivatives_of_silu_miss_a_term",
        "second derivatives in every dtype alike",
        (_DERIVATIVES,),
        "test_derivatives_of_what_is_smooth[cpu-bf16-silu-2]",
    ),
    Defect(
        "empty_batches_leave_weights_alone",
        "gradients of an empty batch",
        ("suites/gradients/test_layers.py",),
        "test_an_empty_batch_gives_gradients_of_zeros[cpu-bf16-Linear]",
    ),
    Defect(
        "written_slices_get_rounded_gradients",
        "gradients of what is written into a slice",
        (_ARGUMENTS,),
        "test_operator_with_arguments[cpu-bf16-a slice is written]",
    ),
    Defect(
        "parts_that_are_not_used_get_gradients",
        "going back through a split",
        (_ARGUMENTS,),
        "test_operator_with_arguments[cpu-bf16-a part of a split]",
    ),
    Defect(
        "decorated_with_no_grad_leaves_the_region",
        "a region around a decorated function",
        (_BYSTANDERS,),
        "test_a_decorator_leaves_the_region_alone[cpu-bf16-no_grad]",
    ),
    Defect(
        "quantiles_of_a_region_are_rounded",
        "statistics within a region",
        (_BYSTANDERS,),
        "test_work_within_a_region_is_what_it_is_outside[cpu-bf16-quantile]",
    ),
    Defect(
        "loaded_scripts_leave_the_region",
        "a region around a loaded script",
        ("suites/semantics/test_tracing.py",),
        "test_a_script_follows_the_ambient_region[cpu-bf16-loaded module]",
    ),
    Defect(
        "old_decorators_take_the_default_dtype",
        "the dtype of the deprecated region as a decorator",
        ("suites/semantics/test_aliases.py",),
        "test_the_deprecated_region_decorates_with_its_own_state[cpu-bf16-enabled]",
    ),
    Defect(
        "last_outputs_of_checkpoints_get_nothing",
        "every output of a checkpoint",
        ("suites/semantics/test_checkpoint_kinds.py",),
        "test_a_block_of_several_outputs[cpu-bf16-reentrant]",
    ),
    Defect(
        "layouts_of_models_round_twice",
        "converting a model's dtype and layout at once",
        ("suites/semantics/test_moved.py",),
        "test_what_is_moved_keeps_its_bits[cpu-bf16-Module.to, channels_last-outside]",
    ),
)
