"""Peak rates of cards: found by the names that drivers give, each row with its sources."""

from __future__ import annotations

import re

import pytest

from pytest_amp.speed.peaks import Peaks, all_peaks, peaks_of


@pytest.mark.parametrize(
    ("device_name", "card"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA B200", "B200 HGX"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GH200 480GB", None),
        ("x86_64 AVX512", None),
    ],
)
def test_driver_name_matches_only_its_card(device_name: str, card: str | None) -> None:
    actual = [peaks.name for peaks in all_peaks() if re.search(peaks.match, device_name)]
    assert actual == ([card] if card else [])
    peaks = peaks_of(device_name)
    assert (peaks.name if peaks else None) == card


@pytest.mark.parametrize("peaks", all_peaks(), ids=lambda peaks: peaks.name)
def test_each_row_is_plausible_and_has_a_source(peaks: Peaks) -> None:
    assert peaks.sources
    assert all(peaks.sources)
    for low in ("bf16", "fp16"):
        ceiling = peaks.ceiling("fp32", low)
        assert ceiling is None or 2.0 <= ceiling <= 32.0
        ceiling = peaks.ceiling("tf32", low) if peaks.rates["tf32"] else None
        assert ceiling is None or 1.95 <= ceiling <= 2.1


def test_ceilings_follow_the_peak_rates() -> None:
    h100, a10g, t4 = (peaks_of(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A10G", "Tesla T4"))
    assert h100 is not None
    assert a10g is not None
    assert t4 is not None
    assert h100.ceiling("fp32", "bf16") == pytest.approx(14.77, abs=0.01)
    assert h100.ceiling("tf32", "bf16") == pytest.approx(2.0)
    assert a10g.ceiling("fp32", "fp16") == 2.0, "work that is bound by memory gains as much"
    assert t4.ceiling("fp32", "bf16") is None, "no bf16 in hardware"
    assert t4.ceiling("tf32", "fp16") == t4.ceiling("fp32", "fp16"), "no TF32: IEEE is computed"
