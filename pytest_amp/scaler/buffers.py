"""Buffers that an overflow leaves nonfinite: running statistics, which torch itself updates, and any other buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.numerics.errors import dense, is_inexact, real_parts, stored_values
from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.trace import Training
from pytest_amp.torch_private import updated_statistics

__tracebackhide__ = is_usage_error

_REPORT = "pytorch/pytorch#115500"
#: Maximum number of layers that a note names; the record has all of them.
_NAMED = 12
_LAYERS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)


def take_nonfinite(model: nn.Module) -> list[str]:
    """Return the names of nonfinite buffers and frozen parameters, and make them finite.

    So each iteration is judged separately.
    """
    names = []
    for name, buffer in _written(model):
        if is_inexact(buffer) and not bool(dense(buffer).isfinite().all()):
            names.append(name)
            real_parts(stored_values(buffer.detach())).nan_to_num_(0.0, 0.0, 0.0)
    return names


def _written(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return what a forward pass may write: buffers and frozen parameters, such as a codebook."""
    return [*model.named_buffers(), *(entry for entry in model.named_parameters() if not entry[1].requires_grad)]


def expect_buffers(training: Training, model: nn.Module, accepted: Iterable[str]) -> None:
    """Raise AmpUsageError for a name or a pattern that matches no buffer."""
    names = [name for name, _ in _written(model)]
    for pattern in accepted:
        if not any(_fits(name, pattern) for name in names):
            existing = ", ".join(names) or "none"
            raise AmpUsageError(
                f"nonfinite_buffers={pattern!r}, and {training.case.name} has no such buffer; it has {existing}"
            )


def check_buffers(
    training: Training,
    nonfinite: Mapping[str, Sequence[int]],
    accepted: Collection[str],
    *,
    run: Callable[[], Iteration],
    whole: bool,
) -> str | None:
    """Check that the test accepts every nonfinite buffer, by a name or a pattern. Raises AmpFailure.

    ``nonfinite`` maps the name of a buffer to the iterations that left it nonfinite. Running statistics need
    not be accepted if an overflow planted in a forward pass is the cause: a note names them, which is returned (None
    without them).
    ``run`` runs an iteration without overflow, to find the buffers that normalization updates. ``whole`` is False if no
    overflow was planted in a forward pass.
    """
    rest = [name for name in nonfinite if not any(_fits(name, pattern) for pattern in accepted)]
    planted = [name for name in rest if set(nonfinite[name]) <= set(training.overflow_activations_at)]
    updated = _statistics(run) if planted else set()
    statistics = [name for name in planted if name in updated]
    wrong = sorted(set(rest) - set(statistics))
    unused = [pattern for pattern in accepted if whole and not any(_fits(name, pattern) for name in nonfinite)]
    if wrong or unused:
        raise _failure(training, nonfinite, wrong, sorted(unused), sorted(accepted))
    return _note(training, statistics) if statistics else None


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def _statistics(run: Callable[[], Iteration]) -> set[str]:
    """Return the buffers that are running statistics: by their layer, or because normalization updates them."""
    with torch.compiler.set_stance("force_eager"), updated_statistics() as updated:
        model = run().model
    memory = {(tensor.device, tensor.data_ptr()) for tensor in updated}
    names = {name for name, buffer in model.named_buffers() if (buffer.device, buffer.data_ptr()) in memory}
    for path, module in model.named_modules():
        if isinstance(module, _LAYERS):
            names |= {f"{path}.{name}" if path else name for name in ("running_mean", "running_var")}
    return names


def _note(training: Training, statistics: Iterable[str]) -> str:
    layers = list(dict.fromkeys(name.rpartition(".")[0] or "the model itself" for name in statistics))
    more = f" and {len(layers) - _NAMED} more" if len(layers) > _NAMED else ""
    named = f"{', '.join(layers[:_NAMED])}{more}"
    return (
        f"{training.case.name}: the planted inf stays in the running statistics of {named}. torch updates them in the "
        f"forward pass, and a skipped step does not undo it ({_REPORT}): after a training step whose activations "
        "overflow, evaluation is not finite"
    )


def _failure(
    training: Training, nonfinite: Mapping[str, Sequence[int]], wrong: list[str], unused: list[str], accepted: list[str]
) -> AmpFailure:
    unexpected = [name for name in wrong if not set(nonfinite[name]) <= set(training.overflow_activations_at)]
    if unexpected:
        at = nonfinite[unexpected[0]][0]
        likely = f"an overflow of the model's own: none was planted in the forward pass of iteration {at}"
    elif wrong:
        likely = "the forward pass updates them, and skipping cannot undo it; they are not running statistics of torch"
    else:
        likely = "they stay finite now"
    frozen = {name for name, _ in training.case.realise(seed=training.seed).model.named_parameters()}
    kind = "frozen parameters" if frozen.issuperset(wrong) else "buffers"
    return AmpFailure(
        f"{training.case.name}: "
        + (
            f"an overflow is left in {kind}: {', '.join(wrong)}"
            if wrong
            else f"finite, and named in nonfinite_buffers: {', '.join(unused)}"
        ),
        label_before="rule",
        before="a skipped step leaves no buffer with an inf or NaN, except running statistics; named in "
        f"nonfinite_buffers: {accepted or 'none'}",
        now=f"not finite after an overflow in the forward pass: {sorted(nonfinite) or 'none'}",
        likely=likely,
        argument=f"nonfinite_buffers={wrong or sorted(nonfinite)} names them, or a pattern",
    )
