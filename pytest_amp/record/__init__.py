"""Observations of a run: the record, its keys, its file, and the comparison with an earlier record.

Pure Python: neither torch nor pytest is needed to read or compare.
"""

from pytest_amp.record.baseline import Baseline
from pytest_amp.record.compare import ERROR_RATIO, compare, judged, moved, shifted, unfair
from pytest_amp.record.difference import (
    FAILING,
    FAILS,
    ORDER,
    Difference,
    Gap,
    difference,
    families,
    flattened,
    from_baseline,
)
from pytest_amp.record.errors import DRAWS
from pytest_amp.record.file import (
    FIXED,
    SCHEMA,
    Failure,
    Record,
    RecordError,
    content,
    from_data,
    parsed,
    read_record,
    write_record,
    write_whole,
)
from pytest_amp.record.history import BackEnd, History, history
from pytest_amp.record.joined import check_joinable, joined
from pytest_amp.record.lock import alone
from pytest_amp.record.observation import (
    EXACT,
    Better,
    Kind,
    Observation,
    Observe,
    Value,
    Verdict,
    canonical,
    check_value,
    check_written,
    finite,
    make_key,
    unwritable,
)
from pytest_amp.record.renamed import keys_of, keys_of_test
from pytest_amp.record.trend import Trend, trend

__all__ = [
    "DRAWS",
    "ERROR_RATIO",
    "EXACT",
    "FAILING",
    "FAILS",
    "FIXED",
    "ORDER",
    "SCHEMA",
    "BackEnd",
    "Baseline",
    "Better",
    "Difference",
    "Failure",
    "Gap",
    "History",
    "Kind",
    "Observation",
    "Observe",
    "Record",
    "RecordError",
    "Trend",
    "Value",
    "Verdict",
    "alone",
    "canonical",
    "check_joinable",
    "check_value",
    "check_written",
    "compare",
    "content",
    "difference",
    "families",
    "finite",
    "flattened",
    "from_baseline",
    "from_data",
    "history",
    "joined",
    "judged",
    "keys_of",
    "keys_of_test",
    "make_key",
    "moved",
    "parsed",
    "read_record",
    "shifted",
    "trend",
    "unfair",
    "unwritable",
    "write_record",
    "write_whole",
]
