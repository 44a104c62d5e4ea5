"""The command ``pytest-amp``: its output, its streams, and its exit status; without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp import __version__, cli
from pytest_amp.rules.spec import load_spec

ROOT = Path(__file__).parents[1]


def test_rules_command_prints_rules_and_releases_of_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "softmax.int", "torch.rms_norm"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "softmax.int",
        "  cpu   none",
        "  cuda  fp32_set_opt_dtype  since torch 1.10 or earlier",
        "  xpu   fp32_set_opt_dtype  since torch 2.4",
        "  mps   fp32                since torch 2.5",
        "  mtia  fp32_set_opt_dtype  since torch 2.7",
        "",
        "rms_norm",
        "  cpu   none",
        "  cuda  fp32  since torch 2.12",
        "  xpu   fp32  since torch 2.12",
        "  mps   none",
        "  mtia  fp32  since torch 2.12",
    ]


@pytest.mark.parametrize(
    ("pattern", "blocks"),
    [
        ("softmax", ["softmax.Dimname", "softmax.int"]),
        ("aten::softmax.int", ["softmax.int"]),
        ("cudnn_rn*", []),
        ("*rnn", ["_cudnn_rnn", "miopen_rnn"]),
    ],
)
def test_rules_command_selects_overloads_and_patterns(
    pattern: str, blocks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["rules", pattern]) == (0 if blocks else 1)
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == blocks


def test_rules_command_prints_every_operator_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--device=mps"]) == 0
    text = capsys.readouterr().out
    spec = load_spec()
    names = {name for rules in spec.rules.values() for name in rules}
    assert len(text.split("\n\n")) == len(names) > 200
    assert sum(line.startswith("  mps  ") for line in text.splitlines()) == len(names)


def test_rules_command_prints_last_releases_and_builds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "cholesky", "miopen_rnn", "--device=cpu", "--device=cuda"]) == 0
    out = capsys.readouterr().out
    assert "  cpu   fp32  since torch 1.10, until 2.13\n" in out
    assert "  cuda  lower_precision_fp in float16  since torch 1.10 or earlier  registered by ROCm builds only\n" in out


def test_unknown_operator_is_reported_and_the_others_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "softmx", "mm"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("mm\n  cpu ")
    assert captured.err == (
        "pytest-amp: no rule is known for 'softmx' on any device type: an operator without one runs in the dtypes"
        " that it is given; near: softmax, log_softmax, stft\n"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["rules", "--device=gpu"], "argument --device: invalid choice: 'gpu'"),
        (["rules", "--format=md", "mm"], "--format=md is the whole table; it takes no operator and no --device"),
    ],
)
def test_wrong_command_line_is_refused(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_rules_page_of_the_documentation_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--format=md"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")


def test_rules_command_needs_no_torch() -> None:
    program = (
        "import sys\n"
        "from pytest_amp import cli\n"
        "status = cli.main(['rules', 'mm'])\n"
        "print(sorted({'torch', 'numpy', 'pytest'} & set(sys.modules)), status)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[] 0"


def test_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "pytest_amp", "--version"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == f"pytest-amp {__version__}\n"


def test_commands_that_read_files_need_packaging_alone(tmp_path: Path) -> None:
    """Run the commands of jobs that install neither torch nor pytest."""
    fact = '{"kind": "rule", "rows": [["rules/cpu/bf16/mm", "fp32"]]}'
    text = f'{{"schema": 4, "complete": true, "provenance": {{}}, "summary": {{}}, "observations": [{fact}]}}'
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    absent = "import sys; sys.modules.update(dict.fromkeys(['pytest', 'torch', 'numpy', 'jinja2']))\n"
    for arguments in (
        ["diff", "a.json", "a.json"],
        ["show", "a.json"],
        ["rules", "softmax.int"],
        ["finding", "low-norm"],
    ):
        code = f"{absent}from pytest_amp.cli import main\nsys.exit(main({arguments!r}))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), arguments


LIMITED = """
import resource, sys
from pytest_amp.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(main(["rules", "--format=md"]))
"""


@pytest.mark.skipif(os.name != "posix", reason="a disk is filled by a limit of POSIX")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_reported(tmp_path: Path, unbuffered: str) -> None:
    """End with 2 after a partial write, also without buffering, where Python itself reports nothing."""
    with (tmp_path / "page.md").open("wb") as page:
        done = subprocess.run(
            [sys.executable, "-c", LIMITED],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
            stdout=page,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "pytest-amp: standard output: File too large\n")


@pytest.mark.skipif(os.name != "posix", reason="a signal of POSIX")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_pipe_ends_the_command_without_a_message(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "pytest_amp", "rules", "--format=md"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait()) == (b"", 128 + 13)


@pytest.mark.skipif(os.name != "posix", reason="a shell of POSIX")
@pytest.mark.parametrize(
    ("closed", "message"), [(">&-", "pytest-amp: standard output: closed\n"), (">&- 2>&-", "")], ids=["output", "both"]
)
@pytest.mark.parametrize(
    "arguments", ["rules", "rules softmax --device=cuda", "show docs/lab/examples/torch-2.13.json.gz"]
)
def test_closed_output_is_reported(arguments: str, closed: str, message: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m pytest_amp {arguments} {closed}"],  # noqa: S607
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.parametrize(
    "arguments",
    [
        ["calibrate", "--sessions=1_0"],
        ["calibrate", "--sessions=\uff15"],
    ],
)
def test_number_in_python_notation_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert (left.value.code, "expected " in capsys.readouterr().err) == (2, True)
