"""Resolution of options: the targets of a run, and whether speed can be timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pytest_amp.config import AmpConfig
from pytest_amp.devices import FAKE_TYPES, Device, DeviceKind, DeviceType, find_device
from pytest_amp.devices.probe import Probe, cuda_error, current_accelerator, is_fault, probe
from pytest_amp.hookspecs import yielded
from pytest_amp.precision import LOW, Precision
from pytest_amp.run import workers
from pytest_amp.run.targets import Target
from pytest_amp.text.amounts import counted


class Unavailable(ValueError):
    """Missing device, dtype or timing that was requested by name: a usage error, in one line."""


@dataclass(frozen=True)
class Speed:
    """Mode of speed checks in this process (``off``, ``report``, ``gate``), and the reason for it."""

    mode: str
    reason: str


def added_device_types(config: pytest.Config) -> tuple[DeviceType, ...]:
    """Return the device types that the hook pytest_amp_devices yields. Raises AmpUsageError for anything else."""
    return tuple(yielded("pytest_amp_devices", config.hook.pytest_amp_devices(), DeviceType))


def resolve_targets(options: AmpConfig, config: pytest.Config) -> tuple[Target, ...]:
    """Return every device and precision of the run, each probed by computing on it. Raises Unavailable."""
    added = added_device_types(config)
    targets: dict[str, Target] = {}
    for name in options.device:
        for probed in _devices(name, added):
            for target in _targets_on(probed, options, config, named=name not in ("auto", "all")):
                targets.setdefault(target.id, target)
    return tuple(targets.values())


def _devices(name: str, added: Sequence[DeviceType]) -> list[tuple[Device, Probe]]:
    if name not in ("auto", "all"):
        device = find_device(name, added)
        return [(device, probe(device))]
    cpu = find_device("cpu", added)
    accelerator = current_accelerator()
    real = []
    if accelerator is not None:
        device = find_device(accelerator, added)
        answer = probe(device)
        if not answer.works and is_fault(answer.reason):
            raise Unavailable(_faulty(name, accelerator, answer.reason))
        real = [(device, answer)] if answer.works else []
    elif (reason := cuda_error()) is not None and is_fault(reason):
        raise Unavailable(_faulty(name, "cuda", reason))
    return real if name == "auto" and real else [(cpu, probe(cpu)), *real]


def _faulty(name: str, accelerator: str, reason: str) -> str:
    """Return why ``auto`` and ``all`` are refused: with a fault of its accelerator a green run would be the CPU's."""
    return (
        f"the device {name!r} would be the CPU, since {accelerator} has a fault ({reason}); "
        "expected an accelerator that computes, or --amp-device=cpu"
    )


def _targets_on(
    probed: tuple[Device, Probe], options: AmpConfig, config: pytest.Config, *, named: bool
) -> list[Target]:
    device, answer = probed
    if not answer.works:
        reason = unavailable_device(device.name, answer, options)
        if not (named and "device" in options.allow_missing):
            raise Unavailable(reason)
        precisions = [LOW[name] for name in options.dtype if name in LOW] or list(LOW.values())
        return [Target(device, precision, reason, config) for precision in precisions]
    targets: list[Target] = []
    for name in options.dtype:
        if name == "auto":
            targets += [Target(device, precision, None, config) for precision in answer.works]
            continue
        targets.append(Target(device, LOW[name], _missing_dtype(device, answer, LOW[name], options), config))
    return targets


def unavailable_device(name: str, answer: Probe, options: AmpConfig) -> str:
    """Return one line: the device, the source of the request, the probe's answer, and devices without hardware."""
    fakes = ", ".join(f"fake:{device_type}" for device_type in FAKE_TYPES)
    where = options.where("amp_device")
    return f"{where}: {name!r} does not compute here ({answer.reason}); expected here: auto, cpu, {fakes}"


def _missing_dtype(device: Device, answer: Probe, precision: Precision, options: AmpConfig) -> str | None:
    if precision in answer.works:
        return None
    works = ", ".join(option.name for option in answer.works)
    reason = (
        f"{options.where('amp_dtype')}: {precision.name!r} does not compute on {device.name} "
        f"({answer.answers[precision.name]}); expected here: {works}"
    )
    if "dtype" not in options.allow_missing:
        raise Unavailable(reason)
    return reason


def resolve_speed(options: AmpConfig, config: pytest.Config, targets: Sequence[Target]) -> Speed:
    """Return the mode of speed checks: an accelerator is timed only if this process owns it. Raises Unavailable."""
    if options.speed == "off":
        return Speed("off", f"off ({options.sources['amp_speed']})")
    problem = _cannot_time(options, config, targets)
    if problem is None:
        source = options.sources["amp_speed"]
        return Speed(options.speed or "gate", source if options.speed else "this process owns its GPU")
    if options.speed == "gate":
        valid = "off, report" if any(target.device.kind is DeviceKind.CPU for target in targets) else "off"
        raise Unavailable(f"{options.where('amp_speed')}: 'gate' cannot time here: {problem}; expected here: {valid}")
    return Speed("off", problem)


def _cannot_time(options: AmpConfig, config: pytest.Config, targets: Sequence[Target]) -> str | None:
    accelerated = any(t.device.kind is DeviceKind.ACCELERATOR and t.missing is None for t in targets)
    # On a CPU times are only reported: they depend on other work of the machine.
    on_cpu = options.speed == "report" and any(t.device.kind is DeviceKind.CPU for t in targets)
    if not accelerated and not on_cpu:
        return "no accelerator in this run"
    if workers.worker_count(config) == 1:
        return None
    return shared_gpus(options, config)


def shared_gpus(options: AmpConfig, config: pytest.Config) -> str | None:
    """Return why the workers of this run do not own a GPU each; None if they do."""
    count = workers.worker_count(config)
    if not workers.asks_for_cuda(options.device):
        return f"{count} workers share the accelerator (name cuda to give each its own GPU)"
    # A worker sees its own GPU only; its controller has passed it the number of GPUs.
    gpus = getattr(config, "workerinput", {}).get("amp_gpus") or len(workers.visible_gpus())
    return None if count <= gpus else f"{count} workers share {counted(gpus, 'GPU')}"
