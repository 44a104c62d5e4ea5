"""Bisection over releases: the first different one is found, in few trials, even if some cannot be tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_amp.bisection import Answer, Standing, Trial, between, search, wheels_in
from pytest_amp.bisection.search import most_trials

NAMES = [f"2.{number}.0" for number in range(20)]


def _attempt(first: int, broken: frozenset[int], tried: list[str]) -> Callable[[str], Trial]:
    def attempt(release: str) -> Trial:
        tried.append(release)
        number = NAMES.index(release)
        if number in broken:
            return Trial(release, Standing.BROKEN)
        return Trial(release, Standing.DIFFERENT if number >= first else Standing.SAME)

    return attempt


@given(st.integers(2, 20), st.data())
def test_search_finds_the_first_different_release(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count - 1))
    tried: list[str] = []
    answer = search(NAMES[:count], _attempt(first, frozenset(), tried))
    assert answer == Answer(NAMES[first - 1], Trial(NAMES[first], Standing.DIFFERENT))
    assert len(tried) == len(set(tried)) <= most_trials(count) - 1  # the oldest is not tried


@given(st.integers(2, 12), st.data())
def test_search_lists_untried_releases_and_never_blames_them(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count - 1))
    broken = data.draw(st.frozensets(st.integers(1, count - 1).filter(lambda number: number != count - 1)))
    answer = search(NAMES[:count], _attempt(first, broken, []))
    assert answer.first is not None
    low, high = NAMES.index(answer.last_same), NAMES.index(answer.first.release)
    assert low < first <= high
    assert high not in broken
    assert [trial.release for trial in answer.untried] == NAMES[low + 1 : high]
    assert broken.issuperset(range(low + 1, high))


def test_search_needs_the_newest_release() -> None:
    assert search(NAMES[:4], _attempt(9, frozenset(), [])) == Answer("2.3.0", None)
    with pytest.raises(ValueError, match=r"torch 2\.3\.0 could not be tried"):
        search(NAMES[:4], _attempt(1, frozenset({3}), []))


LISTED = ["2.14.1", "2.14.0", "2.13.0+cpu", "2.13.0", "2.12.0rc1", "2.12.0", "2.9.1"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("2.9.1", "2.14.1", ["2.9.1", "2.12.0", "2.13.0", "2.14.0", "2.14.1"]),
        ("2.12.0rc1", "2.13.0", ["2.12.0rc1", "2.12.0", "2.13.0"]),
        ("2.12.0", "2.13.0+cpu", ["2.12.0", "2.13.0"]),
    ],
)
def test_between_lists_releases_in_order(old: str, new: str, expected: list[str]) -> None:
    assert between(old, new, LISTED) == expected


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2.13.0", "2.12.0", "2.13.0 is not older than 2.12.0"),
        ("nightly", "2.12.0", "'nightly' is not a release"),
        ("2.9.1", "2.12.5", r"there is no torch 2\.12\.5 here; expected 2\.9\.1, 2\.12\.0"),
    ],
)
def test_between_refuses_unknown_releases(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        between(old, new, LISTED)


def test_wheels_in_a_folder_are_listed_by_version(tmp_path: Path) -> None:
    names = ("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "torch-2.9.1-cp311-cp311-linux_x86_64.whl", "torch-x.whl")
    for name in (*names, "torch-2.9.1-cp312-cp312-linux_x86_64.whl", "torchvision-0.1-py3-none-any.whl"):
        (tmp_path / name).touch()
    assert wheels_in(tmp_path) == ["2.9.1", "2.13.0+cpu"]
