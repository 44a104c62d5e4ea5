"""Options and ini keys, in one table, and their values together: a frozen AmpConfig.

The command line wins over ini, ini over the default. Nothing here imports torch: a device is probed later.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_amp.precision import ALIASES, DECIMAL, LOW

if TYPE_CHECKING:
    from pytest_amp.floors import Row
    from pytest_amp.known.rows import Known

#: Device types that torch itself has; PrivateUse1 back ends come by the hook pytest_amp_devices.
DEVICE_TYPES = ("cpu", "cuda", "xpu", "mps", "mtia", "privateuseone")
FAKE_DEVICES = ("fake:cuda", "fake:xpu", "fake:mps", "fake:mtia")
REPORTS = "json:PATH, md:PATH, html:PATH, or github in a job of GitHub Actions"
#: Formats of a report; those that are written to a file are the usual endings of such files, too.
FORMATS = ("json", "md", "html", "github")
COMMAND_LINE, ADDOPTS, OVERRIDE = "command line", "addopts", "-o on the command line"


@dataclass(frozen=True)
class Report:
    """Requested report: its format, and the path of its file."""

    format: str
    path: Path


@dataclass(frozen=True)
class AmpConfig:
    """Values of the options. ``sources`` has the source of each, by ini key, and ``texts`` its text there."""

    device: tuple[str, ...]
    dtype: tuple[str, ...]
    baseline: Path | None
    record: Path | None
    speed: str | None
    report: tuple[Report, ...]
    allow_missing: frozenset[str]
    strict: bool
    accept: bool
    known: tuple[Known, ...]
    floors: tuple[Row, ...]
    tier: str
    tolerance_scale: float
    seed: int
    timeout: tuple[float, float]
    sources: Mapping[str, str]
    texts: Mapping[str, str | None]

    def where(self, ini: str) -> str:
        """Return an option or ini key with the source of its value: ``--amp-device (command line)``."""
        return _where(ini, self.sources[ini])

    def typed(self, names: Iterable[str]) -> list[str]:
        """Return the options among the ini keys ``names`` that are on the command line, as they can be typed again."""
        typed = {option.ini: option for option in OPTIONS if self.sources[option.ini] == COMMAND_LINE}
        return [
            typed[ini].name if typed[ini].flag else f"{typed[ini].name}={self.texts[ini]}"
            for ini in names
            if ini in typed
        ]

    @property
    def explicit(self) -> bool:
        """Return whether any option or ini key has a value."""
        return any(source != "default" for source in self.sources.values())

    @property
    def named_devices(self) -> tuple[str, ...]:
        """Return the devices that are requested by name, and must be available."""
        return tuple(name for name in self.device if name not in ("auto", "all"))


def _where(ini: str, source: str) -> str:
    name = f"--{ini.replace('_', '-')}" if source in (COMMAND_LINE, ADDOPTS) else ini
    return f"{name} ({source})"


class _Bad(ValueError):
    """Invalid value; the message says what is valid."""


def _choice(value: str, what: str, valid: tuple[str, ...]) -> str:
    if value not in valid:
        raise _Bad(f"{value!r} is not {what}; expected {', '.join(valid)}")
    return value


def _list(value: str, what: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in re.split(r"[,\n]", value.strip()))
    if not all(parts):
        raise _Bad(f"{value!r} has an empty {what}; expected a list with commas")
    return tuple(dict.fromkeys(parts))


def _device(value: str, context: Context) -> tuple[str, ...]:
    types = (*DEVICE_TYPES, *context.device_types)
    for name in _list(value, "device"):
        device_type, colon, index = name.partition(":")
        indexed = colon and device_type in types and device_type != "cpu" and re.fullmatch(r"[0-9]+", index)
        if not indexed and name not in ("auto", "all", *types, *FAKE_DEVICES):
            valid = ("auto", "all", *types, "cuda:1", *FAKE_DEVICES)
            raise _Bad(f"{name!r} is not a device; expected {', '.join(valid)}")
    names = _list(value, "device")
    real = [name.partition(":")[0] for name in names if not name.startswith("fake:")]
    twice = next((device_type for device_type in real if real.count(device_type) > 1), None)
    if twice is not None:
        raise _Bad(f"{value!r} names two devices of type {twice}; expected one device of each type in a run")
    return names


def _dtype(value: str, _context: Context) -> tuple[str, ...]:
    names = []
    for name in _list(value, "dtype"):
        _choice(name, "a dtype", ("auto", "all", *ALIASES))
        names += list(LOW) if name == "all" else [ALIASES[name].name if name in ALIASES else name]
    return tuple(dict.fromkeys(names))


def _baseline(value: str, context: Context) -> Path:
    path = context.path(value)
    if not path.is_file() and (path.exists() or "baseline" not in context.allow_missing):
        raise _Bad(f"{str(path)!r} is not a file; expected a file that --amp-record wrote in an earlier run")
    return path


def _record(value: str, context: Context) -> Path:
    path = _writable(value, context)
    if path.exists() or path.is_symlink():  # a link to nowhere keeps its name, too
        raise _Bad(f"{str(path)!r} exists already, and a record is never overwritten; expected a new file")
    return path


def _writable(value: str, context: Context) -> Path:
    path = context.path(value)
    # A record takes its name in one step, which would put a regular file where a device or a pipe was.
    folder = path.resolve().parent  # a link stays, and the file that it leads to is written
    if not folder.is_dir() or (path.exists() and not path.is_file()):
        raise _Bad(f"{str(path)!r} cannot be written; expected a regular file in a folder that exists")
    if not os.access(folder, os.W_OK):  # better now than after a run of an hour
        raise _Bad(f"{str(path)!r} cannot be written; expected a file in a folder in which files may be made")
    return path


def _report(value: str, context: Context) -> tuple[Report, ...]:
    reports = []
    for part in _list(value, "report"):
        name, _, path = part.partition(":")
        ending = Path(name).suffix[1:]
        if not path and ending in FORMATS[:-1]:
            raise _Bad(f"{name!r} names a file and no format; expected {ending}:{name}")
        _choice(name, "a report format", FORMATS)
        if name == "html" and importlib.util.find_spec("jinja2") is None:
            raise _Bad("html needs jinja2, which is not installed: pip install 'pytest-amp[html]'")
        if name == "github":
            from pytest_amp.refusals import job_summary

            reports.append(Report(name, job_summary(part, REPORTS)))
            continue
        if not path:
            raise _Bad(f"{part!r} names no file; expected {REPORTS}")
        reports.append(Report(name, _writable(path, context)))
    return tuple(reports)


#: What --amp-allow-missing takes.
MAY_BE_MISSING = ("device", "dtype", "baseline", "sweep", "compiler", "distributed")


def _allow_missing(value: str, _context: Context) -> frozenset[str]:
    names = _list(value, "name")
    for name in names:
        _choice(name, "something that may be missing", MAY_BE_MISSING)
    return frozenset(names)


def _speed(value: str, _context: Context) -> str:
    return _choice(value, "a speed mode", ("off", "report", "gate"))


def _floors(value: str, context: Context) -> tuple[Row, ...]:
    from pytest_amp import floors

    try:
        return floors.read(context.path(value))
    except floors.FloorsError as error:
        raise _Bad(f"{error}; expected a file that pytest-amp calibrate wrote") from None


def _tier(value: str, _context: Context) -> str:
    return _choice(value, "a tier", ("ordinary", "long", "all"))


def _tolerance_scale(value: str, _context: Context) -> float:
    number = float(value) if DECIMAL.fullmatch(value) else math.nan
    if not (0 < number < math.inf):
        raise _Bad(f"{value!r} is not a number above 0; expected 0.5, 1.0, 2.0, …")
    return number


def _timeout(value: str, _context: Context) -> tuple[float, float]:
    test, comma, run = value.partition(",")
    if not all(re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", part) for part in (test, run if comma else "0")):
        raise _Bad(
            f"{value!r} is not a time limit; expected seconds of a test, as 600, or also of the run, as 600,7200"
        )
    return float(test), float(run or 0)


def _seed(value: str, _context: Context) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise _Bad(f"{value!r} is not a seed; expected an integer from 0, of at most 18 digits")
    return int(value)


def _flag(value: str, _context: Context) -> bool:
    return _choice(value.lower(), "a truth value", ("true", "false")) == "true"


def _known(value: str, context: Context) -> tuple[Known, ...]:
    from pytest_amp.known.rows import read_known

    return read_known(context.path(value))


@dataclass(frozen=True)
class Option:
    """Option and its ini key, which has the same name with underscores."""

    ini: str
    parse: Callable[[str, Context], object]
    default: str | None
    metavar: str
    help: str
    flag: bool = False
    repeatable: bool = False

    @property
    def name(self) -> str:
        """Return the option as it is typed: ``--amp-device``."""
        return f"--{self.ini.replace('_', '-')}"


#: In the order in which --help shows them; allow-missing is parsed first, since baseline asks it.
OPTIONS = (
    Option("amp_device", _device, "auto", "DEVICES", "comma list, repeatable: auto, all, cpu, cuda, cuda:1, xpu, mps, "
           "mtia, fake:cuda, fake:xpu, fake:mps, fake:mtia (default: auto, the accelerator if it computes, else cpu)",
           repeatable=True),
    Option("amp_dtype", _dtype, "auto", "DTYPES", "comma list, repeatable: auto, all, bf16, fp16 or torch's own names "
           "(default: auto, what the device computes)", repeatable=True),
    Option("amp_baseline", _baseline, None, "FILE", "compare with the record of an earlier run"),
    Option("amp_record", _record, None, "FILE", "write what this run observed to a new file, a later run's baseline"),
    Option("amp_speed", _speed, None, "MODE", "off, report or gate (default: gate on a GPU that this process owns "
           "alone, else off)"),
    Option("amp_report", _report, None, "FORMAT:PATH", f"write a report, repeatable: {REPORTS}", repeatable=True),
    Option("amp_allow_missing", _allow_missing, None, "NAMES", "comma list: device, dtype, baseline, sweep "
           "(torch's own tests, which the fingerprint needs), compiler (what torch.compile needs: C++, Triton), "
           "distributed (process groups: a torch that is built with them); what is named here and missing is skipped "
           "instead of refused"),
    Option("amp_strict", _flag, "false", "", "on a torch release newer than the rule spec, new and gone operators "
           "fail; so does an inconclusive verdict, and a key that has gone from the baseline", flag=True),
    Option("amp_accept", _flag, "false", "", "merge what the passing tests of this run observed into the file of "
           "--amp-baseline, and show what that changes", flag=True),
    Option("amp_known", _known, None, "FILE", "a TOML file of faults that this project accepts: key patterns with a "
           "reason and a report; they are listed, and fail the run once they are gone"),
    Option("amp_floors", _floors, None, "FILE", "a file that pytest-amp calibrate wrote: speedups that the cards in it "
           "must reach, before those that come with the plugin"),
    Option("amp_tier", _tier, "ordinary", "TIER", "ordinary, long or all (default: ordinary)"),
    Option("amp_tolerance_scale", _tolerance_scale, "1.0", "FACTOR", "multiplies every tolerance (default: 1.0)"),
    Option("amp_seed", _seed, "0", "SEED", "seed of every random input (default: 0)"),
    Option("amp_timeout", _timeout, "3600", "SECONDS", "what one test may take, and after a comma the whole run; 0 is "
           "no limit (default: 3600,0)"),
)  # fmt: skip


@dataclass(frozen=True)
class Context:
    """Facts on which the parsing of a value may depend."""

    device_types: tuple[str, ...] = ()
    allow_missing: frozenset[str] = frozenset()
    base: Path = Path()

    def path(self, value: str) -> Path:
        """Return ``value`` as a path; a relative one starts at the folder of its source. Raises ValueError."""
        if not value.strip() or "\0" in value:
            raise _Bad(f"{value!r} names no file; expected a path")
        try:
            path = self.base / Path(value).expanduser()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.resolve().lstat()
        except (OSError, RuntimeError) as error:  # too long, in a folder that is closed, of a user that is not there
            raise _Bad(f"{value!r}: {getattr(error, 'strerror', None) or error}; expected a path") from None
        return path


def add_options(parser: pytest.Parser) -> None:
    """Add every option, in the group ``amp``, and every ini key."""
    group = parser.getgroup("amp", "mixed precision")
    for option in OPTIONS:
        # pytest formats help with %, and argparse demands that flags have no metavar.
        if option.flag:
            group.addoption(option.name, dest=option.ini, action="store_true", default=None, help=option.help)
        else:
            action = "append" if option.repeatable else "store"
            group.addoption(
                option.name, dest=option.ini, action=action, metavar=option.metavar, default=None, help=option.help
            )
        parser.addini(
            option.ini, help=f"same as {option.name}{', one a line' * option.repeatable}", type="string", default=None
        )


def read(config: pytest.Config, device_types: tuple[str, ...] = ()) -> AmpConfig:
    """Read command line and ini. Raises pytest.UsageError, which names the value, its source and what is expected."""
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    texts: dict[str, str | None] = {}
    _refuse_unknown(config)
    allow_missing: frozenset[str] = frozenset()
    for option in sorted(OPTIONS, key=lambda option: option.ini != "amp_allow_missing"):
        text, source, base = _text(config, option)
        try:
            value = None if text is None else option.parse(text, Context(device_types, allow_missing, base))
        except ValueError as bad:
            raise pytest.UsageError(f"{_where(option.ini, source)}: {bad}") from None
        if option.ini == "amp_allow_missing":
            value = allow_missing = value if isinstance(value, frozenset) else frozenset()
        values[option.ini.removeprefix("amp_")] = value
        sources[option.ini], texts[option.ini] = source, text
    for name in ("report", "known", "floors"):
        values[name] = values[name] or ()
    options = AmpConfig(sources=sources, texts=texts, **values)  # type: ignore[arg-type]  # the table's parsers give these types
    if options.report:
        from pytest_amp.refusals import refuse_one_file_twice

        refuse_one_file_twice(options)
    if options.accept and (options.baseline is None or not options.baseline.is_file()):
        raise pytest.UsageError(
            f"{options.where('amp_accept')}: no baseline to change; expected --amp-baseline=FILE, too"
        )
    return options


def _refuse_unknown(config: pytest.Config) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pytest 9, which has no other place for what is written there
        written = [*getattr(config, "inicfg", ()), *_overridden(config)]
    known = {option.ini for option in OPTIONS}
    if unknown := [name for name in written if name not in known and "amp" in name.lower()]:
        from pytest_amp.refusals import refuse_unknown

        refuse_unknown(sorted(unknown), [option.ini for option in OPTIONS], config)


def _overridden(config: pytest.Config) -> list[str]:
    """Return the keys that ``-o`` names."""
    return [word.partition("=")[0].strip() for word in config.option.override_ini or ()]


def _text(config: pytest.Config, option: Option) -> tuple[str | None, str, Path]:
    """Return the value as text, its source, and the folder in which a relative path in it starts."""
    option_value = config.getoption(option.ini)
    if option_value is not None:
        text = ",".join(option_value) if isinstance(option_value, list) else str(option_value)
        if option.flag:
            text = "true"
        typed = any(str(word).partition("=")[0] == option.name for word in config.invocation_params.args)
        return text, COMMAND_LINE if typed else ADDOPTS, config.invocation_params.dir
    base = config.inipath.parent if config.inipath else config.rootpath
    source = config.inipath.name if config.inipath else "ini"
    if option.ini in _overridden(config):
        base, source = config.invocation_params.dir, OVERRIDE
    try:
        ini = config.getini(option.ini)
    except (TypeError, ValueError, pytest.UsageError) as error:  # what pytest says of a list depends on its version
        raise pytest.UsageError(f"{option.ini} ({source}): {error}; expected a string") from None
    if isinstance(ini, list):  # which pytest passes on from its older table of TOML
        text = ",".join(map(str, ini))
        raise pytest.UsageError(f'{option.ini} ({source}): {ini!r} is a list; expected text, "{text}"')
    if ini is not None:
        return str(ini), source, base
    return option.default, "default", base
