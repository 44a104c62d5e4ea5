"""Checks of arguments that a test passes to a check; invalid ones are refused in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import torch

from pytest_amp import torch_private
from pytest_amp.cases.case import Case
from pytest_amp.failure import AmpUsageError, is_usage_error

__tracebackhide__ = is_usage_error

#: Function that makes an optimizer of a list of parameters.
MakeOptimizer: TypeAlias = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def expect_case(value: object, *, check: str) -> None:
    """Raise AmpUsageError unless the argument is a case; most often it is a model."""
    if not isinstance(value, Case):
        raise AmpUsageError(f"{check} takes a case; this is {_called(value)}; amp.case(build, batch, loss) makes one")


def expect_step(value: object) -> None:
    """Raise AmpUsageError unless the training step is a function of one argument."""
    valid = "a function that makes one iteration, which it is given"
    if value is not None and not callable(value):
        raise AmpUsageError(f"train is {_called(value)}; expected {valid}")
    if value is not None and not takes(value, None):
        raise AmpUsageError(f"train takes other arguments than one; expected {valid}")


def takes(function: Callable[..., Any], *arguments: object) -> bool:
    """Return whether the signature of ``function`` accepts ``arguments``."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function may have none
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def expect_maker(value: object) -> None:
    """Raise AmpUsageError unless the argument makes optimizers; most often it is an optimizer itself."""
    if value is not None and not callable(value):
        raise AmpUsageError(
            f"optimizer is {_called(value)}; expected a function that makes one of a list of parameters, "
            "lambda parameters: torch.optim.SGD(parameters, lr=0.1), for each run has a model of its own"
        )


def expect_iterations(name: str, value: object) -> None:
    """Raise AmpUsageError unless the argument is a collection of iteration numbers."""
    valid = isinstance(value, Collection) and not isinstance(value, (str, bytes))
    if not valid or not all(type(index) is int for index in _each(value)):
        raise AmpUsageError(f"{name}={value!r}; expected a collection of iterations, such as (2,) or range(2, 5)")


def expect_names(name: str, value: object) -> None:
    """Raise AmpUsageError unless the argument is a collection of names; a string would be one of letters."""
    valid = isinstance(value, Collection) and not isinstance(value, (str, bytes))
    if not valid or not all(isinstance(item, str) for item in _each(value)):
        raise AmpUsageError(f"{name}={value!r}; expected a collection of names, such as ['norm.running_mean']")


def expect_number(name: str, value: object, *, least: float, whole: bool = False, above: bool = False) -> None:
    """Raise AmpUsageError unless the argument is a number of at least ``least``, or with ``above`` larger than that."""
    kinds = (int,) if whole else (int, float)
    number = isinstance(value, kinds) and not isinstance(value, bool) and least <= value < float("inf")
    if not number or (above and value == least):
        what = "a whole number" if whole else "a finite number"
        raise AmpUsageError(f"{name}={value!r}; expected {what}, {f'above {least}' if above else f'{least} or more'}")


def expect_flag(name: str, value: object) -> None:
    """Raise AmpUsageError unless the argument is True or False: any non-empty text is true, even ``"no"``."""
    if not isinstance(value, bool):
        raise AmpUsageError(f"{name}={value!r}; expected True or False")


class Detached(AmpUsageError, RuntimeError):
    """Loss that depends on nothing that requires a gradient; torch's own error for it is a RuntimeError."""


def expect_graph(loss: torch.Tensor, *, case: str) -> None:
    """Raise Detached for a loss without a gradient function, unless gradients are off."""
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise Detached(f"the loss of {case} depends on nothing that requires a gradient; expected one that does")


def expect_python(model: torch.nn.Module, *, case: str) -> None:
    """Raise AmpUsageError for a scripted or self-compiling module: their operators cannot be recorded."""
    for name, module in model.named_modules():
        which = f"case {case}: {name or 'the model'}"
        if isinstance(module, torch.jit.ScriptModule):
            raise AmpUsageError(
                f"{which} is a script, whose operators cannot be recorded; expected the module before torch.jit.script"
            )
        if torch_private.compiles_itself(module):
            raise AmpUsageError(
                f"{which} compiles itself, so that its operators cannot be recorded; expected the module before "
                "torch.compile, which amp.check_compiled(case) compiles"
            )


def made_of(parameters: list[torch.nn.Parameter], make: Callable[..., Any]) -> torch.optim.Optimizer:
    """Return the optimizer that ``make`` makes of ``parameters``. Raises AmpUsageError for any other result."""
    optimizer = make(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise AmpUsageError(f"optimizer made {_called(optimizer)}; expected a torch.optim.Optimizer")
    return optimizer


def _each(value: object) -> list[object]:
    return list(value) if isinstance(value, Collection) else []


def _called(value: object) -> str:
    """Return the name of a class, or of an object's class."""
    return value.__name__ if isinstance(value, type) else f"of type {type(value).__name__}"
