"""torch.compile under mixed precision: compilation of a case, comparison with eager, and the toolchain."""

from pytest_amp.compiled.comparison import check_compiled, eager_and_compiled
from pytest_amp.compiled.compilation import Compilation, Where
from pytest_amp.compiled.packages import loaded, own_cpp_library
from pytest_amp.compiled.sandbox import folder, sandbox
from pytest_amp.compiled.toolchain import lacking

__all__ = [
    "Compilation",
    "Where",
    "check_compiled",
    "eager_and_compiled",
    "folder",
    "lacking",
    "loaded",
    "own_cpp_library",
    "sandbox",
]
