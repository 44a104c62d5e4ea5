"""Planted defects that turn a right model or step into one with a finding, or hide a wrong one from the linter."""

from __future__ import annotations

from tests.planted.defect import Defect

_ARITHMETIC = "tests/lint/test_arithmetic.py"
_CASTS = "tests/lint/test_casts.py"
_REGIONS = "tests/lint/test_regions.py"
_STATE = "tests/lint/test_state.py"

LINT = (
    Defect(
        "regions_are_never_entered",
        "entering a region",
        (_REGIONS,),
        "test_right_step_yields_no_finding[usual_step-bf16]",
    ),
    Defect(
        "float_keeps_low_values",
        "widening by float()",
        (_ARITHMETIC,),
        "test_right_form_yields_no_finding[layer norm-bf16]",
    ),
    Defect(
        "cross_entropy_returns_its_logits_dtype",
        "the dtype of a loss",
        (_ARITHMETIC,),
        "test_losses_of_torch_yield_no_finding",
    ),
    Defect(
        "sgd_keeps_its_momentum_low",
        "the optimizer's state in float32",
        (_STATE,),
        "test_other_optimizers_yield_no_finding[SGD-bf16]",
    ),
    Defect(
        "function_modes_are_blind",
        "the functions that a mode is told of",
        (_CASTS,),
        "test_cast_of_the_input_is_found[half-bf16]",
    ),
)
