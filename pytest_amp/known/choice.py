"""Choice of known faults: those of a release, a device and a dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_amp.data_files.releases import Release
from pytest_amp.known.rows import Known, key_pattern


def chosen(
    rows: Sequence[Known], *, release: Release | None, device: str | None, dtype: str | None, key: str | None
) -> list[Known]:
    """Return the faults of a release, a device, a dtype, and of keys that match ``key`` or contain it; None is any.

    A later row that ends a fault there removes it, as it does for the tests.
    """
    result = []
    for place, row in enumerate(rows):
        if not row.concerns(device, dtype) or (release is not None and not row.is_in(release)):
            continue
        ended = [later for later in rows[place + 1 :] if _ends(later, release, device, dtype)]
        keys = [pattern for pattern in row.keys if not any(_covers(later, pattern) for later in ended)]
        if key is not None:
            keys = [pattern for pattern in keys if key in pattern or key_pattern(key).fullmatch(pattern)]
        if keys:
            result.append(replace(row, keys=tuple(keys)))
    return result


def _ends(row: Known, release: Release | None, device: str | None, dtype: str | None) -> bool:
    """Return whether ``row`` says of the whole of a device and dtype that the fault has ended."""
    return (
        release is not None
        and row.has_begun(release)
        and not row.is_in(release)
        and (not row.devices or device in row.devices)
        and (not row.dtypes or dtype in row.dtypes)
    )


def _covers(row: Known, key: str) -> bool:
    return any(key_pattern(pattern).fullmatch(key) for pattern in row.keys)
