"""Records of two releases of torch with few differences."""

from __future__ import annotations

from pytest_amp.data_files.releases import release_of
from pytest_amp.record import Failure, Kind, Observation, Record
from pytest_amp.rules.spec import load_spec

LAST = load_spec().last
NEXT = f"{release_of(LAST)[0]}.{release_of(LAST)[1] + 1}"
FAMILIES = ("rules", "gradients", "fingerprint")
RAN = {f"{device}-bf16 {family}": ("test_it::test_it",) for device in ("cpu", "fake-cuda") for family in FAMILIES}
#: Observations of every record, so that the records share something.
SHARED = (
    Observation("rules/cpu/bf16/aten::mm", Kind.RULE, "lower_precision_fp", test="test_it::test_it"),
    Observation("fingerprint/cpu/bf16/addmm", Kind.DTYPE, "fp32 low | low low", test="test_it::test_it"),
    Observation("fingerprint/cpu/bf16/entries", Kind.COUNT, 1, test="test_it::test_it"),
)
MENDED = "distributed/cpu/{}/test_fully_shard::test_it[a]"


def observation(key: str, value: object, kind: Kind = Kind.RULE) -> Observation:
    return Observation(key, kind, value, test="test_it::test_it")  # type: ignore[arg-type]


def record(version: str, *observations: Observation, failures: tuple[Failure, ...] = ()) -> Record:
    return Record((*SHARED, *observations), {"torch": version}, complete=True, ran=RAN, failures=failures)
