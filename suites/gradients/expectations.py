"""Expectations of the tests: dtypes of the zoo's modules, and distances from float64."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case
from pytest_amp.devices.generators import seed_torch
from pytest_amp.failure import AmpFailure
from pytest_amp.rules.spec import RuleName, expected


def module_dtypes(case: Case, device_type: str, low: torch.dtype) -> dict[str, torch.dtype]:
    """Return the output dtype of each module of ``case`` under autocast: autocast's, float32, or a rule's own."""
    rules = expected(device_type, torch.__version__)
    float32 = torch.float32

    def after(operator: str, otherwise: torch.dtype) -> torch.dtype:
        """Return the dtype of an operator's result; ``otherwise`` is its dtype without a rule."""
        rule = rules.get(operator)
        if rule is None:
            return otherwise
        if rule.name is RuleName.LOWER_PRECISION_FP:
            return low if rule.dtype is None else getattr(torch, rule.dtype)
        return float32

    if case.name == "mlp":
        norm = after("aten::layer_norm", low)
        return {"0": low, "1": low, "2": low, "3": norm, "4": norm, "5": low, "": low}
    if case.name == "cnn":
        norm = after("aten::batch_norm", low)
        return {"0": low, "1": norm, "3": norm, "4": low, "5": norm, "8": norm, "9": low, "": low}
    if case.name == "lstm":
        layer = "aten::mkldnn_rnn_layer" if device_type == "cpu" else "aten::_cudnn_rnn"
        return {"head": low, "": low, **({"lstm": after(layer, low)} if layer in rules else {})}
    block = {
        "norm1": float32,
        "attention.qkv": low,
        "attention.out": low,
        "norm2": float32,
        "up": low,
        "down": low,
        "": float32,
    }
    blocks = {f"blocks.{i}.{name}".rstrip("."): dtype for i in range(2) for name, dtype in block.items()}
    return {"embedding": float32, **blocks, "norm": float32, "head": low, "": low}


def expect_near(  # noqa: PLR0913  # the parts of a failure
    amp: SuiteAmp,
    what: str,
    errors: Mapping[str, float],
    limits: Mapping[str, float],
    *,
    over_seeds: Mapping[str, tuple[float, ...]],
    measure: Callable[[], Mapping[str, float]],
    dtypes: Mapping[str, torch.dtype],
    exact: str,
    before: str,
    likely: str,
) -> None:
    """Observe the relative L2 ``errors`` of a result and its gradients, and compare the worst with its limit.

    ``what`` is ``family of names.name``; ``over_seeds`` has the errors of other seeds, in the form of
    ``amp.over_seeds``; ``exact`` and ``before`` describe the reference of the errors. ``measure`` returns the errors of
    other values: atomic additions and sums that cancel may exceed a limit by chance, and the median of three draws
    decides.
    """
    for key, error in errors.items():
        again = over_seeds.get(key)
        amp.observe(f"{what}/{key}", error, kind="error", unit="relative L2", allowed=limits[key], over_seeds=again)
    worst = max(errors, key=lambda key: errors[key] / limits[key])
    if not errors[worst] > limits[worst]:
        return
    further = over_seeds.get(worst) or _of_other_seeds(amp, worst, measure)
    if statistics.median((errors[worst], *further)) > limits[worst]:
        raise AmpFailure(
            f"{what.partition('.')[2]}: {worst} differs from {exact} by {errors[worst]:.3g} under "
            f"autocast({amp.device.key}, {amp.precision.dtype_name}), more than the allowed {limits[worst]:.3g}",
            label_before="exact",
            before=before,
            now=f"{dtypes[worst]}, torch {torch.__version__}, {amp.device.describe()}",
            likely=likely,
        )


def _of_other_seeds(amp: SuiteAmp, key: str, measure: Callable[[], Mapping[str, float]]) -> list[float]:
    """Return the errors of the next two seeds, which a run that is neither recorded nor compared has not measured."""
    errors = []
    for seed in (amp.config.seed + 1, amp.config.seed + 2):
        seed_torch(seed)
        errors.append(measure()[key])
    return errors
