"""--amp-seed."""

from __future__ import annotations

import pytest

from tests.project import Project, refused

TEST = """
import pytest
import torch


@pytest.mark.parametrize("n", [1, 2])
def test_it(amp, n):
    amp.observe(f"first number {n}", torch.rand(()).item(), kind="state")
    torch.manual_seed(torch.initial_seed() + 5)
"""


def numbers(project: Project, name: str, *arguments: str) -> set[float]:
    assert project.here("--amp-device=cpu", f"--amp-record={name}", *arguments).ret == 0
    return set(project.observed(name).values())


def test_each_test_starts_at_the_seed(project: Project) -> None:
    import torch

    project.write(test_it=TEST)
    expected = torch.rand((), generator=torch.Generator().manual_seed(0)).item()
    assert numbers(project, "default.json") == {expected}
    (other,) = numbers(project, "other.json", "--amp-seed=1")
    assert other != expected
    assert numbers(project, "backwards.json", "-k", "2") == {expected}
    assert project.record("other.json")["provenance"]["seed"] == 1


@pytest.mark.parametrize("value", ["-1", "one", "", "1.0", "1e3", "0x10", "9" * 19, "\u0661"])
def test_bad_value_is_refused(project: Project, value: str) -> None:
    line = refused(project.here(f"--amp-seed={value}"))
    assert (
        line == f"--amp-seed (command line): {value!r} is not a seed; expected an integer from 0, of at most 18 digits"
    )
