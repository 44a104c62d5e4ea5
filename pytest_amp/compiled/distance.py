"""Distance of a compiled step from one in eager, tensor by tensor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_amp.numerics import tolerance
from pytest_amp.numerics.compare import same
from pytest_amp.numerics.errors import relative_error
from pytest_amp.numerics.prediction import Prediction
from pytest_amp.numerics.step import Step


def have_equal_forward(eager: Step, by_graphs: Step) -> bool:
    """Return whether outputs and buffers of both steps are bitwise equal; a graph that Dynamo traced may be wrong."""
    named = by_graphs.named()
    forward = [name for name in eager.named() if name.startswith(("output.", "buffer."))]
    return all(name in named and same(eager.named()[name], named[name]) for name in forward)


def equal_names(eager: Step, compiled: Step) -> list[str]:
    """Return the names of the tensors that are bitwise equal in both steps."""
    return [name for name, value in compiled.named().items() if same(eager.named()[name], value)]


@dataclass(frozen=True)
class StepDistance:
    """Distances of a compiled step's tensors from eager's, in units of the noise, and the unequal tensors."""

    far: Mapping[str, float]
    unequal: Sequence[str]

    @classmethod
    def between(cls, eager: Step, compiled: Step, prediction: Prediction, u: float) -> StepDistance:
        """Measure the distances; ``u`` is the unit roundoff of the low dtype, which bounds the noise from below."""
        actual, reference, equal = compiled.named(), eager.named(), equal_names(eager, compiled)
        far = {
            name: relative_error(actual[name], reference[name], scale=prediction.sizes[name])
            / max(prediction.noise[name], tolerance.floor(actual[name].numel(), u))
            for name in actual
            if name in prediction.noise
        }
        return cls(far, [name for name in far if name not in equal])

    @property
    def worst(self) -> str:
        """Name of the unequal tensor with the largest distance."""
        return max(self.unequal, key=lambda name: self.far[name])

    @property
    def median(self) -> float:
        """Median of the distances."""
        return statistics.median(self.far.values())

    def is_none(self, scale: float, *, bits: bool) -> bool:
        """Return whether both steps are equal up to the order of sums, or with ``bits`` bitwise."""
        if bits or not self.unequal:
            return not self.unequal
        return (
            self.median <= tolerance.MEDIAN_DISTANCE * scale
            and self.far[self.worst] <= tolerance.WORST_DISTANCE * scale
        )
