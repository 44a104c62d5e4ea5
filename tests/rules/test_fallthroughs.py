"""Fallthroughs in place of each autocast kernel of the CPU, which stays listed and does nothing.

The dispatcher's table shows all of them. Running the operator shows all except those made of operators that autocast
casts in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pytest_amp import torch_private
from pytest_amp.devices import find_device
from pytest_amp.rules.candidates import label_of
from pytest_amp.rules.observe import observe
from pytest_amp.rules.registry import read_registry, short
from pytest_amp.rules.spec import expected

MEASURED = Path(__file__).parents[2] / "docs" / "lab" / "measured.md"
LOW = (torch.bfloat16, torch.float16)
NAMES = torch_private.autocast_registrations("cpu")


@contextmanager
def falling_through(overload: str) -> Iterator[None]:
    """Make the autocast kernel of ``overload`` for the CPU a fallthrough inside the block."""
    namespace, _, name = overload.partition("::")
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU", allow_override=True)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    assert torch_private.autocast_registrations("cpu") == NAMES


@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_registry_detects_every_fallthrough() -> None:
    shown = []
    for name in NAMES:
        with falling_through(name):
            listed = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
            assert name in listed
            if read_registry("cpu").gone == (name,):
                shown.append(name)
    assert shown == NAMES


@pytest.mark.filterwarnings("ignore")
def test_running_detects_fallthroughs_except_the_listed_ones() -> None:
    rules = expected("cpu", torch.__version__)
    device = find_device("cpu")
    unseen = []
    for name in NAMES:
        with falling_through(name):
            rule = rules[name]
            if all(observe(name, device, low, rule=rule).rule == label_of(rule, low) for low in LOW):
                unseen.append(short(name))
    page = MEASURED.read_text(encoding="utf-8")
    listed = page.partition("<!-- fallthroughs unseen by running -->\n")[2].partition("\n\n")[0]
    assert listed == ", ".join(f"`{name}`" for name in unseen)
    assert len(NAMES) - len(unseen) >= 0.8 * len(NAMES)
