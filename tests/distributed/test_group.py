"""Ranks answer together; one that hangs, raises, dies or leaks ends in a failure that names it, within a time limit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_amp.distributed import RankGroup, RanksFailed, unavailable
from tests.distributed import ranks
from tests.planted import PLANT


@pytest.fixture(scope="module")
def group() -> Iterator[RankGroup]:
    result = RankGroup("cpu", path=sys.path, seed=5)
    yield result
    result.close()


def test_ranks_answer_in_order(group: RankGroup) -> None:
    first, second = (group.ask(ranks.add, {"told": "this"}) for _ in range(2))
    assert [answer["sum"].tolist() for answer in first] == [[3.0, 3.0]] * 2
    assert {(answer["size"], answer["told"]) for answer in first} == {(2, "this")}
    assert [answer["random"] for answer in first] == [answer["random"] for answer in second]
    assert group.starts == 1


def test_hanging_rank_is_named_within_a_time_limit(group: RankGroup) -> None:
    rank = 1
    group.ask(ranks.add)
    began = time.monotonic()
    with pytest.raises(RanksFailed) as raised:
        group.ask(ranks.hang, {"rank": rank}, limit=1.5)
    assert time.monotonic() - began < 15
    text = str(raised.value)
    assert "hang: rank 0, 1 of 2 has no answer after 1.5 s" in text
    assert f"rank {rank} is in hang (ranks.py:" in text
    assert f"rank {1 - rank} is in all_reduce" in text
    assert "called by hang (ranks.py:" in text
    assert "a collective that another one never enters" in text
    assert group.ask(ranks.add)[0]["sum"].tolist() == [3.0, 3.0]


def test_rank_that_raises_is_quoted_without_waiting_for_others(group: RankGroup) -> None:
    for waits in (False, True):
        with pytest.raises(
            RanksFailed, match=r"fail raised on 1 of 2 ranks\n.*rank 1: ValueError \(ranks.py:\d+\): rank 1 cannot"
        ):
            group.ask(ranks.fail, {"waits": waits})
    assert group.ask(ranks.add)[1]["sum"].tolist() == [3.0, 3.0]


def test_rank_that_dies_is_named_with_its_exit_status(group: RankGroup) -> None:
    with pytest.raises(RanksFailed, match=r"rank 1 of 2 died in die\n.*exit status 3"):
        group.ask(ranks.die)
    assert group.ask(ranks.add)[0]["size"] == 2


def test_program_that_changes_torch_state_is_refused(group: RankGroup) -> None:
    with pytest.raises(RanksFailed, match="it left torch's state changed: autocast enabled"):
        group.ask(ranks.leak)
    assert group.ask(ranks.add)[0]["size"] == 2


def test_ranks_import_plugin_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLANT, "bf16_support_is_claimed")
    group = RankGroup("cpu", path=sys.path, modules=["tests.planted"])
    try:
        answers = group.ask(ranks.imported, {"module": "tests.planted"})
    finally:
        group.close()
    assert answers == [{"there": True, "query": True}] * 2


def test_ranks_that_cannot_start_report_the_error() -> None:
    group = RankGroup("cpu", path=sys.path, modules=["there_is_no_such_module"])
    with pytest.raises(RanksFailed, match="No module named 'there_is_no_such_module'"):
        group.ask(ranks.add)
    group.close()


def test_closed_group_leaves_no_files_or_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = RankGroup("cpu", path=sys.path)
    other.ask(ranks.add)
    pids = _pids(other)
    other.close()
    assert list(tmp_path.iterdir()) == []
    for pid in pids:
        _wait_until(lambda pid=pid: not _is_alive(pid))  # type: ignore[misc]


def test_group_works_with_a_long_temporary_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    group = RankGroup("cpu", path=sys.path)
    try:
        assert group.ask(ranks.add)[0]["sum"].tolist() == [3.0, 3.0]
    finally:
        group.close()


def _pids(group: RankGroup) -> list[int]:
    running: Any = group._running
    return [*running.children.pids.values(), running.children.process.pid]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_torch_without_process_groups_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unavailable("cpu") is None
    assert str(unavailable("mps")).startswith("no back end of process groups is known for mps")
    monkeypatch.setattr("torch.distributed.is_gloo_available", lambda: False)
    assert str(unavailable("cpu")).endswith("is built without gloo")
    monkeypatch.setattr("torch.distributed.is_available", lambda: False)
    assert str(unavailable("cpu")).endswith("is built without torch.distributed")
