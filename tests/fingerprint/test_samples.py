"""Choice of samples: one of each kind of arguments, few that differ in values alone."""

from __future__ import annotations

import torch

from pytest_amp.fingerprint.samples import chosen
from pytest_amp.torch_private.testing import ModuleSample, Sample


def _sample(*args: object, **kwargs: object) -> Sample:
    return Sample(args, kwargs)


def test_samples_that_differ_in_size_alone_are_one_kind() -> None:
    samples = [_sample(torch.ones(size, size)) for size in (2, 3, 5)]
    assert chosen(samples, 10) == samples[:1]


def test_samples_that_may_differ_in_dtype_are_all_chosen() -> None:
    x = torch.ones(2, 2)
    samples = [
        _sample(x),
        _sample(x.double()),
        _sample(x, dtype=None),
        _sample(x, dtype=torch.float64),
        _sample(x, True),  # noqa: FBT003
        _sample(x, "mean"),
        _sample(torch.ones(0, 2)),
        _sample(torch.ones(2)),
        _sample(torch.ones(2, 3)),
        _sample([x, x.double()]),
    ]
    assert chosen(samples, 20) == samples


def test_samples_of_different_kinds_are_chosen_first() -> None:
    x = torch.ones(2)
    samples = [*(_sample(x, number) for number in range(6)), _sample(x, "last")]
    assert chosen(samples, 3) == [samples[0], samples[1], samples[-1]]
    assert chosen(samples, 20) == samples


def test_constructor_arguments_of_a_module_make_a_kind() -> None:
    forward = _sample(torch.ones(2))
    samples = [ModuleSample(_sample(bias=bias), forward) for bias in (True, True, False)]
    assert chosen(samples, 5) == [samples[0], samples[2]]
