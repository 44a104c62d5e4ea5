"""Guarantees of GradScaler: overflow never reaches a parameter, and a training is otherwise unchanged.

The scaler's own state has no dtype. These checks still run for each autocast dtype, because a loss
takes its way through a product in that dtype, backwards too: it is where the scale overflows.
"""

from pytest_amp.families import Family

FAMILY = Family("scaler")
