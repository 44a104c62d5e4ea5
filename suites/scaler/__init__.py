"""Guarantees of GradScaler: overflow never reaches a parameter, and a training is otherwise unchanged.

The scaler's own state has no dtype. These checks still run for each autocast dtype, because a loss depends on a product
in that dtype, whose backward is where the scale overflows.
"""

from pytest_amp.families import Family

FAMILY = Family("scaler")
