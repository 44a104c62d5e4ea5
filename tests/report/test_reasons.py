"""Known reasons in this package's data are printed with a change, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import Kind, Observation, Record, Verdict, difference, write_record
from pytest_amp.report import differences as reports
from pytest_amp.report.reasons import load_changes, reasons
from tests.project import Project

OLD, NEW = "2.11.0+cpu", "2.12.1+cu130"
RMS_NORM = (
    "autocast's rule of rms_norm on cuda was none and is fp32, since torch 2.12 "
    "(AT_FORALL_FP32 in aten/src/ATen/autocast_mode.h since pytorch/pytorch#174824, v2.12.0)"
)


def changed(key: str, verdict: Verdict = Verdict.CHANGED) -> Observation:
    return Observation(key, Kind.RULE, "fp32", verdict=verdict, baseline="none")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("rules/fake-cuda/bf16/aten::rms_norm", RMS_NORM),
        ("rules/cuda/bf16/aten::rms_norm/result", RMS_NORM),
        ("fingerprint/fake-cuda/fp16/nn.functional.rms_norm", RMS_NORM),
        ("gradients/cuda/bf16/rms_norm/input.0", RMS_NORM),
        ("rules/cpu/bf16/aten::rms_norm", None),  # has no rule there, before or after
        ("rules/cuda/bf16/aten::mm", None),
        ("semantics/cuda/bf16/rms_norm", None),
        ("gradients/cuda/bf16/my_rms_norm/input.0", None),
    ],
)
def test_changed_rule_has_the_reason_of_its_release(key: str, reason: str | None) -> None:
    assert reasons([changed(key)], OLD, NEW) == ({key: reason} if reason else {})
    assert reasons([changed(key)], "2.13.0", "2.14.1") == {}
    assert reasons([changed(key)], OLD, OLD) == {}


def test_downgrade_has_the_reversed_reason() -> None:
    key = "rules/fake-cuda/bf16/aten::rms_norm"
    assert reasons([changed(key)], NEW, OLD)[key].startswith("autocast's rule of rms_norm on cuda was fp32 and is none")


def test_added_and_removed_operators_are_a_reason() -> None:
    key = "rules/cpu/bf16/registered"
    assert reasons([changed(key)], "2.13.0", "2.14.1") == {key: "linalg_matrix_sqrth came; cholesky, qr went"}
    gone = changed("rules/cpu/bf16/aten::cholesky", Verdict.GONE)
    (reason,) = reasons([gone], "2.13.0", "2.14.1").values()
    assert "cholesky on cpu was fp32 and is none, until torch 2.13" in reason
    registered = changed("gradients/cpu/bf16/registered/cholesky/0/signature", Verdict.GONE)
    assert list(reasons([registered], "2.13.0", "2.14.1").values()) == [reason]


def test_builds_with_and_without_cuda_are_a_reason() -> None:
    """Explain differences between a build for CUDA and one without, in either order, and between no others."""
    key = "rules/fake-mps/bf16/aten::scaled_dot_product_attention/result"
    for old, new in (("2.11.0+cu130", "2.13.0+cpu"), ("2.13.0+cpu", "2.14.1+cu130")):
        assert "a build for CUDA" in reasons([changed(key, Verdict.NEW)], old, new)[key]
    assert reasons([changed(key, Verdict.NEW)], "2.11.0+cu130", "2.14.1+cu130") == {}


@pytest.mark.parametrize(
    ("name", "operator"),
    [("nn.RMSNorm", "rms_norm"), ("nn.ConvTranspose3d", "conv_transpose3d.input"), ("nn.LazyConv3d", "conv3d")],
)
def test_module_has_the_reason_of_its_operator(name: str, operator: str) -> None:
    device = "fake-cuda" if operator == "rms_norm" else "fake-mps"
    key = f"fingerprint/{device}/fp16/{name}"
    assert f"autocast's rule of {operator} " in reasons([changed(key)], "2.8.0", "2.12.1")[key]
    assert reasons([changed(f"fingerprint/{device}/fp16/nn.Conv1d")], "2.8.0", "2.12.1") == {}


def test_count_of_entries_names_added_and_removed_ones() -> None:
    """Name the entries of the count's own device and dtype; without them it has no reason."""

    def entry(name: str, verdict: Verdict, device: str = "cpu") -> Observation:
        return changed(f"fingerprint/{device}/bf16/{name}", verdict)

    count = entry("entries", Verdict.CHANGED)
    moved = [
        entry("hash_tensor", Verdict.NEW),
        entry("unbind_copy", Verdict.NEW),
        entry("linalg.det.singular", Verdict.GONE),
        entry("mm", Verdict.CHANGED),
        entry("elsewhere", Verdict.NEW, "fake-mps"),
    ]
    actual = reasons([count, *moved], "2.6.0", "2.9.1")
    assert actual[count.key] == "hash_tensor, unbind_copy came; linalg.det.singular went"
    assert count.key not in reasons([count], "2.6.0", "2.9.1")


def test_rule_of_some_builds_is_a_reason() -> None:
    key = "rules/fake-cuda/bf16/aten::_cudnn_rnn/result"
    for verdict, known in ((Verdict.NEW, True), (Verdict.GONE, True), (Verdict.CHANGED, False)):
        reason = "autocast's rule of _cudnn_rnn on cuda is registered by CUDA builds only"
        assert reasons([changed(key, verdict)], "2.13.0+cpu", "2.14.1+cu130") == ({key: reason} if known else {})


