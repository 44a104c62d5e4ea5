"""Every cast in a step is one that autocast's rules require, and is made once if the weight cache stores it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case

from .networks import every_case


@pytest.mark.amp_parametrize("case", every_case)
def test_a_step_makes_the_casts_of_its_rules(amp: SuiteAmp, case: Case) -> None:
    """Count casts and their bytes with the cache and without, forward and backward; exact in a baseline."""
    amp.check_casts(case)


def _summed(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(batch)
    return out.float().sum()


class Repeated(nn.Module):
    """One layer, used several times."""

    def __init__(self, uses: int) -> None:
        """Create a square layer."""
        super().__init__()
        self.layer, self.uses = nn.Linear(16, 16, bias=False), uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, 16) to the same."""
        for _ in range(self.uses):
            x = self.layer(x)
        return x


#: Layers by name: build, the shape of the input, and the number of casts of one step, counted manually: each float32
#: argument of an operator of the 16-bit list in forward, each gradient of one in backward, and one for the loss.
COUNTED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(16, 8), (4, 16), 3 + 2 + 2),
    "linear without bias": (lambda: nn.Linear(16, 8, bias=False), (4, 16), 2 + 1 + 2),
    "conv2d": (lambda: nn.Conv2d(3, 8, 3), (2, 3, 6, 6), 3 + 2 + 2),
    "two linear": (lambda: nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 8)), (4, 16), 5 + 4 + 2),
    "a layer used eight times": (lambda: Repeated(8), (4, 16), 2 + 1 + 2),
    "layer norm after linear": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)),
        (4, 16),
        # LayerNorm's input is cast to float32, and its gradient back; its result is float32, so the loss is not cast.
        3 + 2 + 2,
    ),
}


@pytest.mark.parametrize("layer", COUNTED)
def test_a_layer_is_cast_as_often_as_counted_by_hand(amp: SuiteAmp, layer: str) -> None:
    """Compare with the manual count, the only one that does not come from this project's code."""
    build, shape, expected = COUNTED[layer]
    case = amp.case(build, lambda: torch.randn(shape), _summed, name=layer)
    assert amp.check_casts(case).count == expected


def test_without_the_cache_each_use_of_a_weight_is_a_cast(amp: SuiteAmp) -> None:
    """Eight uses are eight casts in forward, and eight gradients in backward."""
    from pytest_amp.memory import Passes, census

    case = amp.case(lambda: Repeated(8), lambda: torch.randn(4, 16), _summed)
    passes = Passes(case, amp.conditions)
    cached, again = (census(passes, passes.amp(cache=cache)) for cache in (True, False))
    assert [cast.of for cast in cached.forward].count("layer.weight") == 1
    assert [cast.of for cast in again.forward].count("layer.weight") == 8
    assert again.count - cached.count == 2 * 7


def test_float32_makes_none(amp: SuiteAmp) -> None:
    """Without autocast there are no casts, so that every counted cast is autocast's."""
    from contextlib import nullcontext

    from pytest_amp.memory import Passes, census

    case = amp.case(lambda: Repeated(8), lambda: torch.randn(4, 16), _summed)
    assert census(Passes(case, amp.conditions), nullcontext).count == 0
