"""Kind of float32, pinned within a scope that leaves no setting behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_amp.precision.float32 import KINDS, Float32Kind, float32_precision, has_fp32_precision

needs_settings = pytest.mark.skipif(not has_fp32_precision(), reason="fp32_precision is in torch 2.9 and later")


def holders() -> dict[str, Any]:
    backends: Any = torch.backends
    return {
        "generic": backends,
        "cudnn": backends.cudnn,
        "cuda matmul": backends.cuda.matmul,
        "cudnn conv": backends.cudnn.conv,
        "cudnn rnn": backends.cudnn.rnn,
        "mkldnn matmul": backends.mkldnn.matmul,
        "mkldnn conv": backends.mkldnn.conv,
        "mkldnn rnn": backends.mkldnn.rnn,
    }


def state() -> object:
    if has_fp32_precision():
        return {name: holder.fp32_precision for name, holder in holders().items()}
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    before = state()
    yield
    assert state() == before


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_pinned(kind: Float32Kind) -> None:
    with float32_precision(kind):
        actual = state()
        expected = ("high" if kind == "tf32" else "highest", kind == "tf32")
        assert actual == (dict.fromkeys(holders(), kind) if has_fp32_precision() else expected)


def test_nested_scope_restores_the_outer_settings() -> None:
    with float32_precision("ieee"):
        outer = state()
        with float32_precision("tf32"):
            assert state() != outer
        assert state() == outer


def test_exception_restores_the_settings() -> None:
    with pytest.raises(RuntimeError, match="within"), float32_precision("tf32"):
        raise RuntimeError("within")


def test_older_flags_can_be_read_afterwards() -> None:
    """Reading them raises on torch 2.9 and later as long as the newer settings differ."""
    with float32_precision("tf32"):
        pass
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_matmul_precision_of_the_user_is_restored(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for kind in KINDS:
            with float32_precision(kind):
                pass
            assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
        if has_fp32_precision():  # the older setter writes these, which were unset before
            holders()["cuda matmul"].fp32_precision = holders()["mkldnn matmul"].fp32_precision = "none"


def as_torch_sets_it() -> None:
    """Leave all settings unset."""


def all_tf32() -> None:
    holders()["generic"].fp32_precision = "tf32"


def cudnn_ieee() -> None:
    holders()["generic"].fp32_precision = "tf32"
    holders()["cudnn"].fp32_precision = "ieee"


@needs_settings
@pytest.mark.parametrize("setting", [as_torch_sets_it, all_tf32, cudnn_ieee])
@pytest.mark.parametrize("kind", KINDS)
def test_inherited_setting_is_still_inherited_afterwards(setting: Callable[[], None], kind: Float32Kind) -> None:
    """A setting that followed its parent must follow it afterwards, instead of keeping the previous value."""
    backends = holders()
    try:
        setting()
        before = state()
        with float32_precision(kind):
            pass
        assert state() == before
        backends["generic"].fp32_precision = "ieee"
        backends["cudnn"].fp32_precision = "ieee"
        assert state() == dict.fromkeys(backends, "ieee")
    finally:
        backends["generic"].fp32_precision = "none"
        backends["cudnn"].fp32_precision = "none"


def test_unknown_kind_is_refused() -> None:
    kind: Any = "fp32"
    with (
        pytest.raises(ValueError, match="'fp32' is not a kind of float32; expected ieee, tf32"),
        float32_precision(kind),
    ):
        pass


def test_compilation_inside_leaves_no_setting() -> None:
    """Dynamo writes the inherited value of cuda.matmul as its own."""
    before = state()
    with float32_precision("ieee"):
        torch.compile(torch.square, backend="eager")(torch.ones(2))
    assert state() == before
    torch.compiler.reset()
