"""Every optimizer of torch.optim in every implementation that it has on a device."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator

import torch
from torch import nn

from pytest_amp.targets import Target

#: Name, class and keywords. LBFGS needs a closure, SparseAdam sparse gradients.
_OPTIMIZERS: dict[str, tuple[str, dict[str, float | bool]]] = {
    "SGD": ("SGD", {}),
    "SGD momentum": ("SGD", {"momentum": 0.5, "nesterov": True}),
    "Adam": ("Adam", {}),
    "Adam amsgrad": ("Adam", {"amsgrad": True, "weight_decay": 0.25}),
    "AdamW": ("AdamW", {"weight_decay": 0.25}),
    "RMSprop": ("RMSprop", {"momentum": 0.5, "centered": True}),
    "Adagrad": ("Adagrad", {}),
    "Adadelta": ("Adadelta", {}),
    "Adamax": ("Adamax", {}),
    "NAdam": ("NAdam", {}),
    "RAdam": ("RAdam", {}),
    "Rprop": ("Rprop", {}),
    "ASGD": ("ASGD", {}),
    "Adafactor": ("Adafactor", {}),
    "Muon": ("Muon", {}),  # since torch 2.9
}
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def make_optimizer(optimizer: str, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of an id such as ``Adam, fused``; raises what torch raises where there is none."""
    name, _, implementation = optimizer.partition(", ")
    class_name, keywords = _OPTIMIZERS[name]
    made: torch.optim.Optimizer = getattr(torch.optim, class_name)(
        parameters, lr=0.125, **keywords, **_IMPLEMENTATIONS.get(implementation, {})
    )
    return made


def optimizers(target: Target) -> Iterator[str]:
    """Ids of all that make a step on the target's device."""
    return iter(_found(target.device.torch_device))


@functools.cache
def _found(device: torch.device) -> tuple[str, ...]:
    ids = []
    for name, (class_name, _) in _OPTIMIZERS.items():
        found = getattr(torch.optim, class_name, None)
        if found is None:
            continue
        keywords = inspect.signature(found).parameters
        kinds = [kind for kind, used in _IMPLEMENTATIONS.items() if keywords.keys() >= used.keys()]
        candidates = [f"{name}, {kind}" for kind in kinds] or [name]
        ids += [candidate for candidate in candidates if _steps(candidate, device)]
    return tuple(ids)


def _steps(optimizer: str, device: torch.device) -> bool:
    """Whether a step works there: a fused one needs a kernel of its own for the device."""
    parameter = nn.Parameter(torch.ones(2, 2, device=device))
    parameter.grad = torch.ones(2, 2, device=device)
    try:
        make_optimizer(optimizer, [parameter]).step()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError):
        return False
    return True
