"""Parametrization of a test over devices and precisions, from its marker."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_amp.config import DEVICE_TYPES
from pytest_amp.devices import Device, DeviceKind
from pytest_amp.failure import AmpUsageError
from pytest_amp.families import PROJECT, Family, family_of
from pytest_amp.fixtures import NAMES
from pytest_amp.markers import AmpMarker
from pytest_amp.precision import FP32, TF32
from pytest_amp.run import workers
from pytest_amp.run.identity import TARGET
from pytest_amp.run.session import Messages, RequestedTargets
from pytest_amp.run.targets import Target

_KINDS = {DeviceKind.CPU: "a CPU", DeviceKind.ACCELERATOR: "an accelerator", DeviceKind.FAKE: "a fake device"}


@dataclass(frozen=True)
class Place:
    """Test before it has parameters."""

    marker: AmpMarker
    family: Family
    requested: RequestedTargets

    def unfit(self, target: Target) -> str | None:
        """Return why the test does not exist on ``target``; None if it does."""
        device, precision = target.device, target.precision
        if device.kind not in self.family.kinds:
            return f"the {self.family.name} family does not exist on {_KINDS[device.kind]}"
        if (too_few := self._too_few(device)) is not None:
            return too_few
        if device.kind is DeviceKind.FAKE and not self.marker.fake:
            return "needs a real device"
        if self.marker.devices is not None and device.type not in self.marker.devices:
            return f"not for {device.type}"
        if self.marker.dtypes is not None and precision not in self.marker.dtypes:
            return f"not for {precision.name}"
        return self._untimed(target) if self.family.name == "speed" else None

    def _too_few(self, device: Device) -> str | None:
        """Return why the family has too few accelerators in this process or its caller's; None if it has enough."""
        needed = self.family.devices
        if needed == 1 or device.kind is not DeviceKind.ACCELERATOR:
            return None
        if ":" in device.name:
            return f"needs {needed} {device.type} devices, and one was named"
        count = workers.count_devices(device.type)
        return f"needs {needed} {device.type} devices, and there is {count}" if count < needed else None

    def _untimed(self, target: Target) -> str | None:
        """Return why no floor of speed exists on ``target``, such as an emulated dtype; None if one may exist."""
        if self.requested.speed.mode == "off":
            reason = self.requested.speed.reason
            return f"speed is {reason}" if reason.startswith("off") else f"speed is off: {reason}"
        if target.device.kind is DeviceKind.CPU and self.requested.speed.mode != "report":
            return "a CPU is timed with --amp-speed=report only"
        from pytest_amp.speed import kinds_of_float32

        if not target.missing and not kinds_of_float32(target.device, target.precision):
            return f"{target.precision.name} is emulated on {target.device.name}"
        return None

    def targets(self) -> list[Target]:
        """Return the run's targets, and fp32 and tf32 on the same devices if the marker names them."""
        result = list(self.requested.low)
        # Sort by "missing": prefer an available target of each device; fall back to a missing one.
        devices = {t.device.key: t for t in sorted(result, key=lambda target: target.missing is None)}
        for precision in (FP32, TF32):
            if self.marker.dtypes is None or precision not in self.marker.dtypes:
                continue
            has_it = [t for t in devices.values() if precision is FP32 or t.device.type == "cuda"]
            result += [self.requested.wide(target, precision) for target in has_it]
        return result


def parametrize(metafunc: pytest.Metafunc, requested: RequestedTargets, messages: Messages) -> None:
    """Run the test on every target; an invalid marker is a usage error that names the test."""
    name = metafunc.definition.nodeid
    try:
        marker = AmpMarker.merged(metafunc.definition.iter_markers("amp"))
        generator = _generator(metafunc.definition.get_closest_marker("amp_parametrize"))
        family = family_of(metafunc.module)
    except ValueError as error:
        messages.usage_error(f"{name} (marker amp): {error}")
        metafunc.parametrize(TARGET, [], indirect=True, scope="session")
        return
    if sys.flags.optimize and family is not PROJECT:
        messages.usage_error(
            f"python -O, or PYTHONOPTIMIZE={sys.flags.optimize}: removes assert statements, and a check without them "
            "holds whatever it finds; expected a run without it"
        )
    place = Place(marker, family, requested)
    if (unknown := _unknown_types(marker, requested)) is not None:
        messages.usage_error(f"{name} (marker amp): {unknown}")
    try:
        refuse_indirect(metafunc)
        rows = [row for target in place.targets() for row in _rows(place, target, generator)]
    except AmpUsageError as error:
        messages.usage_error(f"{name}: {error}")
        rows = []
    if generator is None:
        metafunc.parametrize(TARGET, rows, indirect=True, scope="session")
    else:
        metafunc.parametrize((TARGET, generator[0]), rows, indirect=[TARGET], scope="session")


