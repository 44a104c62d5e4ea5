"""Locate the first module whose output differs between two runs of a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from pytest_amp.cases import Case, Realised, named_tensors, seeded
from pytest_amp.failure import is_usage_error
from pytest_amp.numerics.compare import same
from pytest_amp.numerics.step import Region
from pytest_amp.precision.float32 import float32_precision

__tracebackhide__ = is_usage_error


@dataclass(frozen=True)
class ModuleRuns:
    """Inputs and outputs of each submodule in a forward pass, by its name; the model is ``""``.

    Modules are in the order in which they finished. ``given`` are the floating-point dtypes of the inputs of a module's
    last call, and ``dtypes`` the dtypes of all of its outputs, named as in ``named_tensors``.
    """

    outputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    dtypes: dict[str, dict[str, list[torch.dtype]]] = field(default_factory=dict)
    given: dict[str, list[torch.dtype]] = field(default_factory=dict)


def module_runs(case: Case, realised: Realised, region: Region, *, seed: int) -> ModuleRuns:
    """Run the forward pass inside ``region``, and return the inputs and outputs of its modules."""
    runs = ModuleRuns()

    def keep(name: str) -> Callable[[torch.nn.Module, object, object], None]:
        def hook(_module: torch.nn.Module, inputs: object, output: object) -> None:
            runs.given[name] = [tensor.dtype for _, tensor in named_tensors(inputs) if tensor.is_floating_point()]
            runs.outputs.setdefault(name, []).extend(tensor.detach() for _, tensor in named_tensors(output))
            for place, tensor in named_tensors(output):
                runs.dtypes.setdefault(name, {}).setdefault(place, []).append(tensor.dtype)

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in realised.model.named_modules()]
    try:
        with seeded(seed), float32_precision("ieee"), region():
            case.loss(realised.model, realised.batch)
    finally:
        for handle in handles:
            handle.remove()
    return runs


def first_difference(case: Case, realised: Realised, one: Region, other: Region, *, seed: int) -> str | None:
    """Return the first module whose output differs bitwise or in its dtype, and the dtypes; None if all agree.

    ``realised`` is run twice and changed: pass a copy.
    """
    before = {name: value.clone() for name, value in realised.model.state_dict().items()}
    first = module_runs(case, realised, one, seed=seed).outputs
    realised.model.load_state_dict(before)
    second = module_runs(case, realised, other, seed=seed).outputs
    for name, tensors in first.items():
        for a, b in zip(tensors, second.get(name, []), strict=False):
            if not same(a, b):
                kinds = "" if a.dtype == b.dtype else f" ({a.dtype}, not {b.dtype})".replace("torch.", "")
                module = type(realised.model.get_submodule(name)).__name__
                return f"{name or 'the model'}, {module}{kinds}"
    return None
