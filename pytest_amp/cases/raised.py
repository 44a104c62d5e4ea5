"""Errors that a project's code raises within a check: message, location, and whether to raise them again."""

from __future__ import annotations

import sysconfig
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
import torch

from pytest_amp.devices.faults import fault_in
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.text.quoted import quoted
from pytest_amp.torch_private import PrivateApiGone

#: Frames between a check and the project: torch's and this package's.
_LIBRARIES = Path(torch.__file__).parent, Path(__file__).parent.parent
_PYTHON = Path(sysconfig.get_path("stdlib"))
_INSTALLED = tuple({Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")})
#: Exceptions that are not errors of a case: a usage error, a missing private API, and the end of a session or a skip.
_PASS = AmpUsageError, PrivateApiGone, pytest.exit.Exception, unittest.SkipTest
#: Maximum length of an error's text in a message.
_MOST = 300


def passes(error: BaseException) -> bool:
    """Return whether a check passes ``error`` on unchanged.

    It does for ``pytest.skip``, ``fail`` and ``xfail``, which are not subclasses of ``Exception``, for
    KeyboardInterrupt, and for faults of the machine, such as a device that is out of memory.
    """
    return not isinstance(error, Exception) or isinstance(error, _PASS) or fault_in(error) is not None


def in_one_line(error: BaseException) -> str:
    """Return the error's type, location and message in one line: ``KeyError (models.py:31): 'hidden'``.

    If an installed library raised it, the location is the line in the library and the project's line that called it.
    """
    error = _stopped(error)
    frames = own_frames(error)
    places = [_place(frames[-1])] if frames else []
    callers = [frame for frame in frames if not _is_installed(frame)]
    if callers and callers[-1] is not frames[-1]:
        places.append(f"called at {_place(callers[-1])}")
    where, words = f" ({', '.join(places)})" if places else "", _words(error)
    return f"{type(error).__name__}{where}{f': {words}' if words else ''}"


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _words(error: BaseException) -> str:
    try:
        return quoted(error, _MOST)
    except Exception as failed:  # noqa: BLE001  # an exception's own __str__ may raise anything
        return f"str() raised {type(failed).__name__}"


def own_frames(error: BaseException, trace: TracebackType | None = None) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback outside of torch, Python and this package, innermost last.

    ``trace`` is the part to read; by default all of it.
    """
    stopped = _stopped(error)
    part = stopped.__traceback__ if trace is None or stopped is not error else trace
    return list(_user_frames(traceback.extract_tb(part)))


def _user_frames(frames: traceback.StackSummary) -> Iterator[traceback.FrameSummary]:
    for frame in frames:
        path = Path(frame.filename)
        python = path.is_relative_to(_PYTHON) and not _is_installed(frame)
        if not (frame.filename.startswith("<") or python or any(path.is_relative_to(folder) for folder in _LIBRARIES)):
            yield frame


def _is_installed(frame: traceback.FrameSummary) -> bool:
    return any(Path(frame.filename).is_relative_to(folder) for folder in _INSTALLED)


def _stopped(error: BaseException) -> BaseException:
    """Return the StopIteration that a generator has turned into a RuntimeError; any other error unchanged."""
    cause = error.__cause__
    return cause if isinstance(error, RuntimeError) and isinstance(cause, StopIteration) else error


def failure_of(what: str, error: BaseException, *, expected: str, likely: str) -> AmpFailure:
    """Return the failure of a user's function: ``what`` names it, ``expected`` its contract."""
    return AmpFailure(
        f"{what} raised {type(_stopped(error)).__name__}",
        label_before="expected",
        before=expected,
        now=f"{in_one_line(error)}, on torch {torch.__version__}",
        likely=likely,
    )
