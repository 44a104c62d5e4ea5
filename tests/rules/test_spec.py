"""The spec: its rules for a device type and a release, and its errors if it is malformed."""

from __future__ import annotations

import pytest

from pytest_amp.data_files.releases import release_of
from pytest_amp.rules.spec import SPEC_FILE, Coverage, RuleName, coverage, expected, load_spec, parse_spec

COUNTS = {
    ("2.6.0", "cpu"): 129,
    ("2.6.0", "cuda"): 125,
    ("2.6.0", "xpu"): 123,
    ("2.6.0", "mps"): 99,
    ("2.7.1", "mtia"): 123,
    ("2.9.1", "mps"): 101,
    ("2.11.0+cu130", "cuda"): 125,
    ("2.12.1", "cuda"): 126,
    ("2.13.0+cpu", "cpu"): 127,
    ("2.13.0+cpu", "cuda"): 119,
    ("2.13.0+cpu", "xpu"): 117,
    ("2.13.0+cpu", "mps"): 95,
    ("2.13.0+cpu", "mtia"): 117,
    ("2.14.1+cu130", "cpu"): 126,
    ("2.14.1+cu130", "cuda"): 120,
    ("2.15.0+cu132", "cpu"): 126,
    ("2.15.0+cu132", "cuda"): 120,
}

#: The last release that the spec covers, and the one after it.
LAST = load_spec().last
NEXT = f"{release_of(LAST)[0]}.{release_of(LAST)[1] + 1}"

WELL_FORMED = """
covered = { first = "2.6", last = "2.14" }
left_out.npu = { reason = "nobody has one" }
device_types.cpu = { introduced = "1.10", source = "here" }
device_types.cuda = { source = "there", introduced = "2.7", since = "2.7" }
earlier.cpu = { "2.1" = ["mm"] }
[[group]]
title = "some"
until = "2.13"
operators = [
  { name = "mm", cpu = "lower_precision_fp", cuda = { rule = "fp32", since = "2.9", source = "elsewhere" } },
  { name = "own::op", cpu = [{ rule = "fp32", until = "2.7" }, { rule = "promote", since = "2.8" }] },
]
"""


@pytest.mark.parametrize(("version", "device_type"), COUNTS)
def test_release_has_as_many_rules_as_its_dispatcher_has_kernels(version: str, device_type: str) -> None:
    rules = expected(device_type, version)
    assert len([name for name, rule in rules.items() if rule.may_be_absent is None]) == COUNTS[version, device_type]


def test_rule_applies_from_its_first_release_to_its_last() -> None:
    assert "aten::rms_norm" not in expected("cuda", "2.11.0")
    assert expected("cuda", "2.12.0")["aten::rms_norm"].name is RuleName.FP32
    assert "aten::cholesky" in expected("cpu", "2.13.0")
    assert "aten::cholesky" not in expected("cpu", "2.14.0")
    assert "aten::softmax.Dimname" in expected("cuda", "2.12.1")
    assert "aten::softmax.Dimname" not in expected("cuda", "2.13.0")


def test_rule_of_some_builds_names_them() -> None:
    rule = expected("cuda", "2.13.0")["aten::_cudnn_rnn"]
    assert rule.may_be_absent == "registered by CUDA builds only"
    assert rule.dtype == "float16"
    assert rule.own_kernel is not None


def test_device_types_without_rules_have_a_reason() -> None:
    """Torch has autocast kernels for MAIA, but cannot create a tensor there."""
    assert parse_spec(WELL_FORMED).left_out == {"npu": "nobody has one"}
    assert load_spec().left_out.keys() == {"maia"}
    assert not load_spec().left_out.keys() & load_spec().device_types.keys()


def test_rules_all_have_a_source() -> None:
    assert all(rule.source for rules in load_spec().rules.values() for turns in rules.values() for rule in turns)


@pytest.mark.parametrize(
    ("version", "what"),
    [
        ("2.6.0", Coverage.COVERED),
        (f"{LAST}.1+cu130", Coverage.COVERED),
        (f"{LAST}.0.dev20260101", Coverage.COVERED),
        (f"{LAST}.0a0+git1234567", Coverage.COVERED),
        (f"{NEXT}.0.dev20261101+cpu", Coverage.NEWER),
        (f"{NEXT}.0", Coverage.NEWER),
        ("3.0.0", Coverage.NEWER),
    ],
)
def test_coverage_depends_on_the_base_release(version: str, what: Coverage) -> None:
    assert coverage("cuda", version) is what


