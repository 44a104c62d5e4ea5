"""check_casts and check_memory accept sound models, and describe the errors of others."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.memory import MemoryUse, Passes, check_casts, check_memory, growth, saved_bytes
from pytest_amp.memory.saved import Saved, _count_live_storages
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.precision import BF16, FP16, Precision
from tests.observing import Noted, unheeded
from tests.project import Project

CPU = find_device("cpu")


def conditions(precision: Precision = BF16) -> Conditions:
    return Conditions(CPU, precision)


def summed(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(batch)
    return out.float().sum()


def case(build: Callable[[], nn.Module], *shape: int) -> Case:
    return Case("it", build, lambda: torch.randn(*shape), summed)


def layers(width: int = 16) -> Case:
    return case(lambda: nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)), 64, width)


class Wide(nn.Module):
    """Model that widens its low-precision input by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.nn.functional.gelu(self.first(x).float()))
        return out


class Replacing(nn.Module):
    """Model that replaces a buffer in its forward pass, before it saves tensors of the buffer's size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = x.detach().new_zeros(1)
        return x.float().sigmoid().sigmoid().sigmoid().sigmoid()


class Hoarder(nn.Module):
    """Model that retains every output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.outputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.outputs.append(self.layer(x))
        return self.outputs[-1]


@pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
def test_casts_of_two_layers_are_counted(precision: Precision) -> None:
    observed = Noted()
    actual = check_casts(layers(), conditions(precision), observed.observe)
    # Both layers: x, weight, bias in forward (the second x is low-precision); both in backward; the loss twice.
    assert (len(actual.forward), len(actual.backward)) == (3 + 2 + 1, 2 + 2 + 1)
    assert observed["it/casts"] == observed["it/casts without the cache"] == 11
    weight = next(cast for cast in actual.forward if cast.of == "0.weight")
    assert (weight.source, weight.bytes) == ("float32", 16 * 16 * (4 + 2))
    assert observed["it/bytes cast"] == actual.bytes == sum(cast.bytes for cast in (*actual.forward, *actual.backward))


def test_more_casts_than_allowed_are_red() -> None:
    actual = check_casts(case(Wide, 64, 16), conditions(), unheeded)
    check_casts(case(Wide, 64, 16), conditions(), unheeded, most=actual.count)
    with pytest.raises(AmpFailure, match="makes 15 casts in one step") as failure:
        check_casts(case(Wide, 64, 16), conditions(), unheeded, most=11)
    assert "4 times a tensor" in str(failure.value) or "times a tensor, bfloat16 to float32" in str(failure.value)


def test_cleared_weight_cache_is_named() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            torch.clear_autocast_cache()
            out: torch.Tensor = self.layer(x)
            return out

    with pytest.raises(AmpFailure, match="other casts than autocast's rules require") as failure:
        check_casts(case(Again, 4, 16), conditions(), unheeded)
    text, line = str(failure.value), f"tests/memory/test_checks.py:{Again.forward.__code__.co_firstlineno + 2}"
    assert "layer.weight" in text
    assert failure.value.site == line
    assert f"likely    torch.clear_autocast_cache() at {line} drops the casts of the weights" in text
    assert "; 1 time layer.weight" in text


