"""The number formats, bit by bit, and their implementation on a device: mixed precision rests on them."""

from pytest_amp.families import Family

FAMILY = Family("formats")
