"""Checks of the costs and savings of mixed precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_amp.amp.base import Bound
from pytest_amp.amp.deprecated import renamed_keywords
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.record import Better, Kind, Observation, Value, make_key
from pytest_amp.record.cause import likely_cause
from pytest_amp.record.times import conditions_key
from pytest_amp.run.identity import INFO

if TYPE_CHECKING:
    from pytest_amp.cases import Case
    from pytest_amp.memory import Census, MemoryUse
    from pytest_amp.speed import Interval, MakeOptimizer, Measured, SpeedConditions, TimeBefore, Workload

__tracebackhide__ = is_usage_error


class CostChecks(Bound):
    """Checks of speed, casts and memory of a step under autocast, compared with float32."""

    @renamed_keywords(over="versus")
    def check_speedup(  # noqa: PLR0913  # keywords of one check
        self,
        work: Case | Workload,
        *,
        versus: str,
        floor: float | None = None,
        uncalibrated: float = 0.9,
        kind: str = "device",
        optimizer: MakeOptimizer | None = None,
        name: str | None = None,
        seconds: float = 5.0,
        ceiling: float | None = None,
    ) -> Measured | None:
        """Check how much faster ``work`` is under autocast than in float32, against a floor and a baseline.

        ``work`` is a case, whose training step is timed, or a function that makes data on the device and returns the
        call to be timed, all of it within autocast. ``optimizer`` makes an optimizer of a list of parameters; its
        step is then part of a case's, and in fp16 the loss is scaled. The keywords:

        - ``versus``: the float32 to be faster than, ``"fp32"`` (IEEE) or ``"tf32"``;
        - ``kind``: ``"device"``, the device's own time, for which the step is captured in a CUDA graph and replayed;
          or ``"step"``, what a user waits for, launches and casts included, which is coarse. A device without graphs
          is timed by its steps;
        - ``floor``: the least speedup; 0 is none. The marker's ``floor`` wins over it. Without either, it is the one
          that was calibrated for this work on this card (--amp-floors, or what comes with this package), or else
          the larger one of ``uncalibrated``, by default no harm, and half of this work's calibration on another card
          or in the other dtype, scaled by the peak rates of both cards, which the run says in a note;
        - ``seconds``: what one measurement may take;
        - ``ceiling``: replaces the speedup that the card's peak rates allow.

        With a baseline from the same hardware, the speedup may be no less than it was, apart from the margin and 1 %
        (device), 3 % (a step that was calibrated and is quiet) or 6 % (step), and neither arm may take longer, with
        the same margins, on the same card; docs/explanation/speed.md has the rule. A speedup that is smaller because
        float32 became faster is an improvement. Observed as ``<name>/over-<versus>/<kind>/speedup`` and two times,
        with their intervals, and ``…/conditions``: the card, the host's CPU, the yardstick and the largest kernels.

        Skips the test, with the reason, where speed is off, and with "inconclusive: ..." where nothing can be said.
        Raises AmpFailure below the floor or the baseline, and for a step that cannot be captured; AmpUsageError for
        keywords that cannot be. Returns the measurement.
        """
        from pytest_amp import cases, speed
        from pytest_amp.numerics.running import ErrorsOfCase, ErrorsOfFunction

        cases.expect_number("seconds", seconds, least=0, above=True)
        cases.expect_number("uncalibrated", uncalibrated, least=0)
        self._refuse_wide("check_speedup")
        self._refuse_ambient("check_speedup")
        conditions = self._timed()
        name, kind = name or speed.name_of(work), speed.kind_on(self.device, kind)
        floor, remark = self._floor(conditions, (name, versus, kind), floor, uncalibrated)
        demand = speed.Demand(
            name,
            floor=floor,
            versus=versus,
            kind=kind,
            ceiling=ceiling,
            plan=speed.Plan(budget=seconds),
        )
        make_step = speed.step_maker(work, self.device, seed=self._config.seed, dtype=self.dtype, optimizer=optimizer)
        options = ErrorsOfCase(work, self._conditions) if isinstance(work, cases.Case) else ErrorsOfFunction(name)
        with options:
            try:
                return speed.check_speedup(make_step, demand, conditions, self._request)
            except AmpFailure as failure:
                if remark is not None:
                    failure.likely_with(remark)
                raise

    def _timed(self) -> SpeedConditions:
        """Return the conditions of a speed measurement; a CPU is timed with --amp-speed=report only."""
        from pytest_amp import speed
        from pytest_amp.speed import environment

        timed, mode = self._run.targets.speed, self._run.targets.speed.mode
        reason = timed.reason
        if self.device.kind is not DeviceKind.ACCELERATOR and mode != "report":
            mode, reason = "off", "a CPU is timed with --amp-speed=report only"
        unread = None if mode == "off" else environment.unread(self.device)
        if unread is not None:
            self._note(f"a time is not in doubt for heat or for processes that the driver shows: {unread}")
        return speed.SpeedConditions(
            self.device,
            self.precision,
            mode,
            reason,
            strict=self._config.strict,
            seed=self._config.seed,
            observe=self.observe,
            before=self._interval_before,
            floors=self._config.floors,
            compare_time=self._compare_time,
            recorded=self._run.retains_values,
            note=self._note,
        )

    def _compare_time(self, name: str, interval: Interval, margin: float, conditions: Value) -> TimeBefore | None:
        """Compare a time, measured under ``conditions``, with the baseline's; None without it or to accept it."""
        from pytest_amp.speed import TimeBefore

        baseline = self._run.baseline
        if baseline is None or self._config.accept:
            return None
        key = make_key(self._item.stash[INFO].family, self.device.key, self.precision.name, name)
        before, beside = baseline.before(key), conditions_key(key)
        if before is None:
            return None
        ends = (interval.low, interval.high)
        now = Observation(key, Kind.SECONDS, interval.median, "s", interval=ends, better=Better.LOWER, margin=margin)
        run = {beside: Observation(beside, Kind.MEASURE, conditions)}
        old = baseline.before(beside)
        return TimeBefore(
            baseline.compare(now, run),
            before,
            baseline.terms(key, run),
            kernels=old.value.get("kernels") if old is not None and isinstance(old.value, dict) else None,
            cause=likely_cause(baseline.record.provenance, baseline.now, self.device.key),
        )

    def _floor(
        self, conditions: SpeedConditions, work: tuple[str, str, str], requested: float | None, uncalibrated: float
    ) -> tuple[float, str | None]:
        """Return the floor of the marker, else of the argument, else the calibrated one, else a conservative one.

        ``work`` is its name, the kind of float32 and the kind of time. A conservative floor has a remark, which is
        noted: it comes from calibrations of other cards, or is ``uncalibrated``.
        """
        from pytest_amp import speed

        for floor in (self._marker.floor, requested):
            if floor is not None:
                return floor, None
        calibrated = conditions.calibrated(*work)
        if calibrated is not None:
            return calibrated.floor, None
        floor, remark = speed.conservative_floor(conditions, *work, uncalibrated)
        if remark is not None and conditions.mode == "gate":
            self._note(remark)
        return floor, remark

    def _interval_before(self, name: str) -> Interval | None:
        """Return the baseline's interval of a measurement, if it can be compared with this run's.

        Return None for one that was in doubt or only reported, and under --amp-accept, which accepts the current
        values.
        """
        from pytest_amp.speed import Interval

        baseline = self._run.baseline
        if baseline is None or self._config.accept:
            return None
        family = self._item.stash[INFO].family
        before = baseline.standard(make_key(family, self.device.key, self.precision.name, name))
        if before is None or before.interval is None or not isinstance(before.value, (int, float)):
            return None
        return Interval(before.interval[0], before.value, before.interval[1], 0)

    def check_casts(self, case: Case, *, most: int | None = None) -> Census:
        """Compare the casts of one training step of ``case`` with those that autocast's rules require.

        Every copy between dtypes that the forward and the backward pass make, however small, is counted, with the
        weight cache and without it; the optimizer's step is not part of it. The casts must be those of the same step
        with manual casts by autocast's rules, each as often and as large (this is left out on a device type whose rules
        are not known). With the cache there may be at most ``most`` in all. A cast is a launch of its own that a user
        waits for: this guards what autocast costs, without a clock.

        Observed as counts, which a baseline compares exactly: ``<case>/casts``, ``<case>/casts forward`` and
        ``<case>/bytes cast``, and the same ``without the cache``. Raises AmpFailure. Returns the census with the
        cache.
        """
        from pytest_amp import cases, memory
        from pytest_amp.numerics.running import ErrorsOfCase

        self._expect_case(case, "check_casts")
        if most is not None:
            cases.expect_number("most", most, least=0, whole=True)
        with ErrorsOfCase(case, self._conditions):
            return memory.check_casts(case, self._conditions, self._observing(case), most=most)

    def check_memory(self, case: Case, *, ceiling: float | None = None, peak_ceiling: float | None = None) -> MemoryUse:
        """Check what a training step of ``case`` keeps for its backward pass, and takes at its peak.

        What is kept are the storages that autograd saves, other than parameters, buffers and the batch; they are
        counted on a CPU, too. What must be true:

        - they are as many and as large as with manual casts by autocast's rules (left out on a device type whose rules
          are not known), and at most ``ceiling`` times what float32 keeps;
        - memory in use is the same after each of four steps;
        - on an accelerator whose allocator counts, the most that a step allocates beyond what was there is at most
          ``peak_ceiling`` times float32's; elsewhere ``peak_ceiling`` is refused.

        Without a ceiling the ratios are only recorded; --amp-tolerance-scale multiplies the ceilings.

        Observed as ``<case>/bytes saved`` and ``<case>/bytes saved in fp32`` (counts, which a baseline compares
        exactly), ``<case>/bytes saved over fp32``; on an accelerator also ``<case>/peak of tensors`` (bytes, which a
        baseline compares) and, with the workspaces of libraries, ``<case>/peak allocated``, ``... in fp32``,
        ``<case>/peak reserved`` and ``<case>/peak allocated over fp32``. Raises AmpFailure. Returns what was seen.

        A model that runs within a region only is compared with float32 copies of its low-precision tensors. Where
        these do not run without a region, either, there are no ratios, and a ceiling is refused. A note says so.
        """
        from pytest_amp import cases, memory
        from pytest_amp.numerics.running import ErrorsOfCase
        from pytest_amp.numerics.without_region import without_region

        self._expect_case(case, "check_memory")
        for name, limit in (("ceiling", ceiling), ("peak_ceiling", peak_ceiling)):
            if limit is not None:
                cases.expect_number(name, limit, least=0)
        with ErrorsOfCase(case, self._conditions):
            observe = self._observing(case)
            plain = without_region(case, self._conditions)
            use = memory.check_memory(
                case, self._conditions, observe, plain=plain.case, ceiling=ceiling, peak_ceiling=peak_ceiling
            )
        if plain.note is not None:
            self._note(plain.note)
        return use
