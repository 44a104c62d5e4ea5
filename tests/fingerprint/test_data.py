"""Fingerprint file: one line for an entry that is the same everywhere, and another for each difference."""

from __future__ import annotations

import pytest

from pytest_amp.fingerprint.compare import differences
from pytest_amp.fingerprint.data import Fingerprints, load, parse, short_release, write
from pytest_amp.fingerprint.dtypes import NOT
from pytest_amp.fingerprint.groups import group_of
from pytest_amp.record.unseen import without_counts
from pytest_amp.rules.spec import load_spec
from tests.project import ROOT

LOW, FULL, SAME = "fp32 low | low low", "fp32 low | fp32 fp32", "fp32 low | ="


def _known(**observed: dict[str, str]) -> Fingerprints:
    """Return the results of each release, by ``cpu_bf16_2_13``."""
    result = Fingerprints()
    for place, entries in observed.items():
        device, dtype, major, minor = place.split("_")
        result.replace(device, dtype, f"{major}.{minor}.0", entries)
    return result


def _both(device: str, release: str, **entries: str) -> dict[str, dict[str, str]]:
    return {f"{device}_{dtype}_{release}": entries for dtype in ("bf16", "fp16")}


def _lines(known: Fingerprints) -> list[str]:
    return [line for line in write(known).splitlines() if line and not line.startswith(("#", "measured "))]


def test_equal_fingerprints_are_one_line() -> None:
    known = _known(
        **_both("cpu", "2_6", addmm=LOW), **_both("cuda", "2_6", addmm=LOW), **_both("cpu", "2_13", addmm=LOW)
    )
    known.replace("cuda", "bf16", "2.13.0", {"addmm": LOW})
    known.replace("cuda", "fp16", "2.13.0", {"addmm": LOW})
    assert _lines(known) == [f"addmm: {LOW}"]


def test_different_devices_dtypes_and_releases_have_separate_lines() -> None:
    known = _known(
        **_both("cpu", "2_6", a=SAME, b=SAME, c=SAME),
        **_both("cpu", "2_13", a=LOW, b=SAME),
        **_both("cuda", "2_6", a=SAME, b=FULL, c=SAME),
        **_both("cuda", "2_13", a=LOW, b=FULL, c=SAME),
    )
    known.replace("cuda", "fp16", "2.13.0", {"a": LOW, "b": LOW, "c": SAME})
    assert _lines(known) == [
        f"a until=2.6: {SAME}",
        f"a since=2.13: {LOW}",
        f"b cpu: {SAME}",
        f"b cuda bf16: {FULL}",
        f"b cuda fp16 until=2.6: {FULL}",
        f"b cuda fp16 since=2.13: {LOW}",
        f"c cpu until=2.6: {SAME}",
        f"c cuda: {SAME}",
    ]
    again = parse(write(known))
    assert (again.known, again.measured) == (known.known, known.measured)


def test_measured_release_expects_its_own_entries() -> None:
    known = _known(**_both("cpu", "2_6", a=SAME, gone=SAME), **_both("cpu", "2_13", a=LOW))
    assert known.expected("cpu", "bf16", "2.6.1") == {"a": {SAME}, "gone": {SAME}}
    assert known.expected("cpu", "bf16", "2.13.0+cu130") == {"a": {LOW}}
    assert known.covers("cpu", "2.13.1")


def test_release_between_two_measured_ones_may_match_either() -> None:
    known = _known(**_both("cpu", "2_6", a=SAME, gone=SAME), **_both("cpu", "2_13", a=LOW))
    assert known.expected("cpu", "bf16", "2.9.0") == {"a": {SAME, LOW}, "gone": {SAME, None}}
    assert not known.covers("cpu", "2.9.0")


def test_newer_release_is_compared_with_the_last() -> None:
    known = _known(**_both("cpu", "2_6", a=SAME), **_both("cpu", "2_13", a=LOW))
    assert known.expected("cpu", "fp16", "2.14.0.dev20260101") == {"a": {LOW}}
    assert not known.covers("cpu", "2.14.0")
    assert known.expected("hpu", "bf16", "2.13.0") == {}


def test_older_release_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of cpu are known from torch 2\.6 on, this is 2\.5\.1"):
        _known(**_both("cpu", "2_6", a=SAME)).expected("cpu", "bf16", "2.5.1")


def test_real_device_inherits_entries_of_its_fake() -> None:
    known = _known(**_both("cuda", "2_13", a=SAME, b=SAME))
    known.replace("real-cuda", "bf16", "2.13.0", {"b": FULL})
    assert _lines(known) == [f"a: {SAME}", f"b: {SAME}", f"b real-cuda bf16: {FULL}"]
    again = parse(write(known))
    assert again.expected("cuda", "bf16", "2.13.0", real=True) == {"a": {SAME}, "b": {FULL}}
    assert again.expected("cuda", "bf16", "2.13.0") == {"a": {SAME}, "b": {SAME}}
    assert again.covers("cuda", "2.13.0", real=True)
    with pytest.raises(ValueError, match=r"torch 2\.14 has to be read on fake:cuda first"):
        known.replace("real-cuda", "bf16", "2.14.0", {"b": FULL})


def test_release_without_a_real_device_may_match_either() -> None:
    known = _known(**_both("cuda", "2_11", a=SAME, b=SAME), **_both("cuda", "2_13", a=LOW, b=SAME))
    assert known.expected("cuda", "bf16", "2.13.0", real=True) == {}
    known.replace("real-cuda", "bf16", "2.11.0", {"b": FULL})
    for release in ("2.13.0", "2.14.0"):
        both = f"{SAME}; {FULL}" if SAME < FULL else f"{FULL}; {SAME}"
        assert known.expected("cuda", "bf16", release, real=True) == {"a": {LOW}, "b": {SAME, FULL, both}}
        assert not known.covers("cuda", release, real=True)


