"""Probe of a device: allocate, multiply under autocast, read back, compare.

The capabilities of a build are not enough: ``torch.amp.is_autocast_available("cuda")`` is True without CUDA. ``python
-m pytest_amp.devices.probe cuda`` prints the answer as JSON, for a process that must not import torch itself.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_amp.devices.base import Device, DeviceKind
from pytest_amp.devices.faults import fault_of_text
from pytest_amp.devices.names import DeviceType, find_device
from pytest_amp.precision import LOW, Precision
from pytest_amp.text.quoted import quoted_with_type

if TYPE_CHECKING:
    import torch

TIMEOUT = 180.0


@dataclass(frozen=True)
class Probe:
    """Result of probing one device: for each low precision, "" if it computes, else the reason in one line."""

    device: str
    answers: Mapping[str, str]

    @property
    def works(self) -> tuple[Precision, ...]:
        """Return the low precisions in which the device computes."""
        return tuple(LOW[name] for name, reason in self.answers.items() if not reason)

    @property
    def reason(self) -> str:
        """Return why the device does not compute."""
        return next(iter(self.answers.values()))


def probe(device: Device) -> Probe:
    """Try each low precision on ``device``."""
    return Probe(device.name, {name: _try(device, precision) for name, precision in LOW.items()})


def _try(device: Device, precision: Precision) -> str:
    try:
        return _compute(device, precision)
    except Exception as error:  # noqa: BLE001  # any error of a back end is the answer
        return quoted_with_type(error)


def _compute(device: Device, precision: Precision) -> str:
    import torch

    if device.kind is DeviceKind.FAKE:
        # A fake tensor is created on its device: moving it there would need a device guard, absent in a CPU-only build.
        with device.tensors(), device.autocast(precision.dtype):
            fake = torch.empty(8, 8, device=device.torch_device)
            return _wrong_dtype(fake @ fake, precision)
    # Small integers: their products and sums are exact in either format, so the results must be equal.
    numbers = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    left, right = (numbers % 5 - 2).to(device.torch_device), (numbers % 3 - 1).to(device.torch_device)
    with device.autocast(precision.dtype):
        product = left @ right
    device.synchronize()
    exact = left.cpu().double() @ right.cpu().double()
    if not torch.equal(product.cpu().double(), exact):
        return "a matmul under autocast returned wrong values"
    return _wrong_dtype(product, precision)


def _wrong_dtype(product: torch.Tensor, precision: Precision) -> str:
    return "" if product.dtype == precision.dtype else f"a matmul under autocast returned {product.dtype}"


def current_accelerator() -> str | None:
    """Return the type of the accelerator that torch would use, if there is one; imports torch."""
    import torch

    if not torch.accelerator.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator()
    return accelerator.type if accelerator is not None else None


def cuda_error() -> str | None:
    """Return why CUDA does not start in a build with CUDA, in one line; None if it does, or if no driver is installed.

    torch.cuda.is_available() is False for a driver that reports an error, as for a missing one.
    """
    import torch

    if torch.version.cuda is None:
        return None
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call,unused-ignore]
    except Exception as error:  # noqa: BLE001  # any error is the answer
        return quoted_with_type(error)
    return None


#: Errors of a device that is there, and does not compute. A card that this build has no kernels for is none.
_FAULT = re.compile(r"\b(?:CUDA|HIP) error: (?!no kernel image|invalid device function)|\bunknown error\b")
#: The answer for hidden GPUs (CUDA_VISIBLE_DEVICES), too.
_NO_GPUS = "No CUDA GPUs are available"


def is_fault(reason: str) -> bool:
    """Return whether an accelerator does not compute for a fault of the machine, instead of a missing capability."""
    return _NO_GPUS not in reason and (_FAULT.search(reason) is not None or fault_of_text(reason) is not None)


def probe_in_child(names: Sequence[str], plugins: Iterable[str] = ()) -> dict[str, Probe]:
    """Probe devices by name in a child process, without importing torch here.

    ``plugins`` are modules that the child imports first, so that a back end can register itself. A child that dies or
    hangs is an answer, too: every device gets it as its reason.
    """
    command = [sys.executable, "-m", "pytest_amp.devices.probe", json.dumps([list(plugins), sys.path]), *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)  # noqa: S603
        answers = _answers(done.stdout, names) if done.returncode == 0 else None
        reason = f"the probe ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"
    except subprocess.TimeoutExpired:
        answers, reason = None, f"the probe did not answer within {TIMEOUT:.0f} s"
    except (ValueError, LookupError, TypeError):
        answers, reason = None, "the probe gave no answer"
    if answers is None:
        answers = {name: dict.fromkeys(LOW, reason) for name in names}
    return {name: Probe(name, answers[name]) for name in names}


def _answers(output: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the answers in the child's last line, by device and precision; raises for anything else."""
    answer = json.loads(output.splitlines()[-1])
    return {name: {low: str(answer[name][low]) for low in LOW} for name in names}


def main(arguments: Sequence[str]) -> None:
    """Probe the devices named on the command line and print the answers."""
    plugins, path = json.loads(arguments[0])
    sys.path[:] = path
    added: list[DeviceType] = []
    for plugin in plugins:
        module = importlib.import_module(plugin)
        added += getattr(module, "pytest_amp_devices", list)()
    answers = {name: dict(probe(find_device(name, added)).answers) for name in arguments[1:]}
    sys.stdout.write(f"{json.dumps(answers)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
