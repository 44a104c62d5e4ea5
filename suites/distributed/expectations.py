"""Comparison of ranks with one process: bit for bit, or within the bound of the rounding oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case
from pytest_amp.data_files.releases import release_of
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import predict, relative_error
from pytest_amp.numerics.tolerance import CERTAIN, LEAST, allowed
from pytest_amp.precision import dtype_name

from .models import Tensors


def needs_streams(amp: SuiteAmp) -> None:
    """Skip on a CPU if torch lacks the stream events or the averaging reduce-scatter that FSDP2 requires."""
    if amp.device.type != "cpu":
        return
    if not hasattr(torch.cpu.Stream(), "record_event"):
        pytest.skip(f"torch {torch.__version__} has no FSDP2 on a CPU: its streams have no events")
    if release_of(torch.__version__) < (2, 9):  # wrong on 2.7.1 and 2.8.0, correct on 2.9.1
        pytest.skip("pytorch/pytorch#162338: FSDP2 on a CPU adds gradients up: gloo's reduce-scatter does not average")


def settings(amp: SuiteAmp, **more: Any) -> dict[str, Any]:
    """Return the settings that every function on a rank receives."""
    return {"seed": amp.config.seed, "dtype": amp.precision.dtype_name, **more}


def expect_ranks_agree(amp: SuiteAmp, answers: list[Mapping[str, Tensors]], key: str, *, subject: str) -> None:
    """Raise AmpFailure unless every rank has the same bits."""
    first = answers[0][key]
    for number, answer in enumerate(answers[1:], start=1):
        unlike = [name for name in first if not _same(answer[key].get(name), first[name])]
        if unlike:
            raise AmpFailure(
                f"{subject}: rank {number} differs from rank 0 in {key} on {amp.target.id}: {', '.join(unlike[:4])}",
                label_before="rule",
                before="after the reduction every rank has the same bits",
                now=f"largest difference {_difference(answer[key].get(unlike[0]), first[unlike[0]])}",
                likely="one rank did not take part in a reduction, or rounded, skipped or cast by itself",
            )


def expect_same(amp: SuiteAmp, actual: Tensors, expected: Tensors, *, subject: str, least: float = 0.0) -> None:
    """Raise AmpFailure unless ``actual`` differs from manual casts in one process by at most ``least`` per element."""
    for name, value in expected.items():
        got = actual.get(name)
        if _same(got, value) or (got is not None and got.dtype is value.dtype and _far(got, value) <= least):
            continue
        raise AmpFailure(
            f"{subject}: {name} differs from the result of one process, on {amp.target.id}",
            label_before="manual",
            before=f"norm {float(value.float().norm()):.6g}, {dtype_name(value.dtype)}",
            now=f"largest difference {_difference(got, value)}" + ("" if got is None else f", {dtype_name(got.dtype)}"),
            likely="a sum, a division or a cast of the gradient differs, or a rank left it out",
        )


def _same(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    return a is not None and a.dtype is b.dtype and torch.equal(a.cpu(), b.cpu())


def _far(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.cpu().double() - b.cpu().double()).abs().max())


def _difference(a: torch.Tensor | None, b: torch.Tensor) -> str:
    return "unknown: it is missing" if a is None else f"{_far(a, b):.3g}"


def expect_near_exact(amp: SuiteAmp, case: Case, actual: Tensors, *, loss: float | None, subject: str) -> None:
    """Raise AmpFailure unless gradients and the loss are within the bound that the oracle predicts of one process.

    The bound is the noise of the whole batch in one process, times CERTAIN, since the ranks' parts round separately.
    A result that is much more exact than rounding allows fails, too: it would mean that nothing was rounded.
    """
    prediction = predict(case, case.realise(seed=amp.config.seed), amp.device, amp.precision, seed=amp.config.seed)
    exact, u = prediction.exact.named(), amp.precision.u
    values = {**actual, **({} if loss is None else {"output.loss": torch.tensor(loss)})}
    worst = 0.0
    for name, value in values.items():
        scale, noise = prediction.sizes[name], prediction.noise[name]
        error = relative_error(value.reshape(exact[name].shape), exact[name], scale=scale)
        limit = allowed(noise, value.numel(), u, CERTAIN) * amp.config.tolerance_scale
        worst = max(worst, error / limit)
        too_exact = value.numel() >= 64 and noise > u / 8 and error < LEAST / 2 * noise / amp.config.tolerance_scale
        if error > limit or too_exact:
            raise AmpFailure(
                f"{subject}: {name} has an error of {error:.3g} on {amp.target.id}, "
                + (f"more than the allowed {limit:.3g}" if error > limit else "less than rounding causes"),
                label_before="exact",
                before=f"relative L2 distance from float64 in one process; {prediction.whose} make {noise:.3g}",
                now=f"{error:.3g} on {amp.device.describe()}",
                likely="a reduction rounds, a part is lost or counted twice" if error > limit else "autocast was off",
            )
    amp.observe(f"{subject}/error over allowed", worst, kind="ratio", allowed=1.0)
