"""Hostile files: their text moves no cursor, runs in no page, and malformed ones end in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_amp import cli
from pytest_amp.record import Failure, Kind, Observation, Record, RecordError, read_record, write_record
from pytest_amp.record.file import DEEPEST_FILE, LARGEST, dumps
from pytest_amp.record.observation import DEEPEST
from pytest_amp.report.inline import code, plain
from tests.project import ROOT, Project, refused

TEST = "test_it::test_it"
#: It clears the screen, sets the title, reverses the following text, fakes a line, and runs in a page.
ATTACK = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egreen\nall is well\r</code>`|<script>alert(1)</script>![x](https://example.org)"


def hostile(version: str, *, rule: str = "fp32") -> Record:
    """Return a record with the attack in each field that takes any text."""
    return Record(
        (
            Observation(
                "rules/cpu/bf16/a\\\\|<script>alert(2)</script>", Kind.RULE, ATTACK + rule, ATTACK, test=ATTACK
            ),
            Observation("rules/cpu/bf16/mm", Kind.STATE, {ATTACK: [ATTACK, rule]}, test=TEST),
            Observation("project/cpu/bf16/mine", Kind.MEASURE, 1.0 + len(rule), ATTACK, test=TEST),
        ),
        {"torch": version + ATTACK, "date": ATTACK, ATTACK: ATTACK, "devices": {"cpu": {"machine": ATTACK + rule}}},
        {ATTACK: {ATTACK: 1}},
        ran={"cpu-bf16 rules": (TEST,)},
        failures=(Failure(f"rules/cpu/bf16/{TEST}[{rule}]", ATTACK),),
    )


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    for path, rule in zip(paths, ("fp32", "promote", "none"), strict=True):
        write_record(hostile("2.13.0", rule=rule), path, replace=False)
    return list(map(str, paths))


def assert_harmless(text: str, form: str) -> None:
    assert {letter for letter in text if not letter.isprintable()} <= {"\n"}
    if form in ("md", "html"):
        without_our_own = text.replace("<script>\n", "").replace('<script type="application/json"', "")
        assert "<script" not in without_our_own
        assert "](https://example.org)" not in (text if form == "md" else "")
    assert not re.search("^all is well", text, re.MULTILINE)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("form", ["text", "md", "html", "json"])
def test_text_of_a_record_is_escaped_in_a_comparison(
    files: list[str], count: int, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if form == "html":
        pytest.importorskip("jinja2", reason="needs jinja2: pip install 'pytest-amp[html]'")
    assert cli.main(["diff", *files[:count], f"--format={form}"]) == 1
    out = capsys.readouterr().out
    assert_harmless(out, form)
    assert "owned" in out  # shown, but without effect


@pytest.mark.parametrize("pattern", [[], ["*"]])
def test_text_of_a_record_is_escaped_by_the_show_command(
    files: list[str], pattern: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", files[0], *pattern]) == 0
    out = capsys.readouterr().out
    assert_harmless(out, "text")
    assert r"\x1b[2J\x1b]0;owned\x07\x9b31m\u202egreen\nall is well\r" in out


def test_text_of_a_baseline_is_escaped_in_the_reports_of_a_run(project: Project) -> None:
    write_record(
        Record(
            (
                Observation("project/cpu/bf16/x", Kind.STATE, ATTACK, test=TEST),
                Observation("project/cpu/bf16/gone", Kind.STATE, ATTACK, test=TEST),
            ),
            {"torch": ATTACK, "seed": 0},
        ),
        project.path / "old.json",
        replace=False,
    )
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 'good', kind='state')\n")
    files = [f"--amp-report={form}:page.{form}" for form in ("md", "html")]
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-baseline=old.json", *files)
    assert result.ret == 1
    assert_harmless("\n".join(result.outlines), "text")
    for form in ("md", "html"):
        assert_harmless((project.path / f"page.{form}").read_text(encoding="utf-8"), form)


@pytest.mark.parametrize(
    ("text", "inline"),
    [
        ("fp32 low | =", r"fp32 low \| ="),
        ("a & b, 1 < 2, &lt;", "a & b, 1 &lt; 2, &amp;lt;"),
        (r"ends in \\", r"ends in \\\\"),
        (r"a\|b", r"a\\\|b"),
        ("rules/cuda/*", r"rules/cuda/\*"),
        ("a [x](y) [x][y] [x]: y [0, 1]", r"a [x]\(y) [x]\[y] [x]: y [0, 1]"),
        ("[x]: y", r"\[x]: y"),
        ("_private, #1", "_private, #1"),
    ],
)
def test_plain_text_has_no_markup(text: str, inline: str) -> None:
    assert plain(text) == inline


@pytest.mark.parametrize(
    ("text", "inline"),
    [
        ("rules/cpu/bf16/mm", "`rules/cpu/bf16/mm`"),
        ("a|b", r"`a\|b`"),
        ("`a`", "<code>&#96;a&#96;</code>"),
        (r"a\|b", "<code>a&#92;&#124;b</code>"),
        ("<b>", "<code>&#60;b&#62;</code>"),
        ("", "<code></code>"),
    ],
)
def test_inline_code_escapes_its_delimiters(text: str, inline: str) -> None:
    assert code(text) == inline


@pytest.mark.parametrize("depth", [DEEPEST_FILE + 1, 900])
@pytest.mark.parametrize("place", ["value", "provenance", "summary", "ran"])
@pytest.mark.parametrize("command", ["show", "diff"])
def test_deep_nesting_is_refused_in_one_line(
    tmp_path: Path, depth: int, place: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data: dict[str, Any] = json.loads(dumps(Record((Observation("rules/cpu/bf16/mm", Kind.STATE, 1),), {"seed": 0})))
    nested: Any = 1
    for _ in range(depth):
        nested = [nested]
    if place == "value":
        data["observations"][0]["rows"][0][1] = nested
    else:
        data[place] = {"cpu-bf16 rules": nested}
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        cli.main([command, *[str(path)] * (1 + (command == "diff"))])
    assert ended.value.code == 2
    assert f"{path}: lists and objects nested more than {DEEPEST_FILE} deep" in capsys.readouterr().err.splitlines()[-1]


def test_deepest_value_is_read_and_a_deeper_one_is_refused(project: Project, tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(DEEPEST):
        value = [value]
    path = tmp_path / "deep.json"
    write_record(Record((Observation("rules/cpu/bf16/mm", Kind.STATE, value),)), path, replace=False)
    assert read_record(path).observations[0].value == value
    project.write(
        test_it=f"def test_it(amp):\n    value = 1\n    for _ in range({DEEPEST + 1}):\n        value = [value]\n"
        "    amp.observe('x', value, kind='state')\n"
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.stdout.fnmatch_lines([f"*project/cpu/bf16/x: lists and objects nested more than {DEEPEST} deep"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and devices with names are of POSIX")
@pytest.mark.parametrize("kind", ["pipe", "pipe with a writer", "/dev/zero", "folder"])
@pytest.mark.parametrize("command", ["show", "diff"])
def test_path_of_no_regular_file_is_refused_in_one_line(tmp_path: Path, kind: str, command: str) -> None:
    """Read in a process with limits of its own: waiting, or filling the memory, would never end."""
    path = Path(kind) if kind.startswith("/") else tmp_path / "file.json"
    writer = None
    if kind == "folder":
        path.mkdir()
    elif "pipe" in kind:
        os.mkfifo(path)
    if kind == "pipe with a writer":
        writer = os.open(path, os.O_RDWR)
        os.write(writer, b"{")
    begun = time.monotonic()
    arguments = [str(path)] * (1 + (command == "diff"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest_amp", command, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if writer is not None:
        os.close(writer)
    assert (done.returncode, done.stdout) == (2, "")
    says = "Is a directory" if kind == "folder" else "not a regular file"
    assert done.stderr.splitlines()[-1].endswith(f"error: {path}: {says}")
    assert time.monotonic() - begun < 30


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and devices with names are of POSIX")
@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("--amp-baseline", []),
        ("--amp-baseline", ["--amp-allow-missing=baseline"]),
        ("--amp-known", []),
        ("--amp-floors", []),
    ],
)
@pytest.mark.parametrize("file", ["pipe", "/dev/zero"])
def test_option_with_no_regular_file_is_refused(project: Project, option: str, more: list[str], file: str) -> None:
    project.write(test_it="def test_it(amp):\n    pass\n")
    os.mkfifo(project.path / "pipe")
    assert option.removeprefix("--amp-") in refused(project.here(f"{option}={file}", *more))


def test_too_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 2)  # a sparse file, which takes no space
    with pytest.raises(RecordError, match="more than 256 MiB, which no record has"):
        read_record(path)
