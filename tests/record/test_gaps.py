"""Comparisons with gaps: `pytest-amp diff` ends with 1 and lists the missing parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import Kind, Observation, Record, difference, write_record

TEST = "test_it::test_it"


def _of(targets: list[str], *, complete: bool = True, names: tuple[str, ...] = ("mm", "bmm")) -> Record:
    keys = [f"rules/{target}/{name}" for target in targets for name in names]
    ran = {f"{target.replace('/', '-')} rules": (TEST,) for target in targets}
    observations = tuple(Observation(key, Kind.RULE, "fp32", test=TEST) for key in keys)
    return Record(observations, {"torch": "2.13.0"}, complete=complete, ran=ran)


NOTHING = "the records share no fact that is judged: "
GAPS = {
    "nothing is shared": (_of(["cpu/bf16"]), _of(["cpu/bf16"], names=("conv1d",)), "cpu-bf16 before, cpu-bf16 now"),
    "bf16 against fp16": (_of(["cpu/bf16"]), _of(["cpu/fp16"]), f"{NOTHING}cpu-bf16 before, cpu-fp16 now"),
    "another device": (_of(["cpu/bf16"]), _of(["cuda/bf16"]), f"{NOTHING}cpu-bf16 before, cuda-bf16 now"),
    "empty": (_of(["cpu/bf16"]), Record((), ran={}), f"{NOTHING}cpu-bf16 before, nothing now"),
    "both empty": (Record((), ran={}), Record((), ran={}), f"{NOTHING}nothing before, nothing now"),
    "one target more": (
        _of(["cpu/bf16"]),
        _of(["cpu/bf16", "cpu/fp16"]),
        "nothing on cpu-fp16 could be compared: the old record has cpu-bf16",
    ),
    "one target less": (
        _of(["cpu/bf16", "cpu/fp16"]),
        _of(["cpu/bf16"]),
        "rules: the new run did not run all tests of 2 facts of the old record (cpu-fp16)",
    ),
    "interrupted": (
        _of(["cpu/bf16"]),
        _of(["cpu/bf16"], complete=False),
        "the new run was interrupted, or had problems beyond its tests",
    ),
    "interrupted before": (_of(["cpu/bf16"], complete=False), _of(["cpu/bf16"]), "the old run was "),
    "only recorded": (
        Record((Observation("speed/cpu/bf16/time", Kind.SECONDS, 1.0, test=TEST),)),
        Record((Observation("speed/cpu/bf16/time", Kind.SECONDS, 2.0, test=TEST),)),
        NOTHING,
    ),
}


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("form", ["text", "md", "html", "json"])
def test_comparison_with_a_gap_fails_and_names_it(
    tmp_path: Path, name: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fail by default if a part was not compared, with an exception for each gap."""
    old, new, says = GAPS[name]
    files = [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    for file, content in zip(files, (old, new), strict=True):
        write_record(content, Path(file), replace=False)
    assert cli.main(["diff", *files, f"--format={form}"]) == 1
    assert says in capsys.readouterr().out
    gaps = [f"-{gap.value}" for gap in difference(old, new).gaps]
    assert cli.main(["diff", *files, "--fail-on=regressed,changed"]) == 1
    assert cli.main(["diff", *files, f"--fail-on={','.join(gaps)},-gone"]) == 0
    assert cli.main(["diff", *files, "--fail-on=none"]) == 0


def test_history_fails_on_a_gap_of_its_last_step(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.json") for number in range(3)]
    for file, content in zip(files, (_of(["cpu/bf16"]), _of(["cpu/bf16"]), _of(["cpu/fp16"])), strict=True):
        write_record(content, Path(file), replace=False)
    assert cli.main(["diff", *files]) == 1
    assert cli.main(["diff", *files[:2], files[0]]) == 0
