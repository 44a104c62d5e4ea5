"""Checks of what mixed precision costs and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_amp.amp.base import Bound
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import is_misuse

if TYPE_CHECKING:
    from pytest_amp.cases import Case
    from pytest_amp.speed import Measured, Workload

__tracebackhide__ = is_misuse


class CostChecks(Bound):
    """How fast a step is under autocast, beside float32."""

    def check_speedup(  # noqa: PLR0913  # keywords of one check
        self,
        work: Case | Workload,
        *,
        floor: float,
        over: str,
        name: str | None = None,
        seconds: float = 5.0,
        ceiling: float | None = None,
    ) -> Measured | None:
        """Hold how much faster ``work`` is under autocast than in float32 against ``floor``.

        ``work`` is a case, whose training step is timed, or a function that makes data on the device and
        returns the call to be timed, all of it within autocast. ``over`` is the float32 to be faster
        than: ``"fp32"`` (IEEE) or ``"tf32"``. The marker's ``floor`` wins over the argument. ``seconds``
        is what one measurement may take, ``ceiling`` replaces the speedup that the card's peak rates
        allow. Observed as ``<name>/over-<over>/speedup`` and four more; the rule is in docs/speed.md.

        Skips the test with the reason where speed is off, and with "inconclusive: ..." where nothing can
        be said. Raises AmpFailure below the floor, Misuse for an ``over`` or a floor that is none.
        Returns the measurement.
        """
        from pytest_amp import speed

        self._refuse_ambient("check_speedup")
        timed = self._session.speed
        conditions = speed.Conditions(
            self.device,
            self.precision,
            timed.mode if self.device.kind is DeviceKind.ACCELERATOR else "off",
            timed.reason if self.device.kind is DeviceKind.ACCELERATOR else "only an accelerator is timed",
            strict=self.config.strict,
            seed=self.config.seed,
            observe=self.observe,
        )
        plan = speed.Plan(budget=seconds)
        demand = speed.Demand(name or speed.name_of(work), self.marker.floor or floor, over, ceiling, plan)
        make_step = speed.step_maker(work, self.device, seed=self.config.seed)
        return speed.check_speedup(make_step, demand, conditions, self._request)