def test_release_without_a_real_device_may_mix_samples() -> None:
    known = _known(**_both("cuda", "2_14", a=LOW, b=LOW), **_both("cuda", "2_15", a=LOW, b=LOW))
    known.replace("real-cuda", "bf16", "2.14.0", {"a": SAME, "b": f"{NOT}raises NotImplementedError"})
    for release, changed in (("2.14.0", ["a"]), ("2.15.0", [])):
        expected = known.expected("cuda", "bf16", release, real=True)
        observed = {"a": f"{LOW} x1; {SAME} x7", "b": f"{NOT}raises NotImplementedError"}
        assert [difference.name for difference in differences(expected, observed)] == changed
    neither = differences(known.expected("cuda", "bf16", "2.15.0", real=True), {"a": f"{LOW} x1; {FULL} x7"})
    assert [difference.name for difference in neither] == ["a", "b"]


def test_entry_of_a_real_device_alone_has_its_own_line() -> None:
    known = _known(**_both("cpu", "2_13", a=FULL), **_both("cuda", "2_13", a=SAME))
    for dtype in ("bf16", "fp16"):
        known.replace("real-cuda", dtype, "2.13.0", {"a": FULL})
    assert _lines(known) == [f"a cpu: {FULL}", f"a cuda: {SAME}", f"a real-cuda: {FULL}"]


def test_entries_of_real_devices_have_reasons() -> None:
    known = load()
    real = {
        (name, place[0]) for name, places in known.known.items() for place in places if place[0].startswith("real-")
    }
    assert real
    assert real == {key for key in known.reasons if key[1].startswith("real-")}


def test_reason_is_written_with_its_line() -> None:
    text = write(
        parse(
            "measured cpu 2.13\nmeasured cuda 2.13\nmeasured real-cuda 2.13\n"
            f"a: {SAME}\na real-cuda: {FULL}  # its own kernel"
        )
    )
    assert text.endswith(f"a: {SAME}\na real-cuda: {FULL}  # its own kernel\n")


def test_second_measurement_replaces_the_release() -> None:
    known = _known(**_both("cpu", "2_13", a=SAME, b=SAME))
    known.replace("cpu", "bf16", "2.13.1", {"a": LOW})
    assert known.measured == {"cpu": ["2.13"]}
    assert known.expected("cpu", "bf16", "2.13.0") == {"a": {LOW}}
    assert known.expected("cpu", "fp16", "2.13.0") == {"a": {SAME}, "b": {SAME}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("addmm", "line 2: 'addmm' is not NAME WHERE: FINGERPRINT"),
        ("addmm gpu: fp32 low | =", "line 2: 'gpu' is not a device, a dtype, since= or until="),
        ("addmm since=new: fp32 low | =", "line 2: 'since=new' is not a device"),
        ("addmm: fp32 low | =\naddmm cpu: fp32 low | =", "line 3: addmm on cpu-bf16-2.13 is given twice"),
    ],
)
def test_malformed_line_is_refused_with_its_number(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(f"measured cpu 2.13\n{line}")


def test_short_release_omits_patch_and_build() -> None:
    assert [short_release(v) for v in ("2.13.0", "2.6.0+cu124", "2.15.0.dev20260101+cpu")] == ["2.13", "2.6", "2.15"]


def test_file_of_the_package_is_up_to_date() -> None:
    from tools.fingerprints.update import carried

    assert write(load()) == carried().read_text(encoding="utf-8")


def _is_module(name: str) -> bool:
    return group_of(name).startswith("modules.")


def _counts(device_type: str, dtype: str) -> tuple[int, int, int, int]:
    """Return the number of observed operators and modules, and of those that autocast changes."""
    expected = load().expected(device_type, dtype, "2.13.0")
    texts = {name: without_counts(next(iter(alternatives)) or "") for name, alternatives in expected.items()}
    observed = {name for name, text in texts.items() if not text.startswith(NOT)}
    changed = {name for name in observed if any(not text.endswith("| =") for text in texts[name].split("; "))}
    operators, modules = (len([n for n in observed if _is_module(n) is kind]) for kind in (False, True))
    more_operators, more_modules = (len([n for n in changed if _is_module(n) is kind]) for kind in (False, True))
    return operators, modules, more_operators, more_modules


@pytest.mark.parametrize("device_type", ["cpu", "cuda", "xpu", "mps", "mtia"])
def test_counts_in_the_docs_are_those_of_the_file(device_type: str) -> None:
    page = (ROOT / "docs" / "lab" / "measured.md").read_text(encoding="utf-8")
    bf16, fp16 = (_counts(device_type, dtype) for dtype in ("bf16", "fp16"))
    device = device_type if device_type == "cpu" else f"fake:{device_type}"
    assert bf16 == fp16
    assert f"| {device} | {' | '.join(map(str, bf16))} |" in page


def test_file_of_the_package_has_every_pinned_release() -> None:
    known = load()
    assert {"2.6", "2.13", load_spec().last} <= set(known.measured["cpu"])
    for device_type in ("cpu", "cuda", "xpu", "mps", "mtia"):
        for dtype in ("bf16", "fp16"):
            entries = known.expected(device_type, dtype, "2.13.0")
            assert len(entries) > 800, device_type
            assert entries["addmm"] == {LOW}
