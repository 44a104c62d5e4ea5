"""Count every copy between dtypes in one training step. Nothing is timed, so the counts are reproducible."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.memory.passes import Passes
from pytest_amp.numerics.callers import Author, author_of, short
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.step import Region
from pytest_amp.record import Observe
from pytest_amp.text.amounts import counted
from pytest_amp.text.table import as_table, in_bytes
from pytest_amp.torch_private import Cast, counted_casts

__tracebackhide__ = is_usage_error


@dataclass(frozen=True)
class Census:
    """Casts of one step in order of execution, separately for the forward and the backward pass."""

    forward: tuple[Cast, ...]
    backward: tuple[Cast, ...]

    @property
    def count(self) -> int:
        """The number of casts."""
        return len(self.forward) + len(self.backward)

    @property
    def bytes(self) -> int:
        """The number of bytes that the casts read and write."""
        return sum(cast.bytes for cast in (*self.forward, *self.backward))

    def __str__(self) -> str:
        """Return a table of the casts by tensor and dtypes, most bytes first."""
        rows = []
        for name, casts in (("forward", self.forward), ("backward", self.backward)):
            counts = Counter(casts)
            for cast, count in sorted(counts.items(), key=lambda row: -row[0].bytes * row[1]):
                what = f"{cast.source} to {cast.target}"
                rows.append((name, cast.of or "a tensor", what, str(count), in_bytes(cast.bytes * count)))
        return as_table(("pass", "of", "cast", "count", "bytes"), rows)


def census(passes: Passes, region: Region) -> Census:
    """Record the casts of one step whose forward pass is inside ``region``.

    A warm-up step runs first, since modules that torch imports at first use may run operators (torch 2.6's checkpoint).
    Raises PrivateApiGone if torch has no dispatch modes.
    """
    passes.backward(passes.forward(region))
    tensors = passes.own()  # referenced to the end, as the id of a buffer that the step replaces is used again
    names = {id(tensor): name for name, tensor in tensors.items()}
    with counted_casts(names) as casts:
        loss = passes.forward(region)
        forward = tuple(casts)
        passes.backward(loss)
    return Census(forward, tuple(casts[len(forward) :]))


def check_casts(case: Case, conditions: Conditions, observe: Observe, *, most: int | None = None) -> Census:
    """Compare the casts of a step with the casts that the rules require, with and without the weight cache.

    See ``Amp.check_casts``. Raises AmpFailure.
    """
    censuses = {}
    for cache in (True, False):
        passes = Passes(case, conditions)
        censuses[cache] = census(passes, passes.amp(cache=cache))
        _check_manual_casts(case, conditions, censuses[cache], cache=cache)
    with_cache = censuses[True]
    for cache, name in ((True, ""), (False, " without the cache")):
        census_of_cache, allowed = censuses[cache], most if cache else None
        observe(f"{case.name}/casts{name}", census_of_cache.count, kind="count", allowed=allowed)
        observe(f"{case.name}/casts forward{name}", len(census_of_cache.forward), kind="count")
        observe(f"{case.name}/bytes cast{name}", census_of_cache.bytes, kind="count", unit="bytes")
    if most is not None and with_cache.count > most:
        worst, times = _largest(with_cache)
        raise AmpFailure(
            f"{case.name} makes {counted(with_cache.count, 'cast')} in one step under {conditions}",
            label_before="allowed",
            before=counted(most, "cast"),
            now=conditions.now(
                f"{counted(with_cache.count, 'cast')}, {with_cache.bytes} bytes; most of them "
                f"{counted(times, 'time')} {worst}"
            ),
            likely="tensors are cast back and forth: a .float() in the forward pass, a region that is left early",
        )
    return with_cache


def _largest(census_of_step: Census) -> tuple[Cast, int]:
    """Return the kind of cast that moves the most bytes, and its count."""
    kinds = Counter((*census_of_step.forward, *census_of_step.backward))
    return max(kinds.items(), key=lambda row: row[0].bytes * row[1])


def _check_manual_casts(case: Case, conditions: Conditions, autocast: Census, *, cache: bool) -> None:
    """Check that autocast makes the same casts as the manual-cast reference, and each the same number of times."""
    passes = Passes(case, conditions)
    region = passes.manual_region(cache=cache)
    if region is None:
        return
    expected = census(passes, region)
    for name in ("forward", "backward"):
        actual, expected_casts = Counter(getattr(autocast, name)), Counter(getattr(expected, name))
        differs = sorted(
            (actual - expected_casts) + (expected_casts - actual), key=lambda cast: (-cast.bytes, str(cast))
        )
        if differs:
            first = differs[0]
            is_repeated = any(cast.of and actual[cast] > expected_casts[cast] for cast in differs)
            cleared = _clearing_line(case, conditions) if cache and is_repeated else None
            raise AmpFailure(
                f"{case.name} makes other casts than autocast's rules require in the {name} pass under {conditions}, "
                f"{'with' if cache else 'without'} the weight cache",
                label_before="manual",
                before=f"{counted(sum(expected_casts.values()), 'cast')}; "
                f"{counted(expected_casts[first], 'time')} {first}",
                now=conditions.now(f"{counted(sum(actual.values()), 'cast')}; {counted(actual[first], 'time')}"),
                site=cleared,
                likely="a weight's cast is not kept, or an operator casts more than its rule says"
                if cleared is None
                else f"torch.clear_autocast_cache() at {cleared} drops the casts of the weights, which are made again: "
                "a cost; the end of the outermost region clears the cache by itself. Before torch 2.11 the call is "
                "needed between a use under no_grad and one with gradients (pytorch/pytorch#165068)",
            )


def _clearing_line(case: Case, conditions: Conditions) -> str | None:
    """Return the first line of the model or its loss that clears autocast's cache in the forward pass, if any."""
    passes = Passes(case, conditions)
    with _noted_clearing() as lines:
        passes.forward(passes.amp(cache=True))
    return lines[0] if lines else None


@contextlib.contextmanager
def _noted_clearing() -> Iterator[list[str]]:
    """Collect the lines outside of torch and of this package that call ``torch.clear_autocast_cache``."""
    lines: list[str] = []
    clear = torch.clear_autocast_cache

    def noted() -> None:
        caller = sys._getframe(1)  # noqa: SLF001  # inspect.currentframe is the same
        if author_of(caller.f_code.co_filename) in (Author.USER, Author.LIBRARY):
            lines.append(f"{short(caller.f_code.co_filename)}:{caller.f_lineno}")
        clear()

    torch.clear_autocast_cache = noted
    try:
        yield lines
    finally:
        torch.clear_autocast_cache = clear
