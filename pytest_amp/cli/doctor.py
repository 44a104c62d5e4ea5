"""Command ``pytest-amp doctor``: this machine, the tests that would run on it, missing parts and how to get them."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata, util
from typing import Any

from pytest_amp import __version__
from pytest_amp.cli.common import Commands, is_a_wheel, write
from pytest_amp.cli.machine import Machine, ask
from pytest_amp.report.newer import newer_than_known

#: Exit statuses: the suites have a device to run on, or none.
WELL, ILL = 0, 1


@dataclass(frozen=True)
class Part:
    """Library or program: what needs it, and how to get it."""

    name: str
    module: str
    needed: str
    get: str


PARTS = (
    Part("pytest", "pytest", "every run", "pip install 'pytest>=9.0'"),
    Part("pytest-xdist", "xdist", "runs in several processes (-n)", "pip install 'pytest-xdist>=3.6'"),
    Part("pytest-benchmark", "pytest_benchmark", "the suite speed", "pip install 'pytest-benchmark>=5.1'"),
    Part("filelock", "filelock", "--amp-accept and calibrate", "pip install 'filelock>=3.20.3'"),
    Part("numpy", "numpy", "number formats and torch's own conversions", "pip install numpy"),
    Part("hypothesis", "hypothesis", "random programs (semantics, scaler)", "pip install 'pytest-amp[suites]'"),
    Part("jinja2", "jinja2", "HTML reports", "pip install 'pytest-amp[html]'"),
    Part(
        "nvidia-ml-py", "pynvml", "the driver's version, heat and processes of a GPU", "pip install 'pytest-amp[gpu]'"
    ),
)
#: Part that is required only with an NVIDIA GPU.
NVIDIA = "nvidia-ml-py"
COMPILERS = ("c++", "g++", "clang++")


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add_parser(
        "doctor",
        help="what this machine is, what would run on it, and what is missing",
        description="What this machine is: torch, devices, dtypes that it computes, libraries; what would run, what is "
        "missing and how to get it. Each device is tried by computing on it, in a process of its own. Ends with 1 "
        "where nothing would run.",
    )
    command.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    command.set_defaults(run=_doctor, parser=command)


def _doctor(options: argparse.Namespace) -> int:
    machine = ask()
    parts = {part.name: _installed(part) for part in PARTS}
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if options.format == "json":
        data = {"torch": machine.torch, "devices": machine.devices, "problem": machine.problem, "at": machine.at}
        facts = {
            "plugin": __version__,
            "python": platform.python_version(),
            "parts": parts,
            "compiler": compiler,
            "newer": _newer(machine),
        }
        write(json.dumps({**facts, **data, "advice": advice(machine, parts, compiler)}, indent=1) + "\n")
    else:
        write("\n".join([*_lines(machine, parts, compiler), ""]))
    return WELL if _computing(machine) and parts["pytest"] is not None else ILL


def _installed(part: Part) -> str | None:
    try:
        return metadata.version(part.name)
    except metadata.PackageNotFoundError:
        return "yes" if util.find_spec(part.module) is not None else None


def _gpus() -> tuple[str, ...]:
    """Return the GPUs that the driver shows, without torch."""
    try:
        from pytest_amp.run.workers import visible_gpus
    except ModuleNotFoundError:  # that module imports pytest
        return ()
    return visible_gpus()


def _computing(machine: Machine) -> list[str]:
    """Return the names of the devices that compute in some dtype."""
    return [name for name, facts in machine.devices.items() if not all(facts["dtypes"].values())]


def _lines(machine: Machine, parts: dict[str, str | None], compiler: str | None) -> list[str]:
    system = f"{platform.system()} {platform.machine()}"
    lines = [f"pytest-amp {__version__}, Python {platform.python_version()} ({sys.executable}), {system}"]
    lines += [_torch(machine), ""]
    lines += ["devices"]
    lines += [f"  {line}" for name, facts in machine.devices.items() for line in _device(name, facts)]
    if not machine.devices:
        lines.append("  none could be probed")
    gpus = _gpus()
    if gpus:
        lines.append(f"  the driver shows GPU {', '.join(gpus)}")
    lines += ["", "would run"]
    lines += [f"  {line}" for line in _would_run(machine)]
    lines += ["", "has"]
    lines += [f"  {name} {version}" for name, version in parts.items() if version is not None]
    lines += [f"  a C++ compiler, {compiler}"] if compiler else []
    if (newer := _newer(machine)) is not None:
        lines.insert(2, newer)
    missing = advice(machine, parts, compiler)
    return [*lines, "", "missing", *(f"  {line}" for line in missing or ["nothing"])]


def _newer(machine: Machine) -> str | None:
    """Return a line that says that torch is newer than the data, and what to do; else None."""
    newer = newer_than_known(machine.torch.get("version"))
    return (
        None if newer is None else f"{newer}: pip install --upgrade pytest-amp, or read what is red with that in mind"
    )


def _torch(machine: Machine) -> str:
    facts = machine.torch
    if "version" in facts:
        build = (
            f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "no GPU support"
        )
        return f"torch {facts['version']} ({build}), {facts['file']}"
    if "problem" in facts:
        return f"torch cannot be imported: {facts['problem']}"
    return f"torch cannot be imported: {machine.problem or 'the process that tried ended without output'}"


def _device(name: str, probed: dict[str, Any]) -> list[str]:
    works = [dtype for dtype, reason in probed["dtypes"].items() if not reason]
    rest = {dtype: reason for dtype, reason in probed["dtypes"].items() if reason}
    head = f"{name}: {probed['describe'] or 'does not compute'}"
    lines = [f"{head}; {', '.join(works)}" if works else head]
    facts = ", ".join(f"{key} {value}" for key, value in probed["provenance"].items() if value not in ("None", None))
    return lines + [f"  {facts}"] * bool(facts) + [f"  not {dtype}: {reason}" for dtype, reason in rest.items()]


def _would_run(machine: Machine) -> list[str]:
    works = _computing(machine)
    real = [name for name in works if not name.startswith("fake:")]
    fakes = [name for name in works if name.startswith("fake:")]
    suites = "--pyargs pytest_amp.suites" if is_a_wheel() else "suites"
    lines = []
    if real:
        best = next((name for name in real if name != "cpu"), "cpu")
        dtypes = ",".join(dtype for dtype, reason in machine.devices[best]["dtypes"].items() if not reason)
        timed = "" if best != "cpu" else "; nothing is timed on a CPU"
        lines.append(f"pytest {suites}: {best} in {dtypes} (--amp-device=auto){timed}")
    if fakes:
        lines.append(f"pytest {suites} --amp-device={','.join(fakes)}: their dtype rules, without their hardware")
    return lines or ["nothing: torch computes on no device of this machine"]


def advice(machine: Machine, parts: dict[str, str | None], compiler: str | None) -> list[str]:
    """Return a line for each missing part: its name, what needs it, and how to get it."""
    lines = []
    facts = machine.torch
    if "version" not in facts:
        lines.append(_why_no_torch(machine))
    elif machine.problem:
        where = machine.at or "the last device"
        lines.append(f"a probe of {where}: {machine.problem}; a run on it would fail in the same way")
    needed = [part for part in PARTS if part.name != NVIDIA or (_gpus() and not facts.get("hip"))]
    lines += [f"{part.name}, for {part.needed}: {part.get}" for part in needed if parts[part.name] is None]
    if compiler is None:
        lines.append("a C++ compiler, for torch.compile on a CPU: apt install g++ (or your system's)")
    if "version" in facts and _gpus() and not facts["accelerator"]:
        lines.append(
            f"a torch that computes on the GPU which the driver shows: this is {facts['version']} "
            f"({'CUDA ' + facts['cuda'] if facts['cuda'] else 'built without CUDA'}); "
            "see pytorch.org for the build that fits the driver"
        )
    return lines


def _why_no_torch(machine: Machine) -> str:
    reason = str(machine.torch.get("problem") or machine.problem or "")
    if "No module named 'torch'" in reason:
        return "torch, for every run: pip install torch"
    return f"a torch that can be imported ({_place_of_torch(machine)}: {reason}): pip install --force-reinstall torch"


def _place_of_torch(machine: Machine) -> str:
    try:
        spec = util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    return machine.torch.get("file") or (spec.origin if spec is not None and spec.origin else "an unknown place")
