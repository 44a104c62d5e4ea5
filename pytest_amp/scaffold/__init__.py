"""Test files for a user's model: takes the name of what builds it, returns a file with a batch, a loss and the test."""

from pytest_amp.scaffold.batches import ScaffoldError
from pytest_amp.scaffold.source import write_test

__all__ = ["ScaffoldError", "write_test"]
