"""Checks of what is computed: gradients, dtypes, rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pytest_amp.amp.base import Bound
from pytest_amp.failure import Misuse, is_misuse

if TYPE_CHECKING:
    import torch

    from pytest_amp.cases import Case
    from pytest_amp.numerics.oracle import Trace

__tracebackhide__ = is_misuse


class NumericChecks(Bound):
    """What a training step computes in mixed precision, held against float64."""

    def check_gradients(self, case: Case, *, tolerance: float | None = None) -> None:
        """Hold everything that a training step of ``case`` computes in mixed precision against float64.

        Outputs, the gradient of every parameter and of the inputs that want one, and the module's
        buffers: each is there, finite, of its dtype, and no further from the float64 value than rounding
        explains. How much rounding explains is predicted in float64, with explicit rounding where autocast's
        rules cast (docs/oracle.md; on device types without rounding models it is measured with casts made
        by hand). Each operator of the step must round as its model says, and the step must be that of casts
        made by hand with none of autocast's kernels: on a CPU in every bit, on an accelerator but for the
        order of sums (pytest_amp/numerics/tolerance.py has the numbers). On a CPU a step that computes
        something else each time fails as such. Each error is observed as ``<case>/<tensor>``, the relative L2
        distance, beside what was allowed.

        ``tolerance``, else the marker's, is what every error may be in place of the noise, and leaves
        the comparison with casts made by hand and with rounding models out; --amp-tolerance-scale multiplies
        either. In fp16 the loss is scaled by a power of two, 65536 or the largest 65536 / 4**n that leaves
        gradients finite. Raises AmpFailure.
        """
        from pytest_amp import cases
        from pytest_amp.numerics.gradients import check_gradients

        self._expect_case(case, "check_gradients")
        if tolerance is not None:
            cases.expect_number("tolerance", tolerance, least=0, above=True)

        check_gradients(
            case, self.conditions, self.observe, tolerance=self.marker.tolerance if tolerance is None else tolerance
        )

    def over_seeds(
        self, measure: Callable[[], Mapping[str, float]]
    ) -> tuple[dict[str, float], dict[str, tuple[float, ...]]]:
        """Errors by name, and by name what each is with the numbers of other seeds, as ``observe`` takes them.

        ``measure()`` draws its numbers from torch's generators and returns errors. It is called after torch has
        been seeded as the run is, and where the run is recorded or compared once more after each of two other seeds:
        a comparison holds the errors against those. Where the run is neither, the second mapping is empty.
        """
        import torch

        from pytest_amp.numerics.spread import over_seeds

        draws = []
        for seed in range(self.config.seed, self.config.seed + self._draws):
            torch.manual_seed(seed)
            draws.append(dict(measure()))
        others = {name: over_seeds(draw.get(name) for draw in draws[1:]) for name in draws[0]}
        return draws[0], {name: each for name, each in others.items() if each is not None}

    def trace(self, case: Case) -> Trace:
        """Every operator of a training step of ``case`` in mixed precision, forward and going back; prints as a table.

        A row has the module, the operator as it reaches the device, the dtypes it takes and returns,
        autocast's rule of the operator around it that has one, its rounding model, how often it was called there,
        the share of elements that equal that model for the operator's own real inputs (1 where it rounds as it
        should), and the worst relative L2 error of one result from float64.
        """
        from pytest_amp.numerics import predicted
        from pytest_amp.numerics.running import ToldOf

        self._expect_case(case, "trace")
        with ToldOf(case, self.conditions):
            return predicted.trace(case, self.conditions)

    def check_fp32(self, tensor: torch.Tensor, *, name: str = "the tensor") -> None:
        """Hold that ``tensor`` is float32 and was not rounded to the autocast dtype on its way.

        A dtype check sees only the name: a float32 tensor of which every value is representable in the low dtype
        was low before. Decided on at least 64 distinct finite values other than zero. Raises AmpFailure,
        and ValueError for a tensor with fewer.
        """
        from pytest_amp.numerics.predicted import check_fp32

        if not hasattr(tensor, "is_floating_point"):
            raise Misuse(f"check_fp32 was given {type(tensor).__name__}; valid: a tensor")
        check_fp32(tensor, self.conditions, name=name)

    def check_dtypes(self, case: Case, expected: Mapping[str, torch.dtype]) -> None:
        """Hold the dtypes that modules of ``case`` return in mixed precision against ``expected``.

        ``expected`` maps a module's path (``layers.0.norm``; ``""`` is the model), or a pattern of paths
        (``layers.*.norm``, as of file names, where ``*`` takes dots, too), to the dtype of the floating tensors
        that it returns. A path goes before patterns, a later pattern before an earlier one; of the modules that a
        pattern names those count that returned one. Raises Misuse for what names no module, AmpFailure for
        another dtype.
        """
        from pytest_amp.numerics.dtypes import check_dtypes
        from pytest_amp.numerics.running import ToldOf

        self._expect_case(case, "check_dtypes", low=False)
        with ToldOf(case, self.conditions):
            check_dtypes(case, self.conditions, expected, self.observe)
