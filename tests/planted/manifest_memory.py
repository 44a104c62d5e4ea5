"""Planted defects in what mixed precision costs: casts that come back, bytes that are kept, steps that leave more."""

from __future__ import annotations

from tests.planted.defect import Defect

MEMORY = (
    Defect(
        "weights_cast_at_each_use",
        "casting a weight once in a region",
        ("suites/memory/test_casts.py",),
        "test_a_layer_is_cast_as_often_as_counted_by_hand[cpu-bf16-a layer used eight times]",
    ),
    Defect(
        "gelu_keeps_float32",
        "keeping low activations for backward",
        ("suites/memory/test_saved.py",),
        "test_a_step_keeps_what_casts_by_hand_keep[cpu-bf16-decoder]",
    ),
    Defect(
        "steps_keep_their_losses",
        "holding no more after each step",
        ("suites/memory/test_saved.py",),
        "test_a_step_keeps_what_casts_by_hand_keep[cpu-bf16-mlp]",
    ),
    Defect(
        "linear_casts_to_and_fro",
        "casting the arguments of a product once",
        ("suites/memory/test_casts.py",),
        "test_a_step_makes_the_casts_of_its_rules[cpu-bf16-mlp]",
    ),
    Defect(
        "dropout_keeps_a_wide_mask",
        "keeping of dropout what its derivative needs",
        ("suites/memory/test_kept.py",),
        "test_an_operator_keeps_what_its_derivative_needs[cpu-bf16-dropout]",
    ),
    Defect(
        "cross_entropy_keeps_its_logits",
        "keeping of a loss what its derivative needs",
        ("suites/memory/test_kept.py",),
        "test_an_operator_keeps_what_its_derivative_needs[cpu-bf16-cross_entropy]",
    ),
    Defect(
        "backward_keeps_its_losses",
        "letting go of what backward was called on",
        ("suites/memory/test_trainings.py",),
        "test_a_training_keeps_nothing_of_its_steps[cpu-bf16-the method, micro-batches-plain]",
    ),
    Defect(
        "optimizers_keep_their_gradients",
        "letting go of the gradients of a step",
        ("suites/memory/test_trainings.py",),
        "test_optimizers_keep_no_gradients[cpu-bf16-SGD, loop]",
    ),
)
