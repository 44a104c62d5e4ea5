"""Check the dtypes that modules return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.locate import ModuleRuns, module_runs
from pytest_amp.precision import dtype_name
from pytest_amp.record import Observe

__tracebackhide__ = is_usage_error

#: Dtype of all outputs of a module, or of each output by name or index.
Expected: TypeAlias = torch.dtype | Mapping[str | int, torch.dtype]


@dataclass(frozen=True)
class _Returned:
    """Dtypes of a module's outputs, or of the output ``place`` if it is not None, and the expected dtype."""

    module: str
    place: str | None
    dtypes: tuple[str, ...]
    expected: torch.dtype

    @property
    def is_right(self) -> bool:
        return self.dtypes == (dtype_name(self.expected),)

    @property
    def found(self) -> str:
        return " and ".join(self.dtypes)

    def __str__(self) -> str:
        module = self.module or "the model"
        return module if self.place is None else f"output {self.place} of {module}"


def check_dtypes(case: Case, conditions: Conditions, expected: Mapping[str, Expected], observe: Observe) -> None:
    """Run ``case`` forward in mixed precision and compare the dtypes of the named modules' outputs with ``expected``.

    See ``Amp.check_dtypes``. Raises AmpUsageError for a key that names no module or no output, AmpFailure for a module
    that does not run, returns no floating tensor, or returns another dtype.
    """
    _expect_mapping(expected)
    realised = case.realise(seed=conditions.seed).on(conditions.device.torch_device)
    names = [name for name, _ in realised.model.named_modules()]
    modules = _named(case, expected, names)
    runs = module_runs(case, realised, conditions.region, seed=conditions.seed)
    by_module: dict[str, list[_Returned]] = {}
    for key, matched in modules.items():
        value = expected[key]
        returned = {name: _returned(runs, name, value) for name in matched}
        if matched != [key]:  # a list of modules never runs
            returned = {name: rows for name, rows in returned.items() if any(row.dtypes for row in rows)}
            if not returned:
                what = "a floating tensor" if isinstance(value, torch.dtype) else f"one of {', '.join(map(str, value))}"
                raise AmpUsageError(f"{case.name}: of {len(matched)} modules named {key!r} none returned {what}")
        elif isinstance(value, Mapping):
            _expect_outputs(case, runs, key, value)
        by_module |= returned
    rows = [row for module_rows in by_module.values() for row in module_rows]
    model = "the model" if "model" in names else "model"
    for row in rows:
        place = "" if row.place is None else f"[{row.place}]"
        observe(f"{case.name}/{row.module or model}{place}.dtype", ", ".join(row.dtypes), kind="dtype")
    wrong = [row for row in rows if not row.is_right]
    if wrong:
        _fail(case, conditions, wrong, type(realised.model.get_submodule(wrong[0].module)).__name__, runs)


def _fail(case: Case, conditions: Conditions, wrong: list[_Returned], module: str, runs: ModuleRuns) -> None:
    first = wrong[0]
    more = [f"{row} {row.found or 'none'} for {dtype_name(row.expected)}" for row in wrong[1:4]]
    also = f"; also wrong: {', '.join(more)}{', ...' if len(wrong) > 4 else ''}" if more else ""
    inputs = list(dict.fromkeys(map(dtype_name, runs.given.get(first.module, []))))
    verb = "returned" if first.place is None else "is"
    should = "it should return" if first.place is None else "it should be"
    raise AmpFailure(
        f"{case.name}: {first} ({module}) {verb} {first.found or 'no floating tensor'} "
        f"under {conditions}, {should} {dtype_name(first.expected)}{also}",
        label_before="expected",
        before=dtype_name(first.expected),
        now=conditions.now(first.found or "no floating tensor: it did not run in the forward pass"),
        likely=_likely(list(first.dtypes), inputs, conditions.precision.dtype_name),
    )


def _likely(returned: list[str], accepted: list[str], low: str) -> str:
    """Return the likely origin of an unexpected dtype."""
    if not returned:
        return "it was not called, or what it returns is not a tensor"
    if returned == accepted:
        dtype = accepted[0]
        return f"it was given {dtype}: its operators have no rule here that changes it (pytest-amp rules), or it casts"
    was = f"it was given {' and '.join(accepted)}: " if accepted else ""
    other_low = [kind for kind in returned if kind in ("float16", "bfloat16") and kind != low and kind not in accepted]
    if other_low:
        return f"{was}it casts to {other_low[0]}, or an extension does: no rule of a {low} region returns that"
    if returned == [low]:
        return f"{was}an operator in it runs in {low} by its rule (amp.trace(case) has each), or the model casts"
    return f"{was}an operator in it has another rule here (pytest-amp rules), or the model casts"


