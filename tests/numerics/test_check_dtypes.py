"""The dtypes of modules' outputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, decoder, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.dtypes import check_dtypes
from pytest_amp.precision import BF16
from tests.observing import Noted

CPU = Conditions(find_device("cpu"), BF16)


def run(case: Case, expected: dict[str, torch.dtype]) -> dict[str, str]:
    seen = Noted()
    check_dtypes(case, CPU, expected, seen.observe)
    return seen


def test_paths_and_the_model_itself() -> None:
    expected = {"blocks.1.norm2": torch.float32, "head": torch.bfloat16, "": torch.bfloat16}
    assert run(decoder(), expected) == {
        "decoder/blocks.1.norm2.dtype": "float32",
        "decoder/head.dtype": "bfloat16",
        "decoder/model.dtype": "bfloat16",
    }


def test_another_dtype() -> None:
    with pytest.raises(AmpFailure) as raised:
        run(mlp(), {"0": torch.bfloat16, "3": torch.float32, "5": torch.float32})
    assert str(raised.value).splitlines()[0] == (
        "AmpFailure: mlp: 3 (LayerNorm) returned bfloat16 under autocast(cpu, bfloat16), it should return float32; "
        "also wrong: 5 bfloat16 for float32"
    )


def test_patterns_of_paths() -> None:
    """A later one goes before an earlier one, a path before both; a list of modules, which never runs, is left out."""
    low, wide = torch.bfloat16, torch.float32
    patterns = {"blocks*": wide, "blocks.?.attention.*": low, "blocks.*.up": low, "blocks.*n": low}
    seen = run(decoder(), {"": low, **patterns})
    assert seen["decoder/blocks.1.norm2.dtype"] == "float32"
    assert seen["decoder/blocks.0.attention.qkv.dtype"] == seen["decoder/blocks.0.down.dtype"] == "bfloat16"
    assert seen["decoder/model.dtype"] == "bfloat16"
    assert "decoder/blocks.dtype" not in seen
    with pytest.raises(AmpFailure, match=r"blocks\.0\.norm1 \(LayerNorm\) returned float32"):
        run(decoder(), {"blocks*.down": low, "*norm?": low})
    with pytest.raises(ValueError, match=r"of 1 modules named 'block\?' none returned a floating tensor"):
        run(decoder(), {"block?": wide})
    with pytest.raises(ValueError, match=r"decoder has no module 'layers\.\*'; it has embedding"):
        run(decoder(), {"layers.*": wide})


def test_an_unknown_path() -> None:
    with pytest.raises(ValueError, match="mlp has no module '7'; it has 0, 1, 2, 3, 4, 5"):
        run(mlp(), {"7": torch.float32})


def test_a_module_that_does_not_run() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.left = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    case = Case("skips", Skips, lambda: torch.ones(1, 2), lambda model, x: model(x).float().sum())
    with pytest.raises(AmpFailure, match=r"left \(Linear\) returned no floating tensor"):
        run(case, {"left": torch.bfloat16})


def test_every_tensor_that_a_module_returns_counts() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return x, {"low": x @ x, "index": torch.ones(1, dtype=torch.int64)}

    def build() -> nn.Module:
        return nn.ModuleDict({"both": Both(), "last": nn.Linear(2, 2)})

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = model.get_submodule("both")(x)[0]
        return model.get_submodule("last")(wide).float().sum()  # type: ignore[no-any-return]

    case = Case("both", build, lambda: torch.ones(2, 2), loss)
    with pytest.raises(AmpFailure, match="returned float32 and bfloat16"):
        run(case, {"both": torch.float32})
