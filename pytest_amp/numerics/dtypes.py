"""The check that modules return the dtypes that they should."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure, Misuse, is_misuse
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.locate import module_runs
from pytest_amp.precision import dtype_name
from pytest_amp.record import Observe

__tracebackhide__ = is_misuse


def check_dtypes(case: Case, where: Conditions, expected: Mapping[str, torch.dtype], observe: Observe) -> None:
    """Run ``case`` forward in mixed precision and hold the dtypes of the named modules' outputs against ``expected``.

    See ``Amp.check_dtypes``. Raises Misuse for what names no module, AmpFailure for a module that does not run,
    returns no floating tensor, or returns another dtype.
    """
    realised = case.realise(seed=where.seed).on(where.device.torch_device)
    if not isinstance(expected, Mapping) or not expected:
        given = "no module" if not expected else type(expected).__name__
        raise Misuse(f"check_dtypes was given {given}; valid: a dictionary such as {{'head': torch.float32}}")
    unnamed = [key for key in expected if not isinstance(key, str)]
    if unnamed:
        raise Misuse(f"{unnamed[0]!r} is no path of a module; valid: 'layers.0.norm', 'layers.*', '' and the like")
    untyped = [dtype for dtype in expected.values() if not isinstance(dtype, torch.dtype)]
    if untyped:
        raise Misuse(f"{untyped[0]!r} is no dtype; valid: torch.float32, amp.dtype and the like")
    named = _named(case, expected, [name for name, _ in realised.model.named_modules()])
    runs = module_runs(case, realised, where.region, seed=where.seed)
    found: dict[str, list[str]] = {}
    wanted: dict[str, torch.dtype] = {}
    for given, modules in named.items():
        returned = {name: _dtypes(runs.outputs.get(name, [])) for name in modules}
        if modules != [given]:  # a list of modules never runs
            returned = {name: dtypes for name, dtypes in returned.items() if dtypes}
            if not returned:
                raise Misuse(f"{case.name}: of {len(modules)} modules named {given!r} none returned a floating tensor")
        found |= returned
        wanted |= dict.fromkeys(returned, expected[given])
    for name, dtypes in found.items():
        observe(f"{case.name}/{name or 'model'}.dtype", ", ".join(dtypes), kind="dtype")
    wrong = {name: dtypes for name, dtypes in found.items() if dtypes != [dtype_name(wanted[name])]}
    if wrong:
        first, dtypes = next(iter(wrong.items()))
        module = type(realised.model.get_submodule(first)).__name__
        more = [
            f"{name or 'the model'} {' and '.join(dtypes) or 'none'} for {dtype_name(wanted[name])}"
            for name, dtypes in list(wrong.items())[1:4]
        ]
        others = f"; also wrong: {', '.join(more)}{', ...' if len(wrong) > 4 else ''}" if more else ""
        raise AmpFailure(
            f"{case.name}: {first or 'the model'} ({module}) returned {' and '.join(dtypes) or 'no floating tensor'} "
            f"under {where}, it should return {dtype_name(wanted[first])}{others}",
            label_before="expected",
            before=dtype_name(wanted[first]),
            now=where.now(" and ".join(dtypes) or "no floating tensor: it did not run in the forward pass"),
            likely=_likely(
                dtypes, list(dict.fromkeys(map(dtype_name, runs.given.get(first, [])))), where.precision.dtype_name
            ),
        )


def _likely(returned: list[str], taken: list[str], low: str) -> str:
    """Where a dtype comes from that a module should not return."""
    if not returned:
        return "it was not called, or what it returns is no tensor"
    if returned == taken:
        return (
            f"it was given {taken[0]}: its operators have no rule here that changes it (pytest-amp rules), or it casts"
        )
    was = f"it was given {' and '.join(taken)}: " if taken else ""
    if returned == [low]:
        return f"{was}an operator in it runs in {low} by its rule (amp.trace(case) has each), or the model casts"
    return f"{was}an operator in it has another rule here (pytest-amp rules), or the model casts"


def _named(case: Case, expected: Mapping[str, torch.dtype], names: list[str]) -> dict[str, list[str]]:
    """The modules that each key names, patterns first: a later one goes before an earlier one, a path before all."""
    found = {}
    for given in sorted(expected, key=lambda given: given in names):
        found[given] = [given] if given in names else [name for name in names if fnmatchcase(name, given)]
        if not found[given]:
            has = ", ".join(name for name in names if name) or "'', the model itself"
            raise Misuse(f"{case.name} has no module {given!r}; it has {has}")
    return found


def _dtypes(tensors: list[torch.Tensor]) -> list[str]:
    """The floating dtypes among ``tensors``, each once."""
    return list(dict.fromkeys(dtype_name(tensor.dtype) for tensor in tensors if tensor.is_floating_point()))