def _expect_mapping(expected: object) -> None:
    """Raise AmpUsageError for anything but dtypes, or dtypes by output, by the path of a module."""
    if not isinstance(expected, Mapping) or not expected:
        name = type(expected).__name__ if expected else "no module"
        raise AmpUsageError(f"check_dtypes was given {name}; expected a dictionary such as {{'head': torch.float32}}")
    for path, value in expected.items():
        if not isinstance(path, str):
            raise AmpUsageError(
                f"{path!r} is not the path of a module; expected 'layers.0.norm', 'layers.*', '' and the like"
            )
        outputs = value if isinstance(value, Mapping) else {"": value}
        if not outputs:
            raise AmpUsageError(f"{path!r} has no outputs in check_dtypes; expected a dtype, or dtypes by output")
        for place, dtype in outputs.items():
            if isinstance(place, bool) or not isinstance(place, (str, int)):
                raise AmpUsageError(
                    f"{place!r} names no output of {path!r}; expected its name, 'loss', or its number, 0"
                )
            if not isinstance(dtype, torch.dtype):
                raise AmpUsageError(
                    f"{dtype!r} is not a dtype; expected torch.float32, amp.dtype and the like, or dtypes by output: "
                    "{'loss': torch.float32, 'logits': amp.dtype}, of a tuple {0: torch.float32}"
                )


def _named(case: Case, expected: Iterable[str], names: list[str]) -> dict[str, list[str]]:
    """Return the modules that each key matches: patterns first, then paths, so that paths take precedence."""
    named = {}
    for pattern in sorted(expected, key=lambda name: name in names):
        named[pattern] = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
        if not named[pattern]:
            has = ", ".join(name for name in names if name) or "'', the model itself"
            raise AmpUsageError(f"{case.name} has no module {pattern!r}; it has {has}")
    return named


def _returned(runs: ModuleRuns, module: str, expected: Expected) -> list[_Returned]:
    """Return the dtypes of all of a module's outputs, or of each output if ``expected`` distinguishes outputs."""
    dtypes = runs.dtypes.get(module, {})
    if not isinstance(expected, Mapping):
        together = [dtype for place in dtypes.values() for dtype in place]
        return [_Returned(module, None, _of_kind(together, expected), expected)]
    stated = {str(key): dtype for key, dtype in expected.items()}
    if not dtypes:  # it did not run, or returned no tensor
        return [_Returned(module, key, (), dtype) for key, dtype in stated.items()]
    rows = []
    for place, actual in dtypes.items():
        keys = [key for key in stated if _names(key, place)]
        if keys:
            dtype = stated[place if place in keys else keys[-1]]
            names = _of_kind(actual, dtype)
            if names or place in keys:
                rows.append(_Returned(module, place, names, dtype))
    return rows


def _names(key: str, place: str) -> bool:
    """Return whether a key matches an output by its name, its container (``past`` of ``past.0``), or a pattern."""
    return place == key or place.startswith(f"{key}.") or fnmatchcase(place, key)


def _of_kind(dtypes: Iterable[torch.dtype], expected: torch.dtype) -> tuple[str, ...]:
    """Return the distinct floating-point dtypes among ``dtypes``, or complex ones if ``expected`` is complex."""
    return tuple(
        dict.fromkeys(
            dtype_name(dtype)
            for dtype in dtypes
            if (dtype.is_complex if expected.is_complex else dtype.is_floating_point)
        )
    )


def _expect_outputs(case: Case, runs: ModuleRuns, module: str, expected: Mapping[str | int, torch.dtype]) -> None:
    """Raise AmpUsageError for keys that match no output of a module that ran, or an output that is not floating."""
    dtypes = runs.dtypes.get(module, {})
    name = module or "the model"
    for key in expected if dtypes else ():
        if not any(_names(str(key), place) for place in dtypes):
            has = "one tensor, which has no name: give it a dtype" if "" in dtypes else ", ".join(dtypes)
            raise AmpUsageError(f"{case.name}: {name} returns no tensor {key!r}; it returns {has}")
        kinds = dtypes.get(str(key), [])
        if kinds and not any(dtype.is_floating_point or dtype.is_complex for dtype in kinds):
            raise AmpUsageError(
                f"{case.name}: output {key} of {name} is {dtype_name(kinds[0])}; expected floating tensors"
            )
