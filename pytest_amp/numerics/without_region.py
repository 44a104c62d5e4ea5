"""Replace a case that runs only inside an autocast region by one that runs without autocast."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pytest_amp.cases import Case, in_one_line
from pytest_amp.failure import AmpUsageError, is_usage_error
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.manual_cast_mode import rules_are_known
from pytest_amp.numerics.step import Region, does_not_run, run_step
from pytest_amp.numerics.widened import widened

__tracebackhide__ = is_usage_error


@dataclass(frozen=True)
class Plain:
    """Case that runs without autocast, or None if there is none and manual casts are the only reference.

    ``note`` describes the replacement; it is None for the original case.
    """

    case: Case | None
    note: str | None = None


def without_region(case: Case, conditions: Conditions) -> Plain:
    """Return the case that runs without autocast in place of ``case``: itself, its ``widened`` copy, or none.

    A frozen bf16 layer with float32 activations, for example, runs only inside a region. Raises DoesNotRun, with the
    case's own exception, if it does not run under autocast, either, or if no manual casts are known.
    """
    error = _refusal(case, conditions, contextlib.nullcontext)
    if error is None:
        return Plain(case)
    # Construct the failure only where it is raised: one that is never raised would remain on record.
    if _refusal(case, conditions, conditions.region) is not None:
        raise does_not_run(case, error)
    refused = f"{case.name} does not run in float32, without autocast: {in_one_line(error)}"
    copy = widened(case)
    if _refusal(copy, conditions, contextlib.nullcontext) is None:
        return Plain(copy, f"{refused}; compared with a copy whose low-precision tensors are float32")
    if not rules_are_known(conditions.device.type):
        raise does_not_run(case, error)
    return Plain(None, f"{refused}; compared with manual casts")


def _refusal(case: Case, conditions: Conditions, region: Region) -> Exception | None:
    """Return the exception that a step of the case raises inside ``region``; None if it runs."""
    realised = case.realise(seed=conditions.seed).on(conditions.device.torch_device)
    try:
        run_step(case, realised, region, seed=conditions.seed)
    except AmpUsageError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a model raises
        return error
    return None
