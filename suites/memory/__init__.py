"""What mixed precision costs and saves without a clock: copies between dtypes, what backward keeps, peaks.

Exact, so that the same numbers come out in every run; time is the family ``speed``.
"""

from pytest_amp.families import Family

FAMILY = Family("memory")
