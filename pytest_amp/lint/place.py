"""Place of a call in Python: the user's line and function, and the line of a library that makes the call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from pytest_amp.numerics.callers import ENGINE, PACKAGE, TORCH, Author, author_of, short
from pytest_amp.numerics.entered_regions import decorated_code

#: Module that calls the user's functions; outer frames belong to the test.
RUNNER = f"{Path(__file__).parent / 'runs.py'}"
#: File of the call of a module.
_MODULE = f"{TORCH}nn/modules/module.py"
#: torch's Python code between a caller and the operator that it calls by name.
_WRAPPERS = (f"{TORCH}_tensor.py", f"{TORCH}overrides.py", f"{TORCH}functional.py", f"{TORCH}nn/functional.py")


@dataclass(frozen=True)
class Place:
    """Place of a call.

    Fields
    ------
    line:
        The user's innermost line as ``file.py:12``; ``""`` where no frame is the user's.
    function:
        Name of the function of that line.
    callers:
        The user's lines outside of the model and the case's loss, innermost first: of the training step or the
        evaluation, and of the functions that it calls.
    library:
        Line of an installed library that makes the call for the user; ``""`` where the user makes it.
    key:
        File and first line of the function that makes the call, the library's where there is one.
    is_torch:
        Whether torch's own Python code makes the call, beyond thin wrappers of operators.
    """

    line: str = ""
    function: str = ""
    callers: tuple[str, ...] = ()
    library: str = ""
    key: tuple[str, int] = ("", 0)
    is_torch: bool = False

    @property
    def caller(self) -> str:
        """Return the innermost line outside of the model and the loss; ``""`` without one."""
        return self.callers[0] if self.callers else ""

    @property
    def by_way_of(self) -> str:
        """Return the further lines outside of the model, as the end of a sentence."""
        lines = list(dict.fromkeys(self.callers[1:4]))
        return f"; called at {', '.join(lines)}" if lines else ""


def calling_place(*, backward: bool = False) -> Place:
    """Return the place of the current call.

    With ``backward`` only frames inside autograd's engine count: those of a ``torch.autograd.Function`` or a hook.
    """
    innermost = maker = first = None
    callers: list[str] = []
    for frame in _frames(backward=backward):
        file = frame.f_code.co_filename
        author = author_of(file)
        if file == _MODULE or file.startswith(PACKAGE):
            callers.clear()  # what is further in belongs to the model, or to this package
        elif author is Author.USER:
            innermost = innermost or frame
            callers.append(_line(frame))
        if author is not Author.OTHER and file not in _WRAPPERS:
            first = first or author
            if maker is None and author is not Author.TORCH:
                maker = frame
    is_library = maker is not None and author_of(maker.f_code.co_filename) is Author.LIBRARY
    return Place(
        line=_line(innermost) if innermost is not None else "",
        function=_name(innermost.f_code) if innermost is not None else "",
        callers=tuple(callers),
        library=_line(maker) if maker is not None and is_library else "",
        key=("", 0) if maker is None else (maker.f_code.co_filename, maker.f_code.co_firstlineno),
        is_torch=first is Author.TORCH,
    )


def decorated_place(frame: FrameType) -> Place | None:
    """Return the place of a function that a region of autocast decorates, if ``frame`` enters the region for it."""
    code = decorated_code(frame)
    if code is None:
        return None
    line = f"{short(code.co_filename)}:{code.co_firstlineno}"
    return Place(line, _name(code), (line,), key=(code.co_filename, code.co_firstlineno))


def _frames(*, backward: bool) -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # inspect.currentframe is the same
    while frame is not None:
        file = frame.f_code.co_filename
        if file == RUNNER or (backward and file in ENGINE):
            return
        yield frame
        frame = frame.f_back


def _line(frame: FrameType) -> str:
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _name(code: CodeType) -> str:
    name = str(getattr(code, "co_qualname", code.co_name))
    return name.rpartition("<locals>.")[2]
