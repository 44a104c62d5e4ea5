"""Planted defects that only the unusual shows: scalars, late groups, large states, hooks, contexts, other arguments."""

from __future__ import annotations

from tests.planted.defect import Defect

_LIFE = "suites/scaler/test_life_of_parameters.py"

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
)
