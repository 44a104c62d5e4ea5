"""Checks of what mixed precision costs and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_amp.amp.base import Bound
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import is_misuse

if TYPE_CHECKING:
    from pytest_amp.cases import Case
    from pytest_amp.memory import Census, MemoryUse
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

    def check_casts(self, case: Case, *, most: int | None = None) -> Census:
        """Hold the casts of one training step of ``case`` against those that autocast's rules ask for.

        Every copy between dtypes that the forward and the backward pass make, however small, is counted, with the
        weight cache and without it; the optimizer's step is not part of it. They are those of the same step with
        autocast's casts made by hand, each as often and as large (not on a device whose rules nobody knows), and
        at most ``most`` in all with the cache. A cast is a launch of its own that a user waits for: this guards
        what autocast costs without a clock.

        Observed as counts, which a baseline compares exactly: ``<case>/casts``, ``<case>/casts forward`` and
        ``<case>/bytes cast``, and the same ``without the cache``. Raises AmpFailure. Returns the census with the
        cache.
        """
        from pytest_amp import memory

        self._refuse_wide("check_casts")
        self._refuse_ambient("check_casts")

        def observe(name: str, value: int, unit: str | None, allowed: float | None) -> None:
            self.observe(name, value, kind="count", unit=unit, allowed=allowed)

        return memory.check_casts(case, self.conditions, observe, most=most)

    def check_memory(self, case: Case, *, ceiling: float | None = None, peak_ceiling: float | None = None) -> MemoryUse:
        """Hold what a training step of ``case`` keeps for its backward pass, and takes at its peak.

        Kept are the storages beside parameters, buffers and the batch that autograd saves, on a CPU, too. They are
        as many and as large as with autocast's casts made by hand (not on a device whose rules nobody knows), and at
        most ``ceiling`` times what float32 keeps. After each of four steps as much is held as after the one before.
        On an accelerator whose allocator counts, the most that a step allocates beside what was there is at most
        ``peak_ceiling`` times float32's. Without a ceiling the ratios are recorded only; --amp-tolerance-scale
        multiplies the ceilings.

        Observed as ``<case>/bytes saved`` and ``<case>/bytes saved in fp32`` (counts, which a baseline compares
        exactly), ``<case>/bytes saved over fp32``; on an accelerator also ``<case>/peak allocated``, ``... in fp32``,
        ``<case>/peak reserved`` and ``<case>/peak allocated over fp32``. Raises AmpFailure. Returns what was seen.
        """
        from pytest_amp import memory

        self._refuse_wide("check_memory")
        self._refuse_ambient("check_memory")

        def observe(name: str, value: float, kind: str, unit: str | None, allowed: float | None) -> None:
            self.observe(name, value, kind=kind, unit=unit, allowed=allowed)

        return memory.check_memory(case, self.conditions, observe, ceiling=ceiling, peak_ceiling=peak_ceiling)
