"""Hooks that a project or a back end may implement."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from pytest_amp.cases import Case
    from pytest_amp.devices.names import DeviceType
    from pytest_amp.record import Observation, Value

T = TypeVar("T")


@pytest.hookspec
def pytest_amp_cases() -> Iterable[Case]:  # type: ignore[empty-body]
    """Yield cases (a model, a batch, a loss) that the gradient suites run, too."""


@pytest.hookspec
def pytest_amp_devices() -> Iterable[DeviceType]:  # type: ignore[empty-body]
    """Yield device types that --amp-device then takes by name."""


@pytest.hookspec
def pytest_amp_observation(observation: Observation) -> None:
    """See each observation as it reaches the process that prints and writes reports."""


@pytest.hookspec
def pytest_amp_provenance(provenance: MutableMapping[str, Value]) -> None:
    """Add to what a record says about where its values come from: image digest, driver, job."""


def yielded(hook: str, groups: Iterable[object], expected: type[T]) -> list[T]:
    """Return the values that all implementations of ``hook`` yield.

    Raises AmpUsageError unless each is an ``expected``.
    """
    from pytest_amp.failure import AmpUsageError  # a project without mixed precision has no use for it

    result: list[T] = []
    for group in groups:
        if not isinstance(group, Iterable):
            raise AmpUsageError(f"the hook {hook} returned {group!r}; expected that it yields each {expected.__name__}")
        for value in group:
            if not isinstance(value, expected):
                raise AmpUsageError(
                    f"the hook {hook} yields {value!r}; expected a {expected.__module__}.{expected.__qualname__}"
                )
            result.append(value)
    return result


def raised_in(hook: str, error: Exception) -> str:
    """Return the error of a project's implementation of ``hook``, in one line that names the line of its code."""
    from pathlib import Path

    import pluggy

    from pytest_amp.text.quoted import quoted_with_place

    libraries = (Path(__file__).parent, Path(pluggy.__file__).parent)
    return f"the hook {hook} raised {quoted_with_place(error, libraries)}"