def test_newer_release_has_the_rules_of_the_last_covered_one() -> None:
    assert expected("cuda", "3.0.0") == expected("cuda", f"{NEXT}.0") == expected("cuda", f"{LAST}.0")
    ended = parse_spec(WELL_FORMED.replace('until = "2.13"', 'until = "2.14"'))
    assert ended.expected("cuda", "2.15.0") == ended.expected("cuda", "2.14.0") != {}


def test_unknown_device_type_has_no_rules() -> None:
    assert coverage("hpu", "2.13.0") is Coverage.UNKNOWN_DEVICE
    assert expected("hpu", "2.13.0") == {}


@pytest.mark.parametrize(("device_type", "version", "since"), [("cpu", "2.5.1", "2.6"), ("mtia", "2.6.0", "2.7")])
def test_older_release_is_refused(device_type: str, version: str, since: str) -> None:
    with pytest.raises(ValueError, match=f"the rules of {device_type} are known from torch {since} on"):
        expected(device_type, version)


def test_rows_inherit_from_their_group_and_can_have_several_rules() -> None:
    spec = parse_spec(WELL_FORMED)
    rules = spec.expected("cuda", "2.9.0")
    assert (rules["aten::mm"].since, rules["aten::mm"].until, rules["aten::mm"].source) == ("2.9", "2.13", "elsewhere")
    assert spec.expected("cuda", "2.8.0") == {}
    assert spec.expected("cpu", "2.7.0")["own::op"].name is RuleName.FP32
    assert spec.expected("cpu", "2.8.0")["own::op"].name is RuleName.PROMOTE
    assert spec.expected("cpu", "2.14.0") == {}


def test_rule_can_be_older_than_the_covered_releases() -> None:
    rules = load_spec().rules
    assert rules["cpu"]["aten::prelu"][0].since == "2.1"
    assert rules["cuda"]["aten::prelu"][0].since is None
    assert rules["cuda"]["aten::upsample_nearest1d"][0].since == "2.4"
    assert parse_spec(WELL_FORMED).expected("cpu", "2.6.0")["aten::mm"].since == "2.1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ('cpu = "lower_precision_fp"', 'cpu = "fp31"'),
            "operator mm: cpu = 'fp31' is not a rule; expected lower_precision_fp",
        ),
        (('cpu = "lower_precision_fp"', 'cpu = "none"'), "operator mm: cpu = 'none' is not a rule"),
        (('cpu = "lower_precision_fp"', "cpu = 3"), "operator mm: cpu = 3 is not a rule or a table"),
        (('name = "mm"', "name = 3"), "an operator of group 'some': name = 3 is not text"),
        (('name = "own::op"', 'name = "mm"'), "operator mm: cpu is given twice"),
        (('since = "2.9"', 'since = "soon"'), "operator mm: cuda: since = 'soon' is not a release"),
        (('since = "2.9"', 'sinse = "2.9"'), "operator mm: cuda: unknown field 'sinse'; expected rule, since"),
        (('name = "mm", cpu', 'name = "mm", gpu'), "operator mm: unknown field 'gpu'"),
        (('title = "some"', ""), "a group: title = None is not text"),
        ((', source = "here"', ""), "device type cpu: source = None is not text"),
        (('reason = "nobody has one"', ""), "left_out.npu: reason = None is not text"),
        (('first = "2.6",', ""), "covered: first and last are needed"),
        (("operators = [", "rows = ["), "group 'some': unknown field 'rows'"),
        (('introduced = "1.10", ', ""), "device type cpu: introduced = None is not text"),
        (('["mm"]', '["mm", "nn"]'), "earlier.cpu: 'nn' has no rule, or one that came later"),
        (('earlier.cpu = { "2.1"', 'earlier.cuda = { "2.1"'), "earlier.cuda: 'mm' has no rule, or one that came later"),
        (('"2.1" =', '"soon" ='), "earlier.cpu: since = 'soon' is not a release"),
    ],
)
def test_malformed_row_is_refused_with_its_field(change: tuple[str, str], message: str) -> None:
    assert change[0] in WELL_FORMED
    with pytest.raises(ValueError, match=f"^{SPEC_FILE}: ") as raised:
        parse_spec(WELL_FORMED.replace(*change, 1))
    assert message in str(raised.value)
