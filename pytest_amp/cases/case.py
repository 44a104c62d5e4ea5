"""Definition of a case: a model, a batch and a loss, small and seeded."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from pytest_amp import torch_private
from pytest_amp.cases.raised import failure_of, passes
from pytest_amp.cases.seeding import seeded
from pytest_amp.failure import AmpUsageError, is_usage_error

__tracebackhide__ = is_usage_error

#: Expected result of each function of a case.
_EXPECTED = {
    "build": "a function that makes the model, on the CPU in float32",
    "batch": "a function that makes the data, on the CPU in float32",
    "loss": "a forward pass in evaluation mode, in which lazy modules make their parameters",
}

#: Return type of a loss function: the loss itself, or outputs as ``outputs_by_name`` takes them.
Outputs: TypeAlias = Any


@dataclass(frozen=True)
class Case:
    """A model, a batch and a loss, made anew for each device and dtype.

    ``build`` makes the module and ``batch`` a tensor or a nested dict, dataclass, list or tuple of tensors, both
    on the CPU in float32 after torch has been seeded. ``loss`` takes the module and the batch and returns
    the loss as a tensor with one element, or outputs by name (see ``outputs_by_name``), all of which are
    compared. Floating tensors of the batch that require a gradient have theirs compared, too. ``name``
    is part of observation keys: printable, without blanks.
    """

    name: str
    build: Callable[[], torch.nn.Module]
    batch: Callable[[], Any]
    loss: Callable[[torch.nn.Module, Any], Outputs]

    def __str__(self) -> str:
        """Return the name, for the id of a test."""
        return self.name

    def realise(self, *, seed: int = 0) -> Realised:
        """The module and the batch on the CPU, each made after seeding torch with ``seed``.

        Parameters of lazy modules are made by one forward pass in evaluation mode. Raises AmpUsageError if ``build``
        returns no module, or one without data, or if ``batch`` returns an iterator or a set; AmpFailure if one of them
        or that pass raises.
        """
        with torch.random.fork_rng(devices=[]):
            model = self._call("build", self.build, seed)
            if not isinstance(model, torch.nn.Module):
                raise AmpUsageError(f"case {self.name}: build made {type(model).__name__}, not a torch.nn.Module")
            batch = self._call("batch", self.batch, seed)
            if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
                self._call("loss", lambda: _initialise(model, lambda: self.loss(model, batch)), seed)
            _expect_data(self.name, model, batch)
            return Realised(model, batch, lambda: self._call("build", self.build, seed))

    def _call(self, part: str, function: Callable[[], Any], seed: int) -> Any:
        """Return the result of a function of the case, after seeding torch. Raises AmpFailure for what it raises."""
        try:
            with seeded(seed):
                return function()
        except Exception as error:
            if passes(error):
                raise
            raise failure_of(
                f"{self.name}: its {part}",
                error,
                expected=_EXPECTED[part],
                likely=f"the function given as {part}=, or what it calls; no check has begun",
            ) from None


def _initialise(model: torch.nn.Module, forward: Callable[[], object]) -> None:
    """Initialise lazy modules by a forward pass; statistics and modes are left as they are."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        forward()
    for module, mode in training.items():
        module.training = mode
    left = [name for name, value in (*model.named_parameters(), *model.named_buffers()) if is_lazy(value)]
    if left:
        raise AmpUsageError(f"{left[0]} is lazy, and the forward pass in evaluation mode does not make it")


def _expect_data(case: str, model: torch.nn.Module, batch: Any) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise AmpUsageError(
                f"case {case}: build made {name} on the meta device, where it has no data; expected it on the CPU"
            )
    if isinstance(batch, (Iterator, AbstractSet)):
        raise AmpUsageError(
            f"case {case}: batch made a {type(batch).__name__}, which gives its tensors once, or in any order; "
            "expected a tensor, or a dict, dataclass, list or tuple of tensors"
        )


