"""Small hand-written arguments for each registered operator.

Every floating argument is float32 on the CPU, with values that no 16-bit format represents, so that a missing or an
additional cast changes the result. Values are the same in every process.
"""

from pytest_amp.rules.samples.sample import Sample
from pytest_amp.rules.samples.table import further_samples, has_samples, samples

__all__ = ["Sample", "further_samples", "has_samples", "samples"]