def refuse_indirect(metafunc: pytest.Metafunc) -> None:
    """Raise AmpUsageError for an ``indirect`` parameter of a fixture of this plugin, which would ignore the value."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        arguments = {**dict(zip(("argnames", "argvalues", "indirect"), mark.args, strict=False)), **mark.kwargs}
        argnames, indirect = arguments.get("argnames", ()), arguments.get("indirect", False)
        names = [name.strip() for name in argnames.split(",")] if isinstance(argnames, str) else list(argnames)
        meant = NAMES.intersection(names if indirect is True else indirect or ())
        for name in sorted(meant):
            plugins = metafunc.config.pluginmanager.get_plugins()
            if not hasattr(metafunc.module, name) and not any(_makes(plugin, name) for plugin in plugins):
                raise AmpUsageError(
                    f"parametrize gives {name} values, and the fixture takes none: device and dtype are those of the "
                    "run; expected --amp-device and --amp-dtype, or the marker amp(devices=…, dtypes=…)"
                )


def _unknown_types(marker: AmpMarker, requested: RequestedTargets) -> str | None:
    """Return an error for an unknown device type in the marker: its test would never run, its xfail never apply."""
    known = dict.fromkeys((*DEVICE_TYPES, *requested.device_types, *(t.device.type for t in requested.low)))
    named = [*(marker.devices or ()), *(key.partition("-")[0] for key in marker.xfail)]
    unknown = next((name for name in named if name not in known), None)
    return None if unknown is None else f"{unknown!r} is not a device type; expected {', '.join(known)}"


def check_marker(metafunc: pytest.Metafunc, messages: Messages) -> None:
    """Validate the marker of a test without an amp fixture, for which it only protects torch's state.

    A marker of a class or a module may be meant for the other tests in it.
    """
    name = metafunc.definition.nodeid
    try:
        AmpMarker.merged(metafunc.definition.iter_markers("amp"))
    except ValueError as error:
        messages.usage_error(f"{name} (marker amp): {error}")
        return
    keywords = [keyword for mark in metafunc.definition.own_markers if mark.name == "amp" for keyword in mark.kwargs]
    if keywords and not NAMES.intersection(metafunc.fixturenames):
        messages.usage_error(
            f"{name} (marker amp): {keywords[0]}= does nothing for a test without an amp fixture; "
            "expected an argument of the test, such as amp or amp_device"
        )


def check_own(metafunc: pytest.Metafunc, messages: Messages, names: Iterable[str]) -> None:
    """Note a usage error if a project overrides a fixture of ``names`` for tests of a family; elsewhere it may."""
    try:
        family = family_of(metafunc.module)
    except ValueError:
        return  # reported when a test is parametrized
    if family is PROJECT:
        return
    name = min(names)
    plugins = metafunc.config.pluginmanager.get_plugins()
    files = sorted(str(plugin.__file__) for plugin in plugins if hasattr(plugin, "__file__") and _makes(plugin, name))
    messages.usage_error(
        f"{', '.join(files) or 'a conftest.py'}: its fixture {name} takes the place of this plugin's, which the suites "
        "need; expected another name, or a conftest.py in the folder of the tests that use it"
    )


def _makes(plugin: object, name: str) -> bool:
    """Return whether ``plugin`` is a conftest.py with an attribute called ``name``."""
    return Path(str(getattr(plugin, "__file__", ""))).name == "conftest.py" and hasattr(plugin, name)


def _generator(mark: pytest.Mark | None) -> tuple[str, Callable[[Target], Iterable[object]]] | None:
    if mark is None:
        return None
    if mark.kwargs or len(mark.args) != 2 or not isinstance(mark.args[0], str) or not callable(mark.args[1]):
        raise ValueError("amp_parametrize takes an argument's name and a function of the target")
    try:
        inspect.signature(mark.args[1]).bind(None)
    except TypeError as error:
        raise ValueError(f"the function of amp_parametrize is called with the target: {error}") from None
    except ValueError:  # a built-in function without a signature
        pass
    return mark.args[0], mark.args[1]


def _rows(
    place: Place, target: Target, generator: tuple[str, Callable[[Target], Iterable[object]]] | None
) -> list[object]:
    marks: list[pytest.MarkDecorator] = []
    if target.missing is not None:
        marks.append(pytest.mark.skip(reason=f"missing, as --amp-allow-missing allows: {target.missing}"))
    if generator is None:
        return [pytest.param(target, id=target.id, marks=marks)]
    if place.unfit(target) or target.missing is not None:
        return [pytest.param(target, None, id=target.id, marks=marks)]
    result = generator[1](target)
    if not isinstance(result, Iterable) or isinstance(result, str):
        raise AmpUsageError(
            f"the function of amp_parametrize returned {result!r} for {target.id}; expected a list of values"
        )
    values = list(result)
    if not values:
        nothing = pytest.mark.skip(reason=f"nothing to check on {target.id}")
        return [pytest.param(target, None, id=f"{target.id}-nothing", marks=[*marks, nothing])]
    return [_row(target, value, f"{generator[0]}{number}", marks) for number, value in enumerate(values)]


def _row(target: Target, value: object, place: str, marks: Sequence[pytest.MarkDecorator]) -> object:
    if hasattr(value, "values") and hasattr(value, "marks") and hasattr(value, "id"):  # a value of pytest.param
        if len(value.values) != 1:
            raise AmpUsageError(
                f"the function of amp_parametrize returned {value!r} for {target.id}; expected one value each"
            )
        (inner,) = value.values
        name = value.id if isinstance(value.id, str) and value.id else _called(inner, place)
        return pytest.param(target, inner, id=f"{target.id}-{name}", marks=[*marks, *value.marks])
    return pytest.param(target, value, id=f"{target.id}-{_called(value, place)}", marks=marks)


def _called(value: object, place: str) -> str:
    """Return the text of a value in a test's id, and so in keys, which must not contain an address."""
    name = getattr(value, "__name__", None)
    text = name if isinstance(name, str) else str(value)
    return place if re.search(r" at 0x[0-9a-fA-F]+", text) else text
