"""Number formats in mixed precision: casts of autocast, thresholds, promotion, TF32, and supported dtypes."""

from pytest_amp.families import Family

FAMILY = Family("formats")
