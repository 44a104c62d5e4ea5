"""Observation of the fingerprint of one entry on one device: its samples, called with autocast off and on."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.parameter import is_lazy

from pytest_amp.child_process.poison import is_sticky
from pytest_amp.devices import Device, DeviceKind, find_device
from pytest_amp.devices.faults import fault_in
from pytest_amp.fingerprint.dtypes import BANNED, ERROR, NOT, UNSEEN, Calls, in_terms_of, written
from pytest_amp.fingerprint.samples import dtype_of, module_samples_of, samples_of, seed
from pytest_amp.torch_private import fake_tensors, testing, trees
from pytest_amp.torch_private.testing import ModuleSample, Sample

#: Part of autocast's error message for a refused operator.
_BANNED_SAYS = "unsafe to autocast"
#: Part of the C++ error message for a fake tensor whose values are needed.
_NO_DATA = "its data is not allocated yet"
#: Parts of error messages: of oneDNN without a kernel for a dtype on this CPU, of a build without a library (MAGMA) or
#: a kernel, and of a machine without a driver or a kernel compiler (NVRTC).
_LACKING = (
    "could not create a primitive",
    "not compiled with",
    "not linked with",
    "requires compiling PyTorch with",
    "DispatchStub",
    "nvrtc",
    "CUDA driver",
    "NVIDIA driver",
)


class Call(Protocol):
    """One sample on one device."""

    def prepare(self) -> Prepare:
        """Prepare the call outside of a fake tensor mode, and return a function for the rest.

        The function takes the dtype of floating inputs and whether autocast will be on, and returns the call.
        """


Prepare = Callable[[torch.dtype, bool], Callable[[], object]]


@dataclass(frozen=True, eq=False)
class OperatorCall:
    """A function and its arguments."""

    function: Callable[..., object]
    sample: Sample
    device: Device

    def prepare(self) -> Prepare:
        """Return a function that moves the arguments, and binds them to the operator."""
        return self._ready

    def _ready(self, dtype: torch.dtype, _enabled: bool) -> Callable[[], object]:  # noqa: FBT001  # one of two calls
        args, kwargs = moved((self.sample.args, self.sample.kwargs), self.device, dtype)
        return functools.partial(self.function, *args, **kwargs)


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """A module and the arguments of its forward.

    Under autocast its parameters are float32, as in training; without autocast they have the dtype of the inputs, as
    most modules require.
    """

    module: Callable[..., torch.nn.Module]
    sample: ModuleSample
    device: Device
    training: bool

    def prepare(self) -> Prepare:
        """Build the module, and return a function that converts it and binds its arguments."""
        seed()
        constructor = self.sample.constructor
        module = self.module(*constructor.args, **constructor.kwargs).train(self.training)
        if any(map(is_lazy, module.parameters())):
            module(*self.sample.forward.args, **self.sample.forward.kwargs)  # initializes its lazy parameters
        module.requires_grad_(requires_grad=False)
        return functools.partial(self._ready, module)

    def _ready(
        self,
        module: torch.nn.Module,
        dtype: torch.dtype,
        enabled: bool,  # noqa: FBT001  # one of two calls
    ) -> Callable[[], object]:
        def convert(tensor: torch.Tensor) -> torch.Tensor:
            full = tensor.float() if tensor.is_floating_point() else tensor
            return _moved_tensor(full, self.device, torch.float32 if enabled else dtype)

        args, kwargs = moved((self.sample.forward.args, self.sample.forward.kwargs), self.device, dtype)
        _convert(module, convert)
        return functools.partial(module, *args, **kwargs)


def _convert(module: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace each parameter and buffer by ``function`` of it.

    ``Module.to`` fails here: in torch 2.6 it leaves fake parameters on the meta device.
    """
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(part, name, torch.nn.Parameter(function(parameter), requires_grad=False))
        for name, buffer in list(part.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(part, name, function(buffer))


@functools.cache  # shared by both precisions and all devices; all samples take 0.2 GB of a child process
def operator_samples(name: str) -> list[Sample] | str:
    """Return the selected samples of an ``op_db`` entry, or a text that says why there are none."""
    entry = testing.operator_entries()[name]
    dtype = dtype_of(entry)
    if dtype is None:
        return f"{NOT}takes none of float32, int64, complex64 and bool on a CPU"
    try:
        result = samples_of(entry, dtype)
    except Exception as error:  # noqa: BLE001  # whatever torch's test code raises
        return f"{NOT}no sample arguments, {type(error).__name__}"
    return result or f"{NOT}no sample arguments"


@functools.cache  # a call is the same object for both precisions: see _PLAIN
def calls_of(name: str, device_name: str) -> Sequence[Call] | str:
    """Return the calls of an entry of ``op_db`` or ``module_db`` on a device, or a text that says why there are none.

    A module is called in training and in evaluation mode. Raises LookupError for a name that is in neither.
    """
    device = find_device(device_name)
    operators, modules = testing.operator_entries(), testing.module_entries()
    if name in operators:
        result = operator_samples(name)
        if isinstance(result, str):
            return result
        return [OperatorCall(operators[name].function, sample, device) for sample in result]
    if name not in modules:
        raise LookupError(f"torch {torch.__version__} tests no {name}")
    calls: list[Call] = []
    for training in (True, False):
        try:
            samples = module_samples_of(modules[name], training=training)
        except Exception as error:  # noqa: BLE001  # whatever torch's test code raises
            return f"{NOT}no sample arguments, {type(error).__name__}"
        calls += [ModuleCall(modules[name].module, sample, device, training) for sample in samples]
    return calls or f"{NOT}no sample arguments"


@dataclass(frozen=True)
class _How:
    """Dtype of the inputs and state of autocast in one of the four calls of a sample."""

    dtype: torch.dtype
    enabled: bool


def patterns_of(calls: Iterable[Call], device: Device, low: torch.dtype) -> tuple[list[str], str]:
    """Return the patterns of ``calls`` that run in float32 without autocast, and why the first other one fails."""
    full = torch.float32
    patterns, failed = [], ""
    with scope(device):
        for call in calls:
            off_full, reason = _plain_outcome(call, device, low)
            if off_full in (ERROR, UNSEEN, BANNED):
                failed = failed or reason
                continue
            further = (_How(low, enabled=False), _How(full, enabled=True), _How(low, enabled=True))
            patterns.append(str(Calls(off_full, *(_outcome(call, device, low, how)[0] for how in further))))
    return patterns, failed


@contextmanager
def scope(device: Device) -> Iterator[None]:
    """Run calls of samples without gradients, warnings and log messages.

    On a fake device cuDNN is off: only some builds have it, and fingerprints must not depend on the build.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(fake_tensors.quiet_fake_tensors())
        stack.enter_context(torch.no_grad())
        if device.kind is DeviceKind.FAKE:
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


#: The outcomes in float32 with autocast off, which are the same for both precisions: some 6300 for each device.
_PLAIN: dict[Call, tuple[str, str]] = {}


def _plain_outcome(call: Call, device: Device, low: torch.dtype) -> tuple[str, str]:
    if call not in _PLAIN:
        _PLAIN[call] = _outcome(call, device, None, _How(torch.float32, enabled=False))
    outcome, reason = _PLAIN[call]
    return in_terms_of(low, outcome), reason


def _outcome(call: Call, device: Device, low: torch.dtype | None, how: _How) -> tuple[str, str]:
    """Return the dtypes of a call's results, or the word in place of them and the reason."""
    try:
        return _run_or_answer(call, device, low, how), ""
    except Exception as error:
        if fault_in(error) is not None or (is_sticky(error) and device.kind is DeviceKind.ACCELERATOR):
            raise
        text = str(error)
        if _BANNED_SAYS in text:
            return BANNED, "refused by autocast"
        if _beyond_fakes(error, device):
            return UNSEEN, "needs a real device"
        if any(sign in text for sign in _LACKING):
            return UNSEEN, "needs another build or machine"
        return ERROR, f"raises {type(error).__name__} with autocast off"


#: The calls that read values of fake tensors: they will do so again.
_ANSWERED: set[Call] = set()


def _run_or_answer(call: Call, device: Device, low: torch.dtype | None, how: _How) -> str:
    if call not in _ANSWERED:
        try:
            return _run(call, device, low, how, answering=False)
        except Exception as error:
            if not _beyond_fakes(error, device):
                raise
        _ANSWERED.add(call)
    return _run(call, device, low, how, answering=True)


def _beyond_fakes(error: Exception, device: Device) -> bool:
    if device.kind is not DeviceKind.FAKE:
        return False
    return isinstance(error, _NoFake) or _NO_DATA in str(error) or fake_tensors.is_limit_of_fake_tensors(error)


def _run(call: Call, device: Device, low: torch.dtype | None, how: _How, *, answering: bool) -> str:
    with ExitStack() as stack:
        prepare = call.prepare()
        if device.kind is DeviceKind.FAKE:
            stack.enter_context(fake_tensors.strict_fake_tensor_mode())
        ready = prepare(how.dtype, how.enabled)
        if how.enabled and low is not None:
            stack.enter_context(device.autocast(low))
        if answering:
            stack.enter_context(fake_tensors.values_from_cpu())
        return written(ready(), low)


class _NoFake(Exception):
    """Error of a feature that no fake device has."""


def moved(tree: Any, device: Device, dtype: torch.dtype) -> Any:
    """Move arguments to ``device`` and float32 tensors to ``dtype``; a CPU device argument becomes ``device``."""
    return trees.tree_map(functools.partial(_moved_leaf, device=device, dtype=dtype), tree)


def _moved_leaf(leaf: Any, *, device: Device, dtype: torch.dtype) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _moved_tensor(leaf, device, dtype)
    if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
        return device.torch_device
    return leaf


def _moved_tensor(tensor: torch.Tensor, device: Device, dtype: torch.dtype) -> torch.Tensor:
    expected = dtype if tensor.dtype == torch.float32 else tensor.dtype
    if device.kind is DeviceKind.FAKE:
        # A fake tensor is created on its device: moving it there would need the device.
        if tensor.layout != torch.strided:
            raise _NoFake(f"{tensor.layout} tensors")
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=expected, device=device.torch_device)
    return tensor.detach().clone().to(device.torch_device, expected)
