"""Common claims about dtypes: the lists of operators on each device, and the dtypes that operators return."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.data_files.releases import release_of
from pytest_amp.rules.registry import read_registry
from pytest_amp.rules.spec import Coverage, Rule, expected

pytestmark = pytest.mark.amp(fake=True)

#: An operator without a rule on a device returns the dtype of its input.
FLOAT32_RULES = ("fp32", "fp32_set_opt_dtype", "fp32_append_dtype")


def _rules(amp: SuiteAmp) -> dict[str, Rule]:
    if read_registry(amp.device.type).coverage is Coverage.UNKNOWN_DEVICE:
        pytest.skip(f"no rules are known for {amp.device.type}")
    return expected(amp.device.type, torch.__version__)


def _low(amp: SuiteAmp, *shape: int) -> torch.Tensor:
    return torch.ones(*shape, device=amp.device.torch_device, dtype=amp.dtype)


def test_one_list_does_not_serve_all_devices(amp: SuiteAmp) -> None:
    here, other = _rules(amp), expected("cuda" if amp.device.type == "cpu" else "cpu", torch.__version__)
    both = here.keys() & other.keys()
    assert here.keys() - other.keys()
    assert other.keys() - here.keys()
    assert [name for name in both if here[name].name is not other[name].name]


@pytest.mark.parametrize("name", ["layer_norm", "softmax.int", "log_softmax.int", "sum", "exp"])
def test_what_is_called_always_float32_is_so_where_there_is_a_rule(amp: SuiteAmp, name: str) -> None:
    """CUDA has a rule; a CPU has none, and a low-precision input stays low-precision."""
    rule = _rules(amp).get(f"aten::{name}")
    has_one = rule is not None and rule.name.value in FLOAT32_RULES
    assert has_one == (amp.device.type != "cpu")
    if amp.device.key == "fake-mtia" and "softmax" in name and release_of(torch.__version__) < (2, 10):
        pytest.skip("up to torch 2.9 fake tensors of MTIA have no index, and softmax asks the build for the device")
    operators: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "layer_norm": lambda x: functional.layer_norm(x, (8,)),
        "softmax.int": lambda x: functional.softmax(x, -1),
        "log_softmax.int": lambda x: functional.log_softmax(x, -1),
        "sum": torch.sum,
        "exp": torch.exp,
    }
    with amp.device.tensors(), amp.autocast():
        assert operators[name](_low(amp, 4, 8)).dtype is (amp.dtype if rule is None else torch.float32)


def test_a_product_returns_the_low_dtype_and_not_float32(amp: SuiteAmp) -> None:
    with amp.device.tensors(), amp.autocast():
        float32 = torch.ones(4, 4, device=amp.device.torch_device)
        assert (float32 @ float32).dtype is amp.dtype
        assert functional.linear(float32, float32).dtype is amp.dtype


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "dropout"])
def test_activations_are_on_no_list(amp: SuiteAmp, name: str) -> None:
    assert f"aten::{name}" not in _rules(amp)
    operator = getattr(functional, name)
    with amp.device.tensors(), amp.autocast():
        assert operator(_low(amp, 4)).dtype is amp.dtype
        assert operator(torch.ones(4, device=amp.device.torch_device)).dtype is torch.float32


def test_attention_weights_in_float32_meet_values_in_the_low_dtype(amp: SuiteAmp) -> None:
    """Products of mixed dtypes do not exist: autocast rounds the weights to the low dtype, too."""
    with amp.device.tensors(), amp.autocast():
        weights = torch.ones(2, 4, 4, device=amp.device.torch_device)
        assert torch.bmm(weights, _low(amp, 2, 4, 8)).dtype is amp.dtype


def test_softmax_is_on_no_list_of_low_precision(amp: SuiteAmp) -> None:
    """Apex called float32's list black and the low one white; torch's documentation uses neither colour."""
    rule = _rules(amp).get("aten::softmax.int")
    assert rule is None or rule.name.value != "lower_precision_fp"


def test_regions_of_mps_exist(amp: SuiteAmp) -> None:
    """MPS has regions since torch 2.5."""
    if amp.device.type != "mps":
        assert expected("mps", torch.__version__)
        return
    with amp.device.tensors(), amp.autocast():
        float32 = torch.ones(4, 4, device=amp.device.torch_device)
        assert (float32 @ float32).dtype is amp.dtype
