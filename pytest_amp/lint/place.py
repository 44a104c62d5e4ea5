"""Place of a call in Python: the user's line and function, and the line of a library that makes the call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from pytest_amp.numerics.callers import ENGINE, TORCH, Author, author_of, short

#: Module that calls the user's functions; outer frames belong to the test.
RUNNER = f"{Path(__file__).parent / 'runs.py'}"
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
    outer:
        The user's outermost line: of the training step, the evaluation or the loss.
    library:
        Line of an installed library that makes the call for the user; ``""`` where the user makes it.
    key:
        File and first line of the function that makes the call, the library's where there is one.
    is_torch:
        Whether torch's own Python code makes the call, beyond thin wrappers of operators.
    """

    line: str = ""
    function: str = ""
    outer: str = ""
    library: str = ""
    key: tuple[str, int] = ("", 0)
    is_torch: bool = False


def calling_place(*, backward: bool = False) -> Place:
    """Return the place of the current call.

    With ``backward`` only frames inside autograd's engine count: those of a ``torch.autograd.Function`` or a hook.
    """
    innermost = outermost = maker = first = None
    for frame in _frames(backward=backward):
        file = frame.f_code.co_filename
        author = author_of(file)
        if author is Author.USER:
            innermost, outermost = innermost or frame, frame
        if author is not Author.OTHER and file not in _WRAPPERS:
            first = first or author
            if maker is None and author is not Author.TORCH:
                maker = frame
    is_library = maker is not None and author_of(maker.f_code.co_filename) is Author.LIBRARY
    return Place(
        line=_line(innermost) if innermost is not None else "",
        function=_name(innermost.f_code) if innermost is not None else "",
        outer=_line(outermost) if outermost is not None else "",
        library=_line(maker) if maker is not None and is_library else "",
        key=("", 0) if maker is None else (maker.f_code.co_filename, maker.f_code.co_firstlineno),
        is_torch=first is Author.TORCH,
    )


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
