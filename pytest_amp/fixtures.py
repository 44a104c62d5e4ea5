"""Fixtures of the plugin; torch is imported when one is first used."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from pytest_amp.amp import SuiteAmp
    from pytest_amp.precision import Precision
    from pytest_amp.run.targets import Target

#: A test with one of these fixtures runs once per device and precision.
NAMES = frozenset({"amp", "amp_device", "amp_dtype", "amp_precision", "amp_autocast", "amp_scaler", "_amp_target"})


def concerned(names: Collection[str]) -> bool:
    """Return whether a test with the fixtures ``names`` runs once per device and precision.

    All fixtures of the plugin depend on one. A project's own fixture of the name ``amp`` does not.
    """
    return "_amp_target" in names


@pytest.fixture(autouse=True)
def _amp_state_guard(request: pytest.FixtureRequest) -> None:
    """Protect the test: the first of its own fixtures is the last to be torn down."""
    node = request.node
    if not concerned(request.fixturenames) and node.get_closest_marker("amp") is None:
        return
    from pytest_amp.run.protection import protect
    from pytest_amp.run.session import KEY

    session = node.config.stash[KEY]
    after = protect(node, session.options.seed, session.isolation)
    request.addfinalizer(after)  # noqa: PT021  # a generator would cost every test of the project


@pytest.fixture(scope="session")
def _amp_target(request: pytest.FixtureRequest) -> Target:
    """Device and precision of the test, by parametrization."""
    if not hasattr(request, "param"):
        pytest.fail(
            "an amp fixture runs a test once for each device and dtype, so a test names it as an argument; "
            "unittest classes and getfixturevalue() cannot",
            pytrace=False,
        )
    target: Target = request.param
    return target


@pytest.fixture(scope="session")
def amp_device(_amp_target: Target) -> torch.device:
    """The device under test, a ``torch.device``.

    That of a fake device is for tensors that are made within ``amp.device.tensors()``.
    """
    return _amp_target.device.torch_device


@pytest.fixture(scope="session")
def amp_dtype(_amp_target: Target) -> torch.dtype:
    """The autocast dtype under test, a ``torch.dtype``."""
    return _amp_target.precision.dtype


@pytest.fixture(scope="session")
def amp_precision(_amp_target: Target) -> Precision:
    """The precision under test: bits, eps, u, dtype, and ``context()`` to compute in it.

    The marker's ``dtypes`` may add ``fp32`` and, on CUDA, ``tf32``.
    """
    return _amp_target.bound_precision()


@pytest.fixture(scope="session")
def amp_autocast(_amp_target: Target) -> Callable[..., AbstractContextManager[None]]:
    """A factory of autocast regions: ``amp_autocast(*, dtype=None, enabled=True, cache_enabled=True)``."""
    return _amp_target.autocast


@pytest.fixture(scope="session")
def amp_scaler(_amp_target: Target) -> Callable[..., torch.amp.GradScaler]:
    """A factory of GradScalers on the device; it takes ``torch.amp.GradScaler``'s own keywords."""
    device_type = _amp_target.device.type

    def scaler(
        *,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> torch.amp.GradScaler:
        import torch

        return torch.amp.GradScaler(
            device_type,
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )

    return scaler


@pytest.fixture
def amp(request: pytest.FixtureRequest, _amp_target: Target) -> SuiteAmp:
    """Mixed precision on one device in one dtype: the checks, and what they need."""
    from pytest_amp.amp import SuiteAmp
    from pytest_amp.run.session import KEY, RunContext

    session = request.config.stash[KEY]
    return SuiteAmp(request, _amp_target, RunContext(session.options, session.baseline, session.targets))
