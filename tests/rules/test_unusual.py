"""Unusual calls of an operator: each differs from its sample in the named respect, and in no other."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.rules.samples import Sample, samples
from pytest_amp.rules.spec import RuleName
from pytest_amp.rules.unusual import unusual
from pytest_amp.rules.variations import Variation

BF16, FP32 = torch.bfloat16, torch.float32
LOW = RuleName.LOWER_PRECISION_FP


def calls(
    overload: str, rule: RuleName, usual_samples: list[Sample] | None = None
) -> dict[str, tuple[Sample, Variation]]:
    """Return calls by name; a call that repeats in other dtypes has one entry for each."""
    actual = list(unusual(f"aten::{overload}", usual_samples or samples(f"aten::{overload}"), rule, BF16))
    named = {variation.name: (sample, variation) for sample, variation in actual}
    assert len(named) == len(actual)
    return named


def first(sample: Sample) -> torch.Tensor:
    tensor = sample.arguments[0]
    assert isinstance(tensor, torch.Tensor)
    return tensor


def test_calls_have_other_layouts_and_sizes() -> None:
    usual_samples = [Sample((torch.arange(12.0).view(3, 4), [0]))]
    actual = calls("sum.dim_IntList", RuleName.FP32, usual_samples)
    x, usual = (
        {name.removeprefix("bfloat16, "): first(sample) for name, (sample, _) in actual.items()},
        first(usual_samples[0]),
    )
    for name, stride in (("transposed", (1, 3)), ("strided", (8, 2))):
        assert torch.equal(x[name], usual)
        assert x[name].stride() == stride
    assert x["scalars"].shape == ()
    assert x["empty"].shape == (0, 4)
    assert x["large"].shape == (3 * 2**20, 4)
    assert (x["empty"].device.type, x["large"].device.type) == ("meta", "meta"), "they cost nothing"
    assert torch.equal(x["in inference mode"], usual)
    assert "channels last" not in x


def test_tensors_of_the_first_dimension_alone_are_resized() -> None:
    usual_samples = [Sample((torch.ones(3, 4), torch.ones(4, 5)))]
    sample, _ = calls("mm", LOW, usual_samples)["float32, large"]
    assert [tuple(x.shape) for x in sample.arguments] == [(3 * 2**20, 4), (4, 5)]
    usual_samples = [Sample((torch.ones(()), torch.ones(3), 1.0))]
    sample, _ = calls("add.Tensor", RuleName.PROMOTE, usual_samples)["bfloat16, then float32, empty"]
    assert [tuple(x.shape) for x in sample.arguments[:2]] == [(), (0,)]


def test_images_are_channels_last_in_the_first_sample_with_images() -> None:
    shapes = (((2, 3, 4), (5, 3, 2)), ((1, 2, 3, 4), (5, 2, 1, 2)), ((7, 2, 3, 4), (5, 2, 1, 2)))
    usual_samples = [Sample(tuple(torch.ones(shape) for shape in pair)) for pair in shapes]
    sample, _ = calls("conv2d", LOW, usual_samples)["float32, channels last"]
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in sample.arguments)
    assert [x.shape for x in sample.arguments] == [x.shape for x in usual_samples[1].arguments]


def test_dimensions_are_counted_from_the_end() -> None:
    x = torch.ones(2, 3, 4)
    actual = calls("sum.dim_IntList", RuleName.FP32, [Sample((x, [0, 2]))])
    assert actual["bfloat16, dim=[-3, -1]"][0].arguments[1] == [-3, -1]
    assert not any("dim=" in name for name in calls("softmax.int", RuleName.FP32, [Sample((x, -1))])), "it is already"
    sample, _ = calls("softmax.int", RuleName.FP32, [Sample((x, 1))])["bfloat16, dim=-2"]
    assert sample.arguments[1] == -2


def test_options_are_changed_alone_and_in_pairs() -> None:
    actual = calls("conv2d", LOW, [Sample((torch.ones(1, 2, 8, 8), torch.ones(2, 2, 3, 3)))])
    alone = ["stride=[2, 2]", "padding=[1, 1]", "dilation=[2, 2]", "groups=2"]
    for option in alone:
        name, _, _ = option.partition("=")
        for dtypes in ("float32", "bfloat16"):
            sample, variation = actual[f"{dtypes}, {option}"]
            assert sample.keywords.keys() == {name}
            assert variation.dtypes == (getattr(torch, dtypes),)
            assert variation.faked
    pairs = {name.removeprefix("float32, ") for name in actual if name.count("=") == 2}
    assert pairs == {f"{one}, {other}" for index, one in enumerate(alone) for other in alone[index + 1 :]}
    assert actual["float32, stride=[2, 2], groups=2"][0].keywords == {"stride": [2, 2], "groups": 2}


def test_passed_option_is_changed_in_its_place() -> None:
    usual_samples = [Sample((torch.ones(2, 3), [1], True), {"dtype": None})]
    sample, _ = calls("sum.dim_IntList", RuleName.FP32, usual_samples)["bfloat16, keepdim=False"]
    assert sample.arguments[2] is False
    assert sample.keywords == {"dtype": None}
    by_name = calls("sum.dim_IntList", RuleName.FP32, [Sample((torch.ones(2, 3), [1]), {"keepdim": True})])
    assert by_name["bfloat16, keepdim=False"][0].keywords == {"keepdim": False}
    assert "bfloat16, keepdim=True" not in by_name


def test_option_with_several_values_is_not_paired_with_itself() -> None:
    actual = calls("addcmul", RuleName.PROMOTE, [Sample((torch.ones(3),) * 3)])
    assert {name.rpartition(", ")[2] for name in actual if "=" in name} == {"value=1.5", "value=0"}
    assert not any(name.count("=") > 1 for name in actual)


def test_calls_have_every_other_reduction() -> None:
    actual = calls("mse_loss", RuleName.FP32, [Sample((torch.ones(3), torch.zeros(3)))])
    assert {name for name in actual if name.startswith("bfloat16, reduction")} == {
        "bfloat16, reduction=0",
        "bfloat16, reduction=2",
    }


@pytest.mark.parametrize(
    ("overload", "rule", "telling", "silent"),
    [
        ("baddbmm", LOW, (FP32,), (BF16,)),
        ("sum.dim_IntList", RuleName.FP32, (BF16,), (FP32,)),
        ("addcmul", RuleName.PROMOTE, (BF16, FP32), (BF16,)),
    ],
)
def test_calls_have_dtypes_with_and_without_a_cast(
    overload: str, rule: RuleName, telling: tuple[torch.dtype, ...], silent: tuple[torch.dtype, ...]
) -> None:
    actual = calls(overload, rule)
    dtypes = {variation.dtypes for name, (_, variation) in actual.items() if "=" in name}
    assert dtypes == {telling, silent}
    assert {variation.dtypes for name, (_, variation) in actual.items() if "=" not in name} == {telling}
    assert [variation.inference for _, variation in actual.values()] == [False] * (len(actual) - 1) + [True]
