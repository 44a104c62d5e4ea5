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
    """Outputs of the modules in a forward pass, and dtypes of their inputs and outputs, by module name.

    Names are those of ``nn.Module.named_modules``; that of the model itself is ``""``. Modules are in the order in
    which their first calls ended. ``outputs`` are the tensors that all calls of a module returned. ``dtypes`` are the
    dtypes of these tensors by their path in the output (see ``named_tensors``). ``given`` are the dtypes of the
    floating-point inputs of the last call.
    """

    outputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    dtypes: dict[str, dict[str, list[torch.dtype]]] = field(default_factory=dict)
    given: dict[str, list[torch.dtype]] = field(default_factory=dict)


def module_runs(case: Case, realised: Realised, region: Region, *, seed: int) -> ModuleRuns:
    """Run the forward pass inside ``region``; return the outputs of its modules, and the dtypes involved."""
    runs = ModuleRuns()

    def recorder(name: str) -> Callable[[torch.nn.Module, object, object], None]:
        def hook(_module: torch.nn.Module, inputs: object, output: object) -> None:
            runs.given[name] = [tensor.dtype for _, tensor in named_tensors(inputs) if tensor.is_floating_point()]
            runs.outputs.setdefault(name, []).extend(tensor.detach() for _, tensor in named_tensors(output))
            for path, tensor in named_tensors(output):
                runs.dtypes.setdefault(name, {}).setdefault(path, []).append(tensor.dtype)

        return hook

    handles = [module.register_forward_hook(recorder(name)) for name, module in realised.model.named_modules()]
    try:
        with seeded(seed), float32_precision("ieee"), region():
            case.loss(realised.model, realised.batch)
    finally:
        for handle in handles:
            handle.remove()
    return runs


def first_difference(case: Case, realised: Realised, one: Region, other: Region, *, seed: int) -> str | None:
    """Run the forward pass in two regions; describe the first module whose outputs differ, with dtypes that differ.

    The comparison is bitwise. The result is None if all outputs are equal. The runs may modify ``realised``: pass a
    copy.
    """
    initial_state = {name: value.clone() for name, value in realised.model.state_dict().items()}
    first = module_runs(case, realised, one, seed=seed).outputs
    realised.model.load_state_dict(initial_state)
    second = module_runs(case, realised, other, seed=seed).outputs
    for name, tensors in first.items():
        for a, b in zip(tensors, second.get(name, []), strict=False):
            if not same(a, b):
                dtypes = "" if a.dtype == b.dtype else f" ({a.dtype}, not {b.dtype})".replace("torch.", "")
                module = type(realised.model.get_submodule(name)).__name__
                return f"{name or 'the model'}, {module}{dtypes}"
    return None
