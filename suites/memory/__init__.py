"""Costs and savings of mixed precision without a clock: copies between dtypes, tensors saved for backward, peaks.

Counts are exact and the same in every run; the family ``speed`` measures time.
"""

from pytest_amp.families import Family

FAMILY = Family("memory")
