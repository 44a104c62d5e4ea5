"""Operations that move values keep their bits: collating, loading, saving, averaging, conversions of whole models."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import init
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from pytest_amp.amp import SuiteAmp

from ..semantics.models import drawn, state_of, statistic


def _stack(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    models = [nn.Linear(8, 8).to(amp.device.torch_device) for _ in range(2)]
    result: Any = torch.func.stack_module_state(models)
    return [result[0]["weight"].detach()], [torch.stack([model.weight.detach() for model in models])]


def _load_batches(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    rows = drawn(amp, 8, 8)
    return [row for (row,) in DataLoader(TensorDataset(rows), batch_size=8)], [rows]


def _collate(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    rows = drawn(amp, 8, 8)
    actual = default_collate([{"x": row, "number": row[0].item()} for row in rows])
    return [actual["x"], actual["number"]], [rows, rows[:, 0].cpu().double()]


def _with_buffers(amp: SuiteAmp) -> nn.Module:
    """Return parameters, buffers and a counter, with values that no low dtype represents."""
    norm = nn.BatchNorm1d(20)
    for tensor in (norm.weight, norm.bias, statistic(norm.running_mean), statistic(norm.running_var)):
        init.uniform_(tensor)
    return nn.Sequential(nn.Linear(20, 20), norm).to(amp.device.torch_device)


def _convert_dtype(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    """Convert buffers with the parameters, but not the counter."""
    model = _with_buffers(amp)
    float32 = state_of(model)
    return state_of(model.to(amp.dtype)), [x.to(amp.dtype) if x.is_floating_point() else x for x in float32]


def _convert_by_half(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    model = _with_buffers(amp)
    float32, low = state_of(model), model.half() if amp.dtype is torch.float16 else model.bfloat16()
    return state_of(low), [x.to(amp.dtype) if x.is_floating_point() else x for x in float32]


def _convert_layout(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    """Convert dtype and memory format at once."""
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)).to(amp.device.torch_device)
    expected = [x.to(amp.dtype) if x.is_floating_point() else x for x in state_of(model)]
    convert: Any = model.to  # its annotations allow a dtype or a memory format, not both
    return state_of(convert(dtype=amp.dtype, memory_format=torch.channels_last)), expected


def _swap(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    """Swap the weights of two models, as in-place conversions do."""
    one, other = (nn.Linear(20, 20).to(amp.device.torch_device) for _ in range(2))
    expected = state_of(other)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.utils.swap_tensors(a, b)
    return state_of(one), expected


def _average_buffers(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    """Copy the buffers of an averaged model from the model of its last update."""
    average, last = AveragedModel(_with_buffers(amp)), _with_buffers(amp)
    for model in (_with_buffers(amp), last):
        average.update_parameters(model)
    return [x.clone() for x in average.module.buffers()], [x.clone() for x in last.buffers()]


def _load_low_precision(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    """Load low-precision values into float32 parameters, which stay float32."""
    model, low = _with_buffers(amp), {name: x.to(amp.dtype) for name, x in _with_buffers(amp).state_dict().items()}
    expected = [x.to(result.dtype) for x, result in zip(low.values(), state_of(model), strict=True)]
    model.load_state_dict(low)
    return state_of(model), expected


def _load_optimizer_state(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    """Load moments and the step count of a long training."""
    weight = nn.Parameter(drawn(amp, 8, 8))
    saved = {"step": torch.tensor(70_001.0), "exp_avg": drawn(amp, 8, 8), "exp_avg_sq": drawn(amp, 8, 8).square()}
    optimizer = torch.optim.AdamW([weight])
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: copy.deepcopy(saved)}})
    return [optimizer.state[weight][name] for name in saved], list(saved.values())


def _save_and_load(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    """Save and load more than a page, of both dtypes."""
    float32 = drawn(amp, 100, 200)
    file = io.BytesIO()
    torch.save({"wide": float32, "low": float32.to(amp.dtype)}, file)
    file.seek(0)
    actual = torch.load(file, weights_only=True)
    return [actual["wide"], actual["low"]], [float32, float32.to(amp.dtype)]


def _load_state(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    model, other = (nn.Linear(100, 200).to(amp.device.torch_device) for _ in range(2))
    model.load_state_dict(other.state_dict())
    return state_of(model), state_of(other)


def _update_statistics(amp: SuiteAmp) -> tuple[list[Tensor], list[Tensor]]:
    """Average over all batches by ``update_bn``: two equal batches have the mean of one."""
    batch = drawn(amp, 16, 80)
    actual = []
    for count in (2, 1):
        model = nn.BatchNorm1d(80, momentum=1.0).to(amp.device.torch_device)
        if count == 2:
            update_bn([batch] * count, model)
        else:
            model(batch)
        actual.append([statistic(model.running_mean), statistic(model.running_var)])
    return actual[0], actual[1]


#: Operations that move or average values: actual and expected results.
MOVED: dict[str, Callable[[SuiteAmp], tuple[list[Tensor], list[Tensor]]]] = {
    "stack_module_state": _stack,
    "DataLoader": _load_batches,
    "default_collate": _collate,
    "Module.to": _convert_dtype,
    "half or bfloat16": _convert_by_half,
    "Module.to, channels_last": _convert_layout,
    "swap_tensors": _swap,
    "save and load": _save_and_load,
    "load_state_dict": _load_state,
    "load_state_dict of low numbers": _load_low_precision,
    "load_state_dict of an optimizer": _load_optimizer_state,
    "AveragedModel": _average_buffers,
    "update_bn": _update_statistics,
}


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "in a region"])
@pytest.mark.parametrize("by", MOVED)
def test_what_is_moved_keeps_its_bits(amp: SuiteAmp, by: str, *, inside: bool) -> None:
    with torch.no_grad(), amp.autocast(enabled=inside):
        actual, expected = MOVED[by](amp)
    assert [x.dtype for x in actual] == [x.dtype for x in expected]
    different = [index for index, (a, b) in enumerate(zip(actual, expected, strict=True)) if not torch.equal(a, b)]
    assert not different, f"{by} changes tensors: {different}"
