"""Out-of-tree back end of PrivateUse1, registered by the hook, with rules of its own, checked as torch's own are."""

from __future__ import annotations

import os

import pytest

from tests.project import ROOT, Project, red, refused, summary

BACKENDS = ROOT / "tests" / "backends"
RULES = str(ROOT / "suites" / "rules" / "test_registered.py")
ON_TINY = ("-p", "tiny_backend", "--amp-device=tiny", "--amp-dtype=bf16", f"--rootdir={ROOT}")


@pytest.fixture
def with_backend(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project in which the back end can be imported."""
    backends = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(backends, "_setup_privateuseone_for_python_backend"):
        pytest.skip("back ends in Python came with torch 2.10")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(BACKENDS)])))
    return project


def test_operators_follow_the_rules_of_the_back_end(with_backend: Project) -> None:
    result = with_backend.apart(*ON_TINY, RULES, "--amp-record=new.json")
    assert (result.ret, red(result)) == (0, []), result.stdout.str()[-3000:]
    observed = with_backend.observed("new.json")
    assert observed["rules/tiny/bf16/aten::mm"] == "lower_precision_fp"
    assert observed["rules/tiny/bf16/aten::softmax.int"] == "fp32"
    assert observed["rules/tiny/bf16/registered"] == 9
    assert "ran       tiny-bf16  rules 11" in summary(result)


def test_missing_autocast_kernel_is_detected(with_backend: Project) -> None:
    with_backend.file("tiny_forgets_softmax.py", "")
    result = with_backend.apart("-p", "tiny_forgets_softmax", *ON_TINY, RULES)
    assert result.ret == 1
    text = result.stdout.str()
    assert "AmpFailure: softmax.int has no autocast kernel on tiny" in text
    assert "test_rule[tiny-bf16-softmax.int]" in text


def test_model_runs_on_the_back_end(with_backend: Project) -> None:
    """Run a forward and a backward pass of a user's test, in its regions, under its name."""
    with_backend.write(
        test_it="""
import torch
from torch import nn


def test_it(amp, amp_device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)).to(amp_device)
    with amp.autocast():
        low = model[0](torch.randn(4, 8).to(amp_device))
        loss = model(torch.randn(4, 8).to(amp_device)).softmax(-1).square().mean()
    assert (low.device.type, low.dtype, loss.dtype) == ("tiny", amp.dtype, torch.float32)
    loss.backward()
    assert all(parameter.grad.device.type == "tiny" for parameter in model.parameters())
    amp.observe("gradients", len(list(model.parameters())), kind="count")
"""
    )
    result = with_backend.apart(*ON_TINY[:4], "--amp-record=new.json")
    result.assert_outcomes(passed=1)
    assert with_backend.observed("new.json") == {"project/tiny/bf16/gradients": 4}


def test_malformed_file_of_rules_is_named(with_backend: Project) -> None:
    with_backend.file("broken.toml", '[covered]\nfirst = "2.10"\nlast = "2.14"\n[device_types.broken]\nsource = "x"\n')
    with_backend.write(
        conftest="from pathlib import Path\nfrom pytest_amp.devices import DeviceType\n\n\ndef pytest_amp_devices():\n"
        "    from pytest_amp.devices.cpu import CpuDevice\n"
        "    yield DeviceType('broken', lambda index: CpuDevice(), rules=Path('broken.toml').resolve())\n",
        test_it="import torch\n\n\ndef test_it(amp):\n    from pytest_amp.rules.spec import coverage\n"
        "    coverage('broken', torch.__version__)\n",
    )
    result = with_backend.apart("--amp-device=broken", "--amp-dtype=bf16")
    assert result.ret == 1
    assert "broken.toml: " in result.stdout.str()


def test_back_end_without_its_plugin_is_refused(with_backend: Project) -> None:
    assert "'tiny'" in refused(with_backend.apart("--amp-device=tiny"))
