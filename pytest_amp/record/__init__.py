"""What a run observed: the record, its keys, its file, and the comparison with an earlier one.

Pure Python: neither torch nor pytest is needed to read or compare.
"""

from pytest_amp.record.compare import compare, unfair
from pytest_amp.record.difference import FAILING, Difference, difference
from pytest_amp.record.file import Record, RecordError, read_record, write_record, write_whole
from pytest_amp.record.observation import (
    EXACT,
    Kind,
    Observation,
    Value,
    Verdict,
    canonical,
    check_value,
    finite,
    make_key,
)

__all__ = [
    "EXACT",
    "FAILING",
    "Difference",
    "Kind",
    "Observation",
    "Record",
    "RecordError",
    "Value",
    "Verdict",
    "canonical",
    "check_value",
    "compare",
    "difference",
    "finite",
    "make_key",
    "read_record",
    "unfair",
    "write_record",
    "write_whole",
]
