"""Checks of computed values: gradients, dtypes, rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pytest_amp.amp.base import Bound
from pytest_amp.failure import AmpUsageError, is_usage_error

if TYPE_CHECKING:
    import torch

    from pytest_amp.cases import Case
    from pytest_amp.numerics.dtypes import Expected
    from pytest_amp.numerics.oracle import Trace

__tracebackhide__ = is_usage_error


class NumericChecks(Bound):
    """Checks that compare what a training step computes in mixed precision with float64."""

    def check_gradients(self, case: Case, *, tolerance: float | None = None) -> None:
        """Compare everything that a training step of ``case`` computes in mixed precision with float64.

        Checked are the outputs, the gradient of every parameter and of the inputs that require one, and the
        module's buffers; complex ones by their real and imaginary parts, sparse ones as dense tensors:

        - each is there, finite, of its dtype, and no further from the float64 value than rounding explains. How much
          that is, is predicted in float64, with explicit rounding where autocast's rules cast
          (docs/explanation/oracle.md); on device types without rounding models it is measured with manual casts;
        - each operator rounds as its rounding model says;
        - the step is that of manual casts, without autocast's kernels: on a CPU in every bit, on an
          accelerator except for the order of sums (pytest_amp/numerics/tolerance.py has the bounds).

        On a CPU, a step that computes something else each time fails, and the failure says so. In fp16 the loss is
        scaled by a power of two: 65536, or the largest 65536 / 4**n that leaves gradients finite.

        ``tolerance``, or else the marker's, replaces the predicted rounding as what every error may be (relative L2),
        and leaves out the comparisons with rounding models and with manual casts. --amp-tolerance-scale
        multiplies either. Each error is observed as ``<case>/<tensor>``, with the allowed error. Raises AmpFailure.
        """
        from pytest_amp import cases
        from pytest_amp.numerics.gradients import check_gradients
        from pytest_amp.numerics.running import ErrorsOfCase

        self._expect_case(case, "check_gradients")
        if tolerance is not None:
            cases.expect_number("tolerance", tolerance, least=0, above=True)
        allowed = self._marker.tolerance if tolerance is None else tolerance
        with ErrorsOfCase(case, self._conditions):
            check_gradients(case, self._conditions, self._observing(case), tolerance=allowed)

    def over_seeds(
        self, measure: Callable[[], Mapping[str, float]]
    ) -> tuple[dict[str, float], dict[str, tuple[float, ...]]]:
        """Errors by name, and by name what each is with the numbers of other seeds, as ``observe`` takes them.

        ``measure()`` draws its numbers from torch's generators and returns errors by name. It is called after torch
        was seeded with the run's seed; and, if the run is recorded or compared, once more after each of two other
        seeds, from which a comparison takes the spread. Otherwise the second mapping is empty.
        """
        from pytest_amp.devices.generators import seed_torch
        from pytest_amp.numerics.spread import over_seeds

        draws = []
        for seed in range(self._config.seed, self._config.seed + self._draws):
            seed_torch(seed)
            draws.append(dict(measure()))
        further = {name: over_seeds(draw.get(name) for draw in draws[1:]) for name in draws[0]}
        return draws[0], {name: other for name, other in further.items() if other is not None}

    def trace(self, case: Case) -> Trace:
        """Every operator of a training step of ``case`` in mixed precision, forward and backward; prints as a table.

        A row has the module; the operator as it reaches the device; the dtypes that it takes and returns; the
        autocast rule, if it or an operator around it has one; its rounding model; how often it was called there; the
        share of elements that equal that model for the operator's own real inputs (1 where it rounds as it should);
        and the worst relative L2 error of one result from float64. A step that is not finite is followed up to the
        operator that makes it so, which a note below the table names.
        """
        from pytest_amp.numerics import predicted
        from pytest_amp.numerics.running import ErrorsOfCase

        self._expect_case(case, "trace")
        with ErrorsOfCase(case, self._conditions):
            return predicted.trace(case, self._conditions)

    def check_fp32(self, tensor: torch.Tensor, *, name: str = "the tensor") -> None:
        """Check that ``tensor`` is float32 and was not rounded to the autocast dtype.

        The dtype alone proves little: a float32 tensor whose values are all representable in the low dtype was rounded
        to it. The check needs at least 64 finite nonzero values; if fewer than 64 of them are distinct, values have
        collapsed. One value, such as a loss, is checked by its dtype only, with a warning that ``reduction="none"``
        gives more. Raises AmpFailure; AmpUsageError for 2 to 63 values that the low dtype represents, or for an
        argument that is not a tensor.
        """
        from pytest_amp.numerics.float32_values import check_fp32

        if not hasattr(tensor, "is_floating_point"):
            raise AmpUsageError(f"check_fp32 was given {type(tensor).__name__}; expected a tensor")
        check_fp32(tensor, self._conditions, name=name)

    def check_dtypes(self, case: Case, expected: Mapping[str, Expected]) -> None:
        """Check the dtypes that modules of ``case`` return in mixed precision.

        ``expected`` maps a module's path (``layers.0.norm``; ``""`` is the model) to the dtype of the floating
        tensors that it returns. A key may be a pattern, as of file names, in which ``*`` also matches dots:
        ``layers.*.norm``. A path wins over patterns, and a later pattern over an earlier one. Modules that match a
        pattern and return no floating tensor are left out.

        Of a module that returns several tensors, in a dictionary, dataclass, tuple or list, each may have its own:
        ``{"": {"loss": torch.float32, "logits": amp.dtype}}``, and of a tuple ``{"norm": {0: torch.float32}}``. Outputs
        that are not named may have any dtype. A key names an output by its place, nested ones with dots
        (``states.0``), all that are in it (``states``), or as a pattern. Complex tensors are compared with complex
        dtypes only.

        Raises AmpUsageError for a key that names no module or no output, AmpFailure for another dtype.
        """
        from pytest_amp.numerics.dtypes import check_dtypes
        from pytest_amp.numerics.running import ErrorsOfCase

        self._expect_case(case, "check_dtypes", low=False)
        with ErrorsOfCase(case, self._conditions):
            check_dtypes(case, self._conditions, expected, self._observing(case))
