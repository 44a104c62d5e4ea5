"""pytest-amp known: the known faults of torch, by release, device, dtype and test."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp.cli import main
from pytest_amp.known.rows import read_known
from tests.project import ROOT

FILE = """
[[known]]
key = ["rules/*/test_a::test_x", "rules/*/test_a::test_y[*]"]
reason = "it is lost"
report = "owner/repo#1"
until = "2.13"

[[known]]
key = "rules/cuda/bf16/test_b::test_z"
reason = "it | raises"
report = "no report found"
devices = ["cuda"]
raises = ["AmpFailure", "RuntimeError"]
machine = "packs_16_bit_additions"

[[known]]
key = "rules/*/test_a::test_x"
reason = "it is lost"
report = "owner/repo#1"
devices = ["fake-cuda"]
dtypes = ["fp16"]
until = "2.11"
"""
FIRST = """\
rules/*/test_a::test_x
rules/*/test_a::test_y[*]
  reason    it is lost
  report    owner/repo#1
  releases  up to 2.13
"""
SECOND = """\
rules/cuda/bf16/test_b::test_z
  reason    it | raises
  report    no report found
  releases  all
  devices   cuda
  machine   packs_16_bit_additions
  raises    AmpFailure, RuntimeError
"""
THIRD = """\
rules/*/test_a::test_x
  reason    it is lost
  report    owner/repo#1
  releases  up to 2.11
  devices   fake-cuda
  dtypes    fp16
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "known.toml"
    path.write_text(FILE, encoding="utf-8")
    return f"--file={path}"


@pytest.mark.parametrize(
    ("arguments", "blocks"),
    [
        ((), (FIRST, SECOND, THIRD)),
        (("--torch=2.12",), (FIRST, SECOND)),
        (("--torch=2.14.0+cu130",), (SECOND,)),
        (("--device=cpu",), (FIRST,)),
        (("--device=fake:cuda", "--dtype=bf16"), (FIRST,)),
        (("--device=cuda", "--dtype=fp16"), (FIRST,)),  # the key itself names bf16
        (("--device=fake:cuda", "--torch=2.12", "--dtype=fp16"), (FIRST.partition("\n")[2],)),
        (("test_z",), (SECOND,)),
        (("rules/*test_x",), (FIRST.replace("rules/*/test_a::test_y[*]\n", ""), THIRD)),
    ],
)
def test_known_command_selects_faults(
    file: str, arguments: tuple[str, ...], blocks: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["known", file, *arguments]) == 0
    assert capsys.readouterr().out == "\n".join(blocks)


def test_known_command_without_a_match_ends_with_1(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["known", file, "nothing"]) == 1
    assert capsys.readouterr().err == "pytest-amp: none of the 3 known faults matches\n"


def test_known_command_prints_a_markdown_table(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["known", file, "--format=md", "--torch=2.13"]) == 0
    head, rule, first, second = capsys.readouterr().out.splitlines()
    assert (head.count("|"), rule) == (6, "|---|---|---|---|---|")
    link = "[owner/repo#1](https://github.com/owner/repo/issues/1)"
    keys = "`rules/*/test_a::test_x`<br>`rules/*/test_a::test_y[*]`"
    assert first == f"| {keys} | it is lost | {link} | up to 2.13 | everywhere |"
    assert second.endswith("| no report found | all | cuda, packs_16_bit_additions |")
    assert "it \\| raises" in second


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--torch=soon",), "argument --torch: 'soon' is not a release; expected one such as 2.13"),
        (("--dtype=half",), "invalid choice: 'half'"),
        (("--file=nowhere.toml",), "nowhere.toml: No such file or directory; expected a TOML file"),
    ],
)
def test_wrong_argument_is_refused(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["known", *arguments])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_known_command_reads_the_suites_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["known"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    assert len(blocks) == len(read_known(ROOT / "suites" / "known.toml"))
