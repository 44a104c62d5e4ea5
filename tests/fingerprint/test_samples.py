"""Choice of samples: one of each kind of arguments, few that differ in values alone."""

from __future__ import annotations

import torch

from pytest_amp.fingerprint.samples import chosen
from pytest_amp.torch_private.testing import ModuleSample, Sample


def _sample(*args: object, **kwargs: object) -> Sample:
    return Sample(args, kwargs)


def test_sizes_alone_make_no_kind() -> None:
    samples = [_sample(torch.ones(size, size)) for size in (2, 3, 5)]
    assert chosen(samples, 10) == samples[:1]


def test_what_may_decide_on_a_dtype_does() -> None:
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


def test_kinds_come_before_numbers_and_all_of_it_in_order() -> None:
    x = torch.ones(2)
    samples = [*(_sample(x, number) for number in range(6)), _sample(x, "last")]
    assert chosen(samples, 3) == [samples[0], samples[1], samples[-1]]
    assert chosen(samples, 20) == samples


def test_a_modules_constructor_counts() -> None:
    forward = _sample(torch.ones(2))
    samples = [ModuleSample(_sample(bias=bias), forward) for bias in (True, True, False)]
    assert chosen(samples, 5) == [samples[0], samples[2]]
