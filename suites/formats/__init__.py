"""What the number formats are, bit by bit, and what a device makes of them: all else of mixed precision rests on it."""

from pytest_amp.families import Family

FAMILY = Family("formats")
