"""Keywords of checks under their former names: accepted for one release, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from pytest_amp.failure import AmpUsageError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def renamed_keywords(**names: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator of a method that accepts keywords by their former names, ``former="current"``.

    A former name warns with DeprecationWarning at the caller's line, and names the current one. Both names in one call
    raise AmpUsageError.
    """

    def decorate(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(method)
        def call(*args: object, **kwargs: object) -> _Result:
            __tracebackhide__ = True  # an unexpected keyword is reported at the caller's line
            for former, current in names.items():
                if former not in kwargs:
                    continue
                if current in kwargs:
                    raise AmpUsageError(
                        f"{method.__name__} has {former}= and {current}=, its new name; expected {current}= alone"
                    )
                warnings.warn(
                    f"{method.__name__}({former}=) is called {current}=; the next release has no {former}=",
                    DeprecationWarning,
                    stacklevel=2,
                )
                kwargs[current] = kwargs.pop(former)
            return method(*args, **kwargs)  # type: ignore[arg-type]  # the method checks its arguments itself

        return cast("Callable[_Arguments, _Result]", call)

    return decorate
