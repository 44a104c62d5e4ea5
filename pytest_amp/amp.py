"""The fixture ``amp``: the noun that carries the checks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from pytest_amp.collection import INFO, MARKER, bound
from pytest_amp.failure import AmpFailure
from pytest_amp.markers import AmpMarker
from pytest_amp.record import Kind, Observation, Value, Verdict, check_value, compare, make_key
from pytest_amp.session import AmpSession
from pytest_amp.targets import Target

if TYPE_CHECKING:
    import torch

    from pytest_amp.config import AmpConfig
    from pytest_amp.devices import Device
    from pytest_amp.precision import Precision

OBSERVATIONS = pytest.StashKey[list[Observation]]()


class Amp:
    """Mixed precision on one device in one dtype, for one test."""

    def __init__(self, item: pytest.Item, target: Target, session: AmpSession) -> None:
        """Made by the fixture; ``item`` is the running test."""
        self._item = item
        self._session = session
        self.target = target
        self.device: Device = target.device
        self.precision: Precision = bound(target)
        self.config: AmpConfig = session.asked
        self.marker: AmpMarker = item.stash[MARKER]
        item.stash[OBSERVATIONS] = []  # anew where a plugin runs the test again

    @property
    def dtype(self) -> torch.dtype:
        """The autocast dtype."""
        return self.precision.dtype

    def autocast(
        self, *, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool = True
    ) -> AbstractContextManager[None]:
        """An autocast region on this device, in this dtype unless another is given."""
        return self.target.autocast(dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def observe(
        self, name: str, value: Value, *, kind: str, unit: str | None = None, allowed: float | None = None
    ) -> Observation:
        """Record a fact as ``family/device/dtype/name``.

        ``kind`` is one of ``rule``, ``dtype``, ``count`` and ``state`` (the same in every run: with a
        baseline a difference fails the test), or ``error``, ``ratio``, ``seconds`` and ``bytes``
        (recorded, and compared by nobody yet). ``allowed`` is what the check accepted, in ``unit``.
        Raises AmpFailure where the baseline disagrees, ValueError for a bad name, kind or value, and for
        a name that the test has used before.
        """
        info = self._item.stash[INFO]
        key = make_key(info.family, self.device.key, self.precision.name, name)
        if any(earlier.key == key for earlier in self._item.stash[OBSERVATIONS]):
            raise ValueError(f"{key} is observed twice; one name, one fact")
        check_value(key, value)
        made = Observation(key, Kind(kind), value, unit, allowed, test=info.test)
        baseline = self._session.baseline
        if baseline is not None:
            made = compare(made, baseline.by_key().get(key))
        self._item.stash[OBSERVATIONS].append(made)
        self._item.user_properties.append((f"amp {key}", f"{value} ({made.verdict.value})"))
        if made.verdict is Verdict.CHANGED and baseline is not None:
            raise AmpFailure(
                f"{name} on {self.target.id} is no longer what the baseline has",
                label_before="baseline",
                before=f"{made.baseline} on torch {baseline.provenance.get('torch', 'unknown')}",
                now=f"{value} on {self._session.torch_version()}, {self.device.describe()}",
                likely="torch, or this machine, computes something else than when the baseline was recorded",
                accept="record a new baseline: --amp-record=NEW",
            )
        return made
