"""Checks of a training loop: the calls of GradScaler and the course of the loss."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_amp.amp.base import Bound
from pytest_amp.amp.deprecated import renamed_keywords
from pytest_amp.failure import AmpUsageError, is_usage_error

if TYPE_CHECKING:
    import torch

    from pytest_amp.cases import Case
    from pytest_amp.scaler import MakeOptimizer, TraceStep, Train, Training
    from pytest_amp.training import TrainingStep, Trajectory

__tracebackhide__ = is_usage_error


class LoopChecks(Bound):
    """Checks that run a user's training step several times."""

    @renamed_keywords(
        overflow_at="overflow_gradients_at", forward_at="overflow_activations_at", spoilt="nonfinite_buffers"
    )
    def check_scaler(  # noqa: PLR0913  # keywords of one check
        self,
        case: Case,
        *,
        train: Train | None = None,
        optimizer: MakeOptimizer | None = None,
        overflow_gradients_at: Collection[int] = (2,),
        overflow_activations_at: Collection[int] | None = None,
        nonfinite_buffers: Collection[str] = (),
    ) -> tuple[TraceStep, ...]:
        """Check that a training step uses GradScaler as it has to be used, with overflow planted in it.

        ``train`` is the step, called once an iteration with everything that it needs (``model``, ``batch``,
        ``optimizer``, ``scaler``, ``index``, ``loss()``, ``autocast()``); without it, the step of torch's
        documentation. ``optimizer`` makes an optimizer of a list of parameters, by default SGD. A gradient is made inf
        in the iterations ``overflow_gradients_at``, an activation in ``overflow_activations_at``, by default in
        iteration 6. The scale starts where the first iteration does not overflow by itself. What must be true:

        - a step with an inf among its gradients is skipped and changes no parameter; every other one steps, also that
          of another optimizer in the same iteration. Each optimizer in turn gets an inf in its gradients;
        - the scale backs off and recovers by the rule;
        - ``scaler.step`` is called once for each optimizer, ``scaler.update`` once behind these steps, and only the
          scaler calls the optimizer's own step; an iteration may have several such rounds;
        - no ``scaler.update`` comes between a backward pass and the step with its gradients;
        - the gradients that the optimizer sees are the same at another scale (clipping before ``unscale_`` changes
          them);
        - the forward pass is under autocast in the test's dtype, and backward is not;
        - an iteration begins without gradients;
        - no buffer or frozen parameter is left with an inf or NaN, except those named in ``nonfinite_buffers``, which
          must be. A name may be a pattern, as of file names: ``*.running_mean``.

        A note in the summary of the run tells what is known, and fails nothing: running statistics that keep the
        planted inf, since torch updates them in the forward pass (pytorch/pytorch#115500; those of BatchNorm,
        SyncBatchNorm and InstanceNorm, and what ``functional.batch_norm`` updates), by their layers; and a model that
        raises at the planted inf by an error of its own, a step that returns before backward, and, without
        ``overflow_activations_at``, a model none of whose modules returns a low-precision tensor, for which overflow in
        the forward pass is left out. Warns of a loss in float16 (LowLoss), and of an activation that was made inf and
        reached no gradient (SwallowedOverflow). Observed as ``<case>/skipped``, ``spoilt buffers``, ``swallowed
        overflows``, ``refused overflows`` and ``scale``. Raises AmpFailure, and AmpUsageError for arguments that cannot
        be, and for complex parameters, whose gradients torch's GradScaler cannot unscale.
        """
        from pytest_amp import cases, scaler
        from pytest_amp.numerics.running import ErrorsOfCase

        self._expect_case(case, "check_scaler", low=False)
        activations_required = overflow_activations_at is not None
        if overflow_activations_at is None:
            overflow_activations_at = (6,)
        cases.expect_iterations("overflow_activations_at", overflow_activations_at)
        cases.expect_names("nonfinite_buffers", nonfinite_buffers)
        training = replace(
            self._training(case, train, optimizer, overflow_gradients_at),
            overflow_activations_at=overflow_activations_at,
        )

        with ErrorsOfCase(case, self._conditions):
            return scaler.check_scaler(
                training,
                self._observing(case),
                nonfinite_buffers=nonfinite_buffers,
                activations_required=activations_required,
                note=self._note,
            )

    def check_training(
        self,
        case: Case,
        *,
        steps: int,
        train: TrainingStep | None = None,
        optimizer: MakeOptimizer | None = None,
        fresh: bool = False,
    ) -> Trajectory:
        """Compare ``steps`` steps of training in mixed precision with the same steps in float32.

        ``train`` is the step, as ``check_scaler`` takes it; without it, the step of torch's documentation. In the
        float32 run ``iteration.autocast()`` and ``iteration.scaler`` are off; in mixed precision the scaler is on in
        fp16 alone. ``iteration.kept`` is a dictionary for what lives longer than a step, such as a scheduler.
        ``optimizer`` makes an optimizer of a list of parameters, by default AdamW with a learning rate of 1e-3. With
        ``fresh`` the case's ``batch`` is called for each step; otherwise all steps have one batch. At each step

        - trained parameters, buffers and the optimizer's state must be float32, in their values, too; a frozen
          parameter, and a buffer, may have any dtype if no step writes to it, or if what a step writes does not depend
          on what was there, as in a queue of features;
        - no more gradients may be zero, and no more updates may round away, than in float32, plus a tenth;
        - backward must be outside of the region;
        - the loss must be within the spread of float32 runs perturbed by rounding-sized noise
          (docs/explanation/training.md).

        A model that runs within a region only is compared with float32 copies of its low-precision tensors, or, if
        these do not run without a region, either, with manual casts; a note in the summary says so.

        --amp-tolerance-scale multiplies the band. Observed as ``<case>/loss beside fp32``, the used part of the band,
        and ``<case>/steps skipped``. Raises AmpFailure, which names the step, and AmpUsageError for steps that cannot
        be, and for complex parameters in fp16, whose gradients torch's GradScaler cannot unscale. Returns the run in
        mixed precision.
        """
        import torch

        from pytest_amp import cases, scaler, training
        from pytest_amp.numerics.running import ErrorsOfCase
        from pytest_amp.numerics.without_region import without_region

        self._expect_case(case, "check_training")
        cases.expect_number("steps", steps, least=2, whole=True)
        cases.expect_step(train)
        cases.expect_maker(optimizer)
        cases.expect_flag("fresh", fresh)
        plain = without_region(case, self._conditions)
        if plain.note is not None:
            self._note(plain.note)
        setup = training.Setup(
            case,
            self.device,
            self.precision,
            steps=steps,
            seed=self._config.seed,
            train=train or scaler.standard_step,
            make_optimizer=optimizer or torch.optim.AdamW,
            fresh=fresh,
            plain=plain.case,
            manual=plain.case is None,
        )

        with ErrorsOfCase(case, self._conditions):
            scale = self._config.tolerance_scale
            return training.check_training(setup, self._observing(case), tolerance_scale=scale, note=self._note)[0]

    @renamed_keywords(overflow_at="overflow_gradients_at")
    def scaler_trace(  # noqa: PLR0913  # keywords of one run
        self,
        work: Case | Callable[[torch.amp.GradScaler], object],
        *,
        steps: int,
        train: Train | None = None,
        optimizer: MakeOptimizer | None = None,
        overflow_gradients_at: Collection[int] = (),
        init_scale: float = 2.0**16,
        growth_interval: int = 2000,
    ) -> tuple[TraceStep, ...]:
        """Run ``steps`` iterations with a scaler and return what each did: scale, found-inf, skipped or not.

        ``work`` is a case (``train``, ``optimizer`` and ``overflow_gradients_at`` as in ``check_scaler``), or a
        function that makes one whole iteration with the scaler that it is given. Nothing is checked or observed.
        Raises AmpUsageError for arguments that cannot be, and for keywords that need a case.
        """
        from pytest_amp import cases, scaler
        from pytest_amp.numerics.running import ErrorsOfCase, ErrorsOfFunction

        cases.expect_number("steps", steps, least=1, whole=True)
        cases.expect_number("init_scale", init_scale, least=0.0)
        cases.expect_number("growth_interval", growth_interval, least=1, whole=True)
        rule = scaler.UpdateRule(growth_interval=growth_interval)
        if not isinstance(work, scaler.Case) and not callable(work):
            raise AmpUsageError(f"scaler_trace of {work!r}; expected a case, or a function that makes one iteration")
        if not isinstance(work, scaler.Case):
            if train is not None or optimizer is not None or overflow_gradients_at:
                raise AmpUsageError(
                    "scaler_trace of a function takes no train, optimizer or overflow_gradients_at: they need a case"
                )
            with ErrorsOfFunction(getattr(work, "__name__", type(work).__name__)):
                return scaler.trace_callable(work, self.device, steps=steps, scale=init_scale, rule=rule)
        training = self._training(work, train, optimizer, overflow_gradients_at)
        late = [index for index in overflow_gradients_at if not 0 <= index < steps]
        if late:
            raise AmpUsageError(
                f"overflow_gradients_at={late[0]} of {steps} steps; expected iterations from 0 to {steps - 1}"
            )
        with ErrorsOfCase(work, self._conditions):
            return scaler.ScalerTrace(step for _, step in training.iterations(steps, init_scale, rule))

    def _training(
        self, case: Case, train: Train | None, optimizer: MakeOptimizer | None, overflow_gradients_at: Collection[int]
    ) -> Training:
        """Return a training with a scaler; the default step and optimizer are torch's usual ones."""
        from pytest_amp import cases, scaler

        cases.expect_step(train)
        cases.expect_maker(optimizer)
        cases.expect_iterations("overflow_gradients_at", overflow_gradients_at)
        seed, step, make = self._config.seed, train or scaler.standard_step, optimizer or scaler.plain_sgd
        return scaler.Training(
            case,
            self.device,
            self.precision,
            seed=seed,
            train=step,
            make_optimizer=make,
            overflow_gradients_at=overflow_gradients_at,
        )
