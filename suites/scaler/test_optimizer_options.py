"""Every option of every optimizer: steps with a scaler are those without, and float64's up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target
from pytest_amp.scaler.optimizers import make_optimizer, optimizers_on, options_of, variant_of

from .training import INF, ScalerFactory

_SCALE = 2.0**10
#: Errors that torch raises if an implementation lacks an option.
_REFUSALS = (ValueError, RuntimeError, AssertionError, NotImplementedError)


#: Functions that turn random values into a gradient.
Make = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


class _Run:
    """Three parameters and their optimizer; steps with seeded gradients, scaled explicitly."""

    def __init__(
        self,
        amp: SuiteAmp,
        optimizer: str,
        options: Mapping[str, object],
        scaler: torch.amp.GradScaler,
        dtype: torch.dtype,
    ) -> None:
        torch.manual_seed(amp.config.seed)
        device = amp.device.torch_device
        self.parameters = [nn.Parameter(torch.randn(3, 5).to(device, dtype)) for _ in range(3)]
        self.sparse = variant_of(optimizer).sparse
        copied = {name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        self.optimizer = make_optimizer(optimizer, self.parameters, copied)
        self.scaler = scaler
        self.made: Make = lambda drawn, _: drawn
        scaler.scale(torch.zeros((), device=device))

    def step(self, number: int, bad: float | None = None) -> None:
        """Run the step of that number; ``bad`` is in one gradient."""
        generator = torch.Generator().manual_seed(number)
        for index, parameter in enumerate(self.parameters):
            gradient = self.made(torch.randn(parameter.shape, generator=generator), generator)
            gradient *= self.scaler.get_scale()
            if bad is not None and index == 1:
                gradient[2, 3] = bad
            gradient = gradient.to(parameter)
            parameter.grad = gradient.to_sparse(1) if self.sparse else gradient
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and state, by name."""
        tensors_by_name = {f"parameter {index}": parameter.detach() for index, parameter in enumerate(self.parameters)}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors_by_name |= {
                f"{index}.{key}": torch.as_tensor(value) for key, value in state.items() if value is not None
            }
        return tensors_by_name


def _stepped(
    amp: SuiteAmp,
    optimizer: str,
    options: Mapping[str, object],
    scaler: torch.amp.GradScaler,
    dtype: torch.dtype = torch.float32,
) -> dict[str, torch.Tensor]:
    """Take two clean steps; with an enabled scaler there is an overflow between them."""
    run = _Run(amp, optimizer, options, scaler, dtype)
    run.step(0)
    if scaler.is_enabled():
        run.step(9, INF)
    run.step(1)
    return run.tensors()


def _optimizers(target: Target) -> list[str]:
    """Return each class in each implementation; further variants of a class are options of it."""
    optimizers = optimizers_on(target.device.torch_device)
    return [optimizer for optimizer in optimizers if optimizer.partition(", ")[0] == _class_name(optimizer)]


def _class_name(optimizer: str) -> str:
    return variant_of(optimizer).class_name


@pytest.mark.amp_parametrize("optimizer", _optimizers)
def test_with_every_option_a_scaler_changes_nothing(amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str) -> None:
    """Skipped steps leave no trace, and clean ones have the bits of unscaled ones."""
    tried = 0
    for options in options_of(optimizer):
        try:
            plain = _stepped(amp, optimizer, options, amp_scaler(enabled=False))
        except _REFUSALS:
            continue
        tried += 1
        scaled = _stepped(amp, optimizer, options, amp_scaler(init_scale=_SCALE))
        different = [key for key in plain if key not in scaled or not torch.equal(plain[key], scaled[key])]
        if different or plain.keys() != scaled.keys():
            raise AmpFailure(
                f"{optimizer} with {_written(options)} on {amp.target.id} steps otherwise with a scaler than without",
                label_before="rule",
                before="a step, one that overflows, and a step: the same as two steps, bit for bit",
                now=f"these differ: {', '.join(different)}",
                likely="with that option found_inf is not obeyed, or gradients are unscaled otherwise",
            )
    assert tried > 0, "no option was tried"


def _written(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _exact_ones(target: Target) -> list[str]:
    """Return optimizers without low-precision steps: Muon orthogonalises its update in bf16 (torch/optim/_muon.py)."""
    return [optimizer for optimizer in _optimizers(target) if not optimizer.startswith("Muon")]


@pytest.mark.amp(devices=["cpu", "cuda", "xpu"])  # MPS has no float64
@pytest.mark.amp_parametrize("optimizer", _exact_ones)
def test_steps_are_those_in_float64(amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str) -> None:
    """No input of a step is rounded: with every option float32 ends where float64 does.

    A step has a dozen operations, each rounded once: 64 units of 2**-24 bound two steps.
    """
    for options in ({}, *options_of(optimizer)):
        off = amp_scaler(enabled=False)
        try:
            exact = _stepped(amp, optimizer, options, off, torch.float64)
        except _REFUSALS:
            continue
        actual = _stepped(amp, optimizer, options, amp_scaler(init_scale=_SCALE))
        ends = [
            torch.stack([x.double() for key, x in end.items() if key.startswith("parameter")])
            for end in (exact, actual)
        ]
        distance = float((ends[0] - ends[1]).norm() / ends[0].norm())
        assert distance <= 64 * 2.0**-24, f"with {_written(options)} it ends {distance:.1e} away from float64"


def _sensitive_ones(target: Target) -> list[str]:
    """Return optimizers that depend on exact gradients: Rprop uses signs only, and Muon rounds its input."""
    return [optimizer for optimizer in _exact_ones(target) if not optimizer.startswith("Rprop")]


@pytest.mark.amp_parametrize("optimizer", _sensitive_ones)
def test_the_last_bits_of_a_gradient_count(amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str) -> None:
    """Gradients that differ by less than any low dtype resolves give different parameters, with every option."""

    def at_distance(distance: float) -> Make:
        def make(drawn: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            signs = torch.randint(2, drawn.shape, generator=generator) * 2 - 1
            return drawn.bfloat16().float() * (1 + signs * distance)

        return make

    for options in ({}, *options_of(optimizer)):
        ends = []
        try:
            for make in (at_distance(0.0), at_distance(2.0**-13)):
                run = _Run(amp, optimizer, options, amp_scaler(init_scale=_SCALE), torch.float32)
                run.made = make
                for number in range(3):
                    run.step(number)
                ends.append(run.tensors())
        except _REFUSALS:
            continue
        same = all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0] if key.startswith("parameter"))
        assert not same, f"with {_written(options)} it rounds gradients to a low dtype"
