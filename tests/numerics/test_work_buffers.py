"""Results without values, and kernels that depend on the layout, as found in real models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.predicted import trace
from pytest_amp.precision import BF16, FP16, Precision
from tests.numerics.planted import broken
from tests.numerics.test_check_gradients import run

pytestmark = pytest.mark.usefixtures("one_thread")

PRECISIONS = pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)


def ragged() -> Case:
    """Return rows of several lengths: beyond a row's own, ``_ctc_loss`` leaves its second result unwritten."""
    frames, letters = torch.tensor([20, 18, 15]), torch.tensor([6, 5, 4])

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return f.ctc_loss(model(batch["x"]).log_softmax(2), batch["y"], frames, letters)

    def batch() -> dict[str, Tensor]:
        return {"x": torch.randn(20, 3, 10), "y": torch.randint(1, 12, (3, 6))}

    return Case("ragged", lambda: nn.Linear(10, 12), batch, loss)


@PRECISIONS
def test_unwritten_part_of_a_result_is_not_compared(precision: Precision) -> None:
    memory = [torch.full((3, 40, 40), 1e9) for _ in range(8)]  # as freed memory may contain
    del memory
    run(ragged(), precision=precision)


def test_wrong_ctc_loss_is_red() -> None:
    def scaled(original: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return original(*args, **kwargs) * 1.01  # type: ignore[operator]

    with pytest.raises(AmpFailure):
        run(ragged(), device=broken("ctc_loss", scaled))


class Transposed(nn.Module):
    """BatchNorm over a tensor without a standard memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.norm(self.first(x).mT).mT
        return self.last(hidden)  # type: ignore[no-any-return]


@PRECISIONS
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_a_transposed_tensor_rounds_each_step(precision: Precision, training: bool) -> None:  # noqa: FBT001
    case = Case(
        "transposed",
        lambda: Transposed().train(training),
        lambda: torch.randn(2, 33, 16),
        lambda model, x: model(x).float().square().mean(),
    )
    run(case, precision=precision)
    share = trace(case, Conditions(find_device("cpu"), precision)).signatures()["native_batch_norm_backward/backward"]
    assert share > (0.99 if precision is BF16 else 0.8)  # one rounding of all is a half