class Estimated(nn.Module):
    """Layer that is used with a gradient and, for the target, without one, in either order."""

    def __init__(self, *, target_first: bool) -> None:
        super().__init__()
        self.layer, self.target_first = nn.Linear(16, 16), target_first

    def target(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target: torch.Tensor = self.layer(x + 1)
            return target

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        results = [self.target(x), self.layer(x)] if self.target_first else [self.layer(x), self.target(x)]
        return torch.sub(*results)


@pytest.mark.parametrize("target_first", [False, True])
def test_use_without_gradient_shares_the_cast_of_a_weight(*, target_first: bool) -> None:
    counted = check_casts(case(lambda: Estimated(target_first=target_first), 4, 16), conditions(), unheeded)
    assert [cast.of for cast in counted.forward].count("layer.weight") == 1


class Ranged(nn.Module):
    """Layer that replaces a buffer in every step, as an observer of quantization does, and uses its memory again."""

    most: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("most", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = id(self.most)
        self.most = x.detach().abs().max()[None]
        copies = [x.clone()]
        while len(copies) < 1000 and id(copies[-1]) != before:
            copies.append(x.clone())
        out: torch.Tensor = self.layer(copies[-1])
        return out


def test_tensor_of_a_step_has_no_name_of_a_replaced_buffer() -> None:
    counted = check_casts(case(Ranged, 4, 16), conditions(), unheeded)
    assert "most" not in {cast.of for cast in counted.forward}


def test_saved_tensor_in_the_memory_of_a_replaced_buffer_is_counted() -> None:
    """An allocator gives freed memory to the next tensor of its size."""
    for _ in range(5):
        passes = Passes(case(lambda: nn.Sequential(nn.Linear(16, 16), Replacing()), 64, 16), conditions())
        saved = saved_bytes(passes, passes.amp())
        assert saved.by_dtype["float32"] == 4 * 64 * 16 * 4


def test_saved_bytes_are_counted_by_dtype() -> None:
    passes = Passes(layers(), conditions())
    actual = saved_bytes(passes, passes.amp())
    # The low input, GELU's input and its output, and the second low weight; the batch requires no gradient.
    assert actual == Saved(4, {"bfloat16": 2 * (3 * 64 * 16 + 16 * 16)})


def use(build: Callable[[], nn.Module], **ceilings: float) -> MemoryUse:
    subject = case(build, 64, 16)
    return check_memory(subject, conditions(), unheeded, plain=subject, **ceilings)


def test_saved_memory_above_the_ceiling_is_red() -> None:
    light = use(lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU()))
    assert light.saved_ratio == 1, "GELU's input in half the bytes, and a copy of the batch in half"
    with pytest.raises(AmpFailure, match=r"keeps for backward .* times what float32 does") as failure:
        use(Wide, ceiling=1.0)
    assert "likely    activations are kept in float32" in str(failure.value)


def test_copies_of_weights_above_the_ceiling_are_named() -> None:
    """Many weights and few rows: the additional memory is low-precision, and no activation is float32."""
    with pytest.raises(AmpFailure, match="low-precision copies of weights") as failure:
        check_memory(layers(64), conditions(), unheeded, plain=layers(64), ceiling=0.9)
    assert re.search(r"now .* times; \d+ bytes kept for backward \(bfloat16 \d+\)", str(failure.value))


def test_peak_ceiling_is_refused_on_a_cpu() -> None:
    actual = use(lambda: nn.Linear(16, 16))
    assert (actual.peak, actual.peak_ratio) == (None, None)
    with pytest.raises(
        AmpUsageError, match=r"peak_ceiling=0\.9, and nothing counts peaks on cpu; expected there: ceiling"
    ):
        use(lambda: nn.Linear(16, 16), peak_ceiling=0.9)


def test_growth_of_memory_over_steps_is_red() -> None:
    passes = Passes(case(Hoarder, 4, 16), conditions())
    growths = growth(passes, passes.amp(), steps=4)
    assert growths[0] < growths[1] < growths[2]
    with pytest.raises(AmpFailure, match="holds more memory after each step"):
        use(Hoarder)


def test_state_that_the_first_pass_sets_is_not_compared() -> None:
    class Calibrated(nn.Module):
        """Model whose first pass measures the size of its outputs, and saves more."""

        size: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)
            self.register_buffer("size", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layer(x)
            if not self.size:
                self.size.fill_(y.detach().abs().max())
                y = y.float().tanh()
            return y / self.size

    assert use(Calibrated).saved.bytes


def test_reference_cycles_are_no_growth() -> None:
    class Cyclic(nn.Module):
        """Model whose outputs are in reference cycles, which Python's collector frees at times."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            cycle: list[object] = [x * 2]
            cycle.append(cycle)
            result: torch.Tensor = self.layer(x)
            return result

    gc.disable()
    try:
        assert use(Cyclic).saved.bytes
    finally:
        gc.enable()


def test_recomputed_activations_are_not_counted_as_saved() -> None:
    from torch.utils.checkpoint import checkpoint

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.part, x, use_reentrant=False)

    passes = Passes(case(Recomputed, 64, 16), conditions())
    assert saved_bytes(passes, passes.amp()).storages == 0


def gradients_of_inputs(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    def output(x: torch.Tensor) -> torch.Tensor:
        return summed(model, x)

    gradients: torch.Tensor = torch.func.grad(output)(batch)
    return gradients.float().square().sum()


def tangents(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    def output(x: torch.Tensor) -> torch.Tensor:
        return summed(model, x)

    tangent: torch.Tensor = torch.func.jvp(output, (batch,), (torch.ones_like(batch),))[1]
    return tangent.float().square().sum()


@pytest.mark.parametrize("loss", [gradients_of_inputs, tangents])
def test_transform_in_a_loss_is_measured(loss: Callable[..., torch.Tensor]) -> None:
    """``grad`` refuses hooks of saved tensors, and ``jvp`` saves zeros that have no memory."""
    softplus = Case(
        "it",
        lambda: nn.Sequential(nn.Linear(16, 16), nn.Softplus(), nn.Linear(16, 16)),
        lambda: torch.randn(64, 16),
        loss,
    )
    memory = check_memory(softplus, conditions(), unheeded, plain=softplus)
    assert memory.saved_fp32 is not None
    assert 0 < memory.saved.bytes < memory.saved_fp32.bytes


def test_storages_after_a_pass_are_what_hooks_count() -> None:
    """The measure of a model that refuses hooks equals that of hooks, but for the dtype and the loss itself."""
    passes = Passes(layers(), conditions())
    actual, expected = _count_live_storages(passes, passes.amp()), saved_bytes(passes, passes.amp())
    assert (actual.storages, actual.bytes) == (expected.storages + 1, expected.bytes + 4)


def test_fixture_records_casts_and_memory(project: Project) -> None:
    project.write(
        test_it="""
import torch
from torch import nn

def case(amp):
    build = lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU())
    return amp.case(build, lambda: torch.randn(8, 16), lambda model, x: model(x).float().sum(), name="it")

def test_casts(amp):
    assert amp.check_casts(case(amp), most=7).count == 7

def test_memory(amp):
    assert amp.check_memory(case(amp), ceiling=2.0).peak is None
"""
    )
    first = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=record.json")
    first.assert_outcomes(passed=2)
    observed = project.observed("record.json")
    assert observed["project/cpu/bf16/test_it::test_casts/it/casts"] == 7
    assert observed["project/cpu/bf16/test_it::test_memory/it/bytes saved"] == 2 * (2 * 8 * 16)
    source = (project.path / "test_it.py").read_text(encoding="utf-8")
    project.file("test_it.py", source.replace("nn.GELU()", "nn.GELU(), nn.Linear(16, 16)").replace("most=7", "most=99"))
    again = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-baseline=record.json", "-k", "casts")
    again.stdout.fnmatch_lines(
        ["AmpFailure: test_it::test_casts/it/casts on cpu-bf16 is no longer what the baseline has"]
    )
