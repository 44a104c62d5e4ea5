"""Fake devices never end a process: uses that torch does not support are refused in one line."""

from __future__ import annotations

import pytest

from tests.project import Project, red

FAKE = ("--amp-device=fake:cuda", "--amp-dtype=bf16")
#: Uses by name that would end the process, or need hardware, each with the text of its refusal.
REFUSED = {
    "parameter": (
        (
            "with amp.device.tensors():\n"
            "        weight = nn.Parameter(torch.empty(4, 4, device='cuda'))\n"
            "        with amp.autocast():\n"
            "            F.linear(torch.empty(4, 4, device='cuda'), weight)"
        ),
        "requires_grad_: a tensor on the fake device cuda that requires a gradient",
    ),
    "factory": (
        (
            "with amp.device.tensors(), torch.enable_grad():\n"
            "        torch.empty(4, device='cuda', requires_grad=True).sum().backward()"
        ),
        "empty: a tensor on the fake device cuda that requires a gradient",
    ),
    "default_device": (
        "with torch.device('cuda'), amp.device.tensors():\n        torch.empty(3, requires_grad=True)",
        "empty: a tensor on the fake device cuda that requires a gradient",
    ),
    "module": (
        "with amp.device.tensors():\n        nn.Linear(4, 4, device='cuda')",
        "requires_grad_: a tensor on the fake device cuda that requires a gradient",
    ),
    "afterwards": (
        (
            "with amp.device.tensors():\n        tensor = torch.empty(4, 4, device='cuda')\n"
            "    tensor.requires_grad_()\n    tensor * 2"
        ),
        "requires_grad_: a tensor on the fake device cuda that requires a gradient",
    ),
    "attribute": (
        (
            "with amp.device.tensors():\n        tensor = torch.empty(4, 4, device='cuda')\n"
            "    tensor.requires_grad = True\n    tensor * 2"
        ),
        "a tensor on the fake device cuda that requires a gradient",
    ),
    "thread": (
        (
            "with amp.device.tensors():\n        tensor = torch.empty(4, 4, device='cuda')\n"
            "    thread = threading.Thread(target=tensor.requires_grad_)\n    thread.start()\n    thread.join()\n"
            "    with amp.autocast():\n        tensor @ tensor"
        ),
        "matmul: a tensor on the fake device cuda that requires a gradient",
    ),
    "outside": ("torch.ones(2, device=amp.device.torch_device)", "ones: cuda is a fake device here, which has rules"),
    "moved": ("torch.ones(2).to('cuda:0')", "to: cuda is a fake device here, which has rules"),
}
FUNCTION = "\n\ndef test_{name}(amp):\n    {body}\n"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_use_that_torch_does_not_support_on_fake_tensors_is_refused(project: Project, workers: str) -> None:
    tests = "".join(FUNCTION.format(name=name, body=body) for name, (body, _) in REFUSED.items())
    project.write(
        test_it="import threading\n\nimport pytest\nimport torch\nfrom torch import nn\n"
        f"from torch.nn import functional as F\n\npytestmark = pytest.mark.amp(fake=True)\n{tests}\n\n"
        "def test_device(amp_device):\n    torch.ones(2, device=amp_device)\n"
    )
    result = project.apart(*FAKE, "-n", workers)
    result.assert_outcomes(failed=len(REFUSED) + 1)
    assert (result.ret, red(result)) == (1, [])
    text = result.stdout.str()
    for name, (_, message) in REFUSED.items():
        assert message in text, name
    assert text.count("tensors created within amp.device.tensors(), which have the device amp_device") >= 3


def test_supported_uses_of_a_fake_device_pass(project: Project) -> None:
    """Use parameters without gradients, tensors that outlive their scope, and gradients on other devices."""
    project.write(
        test_it="""
import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.mark.amp(fake=True)
def test_it(amp, amp_device):
    with amp.device.tensors():
        weight = nn.Parameter(torch.empty(4, 4, device=amp_device), requires_grad=False)
        with amp.autocast():
            assert F.linear(weight, weight).dtype is amp.dtype
        assert torch.empty(4, requires_grad=True).requires_grad
    with amp.autocast():
        assert F.linear(weight, weight).dtype is amp.dtype
    assert torch.ones(2, requires_grad=True).sum().requires_grad


def test_elsewhere():
    assert torch.ones(2, requires_grad=True).sum().requires_grad
    assert torch.overrides.is_tensor_method_or_property(torch.Tensor.add)
"""
    )
    result = project.apart(*FAKE)
    result.assert_outcomes(passed=2)
    assert (result.ret, red(result)) == (0, [])