class RecordedDraws(Protocol):
    """Random numbers that a step of a case has drawn."""

    def scope(self) -> AbstractContextManager[None]:
        """Run a step with the same back ends as the recorded one."""

    def replaying(self) -> AbstractContextManager[None]:
        """Replay the random numbers of the recorded step."""


@dataclass(frozen=True)
class Realised:
    """Module and batch of a case; ``again`` builds an equal module, for modules that cannot be copied.

    ``draws`` are the random numbers of its step in mixed precision, if they were recorded.
    """

    model: torch.nn.Module
    batch: Any
    again: Callable[[], torch.nn.Module] | None = None
    draws: RecordedDraws | None = None

    def on(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Realised:
        """Return a copy on ``device``; with ``dtype``, floating tensors have it and complex ones the matching width."""
        with torch.no_grad():  # otherwise the copied parameters of a scripted module would be non-leaf tensors
            model = self._copied().to(device=device)
            if dtype is not None:
                _cast(model, dtype)
        for copied, parameter in zip(model.parameters(), self.model.parameters(), strict=True):
            copied.requires_grad_(parameter.requires_grad)
            torch_private.copy_hooks(parameter, copied)
        return Realised(model, map_tensors(lambda x: _moved(x, device, dtype), self.batch), draws=self.draws)

    def _copied(self) -> torch.nn.Module:
        """Copy the model; one that refuses (torch's older weight_norm does) is rebuilt and loaded with its state."""
        try:
            return copy.deepcopy(self.model, _empty_copies(self.model))
        except Exception:
            if self.again is None:
                raise
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            model = self.again()
        model.load_state_dict(self.model.state_dict())
        return model


def _empty_copies(model: torch.nn.Module) -> dict[int, Any]:
    """Return copies of the empty dicts of modules, by identity, as a memo of ``copy.deepcopy``.

    A module has a dozen dicts of hooks, nearly all empty. ``copy`` calls several functions for each of them: four
    fifths of the time that the copy of a small model takes.
    """
    return {
        id(value): type(value)()
        for module in model.modules()
        for value in vars(module).values()
        if type(value) in _DICTS and not value and not getattr(value, "__dict__", None)
    }


#: The types of dicts that modules have.
_DICTS = (dict, OrderedDict)


def _cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast parameters and buffers as ``Module.to`` does, but keep the imaginary parts of complex ones.

    Modules that share a buffer share its copy.
    """
    copies: dict[torch.Tensor, torch.Tensor] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(_floating_dtype(parameter, dtype))
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            if buffer not in copies:
                copies[buffer] = buffer.to(_floating_dtype(buffer, dtype))
            setattr(module, name, copies[buffer])


def named_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers of a model by all of their names.

    ``Module.named_buffers`` leaves out further names of a tensor. ``Module.to`` copies a tensor that two modules share
    for each of them if it changes device or dtype, and the copies then have two names.
    """
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    }


def _floating_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return ``dtype`` for a floating tensor, its complex dtype for a complex one, else the tensor's own dtype."""
    if tensor.is_complex():
        return dtype.to_complex()
    return dtype if tensor.is_floating_point() else tensor.dtype


def _moved(tensor: torch.Tensor, device: torch.device | str, dtype: torch.dtype | None) -> torch.Tensor:
    to = tensor.dtype if dtype is None else _floating_dtype(tensor, dtype)
    # A copy even if nothing changes, since gradients are stored on it.
    return tensor.detach().to(device=device, dtype=to, copy=True).requires_grad_(tensor.requires_grad)


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: Any) -> Any:
    """Return ``tree`` with ``function`` applied to the tensors in its dicts, lists, tuples, dataclasses and objects.

    Objects are those with tensors as attributes. Everything else is unchanged.
    """
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return _mapping_like(tree, {key: map_tensors(function, value) for key, value in tree.items()})
    if _is_named_tuple(tree):  # its constructor takes fields one by one
        cpu_field = "batch_sizes" if isinstance(tree, PackedSequence) else None
        entries = tree._asdict().items()
        return type(tree)(*(value if name == cpu_field else map_tensors(function, value) for name, value in entries))
    if isinstance(tree, (list, tuple, deque)):
        return type(tree)(map_tensors(function, value) for value in tree)
    names = _attributes(tree)
    copied = copy.copy(tree) if names else tree
    for name in names:
        object.__setattr__(copied, name, map_tensors(function, getattr(tree, name)))  # works on frozen dataclasses
    return copied


