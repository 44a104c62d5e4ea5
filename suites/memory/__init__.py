"""Costs and savings of mixed precision without a clock: copies between dtypes, tensors saved for backward, peaks.

Exact, so that the same numbers come out in every run; time is the family ``speed``.
"""

from pytest_amp.families import Family

FAMILY = Family("memory")
