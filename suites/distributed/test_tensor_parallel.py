"""Tensor parallel layers under autocast: outputs, loss and gradients of two ranks are those of one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case
from pytest_amp.distributed import RankGroup

from . import ranks_tensor
from .expectations import expect_near_exact, expect_ranks_agree, expect_same, settings
from .models import CLASSES, HIDDEN, SIZE, WIDTH, batch, loss_in_one


class _Split(nn.Module):
    """Reference in one process that computes each product in two halves, and so rounds like tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm, first, _, second = self.layers
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        x = norm(x)
        halves = zip(first.weight.chunk(SIZE), first.bias.chunk(SIZE), second.weight.chunk(SIZE, 1), strict=True)
        biases = (second.bias, None)
        parts = [
            f.linear(f.gelu(f.linear(x, weight, bias)), back, last)
            for (weight, bias, back), last in zip(halves, biases, strict=True)
        ]
        return parts[0] + parts[1]


def _split() -> Case:
    return Case("tensor parallel", _Split, batch, loss_in_one)


@pytest.mark.parametrize("sequences", [False, True], ids=["whole rows", "sequence parallel"])
def test_gradients_and_loss_are_those_of_one_process(amp: SuiteAmp, ranks: RankGroup, *, sequences: bool) -> None:
    """Compare within the bound of the reference in halves; whole weights are gathered from shards."""
    subject = "sequence parallel" if sequences else "tensor parallel"
    answers = ranks.ask(ranks_tensor.step, settings(amp, sequences=sequences))
    expect_ranks_agree(amp, answers, "gradients", subject=subject)
    gradients = {f"layers.{name}": value for name, value in answers[0]["gradients"].items()}
    expect_near_exact(amp, _split(), gradients, loss=answers[0]["loss"], subject=subject)


def test_outputs_are_those_of_one_process(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Outputs are low-precision, the same on each rank, and within a rounding or two of the reference in halves."""
    answers = ranks.ask(ranks_tensor.step, settings(amp))
    assert {answer["output"] for answer in answers} == {amp.precision.dtype_name}
    assert torch.equal(answers[0]["logits"], answers[1]["logits"])
    instance = _split().realise(seed=amp.config.seed).on(amp.device.torch_device)
    with amp.autocast(), torch.no_grad():
        expected = instance.model(instance.batch["inputs"]).cpu().double()
    off = (answers[0]["logits"].double() - expected).abs().max()
    assert float(off) <= 4 * amp.precision.u * float(expected.abs().max())


def test_parts_are_added_up_in_the_dtype_of_the_region(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Forward reduces the low-precision output of the second layer; master weights and gradients are float32."""
    for answer in ranks.ask(ranks_tensor.step, settings(amp)):
        assert answer["sent"], "nothing was reduced"
        assert answer["sent"][0][1:] == [amp.precision.dtype_name]
        assert answer["parameters"] == ["float32"]
        assert {value.dtype for value in answer["gradients"].values()} == {torch.float32}
    amp.observe("tensor parallel/sent", [" ".join(call) for call in answer["sent"]], kind="dtype")


def test_a_training_keeps_float32(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Train some steps of AdamW: every rank has the same losses, and the retained state is float32."""
    answers = ranks.ask(ranks_tensor.train, settings(amp, only=True))
    expect_ranks_agree(amp, answers, "weights", subject="tensor parallel, training")
    for answer in answers:
        assert answer["kept"] == ["float32"]
        assert answer["losses"] == answers[0]["losses"]
        assert answer["losses"][-1] < answer["losses"][0]


def test_tables_have_the_bits_of_one_process(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Embeddings split by tokens or by columns, in a region, are float32; each value comes unrounded from one rank."""
    table = ranks_tensor.table()
    expected = {"outputs": table["weight"][table["words"]], "gradient": torch.zeros_like(table["weight"])}
    expected["gradient"][table["words"]] = table["factors"]
    for number, answer in enumerate(ranks.ask(ranks_tensor.embed, settings(amp))):
        for split, results in answer.items():
            expect_same(amp, results, expected, subject=f"a table split by {split} on rank {number}")
