"""The fixture ``amp``: the noun that carries the checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_amp.collection import INFO, MARKER, bound, own_parameters
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure, Misuse, is_misuse
from pytest_amp.guard import autocast_on
from pytest_amp.markers import AmpMarker
from pytest_amp.precision import LOW
from pytest_amp.record import Kind, Observation, Value, Verdict, check_value, compare, make_key
from pytest_amp.session import AmpSession
from pytest_amp.targets import Target

if TYPE_CHECKING:
    import torch

    from pytest_amp.cases import Case, Outputs
    from pytest_amp.config import AmpConfig
    from pytest_amp.devices import Device
    from pytest_amp.numerics.conditions import Conditions
    from pytest_amp.numerics.oracle import Trace
    from pytest_amp.precision import Precision
    from pytest_amp.scaler import MakeOptimizer, TraceStep, Train, Training
    from pytest_amp.speed import Measured, Workload
    from pytest_amp.training import TrainingStep, Trajectory

__tracebackhide__ = is_misuse

OBSERVATIONS = pytest.StashKey[list[Observation]]()

_KINDS = {kind.value: kind for kind in Kind}


class Amp:
    """Mixed precision on one device in one dtype, for one test."""

    def __init__(self, request: pytest.FixtureRequest, target: Target, session: AmpSession) -> None:
        """Made by the fixture; ``request`` is the running test's."""
        item: pytest.Item = request.node
        self._request = request
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
        (recorded; an error that grew fails the test, too). ``allowed`` is what the check accepted, in ``unit``.
        Raises AmpFailure where the baseline disagrees, Misuse for a bad name, kind or value, and for a
        name that the test has used before.
        """
        info = self._item.stash[INFO]
        if kind not in _KINDS:
            raise Misuse(f"kind={kind!r} is no kind of observation; valid: {', '.join(_KINDS)}")
        try:
            key = make_key(info.family, self.device.key, self.precision.name, name)
            check_value(key, value)
        except ValueError as error:
            raise Misuse(str(error)) from None
        if any(earlier.key == key for earlier in self._item.stash[OBSERVATIONS]):
            raise Misuse(
                f"{key} is observed twice; one name, one fact: give each its own, as amp.case(..., name=) does"
            )
        made = Observation(key, _KINDS[kind], value, unit, allowed, test=info.test)
        baseline = self._session.baseline
        if baseline is not None:
            made = compare(made, self._session.before(key), fair=self._session.unfair(self.device.key) is None)
        self._item.stash[OBSERVATIONS].append(made)
        self._item.user_properties.append((f"amp {key}", f"{value} ({made.verdict.value})"))
        failed = made.verdict in (Verdict.CHANGED, Verdict.REGRESSED)
        if failed and baseline is not None and not self.config.accept:
            raise AmpFailure(
                f"{name} on {self.target.id} is no longer what the baseline has",
                label_before="baseline",
                before=f"{made.baseline} on torch {baseline.provenance.get('torch', 'unknown')}",
                now=f"{value} on {self._session.torch_version()}, {self.device.describe()}",
                likely="torch, or this machine, computes something else than when the baseline was recorded",
                accept="the same command with --amp-accept",
            )
        return made

    def missing(self, what: str, reason: str) -> NoReturn:
        """Say that this test cannot look, since ``what`` is missing: ``sweep``, what torch's own tests know.

        Raises AmpFailure with ``reason``; where --amp-allow-missing names ``what``, skips, and lets the family
        end without one executed check on this target.
        """
        if what not in self.config.allow_missing:
            raise AmpFailure(reason, accept=f"--amp-allow-missing={what} skips what cannot be looked at")
        self._item.stash[INFO] = replace(self._item.stash[INFO], allowed_missing=True)
        pytest.skip(f"missing, as --amp-allow-missing allows: {reason}")

    def case(
        self,
        build: Callable[[], torch.nn.Module],
        batch: Callable[[], Any],
        loss: Callable[[torch.nn.Module, Any], Outputs],
        *,
        name: str | None = None,
    ) -> Case:
        """A case to check: ``build`` makes the model, ``batch`` the data, ``loss`` takes both.

        Model and batch are made on the CPU in float32 after torch has been seeded, and copied to the
        device. ``loss`` returns a tensor with one element, or a dictionary of outputs of which ``loss``
        is differentiated. Floating tensors of the batch that require a gradient have theirs compared,
        too. ``name`` is part of observation keys; without one it is the test's, with the test's own parameters.
        Raises Misuse for a module, or anything else that is no function, in place of one that makes it.
        """
        import torch

        from pytest_amp.cases import Case

        for argument, given in (("build", build), ("batch", batch), ("loss", loss)):
            if not callable(given) or isinstance(given, torch.nn.Module):
                valid = "a function of the model and the batch" if argument == "loss" else "a function that makes it"
                raise Misuse(f"{argument} is {type(given).__name__}; valid: {valid}, for it is made anew for each run")
        return Case(name or self._own_name(), build, batch, loss)

    def _own_name(self) -> str:
        """The test's name without device and dtype, which keys have elsewhere: ``test_mlp[cpu-bf16-3]``: ``mlp[3]``."""
        function = self._item.stash[INFO].test.partition("::")[2].removeprefix("test_")
        own = own_parameters(self._item, self.target)
        return f"{function}[{own}]" if own else function

    def _refuse_wide(self, check: str) -> None:
        """Without a low dtype there is no mixed precision to check. Raises Misuse."""
        if not self.precision.is_low:
            low = ", ".join(LOW)
            raise Misuse(f"{check} needs an autocast dtype, and this test runs in {self.precision.name}; valid: {low}")

    def _refuse_ambient(self, check: str) -> None:
        """The float32 side of a check must not be computed under autocast. Raises AmpFailure."""
        on = autocast_on("cpu", self.device.type)
        if on:
            raise AmpFailure(
                f"{check} was called while autocast({', '.join(on)}) is on, and has no float32 to compare with",
                likely="it is called inside a region, or a wider fixture or a test without amp left autocast on",
            )

    def check_gradients(self, case: Case, *, tolerance: float | None = None) -> None:
        """Hold everything that a training step of ``case`` computes in mixed precision against float64.

        Outputs, the gradient of every parameter and of the inputs that want one, and the module's
        buffers: each is there, finite, of its dtype, and no further from the float64 value than rounding
        explains. How much rounding explains is predicted in float64, with explicit rounding where autocast's
        rules cast (docs/oracle.md; on device types without rounding models it is measured with casts made
        by hand). Each operator of the step must round as its model says, and the step must be that of casts
        made by hand with none of autocast's kernels: on a CPU in every bit, on an accelerator but for the
        order of sums (pytest_amp/numerics/tolerance.py has the numbers). Each error is
        observed as ``<case>/<tensor>``, the relative L2 distance, beside what was allowed.

        ``tolerance``, else the marker's, is what every error may be in place of the noise, and leaves
        the comparison with casts made by hand and with rounding models out; --amp-tolerance-scale multiplies
        either. In fp16 the loss is scaled by a power of two, 65536 or the largest 65536 / 4**n that leaves
        gradients finite. Raises AmpFailure.
        """
        from pytest_amp.numerics.gradients import check

        self._refuse_wide("check_gradients")
        self._refuse_ambient("check_gradients")

        def observe(name: str, value: float, kind: str, unit: str | None, allowed: float | None) -> None:
            self.observe(name, value, kind=kind, unit=unit, allowed=allowed)

        check(case, self.conditions, observe, tolerance=self.marker.tolerance if tolerance is None else tolerance)

    def trace(self, case: Case) -> Trace:
        """Every operator of a training step of ``case`` in mixed precision, forward and going back; prints as a table.

        A row has the module, the operator as it reaches the device, the dtypes it takes and returns,
        autocast's rule of the operator around it that has one, its rounding model, and the share of elements that
        equal that model for the operator's own real inputs: 1 where it rounds as it should.
        """
        from pytest_amp.numerics import predicted

        self._refuse_wide("trace")
        self._refuse_ambient("trace")
        return predicted.trace(case, self.conditions)

    def check_fp32(self, tensor: torch.Tensor, *, name: str = "the tensor") -> None:
        """Hold that ``tensor`` is float32 and was not rounded to the autocast dtype on its way.

        A dtype check sees only the name: a float32 tensor of which every value is representable in the low dtype
        was low before. Decided on at least 64 distinct finite values other than zero. Raises AmpFailure,
        and ValueError for a tensor with fewer.
        """
        from pytest_amp.numerics.predicted import check_fp32

        check_fp32(tensor, self.conditions, name=name)

    def check_dtypes(self, case: Case, expected: Mapping[str, torch.dtype]) -> None:
        """Hold the dtypes that modules of ``case`` return in mixed precision against ``expected``.

        ``expected`` maps a module's path (``layers.0.norm``; ``""`` is the model) to the dtype of the
        floating tensors that it returns. Raises Misuse for a path that the model does not have,
        AmpFailure for another dtype.
        """
        from pytest_amp.numerics.dtypes import check_dtypes

        self._refuse_ambient("check_dtypes")

        def observe(name: str, value: str) -> None:
            self.observe(name, value, kind="dtype")

        check_dtypes(case, self.conditions, expected, observe)

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

    def check_scaler(  # noqa: PLR0913  # keywords of one check
        self,
        case: Case,
        *,
        train: Train | None = None,
        optimizer: MakeOptimizer | None = None,
        overflow_at: Collection[int] = (2,),
        forward_at: Collection[int] = (6,),
        spoilt: Collection[str] = (),
    ) -> tuple[TraceStep, ...]:
        """Hold a training step with a GradScaler against what one has to do, with overflow planted in it.

        ``train`` is the step, called once an iteration with everything that it needs (``model``, ``batch``,
        ``optimizer``, ``scaler``, ``index``, ``loss()``, ``autocast()``); without one, the step of torch's
        documentation. ``optimizer`` makes one of a list of parameters, SGD otherwise. In the iterations
        ``overflow_at`` a gradient is made inf, in ``forward_at`` an activation.

        Each step with an inf among its gradients is skipped and changes no parameter, every other one steps;
        the scale backs off and recovers by the rule; ``scaler.step`` and ``scaler.update`` are called once
        in each iteration, the optimizer's own step by nobody else; the gradients that the optimizer sees are
        the same at another scale (clipping before ``unscale_`` changes them); and no buffer is left with an
        inf or NaN, but for those named in ``spoilt``, which have to be (pytorch/pytorch#115500). The scale
        starts where the first iteration does not overflow by itself. Observed as ``<case>/skipped`` and
        ``<case>/spoilt buffers``. Raises AmpFailure; ValueError for iterations that cannot be.
        """
        from pytest_amp import scaler

        self._refuse_ambient("check_scaler")
        training = replace(self._training(case, train, optimizer, overflow_at), forward_at=forward_at)

        def observe(name: str, value: list[str]) -> None:
            self.observe(f"{case.name}/{name}", [*value], kind="state")

        return scaler.check(training, observe, spoilt=spoilt)

    def check_training(
        self,
        case: Case,
        *,
        steps: int,
        train: TrainingStep | None = None,
        optimizer: MakeOptimizer | None = None,
        fresh: bool = False,
    ) -> Trajectory:
        """Hold ``steps`` steps of training in mixed precision against the same steps in float32.

        ``train`` is the step, as ``check_scaler`` takes it (``iteration.autocast()`` and ``iteration.scaler`` are off
        in float32, the scaler is on where the dtype needs one: fp16; ``iteration.kept`` is a dictionary for what
        lives longer than a step, a scheduler say); without one, the step of torch's documentation.
        ``optimizer`` makes one of a list of parameters, AdamW with a learning rate of 1e-3 otherwise. With ``fresh``
        the case's ``batch`` is called for each step, otherwise all steps have one batch.

        At each step parameters, buffers and the optimizer's state are in float32, in values too; no more
        gradients are zero and no more updates round away than in float32, but for a tenth; and the loss is in
        the band of float32 runs that are disturbed as rounding does (pytest_amp/training/band.py; docs/training.md).
        --amp-tolerance-scale multiplies the band. Observed as ``<case>/loss beside fp32``, the used part of
        the band, and ``<case>/skipped``. Raises AmpFailure, which names the step; Misuse for steps that cannot be.
        Returns the run in mixed precision.
        """
        import torch

        from pytest_amp import scaler, training

        self._refuse_wide("check_training")
        self._refuse_ambient("check_training")
        setup = training.Setup(
            case,
            self.device,
            self.precision,
            steps=steps,
            seed=self.config.seed,
            train=train or scaler.standard_step,
            make_optimizer=optimizer or torch.optim.AdamW,
            fresh=fresh,
        )

        def observe(name: str, value: float, kind: str, allowed: float | None) -> None:
            self.observe(name, value, kind=kind, allowed=allowed)

        return training.check(setup, observe, tolerance_scale=self.config.tolerance_scale)[0]

    def scaler_trace(  # noqa: PLR0913  # keywords of one run
        self,
        work: Case | Callable[[torch.amp.GradScaler], object],
        *,
        steps: int,
        train: Train | None = None,
        optimizer: MakeOptimizer | None = None,
        overflow_at: Collection[int] = (),
        init_scale: float = 2.0**16,
        growth_interval: int = 2000,
    ) -> tuple[TraceStep, ...]:
        """Run ``steps`` iterations with a scaler; what each did with it: scale, found-inf, skipped or not.

        ``work`` is a case (``train``, ``optimizer`` and ``overflow_at`` as in ``check_scaler``), or a function
        that makes one whole iteration with the scaler that it is given. Nothing is checked or observed.
        Raises ValueError for keywords that need a case.
        """
        from pytest_amp import scaler

        rule = scaler.UpdateRule(growth_interval=growth_interval)
        if not isinstance(work, scaler.Case):
            if train is not None or optimizer is not None or overflow_at:
                raise Misuse("scaler_trace of a function takes no train, optimizer or overflow_at: they need a case")
            return scaler.trace_callable(work, self.device, steps=steps, scale=init_scale, rule=rule)
        training = self._training(work, train, optimizer, overflow_at)
        return tuple(step for _, step in training.iterations(steps, init_scale, rule))

    def _training(
        self, case: Case, train: Train | None, optimizer: MakeOptimizer | None, overflow_at: Collection[int]
    ) -> Training:
        """A training with a scaler; without a step or an optimizer, with torch's usual ones."""
        from pytest_amp import scaler

        seed, step, make = self.config.seed, train or scaler.standard_step, optimizer or scaler.plain_sgd
        return scaler.Training(
            case, self.device, self.precision, seed=seed, train=step, make_optimizer=make, overflow_at=overflow_at
        )

    @property
    def conditions(self) -> Conditions:
        """Device, precision, seed and tolerance scale, as functions of pytest_amp.numerics take them."""
        from pytest_amp.numerics.conditions import Conditions

        return Conditions(self.device, self.precision, self.config.seed, self.config.tolerance_scale)