def test_listed_change_of_a_release_is_a_reason() -> None:
    key = "gradients/cpu/bf16/clamp/input.0"
    assert "torch 2.14: clamp shares its gradient" in reasons([changed(key)], "2.13.0", "2.14.1")[key]
    assert "torch 2.14: clamp shares its gradient" in reasons([changed(key)], "2.14.1", "2.9.0")[key]
    assert reasons([changed(key)], "2.12.0", "2.13.0") == {}
    assert all(change.text and change.source and change.keys for change in load_changes())


@pytest.mark.parametrize("version", ["not installed", "unknown", None, "", "2.1.0"])
def test_unknown_torch_has_no_reasons(version: object) -> None:
    assert reasons([changed("rules/cuda/bf16/aten::rms_norm")], version, NEW) == {}
    assert reasons([changed("rules/cuda/bf16/registered")], version, NEW) == {}


def test_failed_test_has_no_reason_of_a_rule() -> None:
    assert reasons([changed("rules/cuda/bf16/aten::rms_norm", Verdict.FAILED)], OLD, NEW) == {}


@pytest.mark.parametrize("versions", [(OLD, NEW), (NEW, NEW), (None, None)])
def test_fixed_fault_has_a_reason_and_a_failure_has_none(versions: tuple[str | None, str | None]) -> None:
    key = "rules/cpu/bf16/test_it::test_it"
    why = "fails: [XPASS(strict)] fixed upstream: pytorch/pytorch#1 passes on cpu-bf16; remove the xfail"
    fixed = Observation(key, Kind.STATE, why, verdict=Verdict.FIXED)
    failed = Observation(f"{key}[a]", Kind.STATE, "fails: AmpFailure: no", verdict=Verdict.FAILED)
    assert reasons([fixed, failed], *versions) == {
        key: "fixed upstream: pytorch/pytorch#1; remove the expected failure"
    }


def test_failed_test_has_the_reason_of_a_fact_that_it_names() -> None:
    test = "fingerprint/cpu/bf16/test_dtypes::test_it[functional.l-m]"
    name = "nn.functional.linear_cross_entropy.chunked_none"
    failed = Observation(test, Kind.STATE, f"fails: AmpFailure: 1 return other dtypes: {name}", verdict=Verdict.FAILED)
    (reason,) = reasons([failed], "2.14.1", "2.15.0").values()
    assert reason.startswith("torch 2.15: linear_cross_entropy of probabilities")
    other = Observation(test, Kind.STATE, f"fails: AmpFailure: other dtypes: {name}.more", verdict=Verdict.FAILED)
    assert reasons([other], "2.14.1", "2.15.0") == {}


def test_reason_is_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for version, rule in ((OLD, "none"), (NEW, "fp32")):
        keys = [f"rules/fake-cuda/{dtype}/aten::rms_norm" for dtype in ("bf16", "fp16")]
        record = Record(tuple(Observation(key, Kind.RULE, rule, test="t::t") for key in keys), {"torch": version})
        paths.append(tmp_path / f"{version}.json")
        write_record(record, paths[-1], replace=False)
    actual = difference(Record(()), Record(()))
    assert reports.why(actual) == {}
    for form in ("text", "md", "html"):
        assert cli.main(["diff", *map(str, paths), f"--format={form}"]) == 1
        out = capsys.readouterr().out.replace("&#39;", "'")
        issue = "pytorch/pytorch#174824"
        link = f"https://github.com/{issue.replace('#', '/issues/')}"
        for written in (f"[{issue}]({link})", f'<a href="{link}">{issue}</a>'):
            out = out.replace(written, issue)
        if form == "html":
            out = out.partition('<script type="application/json"')[0]
        assert out.count(RMS_NORM) == 1
    assert cli.main(["diff", *map(str, paths), "--format=json"]) == 1
    assert {row["why"] for row in json.loads(capsys.readouterr().out)["observations"]} == {RMS_NORM}


def test_reason_is_in_the_summary_and_page_of_a_run(project: Project) -> None:
    """Write the baseline of another release directly, since only one torch is installed."""
    project.file("rules/__init__.py", "from pytest_amp.families import Family\n\nFAMILY = Family('rules')\n")
    project.file("rules/test_it.py", "def test_it(amp):\n    amp.observe('registered', 1, kind='count')\n")
    arguments = ("--amp-device=cpu", "--amp-dtype=bf16")
    assert project.here(*arguments, "--amp-record=old.json").ret == 0
    path = project.path / "old.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["provenance"]["torch"] = "2.6.0"
    data["observations"][0]["rows"][0][1] = 2
    path.write_text(json.dumps(data), encoding="utf-8")
    result = project.here(*arguments, "--amp-baseline=old.json", "--amp-report=md:page.md")
    assert result.ret == 1
    lines = [line for line in result.outlines if line.startswith("          because ")]
    page = (project.path / "page.md").read_text(encoding="utf-8")
    assert len(lines) == 1
    assert lines[0].strip().removeprefix("because ") in page
