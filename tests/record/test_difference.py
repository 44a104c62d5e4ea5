"""Offline comparison of two records: each difference with its kind, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import FAILING, FIXED, Failure, Kind, Observation, Record, Verdict, difference, write_record
from pytest_amp.record.difference import ORDER

TEST = "test_it::test_it"
OLD = Record(
    (
        Observation("rules/cpu/bf16/same", Kind.RULE, "fp32", test=TEST),
        Observation("rules/cpu/bf16/moved", Kind.RULE, "fp32", test=TEST),
        Observation("rules/cpu/fp16/moved", Kind.RULE, "fp32", test=TEST),
        Observation("rules/cpu/bf16/lost", Kind.RULE, "promote", test=TEST),
        Observation("rules/xpu/bf16/elsewhere", Kind.RULE, "fp32", test=TEST),
        Observation("rules/cpu/bf16/unrun", Kind.RULE, "fp32", test="test_it::test_other"),
        Observation("gradients/cpu/bf16/grew", Kind.ERROR, 0.01, test=TEST),
        Observation("gradients/cpu/bf16/shrank", Kind.ERROR, 0.01, test=TEST),
        Observation("gradients/cpu/bf16/stayed", Kind.ERROR, 0.01, test=TEST),
        Observation("gradients/cpu/bf16/time", Kind.SECONDS, 1.0, test=TEST),
    ),
    {
        "torch": "2.13.0",
        "seed": 0,
        "date": "2026-11-01T00:00:00+00:00",
        "command": "pytest",
        "devices": {"cpu": {"mkldnn": "True"}},
    },
)
NEW = Record(
    (
        Observation("rules/cpu/bf16/same", Kind.RULE, "fp32", test=TEST),
        Observation("rules/cpu/bf16/moved", Kind.RULE, "none", test=TEST),
        Observation("rules/cpu/fp16/moved", Kind.RULE, "none", test=TEST),
        Observation("rules/cpu/bf16/arrived|new", Kind.RULE, "promote", test=TEST),
        Observation("gradients/cpu/bf16/grew", Kind.ERROR, 0.03, test=TEST),
        Observation("gradients/cpu/bf16/shrank", Kind.ERROR, 0.002, test=TEST),
        Observation("gradients/cpu/bf16/stayed", Kind.ERROR, 0.012, test=TEST),
        Observation("gradients/cpu/bf16/time", Kind.SECONDS, 2.0, test=TEST),
    ),
    {
        "torch": "2.14.1",
        "seed": 0,
        "date": "2026-11-28T00:00:00+00:00",
        "command": "pytest --amp-baseline=old.json",
        "baseline": "old.json",
        "devices": {"cpu": {"mkldnn": "False"}},
    },
    complete=False,
)

Files = tuple[str, str]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    paths = tmp_path / "old.json", tmp_path / "new.json"
    for path, record in zip(paths, (OLD, NEW), strict=True):
        write_record(record, path, replace=False)
    return str(paths[0]), str(paths[1])


def test_same_test_name_in_another_family_is_distinct() -> None:
    """Nothing of a family that the old record did not run is new, even if another family has a file of that name."""
    old, other = (Observation(f"{family}/cpu/bf16/x", Kind.COUNT, 1, test="t::t") for family in ("rules", "compile"))
    actual = difference(Record((old,)), Record((old, other)))
    assert (actual.observations, actual.same, actual.not_run_before) == ((), 1, 1)
    actual = difference(Record((old, other)), Record((old,)))
    assert (actual.observations, actual.same, actual.not_run) == ((), 1, 1)


def test_verdicts_of_the_runs_themselves_are_ignored() -> None:
    """Ignore the verdicts in a record that was compared with a baseline."""
    observations = [
        Observation(f"rules/cpu/bf16/{verdict.value}", Kind.STATE, 1, verdict=verdict, baseline=2, test="t::t")
        for verdict in Verdict
    ]
    actual = difference(Record(tuple(observations)), Record(tuple(observations)))
    assert (actual.observations, actual.same) == ((), len(Verdict))


def test_differences_are_grouped_by_verdict() -> None:
    actual = difference(OLD, NEW)
    keys = {verdict.value: [observation.key for observation in actual.of(verdict)] for verdict in ORDER}
    assert keys == {
        "failed": [],
        "regressed": ["gradients/cpu/bf16/grew"],
        "changed": ["rules/cpu/bf16/moved", "rules/cpu/fp16/moved"],
        "gone": ["rules/cpu/bf16/lost"],
        "inconclusive": [],
        "observed": [],
        "new": ["rules/cpu/bf16/arrived|new"],
        "improved": ["gradients/cpu/bf16/shrank"],
        "fixed": [],
    }
    assert (actual.same, actual.unjudged, actual.not_run) == (2, 1, 2)
    assert [observation.verdict for observation in actual.observations] == sorted(
        (observation.verdict for observation in actual.observations), key=ORDER.index
    )
    assert list(actual.provenance()) == [("devices.cpu.mkldnn", "True", "False"), ("torch", "2.13.0", "2.14.1")]


def test_record_does_not_differ_from_itself() -> None:
    actual = difference(NEW, NEW)
    assert (actual.observations, actual.same, actual.not_run) == ((), 7, 0)


def test_errors_on_other_hardware_are_inconclusive_and_rules_are_not() -> None:
    other = Record(NEW.observations, {**NEW.provenance, "devices": {"cpu": {"cpu_capability": "AVX2"}}})
    actual = difference(OLD, other)
    assert [o.key for o in actual.of(Verdict.INCONCLUSIVE)] == ["gradients/cpu/bf16/grew", "gradients/cpu/bf16/shrank"]
    assert actual.unfair == {"cpu": "cpu: cpu_capability None before, AVX2 now"}
    assert len(actual.of(Verdict.CHANGED)) == 2


COUNTS = "2 same, 1 regressed, 2 changed, 1 gone, 1 new, 1 improved, 1 only recorded, 2 not run in the new one"


RELEASE = "  find the release: pytest-amp bisect 2.13.0 2.14.1 -k test_it --device=cpu --dtype=bf16"


def test_difference_prints_as_text(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "old  torch 2.13.0 (2026-11-01)",
        "new  torch 2.14.1 (2026-11-28)",
        "     devices.cpu.mkldnn: True -> False",
        "     torch: 2.13.0 -> 2.14.1",
        "     incomplete: the new run was interrupted, or had problems beyond its tests",
        ("     not_run: rules: the new run did not run all tests of 2 facts of the old record (cpu-bf16, xpu-bf16)"),
        (
            "     errors in the old record and the new record are of one seed: a fixed ratio of 1.5 decides, "
            "whatever their spread"
        ),
        "",
        COUNTS,
        "",
        "worse (1)",
        "  gradients  grew: 0.01 -> 0.03 (3 times)  [cpu-bf16]",
        RELEASE,
        "",
        "changed (2)",
        "  rules  moved: fp32 -> none  [cpu-bf16, cpu-fp16]",
        RELEASE,
        "",
        "gone (1)",
        "  rules  lost: was promote  [cpu-bf16]",
        RELEASE,
        "",
        "new (1)",
        "  rules  arrived|new: promote  [cpu-bf16]",
        "",
        "better (1)",
        "  gradients  shrank: 0.01 -> 0.002 (0.2 times)  [cpu-bf16]",
    ]


def test_difference_prints_as_markdown(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files, "--format=md"]) == 1
    page = capsys.readouterr().out
    assert page.startswith("### torch 2.13.0 (2026-11-01) → torch 2.14.1 (2026-11-28)\n")
    assert "| `gradients/cpu/bf16/grew` | 0.01 | 0.03 (3 times) |" in page
    assert "| `rules/cpu/bf16/lost` | promote |  |" in page
    assert "| `rules/cpu/bf16/arrived\\|new` |  | promote |" in page
    assert page.index("**worse") < page.index("<details>") < page.index("arrived")


def test_difference_prints_as_json(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files, "--format=json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["counts"] == {
        "failed": 0,
        "regressed": 1,
        "changed": 2,
        "gone": 1,
        "inconclusive": 0,
        "observed": 0,
        "new": 1,
        "improved": 1,
        "fixed": 0,
    }
    assert data["gaps"] == {
        "incomplete": ["the new run was interrupted, or had problems beyond its tests"],
        "not_run": ["rules: the new run did not run all tests of 2 facts of the old record (cpu-bf16, xpu-bf16)"],
    }
    assert (data["same"], data["unjudged"], data["not_run"], data["new"]["torch"]) == (2, 1, 2, "2.14.1")
    assert [o["key"] for o in data["observations"]] == [o.key for o in difference(OLD, NEW).observations]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 1),
        (["--fail-on=none"], 0),
        (["--fail-on=inconclusive"], 1),
        (["--fail-on=inconclusive,-incomplete"], 1),
        (["--fail-on=inconclusive,-incomplete,-not_run"], 0),
        (["--fail-on=-incomplete,-not_run"], 1),
        (["--fail-on=-incomplete,-not_run,-regressed,-changed"], 1),
        (["--fail-on=-incomplete,-not_run,-regressed,-changed,-gone"], 0),
        (["--fail-on=gone"], 1),
        (["--fail-on=new"], 1),
    ],
)
def test_fail_on_option_selects_failing_verdicts(files: Files, arguments: list[str], status: int) -> None:
    assert cli.main(["diff", *files, *arguments]) == status
    assert cli.main(["diff", files[0], files[0], *arguments]) == 0


def test_show_command_prints_summary_and_keys(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", files[1]]) == 0
    out = capsys.readouterr().out
    assert "torch: 2.14.1\n" in out
    assert "8 observations  (of a run that failed or was incomplete)\n  gradients  3 error\n" in out
    assert cli.main(["show", files[1], "*/grew"]) == 0
    assert capsys.readouterr().out == "gradients/cpu/bf16/grew  0.03  (pass)\n"
    assert cli.main(["show", files[1], "nosuch*"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"pytest-amp: none of the 8 keys of {files[1]} matches 'nosuch*'; "
        "a key is family/device/dtype/name, families here: gradients, rules\n"
    )


def test_key_with_brackets_matches_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, key = tmp_path / "x.json", "rules/cpu/bf16/test_it::test_it[a]"
    write_record(Record((Observation(key, Kind.RULE, "fp32"),)), path, replace=False)
    assert cli.main(["show", str(path), key]) == 0
    assert capsys.readouterr().out == f"{key}  fp32  (pass)\n"


MM = "rules/cpu/bf16/test_it::test_rule[mm]"


def test_failed_and_mended_tests_are_differences() -> None:
    """Failures before the first observation leave nothing to compare, except the failure itself."""
    ran = {"cpu-bf16 rules": ("test_it::test_rule",)}
    healthy = Record((Observation("rules/cpu/bf16/aten::mm", Kind.RULE, "fp32", test="test_it::test_rule"),), ran=ran)
    ill = Record((), ran={}, failures=(Failure(MM, "AmpFailure: mm does not cast"),))
    (failed,) = difference(healthy, ill).observations
    assert (failed.key, failed.verdict, failed.baseline) == (MM, Verdict.FAILED, "passes")
    assert failed.value == "fails: AmpFailure: mm does not cast"
    assert difference(healthy, ill).not_run == 1
    back = difference(ill, healthy)
    assert [(observation.key, observation.verdict, observation.value) for observation in back.observations] == [
        (MM, Verdict.IMPROVED, "passes")
    ]
    assert back.not_run_before == 1
    both = difference(ill, ill)
    assert (both.observations, both.failed_in_both) == ((), 1)
    two = Record((), ran={}, failures=(*ill.failures, Failure(f"{MM}[bmm]", "AmpFailure: bmm does not cast")))
    assert difference(ill, two).failed_in_both == difference(two, ill).failed_in_both == 1
    (unknown,) = difference(Record((), ran={}), ill).observations
    assert (unknown.verdict, unknown.baseline) == (Verdict.FAILED, None)  # it did not run, so its pass is unknown
    assert difference(ill, Record((), ran={})).observations == ()  # did not run: nothing is known


def test_observation_is_gone_only_if_its_test_ran_whole() -> None:
    """Records of ``-k mm`` lack all other operators, and do not report them as gone."""
    old = Record(tuple(Observation(f"rules/cpu/bf16/{name}", Kind.RULE, "fp32", test=TEST) for name in ("mm", "bmm")))
    part = Record(old.observations[:1], ran={})
    whole = Record(old.observations[:1], ran={"cpu-bf16 rules": (TEST,)})
    assert (difference(old, part).observations, difference(old, part).not_run) == ((), 1)
    assert [observation.key for observation in difference(old, whole).of(Verdict.GONE)] == ["rules/cpu/bf16/bmm"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "nowhere.json"], "nowhere.json: No such file or directory"),
        (["diff", "nowhere.json", "old.json"], "nowhere.json: No such file or directory"),
        (["show", "bad.json"], "bad.json: not JSON"),
        (
            ["diff", "old.json", "old.json", "--fail-on=worse"],
            "argument --fail-on: 'worse' is not a verdict; expected a",
        ),
        (
            ["diff", "old.json", "old.json", "--fail-on=not_run"],
            "argument --fail-on: 'not_run' is not a verdict; expecte",
        ),
        (
            ["diff", "old.json", "old.json", "--fail-on=none,gone"],
            "argument --fail-on: 'none' is not a verdict; expected",
        ),
        (["diff", "old.json"], "the following arguments are required: new"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(files[0]).parent
    monkeypatch.chdir(folder)
    (folder / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert f"error: {says}" in captured.err.splitlines()[-1]
    assert captured.out == ""


@pytest.mark.parametrize(
    ("before", "now", "fair"), [("bf16", "bf16, fp16", False), (None, "bf16", True), ("bf16", "bf16", True)]
)
def test_onednn_dtypes_count_as_hardware(before: str | None, now: str, *, fair: bool) -> None:
    """Convolutions accumulate differently without its kernels; an older record lacks this fact, and is compared."""
    old, new = (
        Record(
            provenance.observations,
            {**provenance.provenance, "devices": {"cpu": {} if known is None else {"onednn": known}}},
        )
        for provenance, known in ((OLD, before), (NEW, now))
    )
    assert (difference(old, new).unfair == {}) is fair


def test_mended_fault_has_a_separate_verdict() -> None:
    """An expected failure that passes has a verdict of its own, which fails a comparison unless excepted."""
    fixed = Failure("rules/cpu/bf16/test_x::test_y", f"{FIXED}pytorch/pytorch#1 passes on cpu-bf16; remove the xfail")
    ran = {"cpu-bf16 rules": ("test_x::test_y",)}
    actual = difference(Record(OLD.observations, ran=ran), Record(OLD.observations, failures=(fixed,), ran=ran))
    assert [observation.verdict for observation in actual.observations] == [Verdict.FIXED]
    assert Verdict.FIXED in FAILING