def _mapping_like(tree: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return ``items`` in a copy of the mapping ``tree``, which may have attributes and methods; else in a dict."""
    if type(tree) is dict or not isinstance(tree, MutableMapping):
        return items
    copied = copy.copy(tree)
    for key, value in items.items():
        copied[key] = value
    return copied


def named_tensors(tree: Any, prefix: str = "", *, objects: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of ``tree`` with its path: ``images``, ``0.mask``; the path of a bare tensor is ``prefix``.

    Without ``objects``, tensors that are attributes of an object are left out, unless it is a dataclass.
    """
    if isinstance(tree, torch.Tensor):
        yield prefix, tree
        return
    entries: Iterator[tuple[object, Any]] = iter(())
    if isinstance(tree, Mapping):
        entries = iter(tree.items())
    elif _is_named_tuple(tree):
        entries = iter(tree._asdict().items())
    elif isinstance(tree, (list, tuple, deque)):
        entries = iter(enumerate(tree))
    elif objects or _is_record(tree):
        entries = ((name, getattr(tree, name)) for name in _attributes(tree))
    for key, value in entries:
        yield from named_tensors(value, f"{prefix}.{key}" if prefix else str(key), objects=objects)


def _is_record(tree: object) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def _attributes(tree: object) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, or of an object's attributes if one is a tensor (a namespace, say)."""
    if _is_record(tree):
        return tuple(field.name for field in dataclasses.fields(tree))  # type: ignore[arg-type]  # it is an instance
    if isinstance(tree, (type, torch.nn.Module)) or callable(tree) or not hasattr(tree, "__dict__"):
        return ()
    return tuple(vars(tree)) if any(isinstance(value, torch.Tensor) for value in vars(tree).values()) else ()


def _is_named_tuple(tree: object) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def outputs_by_name(outputs: Outputs) -> dict[str, torch.Tensor]:
    """Return the tensors of a loss function's result by their paths; a bare tensor is ``loss``.

    Tensors are collected from a mapping, a dataclass or a named tuple, at any depth; other values, such as None or a
    cache of keys, are left out. Raises AmpUsageError for any other type, which has no names.
    """
    if isinstance(outputs, torch.Tensor):
        return {"loss": outputs}
    if not (isinstance(outputs, Mapping) or _is_record(outputs) or _is_named_tuple(outputs)):
        raise AmpUsageError(
            f"the loss is {type(outputs).__name__}; expected a tensor, or tensors by name (dict, dataclass)"
        )
    return dict(named_tensors(outputs, objects=False))


def loss_of(outputs: Outputs) -> torch.Tensor:
    """Return the tensor to differentiate: a bare tensor, the entry ``loss``, or the sum of all entries without one.

    Raises AmpUsageError if the result has more than one element.
    """
    named = outputs_by_name(outputs)
    if "loss" in named:
        loss = named["loss"]
    elif named and all(value.numel() == 1 for value in named.values()):
        loss = torch.stack([value.reshape(()) for value in named.values()]).sum()
    else:
        outputs_of = f"outputs {', '.join(named)}" if named else f"outputs of {type(outputs).__name__} without a tensor"
        raise AmpUsageError(f"{outputs_of}: none is called loss, and not all have one element")
    if loss.numel() != 1:
        raise AmpUsageError(f"the loss has shape {list(loss.shape)}, it must have one element")
    return loss
