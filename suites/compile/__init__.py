"""Checks of torch.compile under mixed precision: it computes what eager does, in the dtypes of eager's regions."""

from pytest_amp.families import Family

FAMILY = Family("compile")
