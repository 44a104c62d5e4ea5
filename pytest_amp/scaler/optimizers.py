"""Optimizers of torch.optim, in every implementation that they have on a device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from pytest_amp.text.quoted import first_line


@dataclass(frozen=True)
class Variant:
    """Optimizer class of torch.optim with keywords; ``sparse`` if it takes sparse gradients only."""

    class_name: str
    keywords: tuple[tuple[str, float | bool], ...] = ()
    sparse: bool = False


#: LBFGS is missing: its step needs a closure, which GradScaler refuses.
VARIANTS: dict[str, Variant] = {
    "SGD": Variant("SGD"),
    "SGD momentum": Variant("SGD", (("momentum", 0.5), ("nesterov", True))),
    "Adam": Variant("Adam"),
    "Adam amsgrad": Variant("Adam", (("amsgrad", True), ("weight_decay", 0.25))),
    "AdamW": Variant("AdamW", (("weight_decay", 0.25),)),
    "RMSprop": Variant("RMSprop", (("momentum", 0.5), ("centered", True))),
    "Adagrad": Variant("Adagrad"),
    "Adadelta": Variant("Adadelta"),
    "Adamax": Variant("Adamax"),
    "NAdam": Variant("NAdam"),
    "RAdam": Variant("RAdam"),
    "Rprop": Variant("Rprop"),
    "ASGD": Variant("ASGD"),
    "Adafactor": Variant("Adafactor"),
    "Muon": Variant("Muon"),  # since torch 2.9
    "SparseAdam": Variant("SparseAdam", sparse=True),
}
IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"foreach": False, "capturable": True},
    "foreach capturable": {"foreach": True, "capturable": True},
    "fused capturable": {"fused": True, "capturable": True},
}


def variant_of(optimizer: str) -> Variant:
    """Return the variant of an id such as ``Adam, fused``. Raises KeyError if VARIANTS has none."""
    return VARIANTS[optimizer.partition(", ")[0]]


def make_optimizer(
    optimizer: str, parameters: list[nn.Parameter], options: Mapping[str, object] = MappingProxyType({})
) -> torch.optim.Optimizer:
    """Create the optimizer of an id such as ``Adam, fused``, with ``options``; raises torch's error if it cannot."""
    variant, implementation = variant_of(optimizer), optimizer.partition(", ")[2]
    keywords = {"lr": 0.125, **dict(variant.keywords), **IMPLEMENTATIONS.get(implementation, {}), **options}
    instance: torch.optim.Optimizer = getattr(torch.optim, variant.class_name)(parameters, **keywords)
    return instance


def options_of(optimizer: str) -> Iterator[dict[str, object]]:
    """Yield each option of an id's class with a non-default value, alone and together with momentum.

    Left out are options that select an implementation, which an id names, and steps that autograd records.
    """
    variant = variant_of(optimizer)
    parameters = inspect.signature(getattr(torch.optim, variant.class_name)).parameters
    yield {"lr": torch.tensor(0.125)}
    for name in sorted(parameters.keys() - {"params", "lr", "differentiable"}.union(*IMPLEMENTATIONS.values())):
        usual = dict(variant.keywords).get(name, parameters[name].default)
        other = _other(usual)
        if other is not None:
            yield {name: other}
            if "momentum" in parameters and name != "momentum":
                yield {name: other, "momentum": 0.5}


def _other(usual: object) -> object:
    """Return another value of an option; None if there is no obvious one."""
    if isinstance(usual, bool):
        return not usual
    if isinstance(usual, int) and usual > 1:
        return usual + 1
    if isinstance(usual, (int, float)):
        return usual / 2 if usual else 0.25
    if isinstance(usual, tuple) and all(isinstance(number, float) for number in usual):
        return tuple(number * 0.75 for number in usual)
    return None


@functools.cache
def optimizers_on(device: torch.device) -> tuple[str, ...]:
    """Return the ids of all optimizers that can step on ``device``, in the order of the table."""
    return tuple(optimizer for optimizer, why in candidates(device).items() if why is None)


@functools.cache
def candidates(device: torch.device) -> dict[str, str | None]:
    """Return each id whose keywords the optimizer accepts, with the first line of the error of ``step``, if any."""
    reasons: dict[str, str | None] = {}
    for name, variant in VARIANTS.items():
        optimizer_class = getattr(torch.optim, variant.class_name, None)
        if optimizer_class is None:
            continue
        keywords = inspect.signature(optimizer_class).parameters
        kinds = [kind for kind, used in IMPLEMENTATIONS.items() if keywords.keys() >= used.keys()]
        for optimizer in [f"{name}, {kind}" for kind in kinds] or [name]:
            reasons[optimizer] = _refusal(optimizer, device, sparse=variant.sparse)
    return reasons


def _refusal(optimizer: str, device: torch.device, *, sparse: bool) -> str | None:
    """Return why a step fails on the device; a fused one needs a kernel for it. None if it works."""
    parameter = nn.Parameter(torch.ones(2, 2, device=device))
    gradient = torch.ones(2, 2, device=device)
    parameter.grad = gradient.to_sparse(1) if sparse else gradient
    try:
        make_optimizer(optimizer, [parameter]).step()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError, ValueError) as error:
        return first_line(error)
    return None
