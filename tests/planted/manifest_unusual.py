"""Planted defects that only the unusual shows: scalars, late groups, large states, hooks, contexts, other arguments."""

from __future__ import annotations

from tests.planted.defect import Defect

_LIFE = "suites/scaler/test_life_of_parameters.py"
_ARGUMENTS = "suites/gradients/test_arguments.py"
_LAYERS = "suites/gradients/test_layer_arguments.py"
_HOOKS = "suites/gradients/test_hooks.py"
_OPTIONS = "suites/scaler/test_optimizer_options.py"
_BYSTANDERS = "suites/semantics/test_bystanders.py"

UNUSUAL = (
    Defect(
        "late_groups_stay_scaled",
        "groups that are added after a step",
        (_LIFE,),
        "test_a_group_that_is_added_later_counts[cpu-bf16-clean-step-loop]",
    ),
    Defect(
        "scalars_are_not_checked",
        "checking a scalar's gradient",
        (_LIFE,),
        "test_parameters_of_every_shape_count[cpu-bf16-()-inf-step-loop]",
    ),
    Defect(
        "updates_keep_the_last_stages",
        "forgetting an iteration at its update",
        (_LIFE,),
        "test_nothing_of_an_iteration_outlives_its_update[cpu-bf16]",
    ),
    Defect(
        "large_states_are_loaded_low",
        "the bits of a loaded state, whatever its size",
        (_LIFE,),
        "test_a_loaded_state_has_the_bits_of_the_saved_one[cpu-bf16-Adam, foreach-outside]",
    ),
    Defect(
        "late_hooks_see_rounded_gradients",
        "what hooks see of a sum",
        (_HOOKS,),
        "test_hooks_after_accumulation_see_the_whole_gradient[cpu-bf16]",
    ),
    Defect(
        "second_backward_is_halved",
        "a second backward pass",
        (_HOOKS,),
        "test_a_graph_that_is_used_twice_gives_its_gradients_twice[cpu-bf16-linear]",
    ),
    Defect(
        "strided_gradients_are_rounded",
        "gradients that are not contiguous",
        (_HOOKS,),
        "test_strided_gradients_are_as_exact_as_others[cpu-bf16-conv2d]",
    ),
    Defect(
        "profiling_leaves_the_region",
        "a region around a context",
        (_BYSTANDERS,),
        "test_a_context_leaves_the_region_alone[cpu-bf16-profile]",
    ),
    Defect(
        "layers_made_in_a_region_are_low",
        "models that are built in a region",
        (_BYSTANDERS,),
        "test_work_within_a_region_is_what_it_is_outside[cpu-bf16-Linear]",
    ),
    Defect(
        "batches_are_collated_low",
        "the bits of a batch",
        ("suites/semantics/test_moved.py",),
        "test_what_is_moved_keeps_its_bits[cpu-bf16-DataLoader-outside]",
    ),
    Defect(
        "channels_softmax_rounded",
        "softmax over any dimension",
        (_ARGUMENTS,),
        "test_operator_with_arguments[cpu-bf16-softmax of channels]",
    ),
    Defect(
        "masks_get_no_gradient",
        "the gradient of an attention mask",
        (_ARGUMENTS,),
        "test_operator_with_arguments[cpu-bf16-attention, a mask for each head]",
    ),
    Defect(
        "other_direction_reads_forward",
        "both directions of a recurrent layer",
        (_LAYERS,),
        "test_layer_with_arguments[cpu-bf16-GRU, both ways]",
    ),
    Defect(
        "other_direction_forgets_a_step",
        "gradients of both directions, by kernels for whole tiles",
        (_LAYERS, "-k", "tiles"),
        "test_layer_with_arguments[cpu-bf16-RNN, both ways, of whole tiles]",
    ),
    Defect(
        "weights_keep_the_padding",
        "a padding mask where weights are asked for",
        (_LAYERS,),
        "test_layer_with_arguments[cpu-bf16-attention, padded, weights]",
    ),
    Defect(
        "large_conversions_truncate",
        "conversions of any size",
        ("suites/formats/test_rounding.py",),
        "test_ties_and_their_neighbours[cpu-bf16-bf16-at the end]",
    ),
    Defect(
        "chunks_leave_the_region",
        "what calls functions for its user",
        ("suites/semantics/test_higher_order.py", "-k", "vmap"),
        "test_what_it_calls_is_in_the_region[cpu-bf16-vmap in chunks-on]",
    ),
    Defect(
        "clipping_knows_its_own_shard",
        "a norm over shards",
        ("suites/distributed/test_clipping.py", "-k", "FSDP2"),
        "test_clipping_is_by_the_norm_of_all_shards[cpu-bf16-2-FSDP2]",
    ),
    Defect(
        "whole_states_are_low",
        "the bits of a whole state dict",
        ("suites/distributed/test_clipping.py", "-k", "state"),
        "test_a_whole_state_dict_has_the_bits_of_the_shards[cpu-bf16-outside-FSDP2]",
    ),
    Defect(
        "maximising_steps_despite_inf",
        "found_inf with every option of an optimizer",
        (_OPTIONS, "-k", "fused"),
        "test_with_every_option_a_scaler_changes_nothing[cpu-bf16-AdamW, fused]",
    ),
    Defect(
        "adafactor_rounds_what_it_is_given",
        "every bit of what an optimizer is given",
        (_OPTIONS, "-k", "Adafactor"),
        "test_the_last_bits_of_a_gradient_count[cpu-bf16-Adafactor, loop]",
    ),
    Defect(
        "weights_that_decay_decay_low",
        "steps as exact as float32, with every option",
        (_OPTIONS, "-k", "Adam"),
        "test_steps_are_those_in_float64[cpu-bf16-Adam, loop]",
    ),
    Defect(
        "total_norms_are_low",
        "the norm by which gradients are clipped, by either name",
        ("suites/scaler/test_clipping.py", "-k", "norm"),
        "test_the_norm_is_a_float32_norm[cpu-bf16-2-loop-get_total_norm]",
    ),
    Defect(
        "infs_are_missed_without_gradients",
        "steps within other contexts",
        ("suites/scaler/test_overflow.py", "-k", "around"),
        "test_what_is_around_a_step_is_nothing_to_it[cpu-bf16-no_grad-step]",
    ),
    Defect(
        "mutations_leave_the_region",
        "a region around any context",
        (_BYSTANDERS, "-k", "context"),
        "test_a_context_leaves_the_region_alone[cpu-bf16-allow_mutation_on_saved_tensors]",
    ),
    Defect(
        "copied_regions_are_plain",
        "copies of a region",
        ("suites/semantics/test_region_class.py", "-k", "copy"),
        "test_a_copy_is_the_region_that_it_was_made_of[cpu-bf16-deepcopy-no cache]",
    ),
    Defect(
        "layouts_of_weights_are_forgotten",
        "the memory format that a weight asks for",
        ("suites/semantics/test_tensor_kinds.py", "-k", "memory_format"),
        "test_the_memory_format_is_that_of_casts_by_hand[cpu-bf16-conv, weight channels last-contiguous]",
    ),
    Defect(
        "threads_go_back_rounded",
        "gradients, whoever asks for them",
        ("suites/semantics/test_backward.py", "-k", "asks"),
        "test_gradients_do_not_depend_on_who_asks[cpu-bf16-a thread]",
    ),
    Defect(
        "groups_at_rest_hide_infs",
        "groups that do not move yet",
        ("suites/scaler/test_optimizer_inputs.py", "-k", "any_group"),
        "test_a_bad_gradient_in_any_group_skips_all[cpu-bf16-last group-inf-loop]",
    ),
    Defect(
        "dtypes_of_regions_are_constants",
        "the dtype of a region that names none",
        ("suites/semantics/test_region_class.py", "-k", "without"),
        "test_without_a_dtype_it_has_the_current_one[cpu-bf16-fp16-a setter]",
    ),
    Defect(
        "views_of_weights_are_cached",
        "what the cast cache takes in",
        ("suites/semantics/test_cast_cache.py", "-k", "computed"),
        "test_a_computed_weight_is_never_cached[cpu-bf16-view]",
    ),
    Defect(
        "decorated_functions_cache_always",
        "what a decorator was told",
        ("suites/semantics/test_region_class.py", "-k", "decorator"),
        "test_its_decorator_is_a_region[cpu-bf16-no cache]",
    ),
)
